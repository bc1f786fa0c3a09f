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
	"github.com/rcfarm/rcfarm/pkg/farm/roll"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// reader reads what a pass needs for its decision. It reserves nothing, and changes neither the view nor the memory.
type reader struct {
	kit        *kit
	id         string // of the controller
	view              // when the pass began
	recordless bool
	confirmed  confirmedStops
	resync     bool // also read intents and shares
}

type readings struct {
	snapshot *reconcile.Snapshot
	reports  reports       // of the view, with those of the snapshot
	details  store.Details // among them the reservations of the guessed nodes
}

// open returns the controller's head and the beginning of the snapshot, both from the view. If the controller has no
// record, the head has a made-up one. If a placement is unreadable, open returns an error, because the farm does not
// know the node and the state of that pod.
func (r *reader) open() (store.Head, *reconcile.Snapshot, error) {
	head := *r.Heads[r.id]
	if !head.Exists() {
		head.RC.Value, head.Err = recordlessRC(r.id, r.kit.farm, &head), nil
	}
	if err := cmp.Or(head.Err, joined(head.Corrupt)); err != nil {
		return head, nil, err
	}
	s := &reconcile.Snapshot{
		Now: r.now.UTC(), Steady: r.now, Owner: r.kit.farm, RC: head.RC.Value, Previous: head.Status,
		Orphans: r.orphans[r.id], Stopped: r.confirmed.highest(), Nodes: r.nodes,
		Epoch: r.schema.Value.Epoch, EpochSince: r.schema.Value.CreatedAt, WentBack: r.schema.Value.WentBack,
		Slack: r.kit.slack, Hold: r.hold, Newer: head.RC.Value.MadeInEpoch(r.schema.Value.Epoch),
		Breaker: breakerReason(r.breaker),
	}
	if head.RC.Value.Service != nil {
		s.Companions = r.companions()
	}
	r.addRollout(s)
	for _, rec := range head.Placements {
		s.Pods = append(s.Pods, reconcile.Pod{Placement: rec.Value, Index: rec.Index})
	}
	if !r.recordless {
		s.Manifest = r.kit.manifests.get(s.RC.ManifestDigest)
	}
	return head, s, nil
}

// read completes an opened snapshot. The views of the nodes are older than the reports that read reads. So if a view
// shows a new preparer, the reports have everything that the former preparer reported. If read fails, the readings have
// what was read before the error.
func (r *reader) read(ctx context.Context, opened *reconcile.Snapshot, guessed []string) (readings, error) {
	s := *opened
	got := readings{snapshot: &s, reports: r.reports}
	if err := r.readDetails(ctx, &got, guessed); err != nil {
		return got, err
	}
	dropImplausible(&s)
	return got, r.addRequests(ctx, &s, r.Heads[r.id].Requests)
}

// companions returns the other revisions of the service, also the deleted ones. No other controller waits for a
// pre_deploy, or for a controller without a record.
func (r *reader) companions() (companions []reconcile.Companion) {
	for _, id := range r.IDs() {
		h := r.Heads[id]
		if id == r.id || !h.Exists() || rc.IsPreDeploy(id) {
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

// recordlessRC makes up a record for a controller that has requests but no record. A sweep makes it a deleted one, so
// that the farm removes everything that is left. Otherwise it is a disabled one, so that the farm removes only what a
// request asks for. It is also disabled if only the leader asked for the sweep and a placement has the state running:
// the real record was lost, and only an operator may stop these pods.
func recordlessRC(id, by string, head *store.Head) rc.RC {
	r := rc.RC{ID: id, Name: id, Disabled: true, ChangedBy: by}
	runs := slices.ContainsFunc(head.Placements, func(p store.Rec[pod.Placement]) bool {
		return p.Value.RunState == pod.Running
	})
	if slices.ContainsFunc(head.Requests, func(r store.Rec[store.Request]) bool {
		return r.Value.Kind == store.SweepOrphan && !(runs && r.Value.ByLeader())
	}) {
		now := time.Now().UTC()
		r.DeletedAt, r.Disabled = &now, false
	}
	return r
}

// addRequests adds the requests to the snapshot, and reads the records that they are about. If the controller has no
// record, the snapshot keeps only the orphans that a request sweeps or that have a placement now.
func (r *reader) addRequests(
	ctx context.Context, s *reconcile.Snapshot, requests []store.Rec[store.Request],
) error {
	swept := map[store.At]bool{}
	about, err := r.readAbout(ctx, requests)
	if err != nil {
		return err
	}
	for _, rec := range requests {
		req := rec.Value
		if r.recordless && req.Kind == store.SweepOrphan && s.RC.DeletedAt != nil {
			// The last transaction removes the request. Until then, the next owner learns of the sweep from it.
			swept[store.At{Node: req.Node, Identity: req.Pod}] = true
			continue
		}
		asked := reconcile.Request{ID: req.ID, Node: req.Node, Pod: req.Pod}
		switch req.Kind {
		case store.ForgetPod:
			lock := about.locks[req.Node]
			asked.Forget, asked.Alive, asked.NodeIndex, asked.Declared = true, lock.Locked, lock.Index, req.NodeIndex
		case store.LabelPod:
			asked.Label = &reconcile.Labels{Set: req.Labels, Remove: req.Remove}
		case store.SweepOrphan: // void: there is a record again, or only the leader asked
		case store.RepairReservation:
			if e := about.Unreadable[req.Node]; e != nil {
				asked.Waits = "a request to repair a reservation waits: " + e.Error()
			}
			s.UnusedShares = append(s.UnusedShares, about.leaks[req.Node]...)
		default: // a newer rcctl wrote the request; the next owner may be a newer farm, which knows it
			asked.Waits = fmt.Sprintf(
				"request %s waits: this farm does not know the kind %q; upgrade it, or remove the request",
				req.ID, req.Kind)
		}
		s.Requests = append(s.Requests, asked)
	}
	s.Orphans = r.confirmed.without(s.Orphans)
	if r.recordless {
		placed := map[pod.Identity]bool{}
		for i := range s.Pods {
			placed[s.Pods[i].Identity] = true
		}
		s.Orphans = slices.DeleteFunc(slices.Clone(s.Orphans), func(o reconcile.Orphan) bool {
			return !swept[store.At{Node: o.Node, Identity: o.Identity}] && !placed[o.Identity]
		})
		if s.Orphans, err = r.stillThere(ctx, s.Orphans); err == nil {
			s.Leftovers, err = r.leftoversOf(ctx, slices.Collect(maps.Keys(swept)))
		}
	}
	return err
}

// leftoversOf returns the intents that still exist for some copies. A confirmed stop has no intent any more.
func (r *reader) leftoversOf(ctx context.Context, swept []store.At) ([]reconcile.Leftover, error) {
	d, err := r.kit.reads.ReadDetails(ctx, store.Wanted{Intents: swept, Realities: swept}, store.Consistent)
	if err != nil {
		return nil, err
	}
	var left []reconcile.Leftover
	for _, at := range swept {
		in, found := d.Intents[at]
		if !found {
			continue
		}
		l := reconcile.Leftover{Node: at.Node, Intent: in}
		l.Intent.Identity = at.Identity
		if reality := d.Reports[at].Reality; reality != nil && reality.Revision <= max(pod.MaxReported, in.Revision) {
			l.Reality = reality
		}
		left = append(left, l)
	}
	return left, nil
}

type aboutRequests struct {
	store.Details
	locks map[string]store.NodeLock          // of the nodes on which pods are to be forgotten
	leaks map[string][]reconcile.UnusedShare // by node: shares of the controller's pods that have no intent there
}

// readAbout reads the records that requests are about. The watches may be behind the operator's request, or behind the
// return of the node.
func (r *reader) readAbout(
	ctx context.Context, requests []store.Rec[store.Request],
) (about aboutRequests, err error) {
	nodes := map[store.RequestKind]map[string]bool{
		store.ForgetPod: {}, store.SweepOrphan: {}, store.RepairReservation: {},
	}
	for i := range requests {
		if of := nodes[requests[i].Value.Kind]; of != nil {
			of[requests[i].Value.Node] = true
		}
	}
	if dead := slices.Sorted(maps.Keys(nodes[store.ForgetPod])); len(dead) > 0 {
		if about.locks, err = r.kit.lists.NodeLocks(ctx, dead); err != nil {
			return about, err
		}
	}
	if leaky := slices.Sorted(maps.Keys(nodes[store.RepairReservation])); len(leaky) > 0 {
		about.Details, err = r.kit.reads.ReadDetails(ctx, store.Wanted{Reservations: leaky}, store.Default)
		if err != nil {
			return about, err
		}
		about.leaks, err = r.readLeaks(ctx, about.Reservations)
	}
	return about, err
}

// readLeaks returns, by node, the reserved shares of pods of the controller that have no intent there. A pod with an
// intent runs or will run, even if its placement was lost, so its share is kept (P3).
func (r *reader) readLeaks(
	ctx context.Context, reservations map[string]store.Rec[node.Reservation],
) (map[string][]reconcile.UnusedShare, error) {
	var held []store.At
	for name, rec := range reservations {
		for _, h := range rec.Value.Claims {
			if h.Pod.RCID == r.id {
				held = append(held, store.At{Node: name, Identity: h.Pod})
			}
		}
	}
	// Read the intents after the shares: one transaction writes both, so the intent of each share is there now.
	intended, err := r.kit.lists.HaveIntents(ctx, held)
	if err != nil {
		return nil, err
	}
	leaks := map[string][]reconcile.UnusedShare{}
	for _, at := range held {
		if !intended[at] {
			leaks[at.Node] = append(leaks[at.Node], reconcile.UnusedShare{Node: at.Node, Pod: at.Identity})
		}
	}
	return leaks, nil
}

// stillThere returns the orphans that their nodes still list. A sweep adopts an orphan, which may start it, before it
// stops it. So it must not adopt an orphan that has stopped already.
func (r *reader) stillThere(ctx context.Context, orphans []reconcile.Orphan) ([]reconcile.Orphan, error) {
	var there []reconcile.Orphan
	listed := map[store.At]bool{}
	asked := map[string]bool{}
	for _, o := range orphans {
		if asked[o.Node] {
			continue
		}
		asked[o.Node] = true
		rec, complete, err := r.kit.lists.NodeOrphans(ctx, o.Node)
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

// addRollout adds the rollout in charge of the controller to the snapshot. A rollout that cannot be read is taken to be
// in charge. A pre_deploy without a rollout is taken for disabled, because its program may have run and must not run
// again.
func (r *reader) addRollout(s *reconcile.Snapshot) {
	record := &r.Rollout.Value
	if r.troubleReporter() == r.id {
		s.RolloutTrouble, s.RolloutStuck = roll.Trouble(&r.Unit), record.Stuck
	}
	preDeploy := rc.IsPreDeploy(r.id)
	switch {
	case s.RC.Service == nil && !preDeploy:
	case r.RolloutErr != nil:
		s.Rollout = "(its record cannot be read)"
	case r.Rollout.Index != 0 && record.Has(r.id):
		s.Rollout, s.RolloutIdle = record.Term(), record.Idle()
	case preDeploy:
		s.RC.Disabled = true
	}
}
