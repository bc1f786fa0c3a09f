package rollout

import "github.com/rcfarm/rcfarm/pkg/rc"

// blueGreen adds all new pods while they stand by, and then gives them the name of the service.
type blueGreen struct{ rolling }

// Plan implements Strategy.
func (b blueGreen) Plan(w *Work) bool {
	up, downs := w.Upward(), w.In(Down)
	if w.Record.State == RollingBack || !up.Standby {
		return b.rolling.Plan(w)
	}
	old := 0
	for _, m := range downs {
		old += m.takes()
	}
	n := w.Record.Total()
	more := within0(n, w.Record.Max()-w.staying()-old, up.takes())
	less := old
	if more < n && more <= up.desired() {
		if less = max(0, old-standingBy(downs)); less == old {
			return false
		}
	}
	w.setTargets(up, downs, more, less)
	return true
}

// standingBy returns how many pods of old revisions make room for the new one, because they stand by for a rollout that was given up. None do while
// something is unknown, or is on its way out already.
func standingBy(downs []*Member) int {
	n := 0
	for _, m := range downs {
		if m.Status == nil || m.living() > m.desired() {
			return 0
		}
		if m.Standby {
			n += m.idle()
		}
	}
	return n
}

// inService reports whether a controller's pods are under the service's name. Only those may be there beside as many new ones.
func inService(r *rc.RC) bool { return r.Service == nil || !r.Service.Standby }

// Next implements Strategy.
func (b blueGreen) Next(w *Work) Phase {
	up := w.Upward()
	switch {
	case w.Record.State == RollingBack || !up.Standby:
		return b.rolling.Next(w)
	case *up.Target < w.Record.Total():
		return Moving
	case !w.Record.Promoted:
		return Promoting
	default:
		return Joining
	}
}

// Reverse implements Strategy. The old revision takes the name back before any new pod goes: its pods that stand by are no progress.
func (b blueGreen) Reverse(w *Work) bool {
	if !b.rolling.Reverse(w) {
		return false
	}
	w.Upward().Standby = false
	return true
}

// join takes the new revision into the service. Nothing restarts. It reports whether all nodes have confirmed it.
func (w *Work) join() bool {
	up := w.Upward()
	up.Standby = false
	return up.standbyAsRead(false) && IsStageScaleUpReady(up.up(), up.Revision)
}

// leave takes the old revisions out of it. It reports whether all nodes have confirmed it.
func (w *Work) leave() bool {
	all := true
	for _, m := range w.In(Down) {
		m.Standby = true
		all = all && m.standbyAsRead(true) && m.Status != nil && m.Status.StandingBy >= m.Status.Placed-m.Status.Lost
	}
	return all
}

// standbyAsRead reports whether the controller's status speaks of pods that stand by, or do not.
func (m *Member) standbyAsRead(standby bool) bool {
	return m.read.Service != nil && m.read.Service.Standby == standby
}
