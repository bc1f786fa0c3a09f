package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

func (p *planner) refused(do, format string, args ...any) error {
	return &RefusedError{Service: p.spec.Name, Reason: fmt.Sprintf(format, args...), Do: do}
}

func (p *planner) refusedBut(ways []way, format string, args ...any) error {
	return &RefusedError{Service: p.spec.Name, Reason: fmt.Sprintf(format, args...), ways: ways}
}

var inPlaceOnly = []way{by(rollout.InPlaceStrategy, "leave the strategy out, or use in-place")}

// refuse returns a *RefusedError if the present state forbids the change, or if pods must stay on their nodes.
func (p *planner) refuse(c course) error {
	// A change of counts alone is allowed with any strategy, because the document may be older than this rule
	replaces := c == first || c == recreate || p.Override != ""
	strategy := p.knobs.StrategyName()
	if a := p.spec.Anchored(); a != nil && replaces && strategy != rollout.InPlaceStrategy {
		return p.refusedBut(inPlaceOnly, "the strategy %s replaces pods by others, and %s: %s", strategy, a.What, a.Why)
	}
	if c == first {
		return nil
	}
	for i := range p.svc.Controllers {
		if r := &p.svc.Controllers[i].RC; r.Disabled && r.DeletedAt == nil {
			return p.refused("enable it first: rcctl rc enable "+r.Name,
				"its controller %s is disabled, so no farm would act on it", r.Name)
		}
	}
	if err := p.refuseMidCourse(c); err != nil {
		return err
	}
	if takes := record.StageTakes(strategy, p.base.Spec.Pod, p.spec.Pod); (c == recreate || c.inPlace()) &&
		!takes.Within(&p.knobs) {
		longer := way{
			"set update.stage_timeout to " + takes.Allowed(),
			func(_ *ServicePlanner, s *record.ServiceSpec) {
				limit := field.Duration(takes.Duration + rollout.DefaultStageTimeout)
				s.Update.StageTimeout = &limit
			},
		}
		return p.refusedBut([]way{longer},
			"update.stage_timeout is %s, within which no pod of the revision in effect could be replaced",
			p.knobs.StageTimeout.Or(rollout.DefaultStageTimeout))
	}
	if c != recreate || p.current == nil || p.unattached() {
		return nil
	}
	if strategy == rollout.InPlaceStrategy {
		return p.refusedBut([]way{
			{"leave --recreate out", func(r *ServicePlanner, _ *record.ServiceSpec) { r.ForceRecreate = false }},
			by(rollout.AvailabilityStrategy, "use --strategy availability"),
			by(rollout.ResourceUtilStrategy, "use --strategy resourceutil"),
		}, "the strategy in-place makes no new revision of pods that are as they should be")
	}
	if a := p.base.Spec.Anchored(); a != nil {
		return p.refusedBut([]way{by(rollout.InPlaceStrategy, "use update.strategy: in-place")},
			"now %s, and %s, so no pod of a new revision could take its place", a.What, a.Why)
	}
	return nil
}

// refuseMidCourse returns a *RefusedError if a change must wait for the rollout under way.
func (p *planner) refuseMidCourse(c course) error {
	r := p.svc.Rollout
	if r == nil || c != rescale && c != note {
		return nil
	}
	wait := "wait until that has ended: rcctl rollout status " + p.spec.Name + " -w"
	if c == note && r.RollsBack() {
		return p.refused(wait, "its rollout is rolling back")
	}
	for _, f := range p.change.Fields {
		if c == rescale && !f.aboutRollouts() && !isCount(f.Path) {
			return p.refused(wait, "a rollout is under way, and %s would change its controllers", f.Path)
		}
	}
	return nil
}

// leftBehind warns about volumes whose data does not move with a pod.
func (p *planner) leftBehind(c course) []string {
	names := strings.Join(p.spec.Pod.VolumeNames(), ", ")
	if names == "" || p.spec.Mode == rc.EachNode || p.spec.Allocation() == rc.Static {
		return nil
	}
	warnings := []string{"strategy is dynamic: a drain, or the loss of a node, moves pods and leaves the data of " +
		"their volumes behind: " + names}
	if c == recreate && p.current != nil && p.current.HasPods() && len(p.base.Spec.Pod.VolumeNames()) > 0 {
		warnings = append(warnings,
			"pods of a new revision begin with empty volumes: "+names+"; update.strategy: in-place keeps their data")
	}
	return warnings
}

// chooseOrder chooses stop-first if the document names no order, old and new pods need the same static port, and too
// few nodes have it free for the surge.
func (p *planner) chooseOrder(c course) {
	if c != recreate || p.knobs.Strategy != "" || p.knobs.Order != "" || p.knobs.Canary != nil ||
		p.base.Spec.Pod == nil {
		return
	}
	inTheWay := slices.ContainsFunc(p.spec.Pod.Ports, func(next manifest.Port) bool {
		return next.Port != 0 &&
			slices.ContainsFunc(p.base.Spec.Pod.Ports, func(old manifest.Port) bool { return old.Port == next.Port })
	})
	if inTheWay && (p.State == nil || p.roomAfter(p.placed(), 0, p.surge()).Pods < p.surge()) {
		p.knobs.Order = rollout.StopFirst
	}
}

func (p *planner) numbers() rollout.Update {
	had := 0
	if p.current != nil {
		had = p.current.RC.Desired()
	}
	return p.knobs.Numbers(p.knobs.StrategyName(), p.spec.Total(), had)
}

// surge returns how many new pods a stage starts before it stops others.
func (p *planner) surge() int { return min(p.numbers().Surge, p.spec.Total()) }

// stops returns how many pods a stage stops before it starts others.
func (p *planner) stops() int {
	if u := p.numbers(); p.knobs.StopsFirst() || u.Surge == 0 {
		return u.Unavailable
	}
	return 0
}
