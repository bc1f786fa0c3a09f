// Package simnode simulates a preparer that runs no processes. It holds a node's lock in a real Consul, and confirms
// intents as a real preparer does.
package simnode

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Node is one simulated node.
type Node struct {
	Record node.Node
	Client *consul.Client
	Store  *store.Store
	TTL    time.Duration
	// React turns an intent into what the node reports; nil means Obey.
	React func(pod.Intent) pod.Reality
	// Takes returns the share of the node that a pod of a manifest takes.
	Takes func(digest string) manifest.Resources
	// StopsAfter is like disconnect.stop_after of a pod's manifest: how long the pod runs without contact to Consul;
	// false or nil: for ever. Supervise calls OnStopped with the time when the node lost contact.
	StopsAfter func(digest string) (time.Duration, bool)
	OnStopped  func(in pod.Intent, silent time.Time)
	// Told makes farms push to the node, in place of a standing query. nil: the node watches its intents.
	Told *Told

	mu      sync.Mutex
	runs    map[pod.Identity]pod.Intent  // the accepted intents, to run or to stop
	done    map[pod.Identity]pod.Reality // the reality of each accepted intent
	journal *Journal
	amended chan struct{}         // Change has changed something in done
	held    map[pod.Identity]bool // pods in runs that do not run: stopped by Supervise, or not started by act
	silent  time.Time             // when the node lost contact; zero while it is in contact
	// newest is the newest epoch ever seen. wentBackAt is its value when the node last saw the store go back.
	newest, wentBackAt string
}

// Obey reports a running pod as ready and a stopped one as stopped, at once.
func Obey(in pod.Intent) pod.Reality {
	r := pod.Reality{
		Identity: in.Identity, Digest: in.Digest, Revision: in.Revision, State: pod.StateReady,
		Available: true, Standby: in.Standby,
	}
	if in.State == pod.Stopped {
		r.State, r.Available, r.Standby = pod.StateStopped, false, false
	}
	return r
}

// Run simulates a machine that has just been installed, until ctx ends. Its pods survive lost sessions.
func (n *Node) Run(ctx context.Context) error {
	n.mu.Lock()
	n.runs, n.done, n.held = map[pod.Identity]pod.Intent{}, map[pod.Identity]pod.Reality{}, map[pod.Identity]bool{}
	n.journal, n.amended = &Journal{}, make(chan struct{}, 1)
	n.mu.Unlock()
	return n.resume(ctx, true)
}

// Resume simulates the node again after Run or Resume has ended. Its pods have run all the time, and it knows its
// intents and realities, as after a restart of the preparer.
func (n *Node) Resume(ctx context.Context) error { return n.resume(ctx, false) }

func (n *Node) resume(ctx context.Context, anew bool) error {
	if n.React == nil {
		n.React = Obey
	}
	if n.Told == nil {
		return n.sessions(ctx, nil)
	}
	d, err := n.Told.open(ctx, n.Record.Name, n.Store, anew)
	if err != nil {
		return err
	}
	return besides(ctx, []*door{d}, func(ctx context.Context) error { return n.sessions(ctx, d) })
}

func (n *Node) sessions(ctx context.Context, d *door) error {
	cfg := consul.SessionConfig{
		Kind: "preparer", Name: n.Record.Name, Scope: n.Store.Keys().Prefix(), TTL: n.TTL,
		Meta: n.Store.PreparerMeta(n.Record.Name), Journal: n.journal,
	}
	return n.Client.RunSession(ctx, cfg, func(ctx context.Context, s *consul.Session) error {
		defer n.contact(false)
		session := &session{
			node: n, door: d, out: n.Store.NodeSession(s, n.Record.Name),
			index: map[pod.Identity]uint64{}, written: map[pod.Identity]pod.Reality{},
		}
		return session.run(ctx)
	})
}

// Die ends all pods, as if the machine lost its power and its disk. Call it between two Runs.
func (n *Node) Die() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.runs, n.done, n.held = nil, nil, nil
}

// Amend changes the state and the availability of a pod, and makes the node report it. It returns false, and changes
// nothing, if the pod does not run at this revision any more.
func (n *Node) Amend(id pod.Identity, revision int64, state pod.State, available bool) bool {
	return n.Change(id, revision, func(r *pod.Reality) { r.State, r.Available = state, available })
}

// Change is like Amend, for all that a node reports of a pod. The node reports it only if the state or the availability
// has changed.
func (n *Node) Change(id pod.Identity, revision int64, change func(*pod.Reality)) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	r, ok := n.done[id]
	if in := n.runs[id]; !ok || n.held[id] || in.State != pod.Running || in.Revision != revision {
		return false
	}
	change(&r)
	r.Since = time.Now().UTC()
	n.done[id] = r
	select {
	case n.amended <- struct{}{}:
	default: // followAmended has not seen the last change yet; it will report both
	}
	return true
}

// Running returns the pods that run now, with their intents.
func (n *Node) Running() map[pod.Identity]pod.Intent {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := map[pod.Identity]pod.Intent{}
	for id, in := range n.runs {
		if in.State == pod.Running && !n.held[id] {
			out[id] = in
		}
	}
	return out
}

// accepted returns the pods that the last intents ask the node to run, also those that Supervise has stopped.
func (n *Node) accepted() map[pod.Identity]pod.Intent {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := maps.Clone(n.runs)
	maps.DeleteFunc(out, func(_ pod.Identity, in pod.Intent) bool { return in.State != pod.Running })
	return out
}

type session struct {
	node *Node
	door *door // nil: the session watches its intents
	out  *store.NodeSession

	acquiring sync.Mutex // held while the node's record and its pages of orphans are written

	mu      sync.Mutex
	epoch   string // the epoch that the node echoes
	read    string // the newest epoch; the intents are read after it
	intents map[pod.Identity]pod.Intent
	stops   map[pod.Identity]uint64 // modify indices of the intents with the state stopped

	writing sync.Mutex                   // guards the next two fields, and the realities in Consul
	index   map[pod.Identity]uint64      // of realities
	written map[pod.Identity]pod.Reality // as they are in Consul
}

func (t *session) run(ctx context.Context) error {
	schema, err := t.out.EnsureSchema(ctx)
	if err != nil {
		return err
	}
	t.epoch, t.read = schema.Value.Epoch, schema.Value.Epoch
	t.node.saw(t.epoch)
	t.door.renew(t.epoch)
	// Read the intents first, because they decide which of the node's pods are orphans.
	if err := t.readIntents(ctx); err != nil {
		return err
	}
	gate := t.out.GateVersion(ctx)
	// Write in the order of a real preparer: the lock, then the realities, then the epoch.
	record := t.node.Record
	t.door.say(&record)
	record.WentBack = t.node.wentBackSince(t.epoch)
	if err := t.out.AcquireNode(ctx, record, false); err != nil {
		return err
	}
	if err := t.tellAgain(ctx); err != nil {
		return err
	}
	if err := t.acquire(ctx); err != nil {
		return err
	}
	t.node.contact(true)
	group, ctx := errgroup.WithContext(ctx)
	ignore := func(error) {}
	group.Go(func() error {
		return t.out.WatchSchema(ctx, ignore, func(s store.Seen[store.Schema]) error {
			if s.WentBack {
				return t.node.wentBack()
			}
			if len(s.Recs) == 0 {
				return nil
			}
			t.node.saw(s.Recs[0].Value.Epoch)
			t.mu.Lock()
			t.read = s.Recs[0].Value.Epoch
			t.mu.Unlock()
			// The store may have gone back. Read the intents again, and echo the epoch only after the orphans that
			// follow (R1).
			if err := t.readIntents(ctx); err != nil {
				return err
			}
			t.mu.Lock()
			t.epoch = s.Recs[0].Value.Epoch
			t.mu.Unlock()
			t.door.renew(s.Recs[0].Value.Epoch)
			if err := t.tellAgain(ctx); err != nil {
				return err
			}
			return t.acquire(ctx)
		})
	})
	group.Go(func() error { return t.followIntents(ctx) })
	group.Go(func() error {
		return t.out.WatchNode(ctx, t.node.Record.Name, ignore, func(s store.Seen[node.Node]) error {
			if s.WentBack {
				return t.node.wentBack()
			}
			return nil
		})
	})
	group.Go(func() error { return t.followAmended(ctx) })
	group.Go(func() error { return t.followGate(ctx, gate) })
	return group.Wait()
}

func (t *session) followIntents(ctx context.Context) error {
	name := t.node.Record.Name
	if t.door == nil {
		return t.out.WatchIntents(ctx, name, func(error) {},
			func(s store.Seen[pod.Intent]) error { return t.saw(ctx, s) })
	}
	inbox := t.door.inbox
	return t.door.follow(ctx, func(reading context.Context) error {
		return t.out.PullIntents(reading, name, inbox.Next, inbox.Failed, func(s store.Seen[pod.Intent]) error {
			if !s.WentBack {
				// carrying the intents out takes longer than a farm waits for the answer to its push
				inbox.Read(s.Index)
			}
			return t.saw(ctx, s)
		})
	})
}

func (t *session) saw(ctx context.Context, s store.Seen[pod.Intent]) error {
	if s.WentBack {
		return t.node.wentBack()
	}
	return t.accept(ctx, s.Recs)
}

func (t *session) followAmended(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.node.amended:
		}
		t.writing.Lock()
		err := t.tellAll(ctx)
		t.writing.Unlock()
		if err != nil {
			return err
		}
	}
}

func (t *session) readIntents(ctx context.Context) error {
	enough := errors.New("seen")
	err := t.out.WatchIntents(ctx, t.node.Record.Name, func(error) {}, func(s store.Seen[pod.Intent]) error {
		t.know(s.Recs)
		return enough
	})
	if errors.Is(err, enough) {
		return nil
	}
	return err
}

func (t *session) know(recs []store.Rec[pod.Intent]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.intents, t.stops = map[pod.Identity]pod.Intent{}, map[pod.Identity]uint64{}
	for _, rec := range recs {
		t.intents[rec.Value.Identity] = rec.Value
		if rec.Value.State == pod.Stopped {
			t.stops[rec.Value.Identity] = rec.Index
		}
	}
}

func (t *session) readRealities(ctx context.Context) error {
	known, _, err := t.out.ListRealities(ctx)
	if err != nil {
		return err
	}
	clear(t.index)
	clear(t.written)
	for _, r := range known {
		t.index[r.Value.Identity], t.written[r.Value.Identity] = r.Index, r.Value
	}
	return nil
}

// tellAgain writes the realities again if Consul has others: a store that went back in time has older ones, or none.
func (t *session) tellAgain(ctx context.Context) error {
	t.writing.Lock()
	defer t.writing.Unlock()
	if err := t.readRealities(ctx); err != nil {
		return err
	}
	return t.tellAll(ctx)
}

func (t *session) tellAll(ctx context.Context) error {
	t.mu.Lock()
	intents := maps.Clone(t.intents)
	t.mu.Unlock()
	for id := range intents {
		if err := t.tell(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// tell writes the reality of an identity, unless Consul has it.
func (t *session) tell(ctx context.Context, id pod.Identity) error {
	t.node.mu.Lock()
	r, ok := t.node.done[id]
	t.node.mu.Unlock()
	if was := t.written[id]; !ok || was.Revision == r.Revision && was.State == r.State && was.Available == r.Available {
		return nil
	}
	return t.write(ctx, r)
}

// acquire writes the orphans before the node's record with the epoch, as a preparer does.
func (t *session) acquire(ctx context.Context) error {
	t.acquiring.Lock()
	defer t.acquiring.Unlock()
	for again := false; ; again = true {
		if ctx.Err() != nil { // a write that fails because ctx has ended has an unknown outcome, too
			return context.Cause(ctx)
		}
		record := t.node.Record
		t.door.say(&record)
		epoch, orphans := t.orphans()
		record.WentBack = t.node.wentBackSince(epoch)
		pages, err := t.out.WriteOrphans(ctx, epoch, orphans, again)
		switch {
		case err == nil:
			record.Epoch, record.OrphanPages = epoch, &pages
			return t.out.AcquireNode(ctx, record, false)
		case errors.Is(err, store.ErrLost): // the lock is not held yet, or its key has vanished
			if err := t.out.AcquireNode(ctx, record, false); err != nil {
				return err
			}
		case !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrUnknown):
			return err
		}
	}
}

// orphans returns the accepted pods without a matching intent, and the epoch that was read before the intents.
func (t *session) orphans() (epoch string, orphans []pod.Orphan) {
	t.mu.Lock()
	defer t.mu.Unlock()
	running := t.node.Running()
	for id, in := range t.node.accepted() {
		_, runs := running[id]
		reason := pod.ReasonOrphaned
		if seen, ok := t.intents[id]; ok {
			if seen.Revision >= in.Revision {
				continue
			}
			reason = pod.ReasonAhead
		}
		takes := manifest.Resources{}
		if t.node.Takes != nil {
			takes = t.node.Takes(in.Digest)
		}
		orphans = append(orphans, pod.Orphan{
			Identity: id, PodID: in.PodID, Digest: in.Digest, Revision: in.Revision, Ports: in.Ports,
			CPU: int64(takes.CPU), Memory: int64(takes.Memory), Reason: reason,
			Runs: runs,
		})
	}
	slices.SortFunc(orphans, func(a, b pod.Orphan) int { return a.Compare(b.Identity) })
	return t.epoch, orphans
}

func (t *session) accept(ctx context.Context, recs []store.Rec[pod.Intent]) error {
	t.know(recs)
	t.writing.Lock()
	defer t.writing.Unlock()
	t.mu.Lock()
	epoch := t.read
	t.mu.Unlock()
	for _, rec := range recs {
		in := rec.Value
		t.node.mu.Lock()
		before, held := t.node.runs[in.Identity], t.node.held[in.Identity]
		t.node.mu.Unlock()
		starts := in.State == pod.Running && (before.State != pod.Running || held)
		again := held && starts && in.Revision == before.Revision
		if in.Revision > before.Revision || again {
			t.node.act(in, starts && in.Epoch != "" && in.Epoch != epoch)
		}
		if err := t.tell(ctx, in.Identity); err != nil {
			return err
		}
	}
	t.mu.Lock()
	intents := maps.Clone(t.intents)
	t.mu.Unlock()
	for id := range t.index {
		if _, asked := intents[id]; asked {
			continue
		}
		if _, runs := t.node.accepted()[id]; !runs {
			if err := t.out.DeleteReality(ctx, t.written[id], id, t.index[id]); err != nil &&
				!errors.Is(err, store.ErrConflict) {
				return err
			}
			delete(t.index, id)
			delete(t.written, id)
		}
	}
	return t.acquire(ctx)
}

// act carries out an intent. If held is true, the pod does not start, and its reality is pending.
func (n *Node) act(in pod.Intent, held bool) {
	r := pod.Reality{Identity: in.Identity, Digest: in.Digest, Revision: in.Revision, State: pod.StatePending}
	if !held {
		r = n.React(in)
	}
	r.Node, r.Since = n.Record.Name, time.Now().UTC()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.runs[in.Identity], n.done[in.Identity] = in, r
	delete(n.held, in.Identity)
	if held {
		n.held[in.Identity] = true
	}
}

func (t *session) write(ctx context.Context, r pod.Reality) error {
	t.mu.Lock()
	stop := t.stops[r.Identity]
	t.mu.Unlock()
	for {
		w := store.RealityWrite{Reality: r, Index: t.index[r.Identity], Before: t.written[r.Identity], StopIndex: stop}
		index, err := t.out.WriteRealities(ctx, w)
		switch {
		case err == nil:
			t.index[r.Identity], t.written[r.Identity] = index, r
			return nil
		case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrUnknown):
			rec, err := t.out.Reality(ctx, r.Identity)
			switch {
			case store.IsCorrupt(err):
				rec.Value = pod.Reality{Available: true} // assume that it was available: then the write counts a drop
			case err != nil && !errors.Is(err, store.ErrNotFound):
				return err
			}
			t.index[r.Identity], t.written[r.Identity], stop = rec.Index, rec.Value, 0
		default:
			return err
		}
	}
}
