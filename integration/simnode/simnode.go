// Package simnode is a preparer that runs nothing: it holds a node's record over a real Consul connection and confirms
// intents as a real one would. Tests and benchmarks of the farm use it where processes would only cost time.
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
	// Takes says what a pod with a manifest takes of its node, which real preparers know from the manifest; nil: nothing.
	Takes func(digest string) manifest.Resources
	// StopsAfter says for how long a pod with a manifest runs on without contact, as disconnect.stop_after has it; false or nil: for ever.
	// Supervise sees to that, and OnStopped is told of each pod that it has stopped, and since when the node has been without contact.
	StopsAfter func(digest string) (time.Duration, bool)
	OnStopped  func(in pod.Intent, silent time.Time)
	// Told has farms tell the node of its intents, in place of a standing query; nil: it watches.
	Told *Told

	mu      sync.Mutex
	runs    map[pod.Identity]pod.Intent  // accepted, running or stopped
	done    map[pod.Identity]pod.Reality // what came of it
	journal *Journal
	amended chan struct{}         // something in done changed by itself
	held    map[pod.Identity]bool // runs has it, but it has been stopped by itself since
	silent  time.Time             // since when the node is without contact; the zero value while it is not
	// newest is the newest epoch ever seen, wentBackAt the newest when the store was last seen to go back in time.
	newest, wentBackAt string
}

// Obey reports a running pod as ready and a stopped one as stopped, at once.
func Obey(in pod.Intent) pod.Reality {
	r := pod.Reality{Identity: in.Identity, Digest: in.Digest, Revision: in.Revision, State: pod.StateReady, Available: true, Standby: in.Standby}
	if in.State == pod.Stopped {
		r.State, r.Available, r.Standby = pod.StateStopped, false, false
	}
	return r
}

// Run simulates the node until ctx ends, as a machine that has just been installed. What it runs survives lost sessions, as
// processes would.
func (n *Node) Run(ctx context.Context) error {
	n.mu.Lock()
	n.runs, n.done, n.held = map[pod.Identity]pod.Intent{}, map[pod.Identity]pod.Reality{}, map[pod.Identity]bool{}
	n.journal, n.amended = &Journal{}, make(chan struct{}, 1)
	n.mu.Unlock()
	return n.resume(ctx, true)
}

// Resume goes on after Run, or another Resume, has ended, as a preparer that is started again: what ran has been running
// all the time, and what was known is known.
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

// sessions simulates the node, in one session after the other. Without a door it watches its intents.
func (n *Node) sessions(ctx context.Context, d *door) error {
	cfg := consul.SessionConfig{
		Kind: "preparer", Name: n.Record.Name, Scope: n.Store.Keys().Prefix(), TTL: n.TTL, Meta: n.Store.PreparerMeta(n.Record.Name), Journal: n.journal,
	}
	return n.Client.RunSession(ctx, cfg, func(ctx context.Context, s *consul.Session) error {
		defer n.contact(false)
		session := &session{node: n, door: d, out: n.Store.NodeSession(s, n.Record.Name), index: map[pod.Identity]uint64{}, written: map[pod.Identity]pod.Reality{}}
		return session.run(ctx)
	})
}

// Die ends all that runs, as where the machine loses its power and its disk. It is for between Run and Run.
func (n *Node) Die() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.runs, n.done, n.held = nil, nil, nil
}

// Amend changes what has come of a pod that runs at a revision, as where its health check begins to fail, and has that
// reported. It returns false, and does nothing, when the pod has got another intent meanwhile.
func (n *Node) Amend(id pod.Identity, revision int64, state pod.State, available bool) bool {
	return n.Change(id, revision, func(r *pod.Reality) { r.State, r.Available = state, available })
}

// Change is Amend for all that a node reports of a pod. What changes neither the state nor whether the pod is available
// is not reported.
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
	default: // the last one has not been seen yet
	}
	return true
}

// Running returns the identities that the node runs now, with their intents.
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

// accepted returns the identities that the node is to run by what it was told last, with their intents: they run, or have stopped by themselves.
func (n *Node) accepted() map[pod.Identity]pod.Intent {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := maps.Clone(n.runs)
	maps.DeleteFunc(out, func(_ pod.Identity, in pod.Intent) bool { return in.State != pod.Running })
	return out
}

// session is one session of the node.
type session struct {
	node *Node
	door *door // nil: it watches its intents
	out  *store.NodeSession

	acquiring sync.Mutex // while the record and its pages are written

	mu      sync.Mutex
	epoch   string // as echoed
	read    string // the epoch that the intents are read in
	intents map[pod.Identity]pod.Intent
	stops   map[pod.Identity]uint64 // indices of the intents that say `stopped`

	writing sync.Mutex                   // guards what follows, and the realities in Consul
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
	// What has no intent is not known before the intents are.
	if err := t.readIntents(ctx); err != nil {
		return err
	}
	gate := t.out.GateVersion(ctx)
	// The lock, then what came of the pods, then the epoch: as a preparer does.
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
			// The world may be another one. The epoch is echoed with orphans that follow from intents read after it (R1).
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

// followIntents accepts what the node is told, as a standing query or farms have it read.
func (t *session) followIntents(ctx context.Context) error {
	name := t.node.Record.Name
	if t.door == nil {
		return t.out.WatchIntents(ctx, name, func(error) {}, func(s store.Seen[pod.Intent]) error { return t.saw(ctx, s) })
	}
	inbox := t.door.inbox
	return t.door.follow(ctx, func(reading context.Context) error {
		return t.out.PullIntents(reading, name, inbox.Next, inbox.Failed, func(s store.Seen[pod.Intent]) error {
			if !s.WentBack {
				inbox.Read(s.Index) // what it says is decided; to carry it out takes longer than whoever tells a node waits
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

// followAmended reports what changes without an intent.
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

// readIntents waits for the first delivery of the node's intents.
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

// know remembers what the node is told.
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

// tellAgain writes realities again that an older store has in an older version, or not at all.
func (t *session) tellAgain(ctx context.Context) error {
	t.writing.Lock()
	defer t.writing.Unlock()
	if err := t.readRealities(ctx); err != nil {
		return err
	}
	return t.tellAll(ctx)
}

// tellAll writes what came of each intent, where the store does not know.
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

// tell writes what came of an identity, unless the store knows.
func (t *session) tell(ctx context.Context, id pod.Identity) error {
	t.node.mu.Lock()
	r, ok := t.node.done[id]
	t.node.mu.Unlock()
	if was := t.written[id]; !ok || was.Revision == r.Revision && was.State == r.State && was.Available == r.Available {
		return nil
	}
	return t.write(ctx, r)
}

// acquire writes the node's record with the epoch of now, after the orphans of now, as a preparer does.
func (t *session) acquire(ctx context.Context) error {
	t.acquiring.Lock()
	defer t.acquiring.Unlock()
	for again := false; ; again = true {
		if ctx.Err() != nil { // what fails for that alone has an unknown outcome, too
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

// orphans returns what runs without a matching intent, and the epoch after which the intents were read.
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
			Identity: id, PodID: in.PodID, Digest: in.Digest, Revision: in.Revision, Ports: in.Ports, CPU: int64(takes.CPU), Memory: int64(takes.Memory), Reason: reason,
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
			if err := t.out.DeleteReality(ctx, t.written[id], id, t.index[id]); err != nil && !errors.Is(err, store.ErrConflict) {
				return err
			}
			delete(t.index, id)
			delete(t.written, id)
		}
	}
	return t.acquire(ctx)
}

// act does what an intent says, or keeps a pod that it would start held. That it is done is remembered together with what came of it.
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
				rec.Value = pod.Reality{Available: true} // it may have been, so that the write counts a drop
			case err != nil && !errors.Is(err, store.ErrNotFound):
				return err
			}
			t.index[r.Identity], t.written[r.Identity], stop = rec.Index, rec.Value, 0
		default:
			return err
		}
	}
}
