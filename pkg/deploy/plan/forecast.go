package plan

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// moving returns the controller that grows to the new counts: during a rollback the old one.
func (p *planner) moving(c course) *record.Controller {
	if c == rescale && p.svc.Rollout.RollsBack() {
		if was := p.svc.Controller(p.svc.Rollout.Upward().RC); was != nil {
			return was
		}
	}
	return p.current
}

// scaled returns the controller that gets the target's counts: during a rollback the old one.
func (p *planner) scaled(c course, target *rc.RC) *rc.RC {
	was := p.moving(c)
	if was == p.current {
		return target
	}
	r := was.RC
	r.ReplicaGroups = r.WithCounts(target.ReplicaGroups)
	return &r
}

// scales lists the roles whose counts change, none with one pod on each node.
func (p *planner) scales(target *rc.RC) []*Operation {
	if target.EachNode() || p.base.Spec.Mode == rc.EachNode {
		return nil
	}
	before := p.base.Spec.Groups()
	var ops []*Operation
	for role := range rolesOf(before, target.ReplicaGroups) {
		if from, to := countOf(before, role), countOf(target.ReplicaGroups, role); from != to {
			ops = append(ops, scale(target.ID, role, from, to))
		}
	}
	return ops
}

// pods returns how many pods a controller should have. With a pod on each node, these are the placed pods or, for a new
// controller, the nodes that take one.
func (p *planner) pods(r *rc.RC) int {
	switch {
	case !r.EachNode():
		return r.Desired()
	case p.current != nil && p.current.RC.ID == r.ID && p.current.RC.EachNode() && p.current.Status != nil:
		return p.current.Status.Placed
	case p.State != nil:
		return p.State.Room(p.spec, rc.MaxReplicas).Pods
	default:
		return 0
	}
}

// moves returns how many pods start and stop when groups change. A pod of one role does not replace a pod of another.
func moves(before, after []rc.ReplicaGroup) (more, less int) {
	for role := range rolesOf(before, after) {
		from, to := countOf(before, role), countOf(after, role)
		more += max(0, to-from)
		less += max(0, from-to)
	}
	return more, less
}

func rolesOf(before, after []rc.ReplicaGroup) iter.Seq[string] {
	return func(yield func(string) bool) {
		done := map[string]bool{}
		for _, g := range slices.Concat(after, before) {
			if !done[g.Role] && !yield(g.Role) {
				return
			}
			done[g.Role] = true
		}
	}
}

func countOf(groups []rc.ReplicaGroup, role string) int {
	return rc.Total(slices.DeleteFunc(slices.Clone(groups), func(g rc.ReplicaGroup) bool { return g.Role != role }))
}

// reshaped returns which pods the controller keeps and which stop, and the capacity for the new ones.
func (p *planner) reshaped(c course) (stay, gone []placed, more Room) {
	stay, gone = p.staying(c, p.placed())
	return stay, gone, p.State.without(gone).place(p.spec, p.missing(p.wanted(), stay), stay)
}

// sameManifests reports whether a rollout in place changes the mode, and no manifest.
func sameManifests(limits *rc.InPlace) bool {
	return limits != nil && limits.Keep != nil && limits.From == ""
}

// forecasts lists what owners will do, and on which nodes. id is set when the rollout is written.
func (p *planner) forecasts(c course, target *rc.RC, limits *rc.InPlace, id *string) []*Operation {
	var ops []*Operation
	add := func(o *Operation, r *rc.RC, until Reached, pods int) {
		o.do = func(ctx context.Context, client Client) error {
			return client.Await(ctx, Goal{Service: p.spec.Name, Rollout: *id, RC: r.ID, Reached: until, Pods: pods})
		}
		ops = append(ops, o)
	}
	ends := func(r *rc.RC, count, left int, where *Where) {
		add(ofPods(Removed, "stop", r.ID, count, where), r, Left, left)
		add(ofPods(Removed, "remove", r.ID, count, where), r, Left, left)
	}
	total, had := p.pods(target), 0
	more, less := total, 0
	if c == rescale || c.inPlace() || c == update {
		was := &p.moving(c).RC
		had = p.pods(was)
		more, less = max(0, total-had), max(0, had-total)
		if !target.EachNode() && !was.EachNode() {
			more, less = moves(was.ReplicaGroups, target.ReplicaGroups)
		}
	}
	replaced := min(had, total)
	if target.EachNode() && p.State != nil && p.current != nil && !p.current.RC.EachNode() { // a node keeps one pod
		stay, gone, comes := p.reshaped(c)
		replaced, less, more = len(stay), len(gone), comes.Pods
		total = replaced + more
	}
	if c.inPlace() {
		if limits != nil && len(limits.Roles) > 0 {
			replaced = min(limits.Counted(p.current.RC.ReplicaGroups), limits.Counted(target.ReplicaGroups))
		}
		if replaced > 0 && !sameManifests(limits) {
			where := p.upgraded(c, limits, replaced)
			changed := ofPods(Replaced, "upgrade in place", target.ID, replaced, where)
			if c == relimit {
				var roles []string
				if limits != nil {
					roles = limits.Roles
				}
				changed = ofPods(Changed, "change the limits of", target.ID, replaced, where)
				changed.end = " to " + p.limits(roles) + ", no restart"
			}
			add(changed, target, Available, total)
		}
	}
	if more > 0 {
		where := p.destinations(c, more)
		// A node creates the volumes before it starts the pod, so an available pod has them.
		for _, v := range p.spec.Pod.Volumes {
			text := fmt.Sprintf("create volume %s for each of %s, on its node", v.Name, field.Count(more, "pod"))
			add(&Operation{Sign: Added, Where: where, awaited: true, text: text}, target, Available, total)
		}
		add(ofPods(Added, "run", target.ID, more, where), target, Available, total)
	}
	if less > 0 {
		ends(target, less, total, p.departures(c, target.ID, less))
	}
	if p.svc == nil {
		return ops
	}
	for _, o := range p.svc.Others(target.ID) {
		if c == update || c == rescale && o.RC.Desired() == 0 {
			continue
		}
		if n := o.RC.Desired(); n > 0 {
			ends(&o.RC, n, 0, p.surplus(o.RC.ID, n))
		}
		if !p.knobs.LeaveOld {
			add(&Operation{
				Sign: Removed, awaited: true, text: "delete controller ", rcs: []string{o.RC.ID},
				end: " when it has no pods",
			}, &o.RC, Gone, 0)
		}
	}
	return ops
}
