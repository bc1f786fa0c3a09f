package rollout

import (
	"slices"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

// blueGreen adds all new pods as standby pods, and then gives them the name of the service.
type blueGreen struct{ rolling }

// Plan implements Strategy.
func (b blueGreen) Plan(w *Work) bool {
	up, downs := w.Upward(), w.In(Down)
	if w.Record.State == RollingBack || !up.Standby {
		return b.rolling.Plan(w)
	}
	standing := slices.DeleteFunc(slices.Clone(downs), func(m *Member) bool { return !m.Standby })
	named := slices.DeleteFunc(downs, func(m *Member) bool { return m.Standby })
	downs = append(standing, named...) // pods under the name go last
	n, old := w.Record.Total(), peakOf(downs)
	more := growTo(n, w.Record.Max()-peakOf(w.In(Stay))-old, up.peak())
	less := old
	if more < n && more <= up.desired() {
		if less = max(0, old-b.removableStandby(w, downs)); less == old {
			return false
		}
	}
	w.setTargets(up, downs, more, less)
	return true
}

// removableStandby returns how many old pods must go before new ones can be added: the pods that stand by for a rollout
// that was given up. If such pods must keep the service's name for the minimum, the idle pods of all old revisions go
// instead. It returns 0 while a status is unknown, or while a revision has surplus pods, because these are about to
// stop.
func (blueGreen) removableStandby(w *Work, downs []*Member) int {
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

func inService(r *rc.RC) bool { return r.Service == nil || !r.Service.Standby }

// standsBy reports whether an old controller's pods stand by from the start. With blue-green, a service may have only
// as many pods beside the new ones as the revision in effect has. So if that one has the name, it alone keeps it.
func (s *Start) standsBy(r *rc.RC, strategy string, effect int64) bool {
	serves := func(o Seen) bool { return revisionOf(o.RC) == effect && inService(&o.RC) }
	return !inService(r) ||
		strategy == BlueGreenStrategy && revisionOf(*r) != effect && slices.ContainsFunc(s.Old, serves)
}

// switched reports whether all nodes have registered blue-green's new pods under the service's name.
func (r *Record) switched() bool {
	up := r.Upward()
	return r.Strategy == BlueGreenStrategy && !r.RollsBack() && r.Phase != Joining && up != nil && !up.Standby
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

// join gives the new revision the service's name. No process restarts. It reports whether all nodes have confirmed
// that.
func (w *Work) join() bool {
	up := w.Upward()
	up.Standby = false
	return up.standbyAsRead(false) && IsStageScaleUpReady(up.up(), up.Revision)
}

func (w *Work) leave() bool {
	all := true
	for _, m := range w.In(Down) {
		m.Standby = true
		all = all && m.standbyAsRead(true) && m.Status != nil && m.Status.StandingBy >= m.Status.Placed-m.Status.Lost
	}
	return all
}

// standbyAsRead reports whether the controller that was read, and so its status, has the given Standby.
func (m *Member) standbyAsRead(standby bool) bool {
	return m.read.Service != nil && m.read.Service.Standby == standby
}
