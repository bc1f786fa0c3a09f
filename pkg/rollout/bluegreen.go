package rollout

import (
	"slices"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

// blueGreen adds all new pods while they stand by, and then gives them the name of the service.
type blueGreen struct{ rolling }

// Plan implements Strategy.
func (b blueGreen) Plan(w *Work) bool {
	up, downs := w.Upward(), w.In(Down)
	if w.Record.State == RollingBack || !up.Standby {
		return b.rolling.Plan(w)
	}
	standing := slices.DeleteFunc(slices.Clone(downs), func(m *Member) bool { return !m.Standby })
	named := slices.DeleteFunc(downs, func(m *Member) bool { return m.Standby })
	downs = append(standing, named...) // those in the name give way last
	old := 0
	for _, m := range downs {
		old += m.takes()
	}
	n := w.Record.Total()
	more := within0(n, w.Record.Max()-w.staying()-old, up.takes())
	less := old
	if more < n && more <= up.desired() {
		if less = max(0, old-b.giveWay(w, downs)); less == old {
			return false
		}
	}
	w.setTargets(up, downs, more, less)
	return true
}

// giveWay returns how many old pods make room for the new ones: those that stand by for a rollout that was given up. Where such ones have to stay in the name, because
// no more than the minimum serve, it is those that do not serve, of whichever revision. None do while something is unknown, or is on its way out already.
func (blueGreen) giveWay(w *Work, downs []*Member) int {
	standing, idle, serving, stuck := 0, 0, 0, false
	for _, m := range downs {
		if m.Status == nil || m.living() > m.desired() {
			return 0
		}
		idle += m.idle()
		serving += m.serving()
		if m.Standby {
			standing += m.idle()
			stuck = stuck || m.serving() > 0
		}
	}
	if standing == 0 && stuck && serving <= w.Record.Update.Min {
		return idle
	}
	return standing
}

// inService reports whether a controller's pods are under the service's name.
func inService(r *rc.RC) bool { return r.Service == nil || !r.Service.Standby }

// standsBy reports whether an old controller's pods stand by from the start of a rollout. With blue-green only those of the revision in effect keep the name, if they
// have it: a service may have as many pods beside the new ones as that one has. A switch that was under way is taken back.
func (s *Start) standsBy(r *rc.RC, kind string, effect int64) bool {
	serves := func(o Seen) bool { return revisionOf(o.RC) == effect && inService(&o.RC) }
	return !inService(r) || kind == BlueGreenStrategy && revisionOf(*r) != effect && slices.ContainsFunc(s.Old, serves)
}

// switched reports whether all nodes have registered the new pods of blue-green under the service's name: the old ones leave it, or have left it.
func (r *Record) switched() bool {
	up := r.Upward()
	return r.Strategy == BlueGreenStrategy && !r.GoesBack() && r.Phase != Joining && up != nil && !up.Standby
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
