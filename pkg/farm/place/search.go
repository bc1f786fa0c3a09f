package place

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Search looks for nodes for the pods of one controller in one pass.
type Search struct {
	account
	facts    *reconcile.Facts                       // of the plan; in Guess: of the snapshot
	lot      reconcile.Lot                          // the pods that need nodes
	later    []pod.Identity                         // pods of the lot beyond the number that the pass may place
	found    *candidates                            // for the lot; nil: not looked for yet
	reserved map[string]store.Rec[node.Reservation] // read so far, by node
	taken    []string                               // nodes from the ledger, until the pass is over
	partly   []placement.Shape                      // shapes of lots of which only some pods have found a node
	// Sums of this pass's lots so far.
	onNode  map[string]int    // pods placed, by node
	missing int               // pods without a node
	why     scheduler.Reasons // why nodes did not take them
}

// Guess chooses nodes before the plan is computed, if the plan will probably place pods. The ledger keeps the nodes
// from other passes. So the pass can read their reservations in the same request as its other records. An outside
// scheduler is asked later: it may need the whole snapshot.
func (s *Search) Guess(ctx context.Context, snap *reconcile.Snapshot) error {
	idle := snap.Hold != "" || snap.RC.Disabled || snap.RC.DeletedAt != nil
	if idle || s.finder.outside != nil || snap.RC.AnyPreferences() {
		return nil
	}
	n := snap.RC.Desired()
	for i := range snap.Pods {
		if snap.Pods[i].Placement.Tried() != nil {
			return nil // the reports decide which nodes come last, and are not read yet
		}
		if stays(snap, &snap.Pods[i]) {
			n--
		}
	}
	if n <= 0 {
		return nil
	}
	s.facts = reconcile.FactsOf(snap)
	s.lot = s.facts.DefaultLot()
	if !s.worthGuessing() || snap.Manifest == nil && s.finder.usage.tight(len(snap.Nodes), snap.Now) {
		return nil
	}
	if err := s.findNodes(ctx); err != nil {
		return err
	}
	if snap.Manifest != nil {
		s.skipPoor()
	}
	s.found.guessed = s.takeNodes(ctx, n)
	return nil
}

// Guessed returns the nodes that Guess has taken.
func (s *Search) Guessed() []string {
	if s.found == nil {
		return nil
	}
	return s.found.guessed
}

// Read receives the reservations that the pass has read with its other records.
func (s *Search) Read(d store.Details) {
	if s.found != nil {
		s.found.readAhead = d.Reservations
	}
	s.keep(d)
}

// keep keeps reservations for the batches. Consul refuses a batch if its reservation is outdated.
func (s *Search) keep(d store.Details) {
	for name, e := range d.Unreadable {
		s.log.WithError(e).WithField(obs.Node, name).
			Error("nothing is placed on a node, because its reservation is unreadable")
	}
	if len(d.Unreadable) == 0 { // otherwise the batches read the reservations again, and report the unreadable one
		maps.Copy(s.reserved, d.Reservations)
	}
	for name, rec := range d.Reservations {
		if d.Unreadable[name] == nil {
			s.finder.cfg.OnReservation(s.nodes.Views[name], rec.Value)
		}
	}
}

// Reserved returns the reservations as they were read. Do not change them.
func (s *Search) Reserved() map[string]store.Rec[node.Reservation] { return s.reserved }

// End gives the nodes back after the pass has written. landed is whether all changes of the plan have landed. Otherwise
// the capacity that some of them were to take is free, so the next pass looks for it at once. End returns the Memory
// for the controller's next pass.
func (s *Search) End(landed bool) Memory {
	s.finder.ledger.GiveBack(s.taken)
	s.taken = nil
	if !landed {
		s.finder.scarcity.with(func(known *placement.Scarcity) {
			for _, shape := range s.partly {
				known.Found(shape)
			}
		})
	}
	return s.Memory
}

// Assign finds nodes for the plan's adds, turns these into changes, and reports the others in the status. most is the
// largest number of pods that it places. Pods without a node do not use up this number, because they would make the
// others wait for ever.
func (s *Search) Assign(ctx context.Context, plan *reconcile.Plan, most int) error {
	s.facts, s.onNode, s.missing, s.why = plan.Facts(), map[string]int{}, 0, scheduler.Reasons{}
	if len(plan.Adds) == 0 {
		s.giveBack(nil)
		s.unfit = nil
		s.finder.cfg.Metrics.SetMissing(s.owner.RCID, 0, nil)
		return nil
	}
	all, reason := plan.Adds, ""
	for i, lot := range plan.Lots(plan.Adds) {
		now := min(len(lot.Pods), most)
		if plan.Adds, s.later = lot.Pods[:now], lot.Pods[now:]; now == 0 {
			plan.More()
			break
		}
		s.lot = lot
		if i > 0 || lot.Digest != s.facts.RC.ManifestDigest || lot.Role != "" {
			s.found = nil // another lot may need other candidates
		}
		placed, err := s.assignLot(ctx, plan)
		if err != nil {
			return err
		}
		reason = cmp.Or(reason, plan.UnplacedReason())
		most -= placed
	}
	plan.Adds = all
	plan.StillLacking(s.facts.Now, reason)
	s.finder.cfg.Metrics.SetMissing(s.owner.RCID, s.missing, s.why)
	return nil
}

// assignLot returns how many adds of the lot it has placed.
func (s *Search) assignLot(ctx context.Context, plan *reconcile.Plan) (placed int, err error) {
	before, look := len(plan.Changes), s.beginLook(plan)
	if look.None() {
		return s.assigned(plan, before, plan.Adds, look.Wait, look.Reasons), nil
	}
	if s.found == nil {
		if err := s.findNodes(ctx); err != nil {
			return 0, s.unscheduled(ctx, plan, err)
		}
		for name, pods := range s.onNode {
			s.found.perNode[name] += pods
		}
	}
	if s.keepsBooks() {
		return s.assignAllocated(ctx, plan)
	}
	left, wait, why, err := s.lookForNodes(ctx, plan, look)
	if err != nil {
		return 0, err
	}
	s.giveBack(plan.Changes)
	return s.assigned(plan, before, left, wait, why), nil
}

// assigned completes a plan after a lot, and returns how many pods are placed. plan.Changes[before:] place adds of the
// lot; for those in left no node was found. wait is the time until the next look for them.
//
// If some pods found no node, those in later have none either, because all of a lot ask for the same.
func (s *Search) assigned(
	plan *reconcile.Plan, before int, left []pod.Identity, wait time.Duration, why scheduler.Reasons,
) (placed int) {
	placed = len(plan.Adds) - len(left)
	switch {
	case len(s.later) > 0 && len(left) > 0:
		left = slices.Concat(left, s.later)
	case len(s.later) > 0:
		plan.More()
	}
	// Only one batch can write a node's reservation, so changes on a node stand side by side.
	sortByNode(plan.Changes[before:])
	for i := range plan.Changes[before:] {
		s.onNode[plan.Changes[before+i].Placement.Node]++
	}
	unplaced := field.Set(left)
	for _, mark := range plan.LossRecords {
		if unplaced[mark.Identity] {
			plan.Changes = append(plan.Changes, mark)
		}
	}
	plan.SetUnplaced(left, why.String(), wait)
	s.addMissing(len(left), why)
	return placed
}

// addMissing reports the names of the reasons, not the numbers.
func (s *Search) addMissing(pods int, why scheduler.Reasons) {
	s.missing += pods
	maps.Copy(s.why, why)
}

// sortByNode sorts changes by node, and keeps their order on a node. A change is large, so each is copied only twice.
func sortByNode(changes []reconcile.Change) {
	on := map[string][]int{}
	for i := range changes {
		name := changes[i].Placement.Node
		on[name] = append(on[name], i)
	}
	sorted := make([]reconcile.Change, 0, len(changes))
	for _, name := range slices.Sorted(maps.Keys(on)) {
		for _, i := range on[name] {
			sorted = append(sorted, changes[i])
		}
	}
	copy(changes, sorted)
}

func unplaced(all []pod.Identity, assigned []placement.Assignment) []pod.Identity {
	if len(assigned) == len(all) {
		return nil
	}
	return field.Without(all, field.Each(assigned, func(a placement.Assignment) pod.Identity { return a.Pod }))
}

func (s *Search) assignAllocated(ctx context.Context, plan *reconcile.Plan) (placed int, err error) {
	before := len(plan.Changes)
	s.found.count(s.facts, &s.lot, plan)
	assigned, err := s.allocate(ctx, plan)
	if err != nil {
		return 0, s.unscheduled(ctx, plan, err)
	}
	placer := plan.Placer()
	for _, a := range assigned {
		plan.Changes = append(plan.Changes, placer.On(a.Pod, a.Node))
	}
	left, why := unplaced(plan.Adds, assigned), s.found.others
	if len(left) > 0 && len(why) == 0 {
		why = scheduler.Reasons{notGiven: s.found.pool.Preferred.Left()}
	}
	return s.assigned(plan, before, left, reconcile.RetryAfter, why), nil
}

// unscheduled reports in the status that an outside scheduler failed. The pass places no pod of this lot, and does
// everything else.
func (s *Search) unscheduled(ctx context.Context, plan *reconcile.Plan, failure error) error {
	if ctx.Err() != nil {
		return failure
	}
	plan.Adds = slices.Concat(plan.Adds, s.later)
	s.booked = nil // the scheduler may have restarted without its books
	s.log.WithError(failure).WithField(obs.Desired, plan.Status.Desired).Warn("cannot place pods")
	plan.Unscheduled(failure.Error())
	s.addMissing(len(plan.Adds), nil)
	return nil
}

// allocate asks an outside scheduler for shares, and returns those that can be used. It gives the others back, except
// on nodes that the pod avoids: a copy of the pod may need them.
func (s *Search) allocate(ctx context.Context, plan *reconcile.Plan) ([]placement.Assignment, error) {
	avoid, books := s.found.avoid, s.finder.books
	given, err := s.ask(ctx, viewOf(s.facts, &s.lot, s.nodes.Version), plan.Adds, avoid)
	if err != nil {
		return nil, err
	}
	eligible := field.Set(slices.Collect(s.found.pool.Preferred.All()))
	var usable, back []scheduler.Allocation
	var names []string
	for _, a := range given {
		switch {
		case slices.Contains(avoid[a.Pod], a.Node):
			books.ignore(s.owner.RCID, a.Node, a.Pod.String()+" is or was there") // the copy there keeps its share
		case !eligible[a.Node]:
			books.ignore(s.owner.RCID, a.Node, "it is not eligible, or the scheduler's EligibleNodes has left it out")
			back = append(back, a)
		default:
			usable = append(usable, a)
			names = append(names, a.Node)
		}
	}
	slices.Sort(names)
	d, err := s.finder.cfg.Reads.ReadDetails(ctx, store.Wanted{Reservations: slices.Compact(names)}, store.Default)
	if err != nil {
		return nil, err // the next pass asks for the same shares again
	}
	s.keep(d)
	assigned, unfit := s.fitting(usable, d.Reservations)
	s.noteUnfit(plan.Adds, unfit)
	if err := s.deallocate(ctx, append(back, unfit...)); err != nil {
		plan.Retry()
	}
	return assigned, nil
}

// fitting separates the shares that fit from the others. An outside scheduler cannot place pods beyond the reservations
// either (P3).
func (s *Search) fitting(
	allocations []scheduler.Allocation, reservations map[string]store.Rec[node.Reservation],
) (fit []placement.Assignment, unfit []scheduler.Allocation) {
	views, found := s.facts.Nodes, s.found
	taken := map[string]node.Reservation{}
	for _, a := range allocations {
		res, known := taken[a.Node]
		if !known {
			res = reservations[a.Node].Value.Clone()
			taken[a.Node] = res
		}
		rule, on := s.lot.Rule, views[a.Node]
		rule.Ask.Pod = a.Pod
		at := scheduler.Candidate{
			View: on, Reservation: res, Pods: found.perNode[a.Node], Skewed: found.tally.Refuses(on),
		}
		if reason := rule.Refuses(at, a.Pod); reason != "" {
			found.others[reason]++
			unfit = append(unfit, a)
			continue
		}
		claim, _, _ := scheduler.ClaimOn(on, res, rule.Ask, rule.Dynamic, nil)
		res.Claims[a.Pod.String()] = claim
		found.placed(s.facts, a.Node)
		fit = append(fit, placement.Assignment{Pod: a.Pod, Node: a.Node})
	}
	return fit, unfit
}
