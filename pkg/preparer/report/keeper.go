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

// acquireTimeout bounds one try to take the lock, so that what is in the way gets logged.
const acquireTimeout = 10 * time.Second

var errAcquireTimeout = errors.New("the node record could not be written within " + acquireTimeout.String())

// NodeReader is what a Keeper reads; *store.Store is one.
type NodeReader interface {
	Node(ctx context.Context, name string) (store.Rec[node.Node], error)
	WatchNode(ctx context.Context, node string, onError func(error), deliver func(store.Seen[node.Node]) error) error
}

// NodeWriter is what a Keeper writes; *store.NodeSession is one.
type NodeWriter interface {
	AcquireNode(ctx context.Context, n node.Node, takeOver bool) error
	// Allowed returns a record without what the gate does not allow, as far as it is known (ADR 28).
	Allowed(n node.Node) node.Node
	// GateVersion returns the gate, as it is now while it allows less than this program knows.
	GateVersion(ctx context.Context) string
	WriteOrphans(ctx context.Context, epoch string, orphans []pod.Orphan, again bool) (node.OrphanPages, error)
}

// Keeper holds the node's lock and keeps the record under it true, and the pages of orphans that it leads to. It writes only what differs.
type Keeper struct {
	Node    string
	Reader  NodeReader
	Writer  NodeWriter
	Name    *claim.Name
	Contact *claim.Contact
	Limiter *loop.LogLimiter
	Log     obs.Logger

	// Says returns what the record should say, and with it the orphans, if the intents that tell them are known.
	Says     func() (n node.Node, orphans []pod.Orphan, knows bool)
	Locked   func(bool)  // is told that the lock was taken, or is another's
	Cut      func(n int) // is told how many fields of the record, and orphans, are cut or left out because their readers would refuse them
	NameLost func()      // is told that another host has taken the name over, which ends all pods
	Refused  func(bool)  // is told whether the name is another host's

	ConfirmLoss time.Duration                      // between two answers that the name was taken over
	RelistEvery time.Duration                      // between two looks at the pages, which nothing watches
	LookAtGate  time.Duration                      // between two looks at the gate, give or take half
	NewPace     func() *backoff.ExponentialBackOff // of tries

	Changed wait.Signal // what Says returns may have changed
	Recheck wait.Signal // the record must be written again, whatever it says

	written atomic.Pointer[string] // the record as last written, in the form of recordText
}

// Run holds the lock until ctx ends, of which it returns the cause, or the session turns out to be lost.
func (k *Keeper) Run(ctx context.Context) error {
	const key = "node record"
	pace, tellPace := k.NewPace(), k.NewPace()
	must := true  // the record must be written, whatever it says
	again := true // what is there of the pages must be read
	for {
		n, untold := k.recordAfterPages(ctx, again)
		n = k.Writer.Allowed(n)
		must = must || errors.Is(untold, store.ErrLost)
		if must || untold == nil && !k.isWritten(n) {
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
		if untold == nil {
			tellPace.Reset()
		} else {
			pause = tellPace.NextBackOff()
		}
		var err error
		if must, again, err = k.nextRecord(ctx, pause); err != nil {
			return err
		}
		again = again || untold != nil
	}
}

// nextRecord waits until the record should be looked at again, and returns whether it must be written then, and whether it
// should be read what there is of the pages, which nothing watches.
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

// recordAfterPages returns the record as it should be, after it has written the pages that the record leads to: whoever reads its epoch
// can read all that the node runs (R1). Where the node does not know, or could not tell, the record says nothing about that.
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
			k.Limiter.Report(key, "what runs here without an intent cannot be told; farms with new records wait for it before they add pods", err)
		}
		n.Epoch = ""
		return n, err
	}
	k.Limiter.Over(key)
	n.OrphanPages = &pages
	return n, nil
}

// fit cuts what farms would refuse of a record, and leaves out orphans that they would, which the record then counts,
// and says so: a node that could not write its record because of one field of it would be no node.
func (k *Keeper) fit(n *node.Node, orphans []pod.Orphan) []pod.Orphan {
	const key = "record out of bounds"
	cut := n.Fit()
	orphans, n.OrphansLeftOut = node.FitOrphans(orphans)
	all := len(cut) + n.OrphansLeftOut
	k.Cut(all)
	switch {
	case n.OrphansLeftOut > 0:
		k.Limiter.Report(key, "farms would refuse some of what this node says; that is cut", fmt.Errorf("%d orphans are left out; cut are %v", n.OrphansLeftOut, cut))
	case all > 0:
		k.Limiter.Report(key, "farms would refuse some of what this node says; that is cut", fmt.Errorf("cut are %v", cut))
	default:
		k.Limiter.Over(key)
	}
	return orphans
}

// notAcquired says why the node's lock is not held.
func (k *Keeper) notAcquired(ctx context.Context, key string, err error) {
	var conflict *store.NameConflictError
	_, locked := store.LockedBy(err)
	switch {
	case errors.As(err, &conflict):
		k.Locked(false)
		k.Refused(true)
		if k.Name.Refuse(err) {
			k.Contact.Serve(false)
		}
		// With the host in the message, another one is told at once.
		k.Limiter.Report(key, "this node's name belongs to another host; no intents are taken: "+claim.HostOf(conflict.Record), err)
		k.checkName(ctx)
	case locked:
		k.Locked(false)
		k.Limiter.Report(key, "another preparer holds this node's name; no intents are taken until it lets go", err)
	default:
		k.Limiter.Report(key, "node record cannot be written", err)
	}
}

// checkName finds out whether the other host has taken the name over, which ends all pods.
func (k *Keeper) checkName(ctx context.Context) {
	rec, err := k.Reader.Node(ctx, k.Node)
	var corrupt *store.CorruptError
	if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.As(err, &corrupt) {
		return // no answer says nothing
	}
	read := &rec
	if err != nil {
		read = nil
	}
	lost, kept := k.Name.ConfirmTakeover(read, time.Now(), k.ConfirmLoss)
	if kept != "" {
		k.Log.WithField(obs.Reason, kept).Warn("pods of this host keep running although its node's name is another's; if they run elsewhere too, end them")
	}
	if !lost {
		return
	}
	k.Log.WithField(obs.Reason, "taken over by host "+claim.HostOf(rec.Value)).Error("this node's name was taken over by another host, which declares this one dead; all its pods are stopped, so that none runs twice")
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
	k.Contact.Serve(true) // whose name was lost was not before
	k.Locked(true)
}

func (k *Keeper) isWritten(n node.Node) bool {
	written := k.written.Load()
	return written != nil && *written == recordText(n)
}

// recordText returns the record without what the tenure fills in.
func recordText(n node.Node) string {
	n.Incarnation, n.ConsulNode = "", ""
	data, err := json.Marshal(n)
	if err != nil {
		return "" // cannot be: it is made of plain fields
	}
	return string(data)
}

// FollowGate has the record looked at again when the gate has moved: what was left out of it may be allowed by now, and a node that has nothing
// else to say writes nothing.
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

// Watch notices when the own record vanishes, loses its lock or is changed by somebody else.
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
