package plan

import (
	"iter"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// moving returns the controller that grows to the new counts: while the rollout goes back that is an old one.
func (p *planner) moving(c course) *record.Controller {
	if c == rescale && p.svc.Rollout.GoesBack() {
		if was := p.svc.Controller(p.svc.Rollout.Upward().RC); was != nil {
			return was
		}
	}
	return p.current
}

// scaled returns the controller that gets the counts of the target, which is another one while the rollout goes back.
func (p *planner) scaled(c course, target *rc.RC) *rc.RC {
	was := p.moving(c)
	if was == p.current {
		return target
	}
	r := was.RC
	r.ReplicaGroups = r.WithCounts(target.ReplicaGroups)
	return &r
}

// scales lists the roles whose counts change. Where the nodes say how many pods there are no count does.
func (p *planner) scales(target *rc.RC) []Operation {
	if target.EachNode() || p.base.Spec.Mode == rc.EachNode {
		return nil
	}
	before := p.base.Spec.Groups()
	var ops []Operation
	for role := range rolesOf(before, target.ReplicaGroups) {
		if from, to := countOf(before, role), countOf(target.ReplicaGroups, role); from != to {
			ops = append(ops, &ScaleOperation{RC: target.ID, Role: role, From: from, To: to})
		}
	}
	return ops
}

// pods returns how many pods a controller is to have: as many as nodes match, where it has one on each.
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

// moves returns how many pods of a controller come and how many go where its groups change: one role's do not make up
// for another's.
func moves(before, after []rc.ReplicaGroup) (more, less int) {
	for role := range rolesOf(before, after) {
		from, to := countOf(before, role), countOf(after, role)
		more += max(0, to-from)
		less += max(0, from-to)
	}
	return more, less
}

// rolesOf returns the roles of groups, in their order, each once.
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

// countOf returns how many pods a role has.
func countOf(groups []rc.ReplicaGroup, role string) int {
	return rc.Total(slices.DeleteFunc(slices.Clone(groups), func(g rc.ReplicaGroup) bool { return g.Role != role }))
}

// reshaped returns which pods stay and which go as the document wants them, and how many come.
func (p *planner) reshaped(c course) (stay, gone []placed, more int) {
	stay, gone = p.staying(c, p.placed())
	return stay, gone, p.State.without(gone).place(p.spec, p.missing(p.wanted(), stay), stay).Pods
}

// sameManifests reports whether a rollout in place changes the mode, and no manifest.
func sameManifests(limits *rc.InPlace) bool {
	return limits != nil && limits.Keep != nil && limits.From == ""
}

// forecasts lists what owners are going to do, and on which nodes. id is the rollout's once it is written.
func (p *planner) forecasts(c course, target *rc.RC, limits *rc.InPlace, id *string) []Operation {
	about := func(r *rc.RC, count int, until Reached, goal int, where *Where) pods {
		return pods{RC: r.ID, Pods: count, Where: where, forecast: forecast{Goal{Service: p.spec.Name, RC: r.ID, Reached: until, Pods: goal}, id}}
	}
	ends := func(r *rc.RC, count, goal int, where *Where) []Operation {
		gone := about(r, count, Left, goal, where)
		return []Operation{&StopPodsOperation{gone}, &RemovePodsOperation{gone}}
	}
	var ops []Operation
	total, had := p.pods(target), 0
	more, less := total, 0
	if c == rescale || c == inPlace || c == update {
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
		replaced, less, more = len(stay), len(gone), comes
		total = replaced + more
	}
	if c == inPlace {
		if limits != nil && len(limits.Roles) > 0 {
			replaced = min(limits.Counted(p.current.RC.ReplicaGroups), limits.Counted(target.ReplicaGroups))
		}
		if replaced > 0 && !sameManifests(limits) {
			changed := about(target, replaced, Available, total, p.upgraded(c, limits, replaced))
			if p.relimits {
				var roles []string
				if limits != nil {
					roles = limits.Roles
				}
				ops = append(ops, &RelimitPodsOperation{pods: changed, Limits: p.limits(roles)})
			} else {
				ops = append(ops, &UpgradePodsOperation{changed})
			}
		}
	}
	if more > 0 {
		run := about(target, more, Available, total, p.destinations(c, more))
		for _, v := range p.spec.Pod.Volumes {
			ops = append(ops, &CreateVolumeOperation{Volume: v.Name, Pods: more, Where: run.Where, forecast: run.forecast})
		}
		ops = append(ops, &RunPodsOperation{run})
	}
	if less > 0 {
		ops = append(ops, ends(target, less, total, p.departures(c, target.ID, less))...)
	}
	if p.svc == nil {
		return ops
	}
	for _, o := range p.svc.Others(target.ID) {
		if c == update || c == rescale && o.RC.Desired() == 0 {
			continue
		}
		if n := o.RC.Desired(); n > 0 {
			ops = append(ops, ends(&o.RC, n, 0, p.surplus(o.RC.ID, n))...)
		}
		if !p.knobs.LeaveOld {
			goal := Goal{Service: p.spec.Name, RC: o.RC.ID, Reached: Gone}
			ops = append(ops, &DeleteControllerOperation{RC: o.RC.ID, forecast: forecast{goal, id}})
		}
	}
	return ops
}
