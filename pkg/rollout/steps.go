package rollout

import (
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// RolloutStep is one part of a stage.
//
//nolint:revive // Rollout.RolloutSteps is made of these, and the name of a step alone is that of a knob
type RolloutStep interface {
	// Execute changes counts to what the targets of the stage ask for. It does nothing where that is so already.
	Execute(w *Work, up, down []*Member)
	// Verify reports whether the cluster is where Execute wants it, and if not when to look again, 0 for when a bell rings. An error is why it never will be.
	Verify(w *Work, up, down []*Member) (done bool, again time.Duration, err error)
	// ModifyStatus writes into the record that the step is done.
	ModifyStatus(w *Work, up, down []*Member)
}

// Rollout is the steps of a stage in their order.
type Rollout struct {
	RolloutSteps []RolloutStep
}

// Reconcile executes the steps in their order and halts at the first that is not ready. It reports whether all are.
func (r *Rollout) Reconcile(w *Work, up, down []*Member) (done bool, again time.Duration, err error) {
	for _, step := range r.RolloutSteps {
		step.Execute(w, up, down)
		done, again, err := step.Verify(w, up, down)
		if err != nil || !done {
			return false, again, err
		}
		step.ModifyStatus(w, up, down)
	}
	return true, 0, nil
}

// BaseScaleStep is what steps that scale have in common.
type BaseScaleStep struct{}

// CreateBaseBounds gives a revision that has no bounds in this stage those of what it has.
func (BaseScaleStep) CreateBaseBounds(m *Member) {
	if m.Bounds == nil {
		b := bounds(m.desired(), m.desired())
		m.Bounds = &b
	}
}

// CreateOrUpdateBounds gives a revision the bounds that fn makes of those that it has, and returns how many pods follow from them.
func (s BaseScaleStep) CreateOrUpdateBounds(m *Member, scaleUpReady bool, fn func(v *Revision, current Bounds, scaleUpReady bool) Bounds) int {
	s.CreateBaseBounds(m)
	b := fn(m.Revision, *m.Bounds, scaleUpReady)
	m.Bounds = &b
	return b.Count(m.Target, m.desired())
}

// ScaleUpStep lets the new revision grow.
type ScaleUpStep struct{ BaseScaleStep }

// Execute implements RolloutStep.
func (s ScaleUpStep) Execute(w *Work, up, down []*Member) {
	for _, m := range down {
		s.CreateBaseBounds(m)
	}
	for _, m := range up {
		n := s.CreateOrUpdateBounds(m, true, func(v *Revision, _ Bounds, _ bool) Bounds { return BoundsForRevUp(v) })
		m.setCount(n, w.Record.Groups)
	}
}

// Verify implements RolloutStep.
func (ScaleUpStep) Verify(w *Work, up, _ []*Member) (bool, time.Duration, error) {
	for _, m := range up {
		if err := w.hopeless(m); err != nil {
			return false, 0, err
		}
	}
	for _, m := range up {
		if m.caughtUp() && IsStageScaleUpReady(m.up(), m.Revision) {
			continue
		}
		return false, 0, nil
	}
	return true, 0, nil
}

// ModifyStatus implements RolloutStep.
func (ScaleUpStep) ModifyStatus(w *Work, up, down []*Member) { w.progress(up, down) }

// ScaleDownStep lets the old revisions shrink.
type ScaleDownStep struct {
	BaseScaleStep
	First bool // it comes before the new revision grows, which begins with nothing
}

// Execute implements RolloutStep.
func (s ScaleDownStep) Execute(w *Work, up, down []*Member) {
	ready := true
	for _, m := range up {
		s.CreateBaseBounds(m)
		ready = ready && (s.First || IsStageScaleUpReady(m.up(), m.Revision))
	}
	w.rebalance(down)
	for _, m := range down {
		n := s.CreateOrUpdateBounds(m, ready, BoundsForRevDown)
		m.setCount(min(n, *m.Target), m.Before)
	}
}

// Verify implements RolloutStep.
func (ScaleDownStep) Verify(_ *Work, _, down []*Member) (bool, time.Duration, error) {
	for _, m := range down {
		if !m.caughtUp() || !IsStageScaleDownReady(m.down(), m.Revision) {
			return false, 0, nil
		}
	}
	return true, 0, nil
}

// ModifyStatus implements RolloutStep.
func (ScaleDownStep) ModifyStatus(w *Work, up, down []*Member) { w.progress(up, down) }

// caughtUp reports whether the controller was read with the counts that the stage asks for: a status of other counts says nothing about these.
func (m *Member) caughtUp() bool { return m.read.Desired() == m.Ctrl.Desired() }

// hopeless returns an error that names the pods of a revision for which waiting does not help, nil for none. On the way
// back there are none: what it goes back to ran before, and it waits for as long as that takes.
func (w *Work) hopeless(m *Member) error {
	if m.Status == nil || w.Record.State == RollingBack {
		return nil
	}
	var pods []string
	for _, f := range m.Status.Failing {
		if f.Hopeless {
			pods = append(pods, fmt.Sprintf("%s.%s on %s: %s", m.Name, f.Pod, f.Node, f.Reason))
		}
	}
	if len(pods) == 0 {
		return nil
	}
	return fmt.Errorf("waiting does not help: %s", field.Few(pods, 3, "; "))
}

// rebalance moves what a stage takes from a revision whose pods all have to stay, because the minimum is reached, to one that has pods which do not serve: else
// one pod short would stall the stage.
func (w *Work) rebalance(down []*Member) {
	serving := 0
	for _, m := range w.Members {
		if m.Status == nil {
			return
		}
		serving += m.serving()
	}
	if serving > w.Record.Update.Min {
		return
	}
	for _, stuck := range down {
		over := stuck.serving() - *stuck.Target
		for _, m := range down {
			k := max(0, min(over, *m.Target-m.serving())) // 0 for itself
			more, less := *stuck.Target+k, *m.Target-k
			stuck.Target, m.Target = &more, &less
			over -= k
		}
	}
}
