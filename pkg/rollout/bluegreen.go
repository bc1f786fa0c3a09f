package rollout

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
	if more < n && more <= up.desired() {
		return false
	}
	w.setTargets(up, downs, more, old)
	return true
}

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
