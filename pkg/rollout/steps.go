package rollout

import (
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Step is one part of a stage.
type Step interface {
	// Execute changes counts to the targets of the stage. It is idempotent.
	Execute(w *Work, up, down []*Member)
	// Verify reports whether the pods match the counts. If they never will, an error has the reason.
	Verify(w *Work, up, down []*Member) (done bool, err error)
}

// boundsNow returns a revision's bounds. Before a stage's first step they are its present count.
func (m *Member) boundsNow() Bounds {
	if m.Bounds == nil {
		m.bound(bounds(m.desired(), m.desired()))
	}
	return *m.Bounds
}

func (m *Member) bound(b Bounds) int {
	m.Bounds = &b
	return b.Count(m.Target, m.desired())
}

// ScaleUpStep lets the new revision grow.
type ScaleUpStep struct{}

// Execute implements Step.
func (ScaleUpStep) Execute(w *Work, up, down []*Member) {
	for _, m := range down {
		m.boundsNow()
	}
	for _, m := range up {
		m.setCount(m.bound(BoundsForRevUp(m.Revision)), w.Record.Groups)
	}
}

// Verify implements Step.
func (ScaleUpStep) Verify(w *Work, up, _ []*Member) (bool, error) {
	for _, m := range up {
		if err := w.hopeless(m); err != nil {
			return false, err
		}
	}
	for _, m := range up {
		if !m.caughtUp() || !IsStageScaleUpReady(m.up(), m.Revision) {
			return false, nil
		}
	}
	return true, nil
}

// ScaleDownStep lets the old revisions shrink.
type ScaleDownStep struct {
	First bool // the old revisions shrink before the new one has pods
}

// Execute implements Step.
func (s ScaleDownStep) Execute(w *Work, up, down []*Member) {
	ready := true
	for _, m := range up {
		m.boundsNow()
		ready = ready && (s.First || IsStageScaleUpReady(m.up(), m.Revision))
	}
	w.rebalance(down)
	for _, m := range down {
		n := m.bound(BoundsForRevDown(m.Revision, m.boundsNow(), ready))
		m.setCount(min(n, *m.Target), m.Before)
	}
}

// Verify implements Step.
func (ScaleDownStep) Verify(_ *Work, _, down []*Member) (bool, error) {
	for _, m := range down {
		if !m.caughtUp() || !IsStageScaleDownReady(m.down(), m.Revision) {
			return false, nil
		}
	}
	return true, nil
}

// caughtUp reports whether the controller that was read has the stage's counts. A status about other counts is useless.
func (m *Member) caughtUp() bool { return m.read.Desired() == m.Ctrl.Desired() }

// hopeless returns an error that names the hopeless pods of a revision, nil for none. During a rollback it returns nil:
// the old revision ran before, and the rollback waits as long as necessary.
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

// rebalance changes targets if no more pods are available than the minimum. Then unavailable pods must stop instead of
// available ones, even of another revision. Otherwise one missing pod would stall the stage.
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
			k := max(0, min(over, *m.Target-m.serving())) // 0 if m is stuck itself
			stuck.Target, m.Target = new(*stuck.Target+k), new(*m.Target-k)
			over -= k
		}
	}
}
