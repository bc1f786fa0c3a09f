package rollout

import (
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// step is one part of a stage.
type step interface {
	// execute changes counts to what the targets of the stage ask for. It does nothing where that is so already.
	execute(w *work, up, down []*member)
	// verify reports whether the cluster is where execute wants it. An error is why it never will be.
	verify(up, down []*member) (done bool, err error)
}

// keepBounds gives a revision that has no bounds in this stage those of what it has.
func (m *member) keepBounds() {
	if m.Bounds == nil {
		b := bounds(m.desired(), m.desired())
		m.Bounds = &b
	}
}

// bind gives a revision other bounds, and returns how many pods follow from them.
func (m *member) bind(b Bounds) int {
	m.Bounds = &b
	return b.Count(m.Target, m.desired())
}

// scaleUp lets the new revision grow.
type scaleUp struct{}

func (scaleUp) execute(w *work, up, down []*member) {
	for _, m := range down {
		m.keepBounds()
	}
	for _, m := range up {
		m.setCount(m.bind(BoundsForRevUp(m.Revision)), w.Record.Groups)
	}
}

func (scaleUp) verify(up, _ []*member) (bool, error) {
	for _, m := range up {
		if err := m.hopeless(); err != nil {
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

// scaleDown lets the old revisions shrink.
type scaleDown struct {
	first bool // it comes before the new revision grows, which begins with nothing
}

func (s scaleDown) execute(w *work, up, down []*member) {
	ready := true
	for _, m := range up {
		m.keepBounds()
		ready = ready && (s.first || IsStageScaleUpReady(m.up(), m.Revision))
	}
	rebalance(w, down)
	for _, m := range down {
		m.keepBounds()
		n := m.bind(BoundsForRevDown(m.Revision, *m.Bounds, ready))
		m.setCount(min(n, *m.Target), m.Before)
	}
}

func (scaleDown) verify(_, down []*member) (bool, error) {
	for _, m := range down {
		if !m.caughtUp() || !IsStageScaleDownReady(m.down(), m.Revision) {
			return false, nil
		}
	}
	return true, nil
}

// caughtUp reports whether the controller was read with the counts that the stage asks for: a status of other counts says nothing about these.
func (m *member) caughtUp() bool { return m.read.Desired() == m.Ctrl.Desired() }

// hopeless returns an error that names the pods of a revision for which waiting does not help, nil for none.
func (m *member) hopeless() error {
	if m.Status == nil {
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
func rebalance(w *work, down []*member) {
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
