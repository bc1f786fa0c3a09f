package place

import (
	"context"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// worthGuessing is false if all nodes are known to be too full.
func (s *Search) worthGuessing() bool {
	facts := s.facts
	if facts.Manifest == nil {
		return true // the needs of the pods are not known yet
	}
	shape := shapeOf(facts, &s.lot, nil)
	own := shape
	own.RCID = facts.RC.ID
	return s.finder.scarcity.known(shape, facts.Now).All && s.finder.scarcity.known(own, facts.Now).All
}

// beginLook returns at which nodes to look. An outside scheduler is asked every time.
func (s *Search) beginLook(plan *reconcile.Plan) placement.Look {
	look := placement.Look{All: true}
	if s.finder.outside == nil {
		shape := shapeOf(s.facts, &s.lot, plan.Adds)
		s.finder.scarcity.with(func(known *placement.Scarcity) { look = known.Begin(shape, s.facts.Now, s.nodes.Mark) })
	}
	return look
}

func (s *Search) findNodes(ctx context.Context) (err error) {
	facts := s.facts
	if s.finder.outside == nil {
		if wanted := s.lot.Nodes; wanted != nil {
			s.found = newCandidates(facts, &s.lot, nil, "")
			s.found.inOrder(placement.InOrder(wanted), placement.Walk{})
			return nil
		}
		s.found, err = candidatesOf(&s.finder.byLabel, s.finder.cfg.Farm, facts, &s.lot, s.nodes.Version)
		return err
	}
	view := viewOf(facts, &s.lot, s.nodes.Version)
	names, others, err := s.finder.outside.eligible(ctx, view)
	if err != nil {
		return err
	}
	spread := ""
	if by := s.lot.Preferences.Spread; by.Held() > 0 {
		spread = by.Label
	}
	s.found = newCandidates(facts, &s.lot, others, spread)
	// Nodes that the scheduler leaves out make groups too, so that its answer cannot exceed the maximum skew.
	open, _ := view.Eligible()
	s.found.groups = field.Each(open, func(n scheduler.Node) string { return n.Label(spread) })
	s.found.strict = true
	s.found.inOrder(placement.InOrder(names), placement.Walk{})
	return nil
}

// lookForNodes places the plan's adds. It returns those without a node, how long to wait before all nodes are looked at
// again, and why no node takes them.
func (s *Search) lookForNodes(
	ctx context.Context, plan *reconcile.Plan, look placement.Look,
) (left []pod.Identity, wait time.Duration, why scheduler.Reasons, err error) {
	facts, left := s.facts, plan.Adds
	if look.All {
		s.skipPoor()
	} else {
		s.found.only(look)
		s.found.unfit = facts.LeastPreferred(&s.lot)
		s.found.skip(nil)
	}
	for i := range facts.Pods { // a vacant pod may return to its former node; unfit makes this node the last choice
		if facts.Vacant(&facts.Pods[i]) {
			delete(s.found.avoid, facts.Pods[i].Identity)
		}
	}
	s.found.count(facts, &s.lot, plan)
	for first := true; len(left) > 0 && (!s.found.pool.Empty() || len(s.found.guessed) > 0); first = false {
		// If the farm knows which nodes are full, it takes others before it reads their reservations.
		unseen := look.All && !s.found.tryFull && (first || s.finder.usage.tight(len(facts.Nodes), facts.Now))
		names, reservations, err := s.nextNodes(ctx, len(left), unseen)
		if err != nil {
			return nil, 0, nil, err
		}
		if len(names) == 0 && !s.unskip() {
			break
		}
		if left = s.place(plan, left, names, reservations); len(left) > 0 {
			s.finder.usage.saw(s.reserved, facts.Now)
		}
		s.giveBack(plan.Changes) // so that other passes can take the nodes that could not take these pods
	}
	if s.found.strict {
		return left, reconcile.RetryAfter, s.found.others, nil
	}
	shape := shapeOf(facts, &s.lot, plan.Adds)
	if 0 < len(left) && len(left) < len(plan.Adds) {
		s.partly = append(s.partly, shape)
	}
	s.finder.scarcity.with(func(known *placement.Scarcity) {
		switch {
		case len(left) == 0:
			known.Found(shape)
		case look.All:
			wait, why = known.NoneFound(shape, facts.Now, s.nodes.Mark, s.found.looked, s.found.others), s.found.others
		default:
			wait, why = look.Wait, look.Reasons
		}
	})
	return left, wait, why, nil
}

// skipPoor skips nodes that this farm knows to be too full, and nodes on which pods of the controller never became
// available.
func (s *Search) skipPoor() {
	n, facts := s.found, s.facts
	if n.tryFull {
		return
	}
	n.unfit = facts.LeastPreferred(&s.lot)
	if n.strict {
		n.skip(nil)
		return
	}
	n.skip(s.finder.usage.full(facts.Nodes, s.lot.Rule.Ask, len(s.lot.Rule.Dynamic), facts.Now))
}

// unskip makes skipped nodes candidates again: first the full nodes, in the next call the unfit ones. It reports
// whether there were any.
func (s *Search) unskip() bool {
	n := s.found
	skipped := n.pool.Preferred.Skip != nil && !n.pool.Empty()
	if n.tryFull {
		n.unfit = nil
	}
	n.tryFull = true
	n.skip(nil)
	return skipped
}

func (s *Search) place(
	plan *reconcile.Plan, pods []pod.Identity, names []string, reservations map[string]node.Reservation,
) []pod.Identity {
	facts, nodes, rule := s.facts, s.found, &s.lot.Rule
	assigned, refused := placement.Assign(placement.Request{
		Pods: pods, Want: rule.Ask, Dynamic: rule.Dynamic, MaxPerNode: rule.MaxPerNode, PerNode: nodes.perNode,
		Avoid: nodes.avoid, Spread: nodes.spread, PerGroup: nodes.perGroup, Tally: nodes.tally,
		Preferences: nodes.prefers, Pack: nodes.pack, Strict: nodes.strict, Order: names, Reluctant: nodes.fallback,
		Nodes: facts.Nodes, Reservations: reservations,
	})
	placer := plan.Placer()
	plan.Changes = slices.Grow(plan.Changes, len(assigned))
	for _, a := range assigned {
		plan.Changes = append(plan.Changes, placer.On(a.Pod, a.Node))
		nodes.placed(facts, a.Node)
	}
	for reason, n := range refused {
		nodes.others[reason] += n
	}
	return unplaced(pods, assigned)
}

// nextNodes returns the next nodes with their reservations; none if there are no more. With unseen, it takes nodes
// before it reads their reservations, because the first ones can usually take the pods.
func (s *Search) nextNodes(
	ctx context.Context, pods int, unseen bool,
) (names []string, taken map[string]node.Reservation, err error) {
	recs := s.found.readAhead
	if names = s.found.guessed; len(names) == 0 {
		if unseen {
			names = s.takeNodes(ctx, pods)
		} else if names, err = s.lookAround(ctx, pods); err != nil {
			return nil, nil, err
		}
		d, err := s.finder.cfg.Reads.ReadDetails(ctx,
			store.Wanted{Reservations: names, Nodes: len(s.facts.Nodes)}, store.Default)
		if err != nil {
			return nil, nil, err
		}
		s.keep(d)
		recs = d.Reservations
	}
	s.found.guessed, s.found.readAhead = nil, nil
	taken = make(map[string]node.Reservation, len(names))
	for _, name := range names {
		taken[name] = recs[name].Value
	}
	return names, taken, nil
}

func (s *Search) takeNodes(ctx context.Context, pods int) []string {
	some, fallback := s.finder.ledger.Take(ctx, &s.found.pool, pods, len(s.taken) == 0)
	if s.found.mine != nil {
		fallback = slices.DeleteFunc(slices.Clone(some), s.found.mine)
	}
	for _, name := range fallback {
		s.found.fallback[name] = true
	}
	s.taken = append(s.taken, some...)
	s.found.looked += len(some)
	return some
}

// giveBack gives nodes that the changes do not use back to other passes.
func (s *Search) giveBack(changes []reconcile.Change) {
	used := map[string]bool{}
	for i := range changes {
		for _, r := range changes[i].Reserve {
			used[r.Node] = true
		}
	}
	var unused []string
	s.taken = slices.DeleteFunc(s.taken, func(name string) bool {
		if !used[name] {
			unused = append(unused, name)
		}
		return !used[name]
	})
	s.finder.ledger.GiveBack(unused)
}

// lookAtOnce is how many reservations one request of lookAround reads.
const lookAtOnce = 128

// lookAround reads the reservations of further nodes, in their order, until enough can take pods, and then takes those.
// It takes none while it reads, because other passes would wait for nodes that this pass cannot use.
func (s *Search) lookAround(ctx context.Context, pods int) ([]string, error) {
	enough := max(scheduler.MinCandidates, pods)
	preferred, err := s.lookIn(ctx, &s.found.pool.Preferred, enough)
	if err != nil {
		return nil, err
	}
	rest, err := s.lookIn(ctx, &s.found.pool.Rest, enough-len(preferred))
	if err != nil {
		return nil, err
	}
	for _, name := range preferred {
		if s.found.mine != nil && !s.found.mine(name) {
			s.found.fallback[name] = true
		}
	}
	for _, name := range rest {
		s.found.fallback[name] = true
	}
	found := slices.Concat(preferred, rest)
	s.finder.ledger.Reserve(found)
	s.taken = append(s.taken, found...)
	return found, nil
}

// lookIn reads the reservations of nodes until enough of them can take a pod, and returns those.
func (s *Search) lookIn(ctx context.Context, from *scheduler.Preference, enough int) (found []string, err error) {
	for names := range slices.Chunk(slices.Collect(from.All()), lookAtOnce) {
		if len(found) >= enough {
			return found, nil
		}
		started, before := time.Now(), len(found)
		from.Take(names)
		s.found.looked += len(names)
		d, err := s.finder.cfg.Reads.ReadDetails(ctx, store.Wanted{Reservations: names}, store.Default)
		if err != nil {
			return nil, err
		}
		s.finder.usage.saw(d.Reservations, s.facts.Now)
		for _, name := range names {
			if s.takesAPod(name, &d) {
				found = append(found, name)
			}
		}
		// After a read without a usable node, pause for as long as it took, so that other passes go on. This loop
		// may read all nodes.
		if len(found) == before {
			if err := wait.Pause(ctx, time.Since(started)); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

// takesAPod reports whether a node can take a pod, and counts the reason if it cannot.
func (s *Search) takesAPod(name string, d *store.Details) bool {
	on, res := s.facts.Nodes[name], d.Reservations[name].Value
	if d.Unreadable[name] == nil {
		s.finder.cfg.OnReservation(on, res)
	}
	at := scheduler.Candidate{
		View: on, Reservation: s.found.withoutVacant(name, res), Pods: s.found.perNode[name],
	}
	reason := s.lot.Rule.Refuses(at, pod.Identity{})
	if reason != "" {
		s.found.others[reason]++
	}
	return reason == ""
}
