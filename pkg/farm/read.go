package farm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// reader reads what a pass decides by.
type reader struct {
	*reading
	room *finder
}

// read takes the snapshot for one pass over a view. Nodes were looked at before their realities are: one whose preparer is found to have changed
// has reported under another one before that. An unreadable placement fails the whole pass, because what it holds is not known. With an error
// the view has what was read before that.
func (ps *reader) read(ctx context.Context) error {
	if err := ps.readHead(); err != nil {
		return err
	}
	s := &reconcile.Snapshot{
		Now: ps.now.UTC(), Steady: ps.now, Owner: ps.kit.farm, RC: ps.head.RC.Value, Previous: ps.head.Status,
		Orphans: ps.orphans[ps.id], Stopped: ps.mem.stoppedAt(), Nodes: ps.nodes,
		Epoch: ps.schema.Value.Epoch, EpochSince: ps.schema.Value.CreatedAt, WentBack: ps.schema.Value.WentBack, Slack: ps.kit.slack, Hold: ps.hold,
		Newer: ps.head.RC.Value.MadeInEpoch(ps.schema.Value.Epoch), Breaker: breakerReason(ps.breaker), Companions: ps.companions(),
	}
	ps.snapshot = s
	ps.readRollout()
	for _, rec := range ps.head.Placements {
		s.Pods = append(s.Pods, reconcile.Pod{Placement: rec.Value, Index: rec.Index})
	}
	if err := ps.readDetails(ctx); err != nil {
		return err
	}
	disbelieve(s)
	return ps.addRequests(ctx, s, ps.head.Requests)
}

// companions returns the controllers of the other revisions of the service, those that are deleted too. Those without a
// record are left out: the farm does not work on them, and they hold nothing up.
func (ps *reader) companions() (companions []reconcile.Companion) {
	if ps.head.RC.Value.Service == nil || !heedCompanions {
		return nil
	}
	for _, id := range ps.IDs() {
		h := ps.Heads[id]
		if id == ps.id || !h.Exists() || rc.IsPreDeploy(id) {
			continue
		}
		other := reconcile.Companion{RCID: id, Unread: len(h.Corrupt), Status: h.Status}
		if n := h.RC.Value.Asks(); h.Err == nil {
			other.Asks = &n
			if h.RC.Value.DeletedAt == nil {
				other.Service = h.RC.Value.Service
			}
		}
		companions = append(companions, other)
	}
	return companions
}

// recordlessRC makes up the record of a controller that has none, for as long as somebody asks for something. Where that is a
// sweep it is deleted, so that all that it left behind goes; otherwise disabled, so that nothing goes but what was asked for. The leader's own sweep is none
// where a pod is placed that is meant to run: then the record was lost, and only an operator may stop that.
func recordlessRC(id, by string, head *store.Head) rc.RC {
	r := rc.RC{ID: id, Name: id, Disabled: true, ChangedBy: by}
	runs := slices.ContainsFunc(head.Placements, func(p store.Rec[pod.Placement]) bool { return p.Value.RunState == pod.Running })
	if slices.ContainsFunc(head.Requests, func(r store.Rec[store.Request]) bool {
		return r.Value.Kind == store.SweepOrphan && !(runs && r.Value.ByLeader())
	}) {
		now := time.Now().UTC()
		r.DeletedAt, r.Disabled = &now, false
	}
	return r
}

// readHead takes in the controller's head. The record of a controller without one is made up.
func (ps *reader) readHead() error {
	if !ps.head.Exists() {
		ps.head.RC.Value, ps.head.Err = recordlessRC(ps.id, ps.kit.farm, &ps.head), nil
	}
	if err := cmp.Or(ps.head.Err, joined(ps.head.Corrupt)); err != nil {
		return err
	}
	ps.mem.last = evidenceOf(ps.head.RC.Index, ps.head.Placements)
	return nil
}

// addRequests adds what operators ask for, and reads what a request for repair is about. For a controller without a record only those orphans
// count that somebody asked to be swept, or that have a placement by now.
func (ps *reader) addRequests(ctx context.Context, s *reconcile.Snapshot, requests []store.Rec[store.Request]) error {
	swept := map[store.At]bool{}
	about, err := ps.readAbout(ctx, requests)
	if err != nil {
		return err
	}
	for _, rec := range requests {
		r := rec.Value
		if ps.mem.recordless && r.Kind == store.SweepOrphan && s.RC.DeletedAt != nil {
			// It stays until the last transaction, which removes all: it is what tells a successor that a sweep is under way.
			swept[store.At{Node: r.Node, Identity: r.Pod}] = true
			continue
		}
		asked := reconcile.Request{ID: r.ID, Node: r.Node, Pod: r.Pod}
		switch r.Kind {
		case store.ForgetPod:
			lock := about.locks[r.Node]
			asked.Forget, asked.Alive, asked.NodeIndex, asked.Declared = true, lock.Locked, lock.Index, r.NodeIndex
		case store.LabelPod:
			asked.Label = &reconcile.Labels{Set: r.Labels, Remove: r.Remove}
		case store.SweepOrphan: // there is a record again, or what the leader would not have asked for
		case store.RepairReservation:
			ps.shared.askResync() // in the next pass: claims may be missing, too
			if e := about.Unreadable[r.Node]; e != nil {
				asked.Waits = "a request to repair a reservation waits: " + e.Error()
			}
			s.Leaks = append(s.Leaks, about.leaks[r.Node]...)
		default: // a newer rcctl asks, and a newer farm may own the controller next
			asked.Waits = fmt.Sprintf("request %s waits: this farm does not know what %q is; upgrade it, or remove the request", r.ID, r.Kind)
		}
		s.Requests = append(s.Requests, asked)
	}
	s.Orphans = ps.mem.notConfirmed(s.Orphans)
	if ps.mem.recordless {
		placed := map[pod.Identity]bool{}
		for i := range s.Pods {
			placed[s.Pods[i].Identity] = true
		}
		s.Orphans = slices.DeleteFunc(slices.Clone(s.Orphans), func(o reconcile.Orphan) bool {
			return !swept[store.At{Node: o.Node, Identity: o.Identity}] && !placed[o.Identity]
		})
		if s.Orphans, err = ps.stillThere(ctx, s.Orphans); err == nil {
			s.Leftovers, err = ps.leftoversOf(ctx, slices.Collect(maps.Keys(swept)))
		}
	}
	return err
}

// leftoversOf reads what nodes were told about some copies, as of now: what was stopped and confirmed meanwhile is told no more.
func (ps *reader) leftoversOf(ctx context.Context, swept []store.At) ([]reconcile.Leftover, error) {
	d, err := ps.kit.reads.ReadDetails(ctx, store.Wanted{Intents: swept, Realities: swept}, true)
	if err != nil {
		return nil, err
	}
	var left []reconcile.Leftover
	for _, at := range swept {
		in, told := d.Intents[at]
		if !told {
			continue
		}
		l := reconcile.Leftover{Node: at.Node, Intent: in}
		l.Intent.Identity = at.Identity
		if r := d.Reports[at].Reality; r != nil && r.Revision <= max(pod.MaxReported, in.Revision) {
			l.Reality = r
		}
		left = append(left, l)
	}
	return left, nil
}

// aboutRequests is what is read because operators ask for something.
type aboutRequests struct {
	store.Details
	locks map[string]store.NodeLock   // of the nodes on which pods are to be forgotten
	leaks map[string][]reconcile.Leak // by node: what is reserved there for pods of the controller that the node is not told about
}

// readAbout reads what requests are about. What is watched of nodes may be older than the operator's word, or than the node's return.
func (ps *reader) readAbout(ctx context.Context, requests []store.Rec[store.Request]) (about aboutRequests, err error) {
	nodes := map[store.RequestKind]map[string]bool{store.ForgetPod: {}, store.SweepOrphan: {}, store.RepairReservation: {}}
	for i := range requests {
		if of := nodes[requests[i].Value.Kind]; of != nil {
			of[requests[i].Value.Node] = true
		}
	}
	if dead := slices.Sorted(maps.Keys(nodes[store.ForgetPod])); len(dead) > 0 {
		if about.locks, err = ps.kit.lists.NodeLocks(ctx, dead); err != nil {
			return about, err
		}
	}
	if leaky := slices.Sorted(maps.Keys(nodes[store.RepairReservation])); len(leaky) > 0 {
		if about.Details, err = ps.kit.reads.ReadDetails(ctx, store.Wanted{Reservations: leaky}, false); err != nil {
			return about, err
		}
		about.leaks, err = ps.readLeaks(ctx, about.Reservations)
	}
	return about, err
}

// readLeaks returns, by node, what reservations hold for pods of the controller that their nodes are not told about. A pod with an intent runs as it is told, or will,
// also where its placement was lost, and is no orphan: its share stays (P3).
func (ps *reader) readLeaks(ctx context.Context, reservations map[string]store.Rec[node.Reservation]) (map[string][]reconcile.Leak, error) {
	var held []store.At
	for name, rec := range reservations {
		for _, h := range rec.Value.Claims {
			if h.Pod.RCID == ps.id {
				held = append(held, store.At{Node: name, Identity: h.Pod})
			}
		}
	}
	told, err := ps.kit.lists.Told(ctx, held) // after the claims: what had one by then was told about in the same transaction
	if err != nil {
		return nil, err
	}
	leaks := map[string][]reconcile.Leak{}
	for _, at := range held {
		if !told[at] {
			leaks[at.Node] = append(leaks[at.Node], reconcile.Leak{Node: at.Node, Pod: at.Identity})
		}
	}
	return leaks, nil
}

// stillThere reads again whether nodes run what they were seen to. A sweep adopts an orphan, which may start it, and has it
// stopped: once is enough.
func (ps *reader) stillThere(ctx context.Context, orphans []reconcile.Orphan) ([]reconcile.Orphan, error) {
	var there []reconcile.Orphan
	listed := map[store.At]bool{}
	asked := map[string]bool{}
	for _, o := range orphans {
		if asked[o.Node] {
			continue
		}
		asked[o.Node] = true
		rec, complete, err := ps.kit.lists.NodeOrphans(ctx, o.Node)
		var corrupt *store.CorruptError
		switch {
		case errors.Is(err, store.ErrNotFound), errors.As(err, &corrupt):
			continue
		case err != nil:
			return nil, err
		case !complete:
			return nil, fmt.Errorf("node %s is writing what it runs: %w", o.Node, store.ErrRefused)
		}
		for i := range rec.Value.Orphans {
			listed[store.At{Node: o.Node, Identity: rec.Value.Orphans[i].Identity}] = true
		}
	}
	for _, o := range orphans {
		if listed[store.At{Node: o.Node, Identity: o.Identity}] {
			there = append(there, o)
		}
	}
	return there, nil
}

func breakerReason(b store.Rec[store.Breaker]) string {
	switch {
	case b.Index == 0:
		return "the breaker record is missing or unreadable"
	case b.Value.Tripped:
		return "the mass-stop breaker has tripped: " + b.Value.Reason
	default:
		return ""
	}
}
