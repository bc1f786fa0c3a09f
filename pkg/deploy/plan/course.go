package plan

import (
	"slices"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

type course int

const (
	nothing  course = iota
	first           // there is no such service yet
	update          // its controller changes, without a rollout
	recreate        // a new revision replaces the present one
	// in place: its pods are restarted with other manifests, or an upgrade that was given up continues
	upgrade
	relimit // in place: its pods get other limits, and continue to run
	remode  // in place: it changes between counts and a pod on each node, and no manifest changes
	rescale // the rollout under way ends with other counts
	note    // the rollout under way continues, and the next rollout gets other knobs
	allow   // the plan only makes the mass-stop breaker ignore the stops that it withholds
)

// inPlace reports whether a rollout changes the existing controller, and its pods on their nodes.
func (c course) inPlace() bool { return c == upgrade || c == relimit || c == remode }

func (p *planner) course() course {
	if p.svc == nil {
		return first
	}
	isInPlace := p.knobs.StrategyName() == rollout.InPlaceStrategy
	switch {
	case p.current == nil || p.current.RC.DeletedAt != nil || p.ForceRecreate:
		return recreate
	case p.relimits():
		return relimit
	case p.change.Kind == NeedsRecreate && !isInPlace:
		return recreate
	case isInPlace && p.otherPods() && p.unattached():
		return recreate
	case isInPlace && p.otherPods():
		return upgrade
	case p.svc.Rollout != nil:
		return p.midCourse()
	case p.others(func(c *record.Controller) bool { return !leaves(c) }):
		return recreate // a rollout was given up, and other revisions still have pods
	case p.current.RC.InPlace != nil:
		return upgrade // an upgrade was given up, and some pods have the former manifest
	case (!isInPlace || p.unattached()) && p.unfinished():
		return recreate
	case isInPlace && p.changesMode():
		return remode
	case p.change.Kind != UpToDate || p.drifted():
		return update
	case p.MassStop && slices.ContainsFunc(p.svc.Controllers,
		func(c record.Controller) bool { return withheld(&c) && !allowed(&c.RC) }):
		return allow
	default:
		return nothing
	}
}

// relimits reports whether only limits of running processes change, with any strategy, on nodes that can do that.
func (p *planner) relimits() bool {
	switch {
	case !p.otherPods() || !onlyLimits(&p.base.Spec, p.spec) || !p.sameBefore() || !p.current.HasPods():
		return false
	case p.State != nil && !p.holdLimits(p.placed()):
		return false
	}
	return p.knobs.StrategyName() == rollout.InPlaceStrategy || p.mayRelimit()
}

func (p *planner) holdLimits(pods []placed) bool {
	return !slices.ContainsFunc(pods, func(at placed) bool {
		v := p.State.Nodes[at.node]
		return v == nil || !v.HoldsLimits()
	})
}

// sameBefore reports whether all pods differ from the new ones only in their limits. Pods run the document in effect
// or, during an upgrade in place, the former one.
func (p *planner) sameBefore() bool {
	was, _, err := rc.Manifests(p.base.Spec.Pod, p.base.Spec.Groups())
	if err != nil || !was.Equal(p.current.RC.Digests()) {
		return false
	}
	if p.current.RC.InPlace == nil {
		return true
	}
	from := p.current.RC.InPlace.Former()
	return slices.ContainsFunc(p.svc.History, func(e record.Entry) bool {
		digests, _, err := rc.Manifests(e.Spec.Pod, e.Spec.Groups())
		same := from.Equal(p.digests) // the former manifests are desired again
		return err == nil && digests.Equal(from) && (same || onlyLimits(&e.Spec, p.spec))
	})
}

// mayRelimit reports whether limits may change in place although the strategy is not in-place. A pod that cannot get
// its limits while it runs is restarted. So no option may name another strategy, no other revision may have to be
// replaced, one pod may be missing, and each node needs capacity for old and new limits.
func (p *planner) mayRelimit() bool {
	knobs, n, r := inPlaceOf(p.knobs), p.spec.Total(), p.svc.Rollout
	switch {
	case p.Override != "", p.change.relimited().Kind == NeedsRecreate, p.unfinished():
		return false
	case r != nil && (r.Strategy != rollout.InPlaceStrategy || r.RollsBack()):
		return false
	case r == nil && p.others(func(*record.Controller) bool { return true }):
		return false
	case n > 0 && knobs.Numbers(rollout.InPlaceStrategy, n, p.current.RC.Desired()).Unavailable == 0:
		return false
	case !record.StageTakes(rollout.InPlaceStrategy, p.base.Spec.Pod, p.spec.Pod).Within(&knobs):
		return false
	}
	return p.State == nil || p.stuck(p.placed()).Pods == 0
}

func inPlaceOf(k rollout.Knobs) rollout.Knobs {
	if k.StrategyName() != rollout.InPlaceStrategy {
		k.Strategy, k.Order = rollout.InPlaceStrategy, ""
		k.Canary, k.MaxSurge, k.AutoPromote, k.KeepOld = nil, nil, nil, nil
	}
	return k
}

func (p *planner) otherPods() bool { return !p.current.RC.Digests().Equal(p.digests) }

// others reports whether such returns true for a revision with pods that is not in effect.
func (p *planner) others(such func(*record.Controller) bool) bool {
	return slices.ContainsFunc(p.svc.Others(p.base.RC), func(c record.Controller) bool {
		return c.HasPods() && such(&c)
	})
}

// changesMode reports whether the controller changes between counts and a pod on each node in stages.
func (p *planner) changesMode() bool {
	if p.current == nil {
		return false
	}
	want := p.controller(p.current.RC)
	return want.EachNode() != p.current.RC.EachNode() && rollout.InStages(&p.current.RC, &want)
}

// unfinished reports whether the rollout to the revision in effect failed, or was aborted before it had pods. Then a
// new revision tries again, in stages and after pre_deploy. Pods that must stay on their nodes can have no successors,
// so it is false if such pods have run.
func (p *planner) unfinished() bool {
	e := p.svc.Entry(p.base.Revision)
	if e == nil || !p.unattached() && (p.base.Spec.Anchored() != nil || p.spec.Anchored() != nil) {
		return false
	}
	return e.Outcome == rollout.Failed || e.Outcome == rollout.Aborted && !p.current.HasPods() && p.drifted()
}

// unattached reports whether the last rollout left the service without pods, and without volumes of former pods. Then
// another controller may replace the present one.
func (p *planner) unattached() bool {
	if p.current != nil && p.current.RC.EachNode() {
		return false // its nodes may get pods at any moment
	}
	if e := p.svc.Entry(p.base.Revision); e == nil || e.Rollout == "" || e.Outcome == rollout.Done {
		return false
	}
	return !slices.ContainsFunc(p.svc.Others(""), func(c record.Controller) bool {
		return c.HasPods() || len(p.base.Spec.Pod.Volumes) > 0 && c.RC.Generation-c.RC.Toggled > 1
	})
}

// midCourse decides about a rollout under way to the same pods as the document's.
func (p *planner) midCourse() course {
	if up := p.svc.Rollout.Upward(); p.change.Kind == UpToDate && up != nil && up.RC == p.base.RC {
		return nothing // the rollout does this already
	}
	if slices.ContainsFunc(p.change.Fields, func(f FieldChange) bool { return !f.aboutRollouts() }) {
		return rescale
	}
	return note
}

// drifted reports whether the controller differs from its document.
func (p *planner) drifted() bool {
	want, is := p.controller(p.current.RC), p.current.RC
	return p.otherPods() || want.Strategy != is.Strategy ||
		!slices.EqualFunc(want.ReplicaGroups, is.ReplicaGroups, func(a, b rc.ReplicaGroup) bool {
			return a.Role == b.Role && a.Ordered == b.Ordered && a.Count != nil && b.Count != nil &&
				*a.Count == *b.Count
		})
}
