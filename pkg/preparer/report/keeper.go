package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/claim"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// acquireTimeout is the longest time for one try to take the lock.
const acquireTimeout = 10 * time.Second

var errAcquireTimeout = errors.New("the node record could not be written within " + acquireTimeout.String())

// NodeReader reads the node's record.
type NodeReader interface {
	Node(ctx context.Context, name string) (store.Rec[node.Node], error)
	WatchNode(ctx context.Context, node string, onError func(error), deliver func(store.Seen[node.Node]) error) error
}

// NodeWriter writes the node's record and orphans.
type NodeWriter interface {
	AcquireNode(ctx context.Context, n node.Node, takeOver bool) error
	// Allowed returns a record without the fields that the version gate forbids (ADR 28). An unknown gate forbids none.
	Allowed(n node.Node) node.Node
	// GateVersion returns the version in the version gate. While the gate is lower than this program's version, each
	// call reads it again.
	GateVersion(ctx context.Context) string
	WriteOrphans(ctx context.Context, epoch string, orphans []pod.Orphan, again bool) (node.OrphanPages, error)
}

// Keeper holds the node's lock, and keeps the node's record and its pages of orphans up to date.
type Keeper struct {
	Node    string
	Reader  NodeReader
	Writer  NodeWriter
	Name    *claim.Name
	Contact *claim.Contact
	Limiter *loop.LogLimiter
	Log     obs.Logger

	// Says returns the desired record, and the orphans if the intents are known.
	Says   func() (n node.Node, orphans []pod.Orphan, knows bool)
	Locked func(bool) // called with true when the lock was taken, with false when another has it
	// Cut is called with the number of fields and orphans that are cut because farms would refuse them.
	Cut      func(n int)
	NameLost func()     // called when another host took the name over; all pods must end
	Refused  func(bool) // called with whether another host owns the name

	ConfirmLoss time.Duration                      // between the two reads that confirm a takeover
	RelistEvery time.Duration                      // between two reads of the pages, which have no watch
	LookAtGate  time.Duration                      // between two reads of the gate, plus or minus half
	NewPace     func() *backoff.ExponentialBackOff // of retries

	Changed wait.Signal // the result of Says may have changed
	Recheck wait.Signal // the record must be written again, even if unchanged

	written atomic.Pointer[string] // the record as last written, from recordText
}

// Run takes and holds the lock. It returns the cause of the end of ctx, or store.ErrLost.
func (k *Keeper) Run(ctx context.Context) error {
	const key = "node record"
	pace, pagesPace := k.NewPace(), k.NewPace()
	must := true  // the record must be written, even if unchanged
	again := true // the stored pages must be read
	for {
		n, pagesErr := k.recordAfterPages(ctx, again)
		n = k.Writer.Allowed(n)
		must = must || errors.Is(pagesErr, store.ErrLost)
		if must || pagesErr == nil && !k.isWritten(n) {
			err := k.acquire(ctx, n)
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case errors.Is(err, store.ErrLost):
				return err
			case err != nil:
				k.notAcquired(ctx, key, err)
				must, again = true, true
				if err := wait.Pause(ctx, pace.NextBackOff()); err != nil {
					return err
				}
				continue
			}
			k.Limiter.Over(key)
			pace.Reset()
			k.tookLock(n)
		}
		pause := k.RelistEvery
		if pagesErr == nil {
			pagesPace.Reset()
		} else {
			pause = pagesPace.NextBackOff()
		}
		var err error
		if must, again, err = k.nextRecord(ctx, pause); err != nil {
			return err
		}
		again = again || pagesErr != nil
	}
}

// nextRecord waits until the record must be compared again. must: write it even if unchanged. again: read the pages in
// Consul again.
func (k *Keeper) nextRecord(ctx context.Context, pause time.Duration) (must, again bool, err error) {
	select {
	case <-ctx.Done():
		return false, false, context.Cause(ctx)
	case <-k.Changed:
		return false, false, nil
	case <-k.Recheck:
		return true, true, nil
	case <-time.After(pause):
		return false, true, nil
	}
}

// recordAfterPages writes the pages of orphans, and then returns the record, which refers to them. So a farm that sees
// the epoch in the record can read all pods that the node runs (R1). If the orphans are not known or not written, the
// record has neither epoch nor pages.
func (k *Keeper) recordAfterPages(ctx context.Context, again bool) (node.Node, error) {
	const key = "orphans"
	n, orphans, knows := k.Says()
	orphans = k.fit(&n, orphans)
	if !knows {
		return n, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, acquireTimeout, errAcquireTimeout)
	defer cancel()
	pages, err := k.Writer.WriteOrphans(ctx, n.Epoch, orphans, again)
	if err != nil {
		if !errors.Is(err, store.ErrLost) && ctx.Err() == nil {
			k.Limiter.Report(key, "cannot report which pods run here without an intent; farms with new records wait "+
				"for this report before they add pods", err)
		}
		n.Epoch = ""
		return n, err
	}
	k.Limiter.Over(key)
	n.OrphanPages = &pages
	return n, nil
}

// fit cuts what farms would refuse. Otherwise one bad field could keep the node from writing its record.
func (k *Keeper) fit(n *node.Node, orphans []pod.Orphan) []pod.Orphan {
	const key = "record out of bounds"
	cut := n.Fit()
	orphans, n.OrphansLeftOut = node.FitOrphans(orphans)
	all := len(cut) + n.OrphansLeftOut
	k.Cut(all)
	switch {
	case n.OrphansLeftOut > 0:
		k.Limiter.Report(key, "farms would refuse some of what this node says; that is cut",
			fmt.Errorf("%d orphans are left out; cut are %v", n.OrphansLeftOut, cut))
	case all > 0:
		k.Limiter.Report(key, "farms would refuse some of what this node says; that is cut",
			fmt.Errorf("cut are %v", cut))
	default:
		k.Limiter.Over(key)
	}
	return orphans
}

func (k *Keeper) notAcquired(ctx context.Context, key string, err error) {
	var conflict *store.NameConflictError
	_, locked := store.LockedBy(err)
	switch {
	case errors.As(err, &conflict):
		k.Locked(false)
		k.Refused(true)
		if k.Name.Refuse(err) {
			k.Contact.SetServing(false)
		}
		// The message names the host, so that the limiter logs another host at once.
		k.Limiter.Report(key, "this node's name belongs to another host; no intents are taken: "+
			claim.HostOf(conflict.Record), err)
		k.checkName(ctx)
	case locked:
		k.Locked(false)
		k.Limiter.Report(key, "another preparer holds this node's name; no intents are taken until it lets go", err)
	default:
		k.Limiter.Report(key, "node record cannot be written", err)
	}
}

func (k *Keeper) checkName(ctx context.Context) {
	rec, err := k.Reader.Node(ctx, k.Node)
	var corrupt *store.CorruptError
	if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.As(err, &corrupt) {
		return // Consul did not answer, so nothing is known
	}
	read := &rec
	if err != nil {
		read = nil
	}
	lost, kept := k.Name.ConfirmTakeover(read, time.Now(), k.ConfirmLoss)
	if kept != "" {
		k.Log.WithField(obs.Reason, kept).Warn("pods of this host keep running although its node's name is " +
			"another's; if they run elsewhere too, end them")
	}
	if !lost {
		return
	}
	k.Log.WithField(obs.Reason, "taken over by host "+claim.HostOf(rec.Value)).Error("this node's name was taken " +
		"over by another host, which declares this one dead; all its pods are stopped, so that none runs twice")
	k.NameLost()
}

func (k *Keeper) acquire(ctx context.Context, n node.Node) error {
	ctx, cancel := context.WithTimeoutCause(ctx, acquireTimeout, errAcquireTimeout)
	defer cancel()
	return k.Writer.AcquireNode(ctx, n, k.Name.TakeOver())
}

func (k *Keeper) tookLock(n node.Node) {
	text := recordText(n)
	k.written.Store(&text)
	k.Name.Take()
	k.Refused(false)
	k.Contact.SetServing(true) // a preparer without the name had no contact
	k.Locked(true)
}

func (k *Keeper) isWritten(n node.Node) bool {
	written := k.written.Load()
	return written != nil && *written == recordText(n)
}

// recordText omits the fields that the session sets.
func recordText(n node.Node) string {
	n.Incarnation, n.ConsulNode = "", ""
	data, err := json.Marshal(n)
	if err != nil {
		return "" // impossible, because node.Node has plain fields only
	}
	return string(data)
}

// FollowGate makes Run compare the record again when the version gate has changed, because the gate may now allow a
// field that was left out.
func (k *Keeper) FollowGate(ctx context.Context) error {
	known := ""
	for {
		if err := wait.Pause(ctx, k.LookAtGate/2+rand.N(k.LookAtGate)); err != nil {
			return err
		}
		if version := k.Writer.GateVersion(ctx); version != known {
			known = version
			k.Changed.Raise()
		}
	}
}

// Watch makes Run write the record again if it was deleted, lost its lock, or was changed by another program.
func (k *Keeper) Watch(ctx context.Context) error {
	const key = "own node record"
	onError := func(err error) {
		k.Limiter.Report(key, "own node record cannot be read; its lock is held on", err)
	}
	return k.Reader.WatchNode(ctx, k.Node, onError, func(seen store.Seen[node.Node]) error {
		if seen.WentBack {
			return k.Name.WentBack()
		}
		k.Limiter.Over(key)
		if len(seen.Recs) > 0 && seen.Recs[0].Session != "" && seen.Recs[0].Value.Host == k.Name.Host() {
			k.Name.Saw(seen.Recs[0])
		}
		if len(seen.Recs) == 0 || seen.Recs[0].Session == "" || !k.isWritten(seen.Recs[0].Value) {
			k.Recheck.Raise()
		}
		return nil
	})
}
