package rollout

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Work is a decision that is being made: steps and strategies change the record and the controllers in it.
type Work struct {
	Record  *Record
	Members []*Member // the revisions of the record whose controllers there are, in its order
	obs     Observed
	d       Decision
	asked   bool // the answer of the gate has been used
}

// Member is a revision with its controller.
type Member struct {
	*Revision
	Ctrl   rc.RC      // as it becomes
	Status *rc.Status // nil unless it counts: of the controller's generation, of this epoch, and neither holding nor regressed
	read   rc.RC
	raw    *rc.Status // of the controller's generation, whatever else it says
	bump   bool       // it gets a new generation even if nothing else changes
}

func newWork(rec Record, obs Observed) *Work {
	next := field.Copy(rec)
	w := &Work{Record: &next, obs: obs}
	for i := range next.Revisions {
		v := &next.Revisions[i]
		if seen, ok := obs.Revisions[v.RC]; ok && seen.RC.ID != "" {
			w.Members = append(w.Members, newMember(v, seen.counted(next.Total()), obs.Epoch))
		}
	}
	return w
}

func newMember(v *Revision, seen Seen, epoch string) *Member {
	m := &Member{Revision: v, Ctrl: field.Copy(seen.RC), read: seen.RC}
	st := seen.Status
	if st == nil || st.ObservedGeneration != seen.RC.Generation {
		return m
	}
	m.raw = st
	if st.Epoch == epoch && !st.Is(rc.Holding) && !st.Is(rc.Regressed) {
		m.Status = st
	}
	return m
}

// readRight replaces the times of the record that lie in the future, because the clock of the farm that wrote them was
// wrong.
func (w *Work) readRight() {
	r, now := w.Record, w.Now()
	field.NotAhead(&r.StartedAt, now)
	field.NotAhead(&r.StageSince, now)
	field.NotAhead(&r.ProgressAt, now)
	field.NoneAhead(&r.WaitingSince, now)
	if r.PreDeploy != nil && r.PreDeploy.Until.After(now.Add(PreDeployTimeout+field.ClockError)) {
		r.PreDeploy.Until = now.Add(PreDeployTimeout)
	}
	if r.Gate != nil {
		field.NoneAhead(&r.Gate.NextAt, now.Add(time.Duration(r.Gate.Tries)*time.Second))
	}
}

// left returns how much of a time is left that began so long ago by the wall clock. This process has watched for all of
// it when nothing is left: a clock that is ahead must not end it.
func (w *Work) left(d, elapsed time.Duration) time.Duration {
	if w.obs.Watched != nil {
		elapsed = min(elapsed, *w.obs.Watched)
	}
	return d - elapsed
}

// Now is the time of the decision.
func (w *Work) Now() time.Time { return w.obs.Now }

// In returns the members that go in a direction: those that go down in the order in which they do.
func (w *Work) In(d Direction) []*Member {
	var in []*Member
	for _, m := range w.Members {
		if m.Direction == d {
			in = append(in, m)
		}
	}
	if d == Down {
		slices.SortStableFunc(in, func(a, b *Member) int {
			switch {
			case a.Abandoned != b.Abandoned && a.Abandoned:
				return -1
			case a.Abandoned != b.Abandoned:
				return 1
			case a.Abandoned:
				return int(b.Rev - a.Rev)
			default:
				return 0 // the oldest first, as in the record
			}
		})
	}
	return in
}

// Upward returns the member that gets pods, nil if none does.
func (w *Work) Upward() *Member {
	if up := w.In(Up); len(up) > 0 {
		return up[0]
	}
	return nil
}

// Max is the most pods that the service may have while something is added.
func (r *Record) Max() int { return r.Total() + r.Update.Keep + r.Update.Surge }

// living returns how many pods a revision has that take room, those that stop included, those on lost machines not. Without a status that is what it asks for.
func (m *Member) living() int {
	if m.raw == nil {
		return m.desired()
	}
	return min(max(0, m.raw.Placed-m.raw.Lost)+max(0, m.raw.Stopping-m.raw.StoppingLost)+m.raw.Ghosts, rc.MaxPods)
}

// placed returns how many pods of a revision are meant to run, on machines that are not lost.
func (m *Member) placed() int {
	if m.raw == nil {
		return m.desired()
	}
	return max(0, m.raw.Placed-m.raw.Lost)
}

// desired returns how many pods a revision asks for.
func (m *Member) desired() int {
	if m.Ctrl.DeletedAt != nil {
		return 0
	}
	return m.Ctrl.Desired()
}

// takes returns for how many pods a revision takes room now or may before anything else is decided.
func (m *Member) takes() int { return max(m.desired(), m.living()) }

// serving returns how many pods count for the minimum of the service.
func (m *Member) serving() int {
	if m.Status == nil {
		return 0
	}
	return max(0, m.Status.Available-m.Status.StandingBy)
}

// idle returns how many pods of a revision may go without being missed: they are asked for and do not serve. Nothing is known to be idle without a status.
func (m *Member) idle() int {
	if m.Status == nil {
		return 0
	}
	return max(0, m.desired()-m.serving())
}

// up returns what IsStageScaleUpReady judges. Pods of nodes without a preparer are no progress, and neither are those that stand by where they should not.
func (m *Member) up() *Scale {
	if m.Status == nil {
		return nil
	}
	actual := m.Status.Available - m.Status.UnmanagedAvailable
	if !m.Standby {
		actual -= m.Status.StandingBy
	}
	return &Scale{Desired: m.Status.Desired, Actual: actual}
}

// down returns what IsStageScaleDownReady judges.
func (m *Member) down() *Scale {
	if m.Status == nil {
		return nil
	}
	return &Scale{Desired: m.Status.Desired, Actual: m.living()}
}

// setCount gives a controller so many pods. One that grows fills its groups in their order, one that shrinks empties them in that order, so
// that one role after the other changes over.
func (m *Member) setCount(n int, groups []rc.ReplicaGroup) {
	m.Ctrl.ReplicaGroups = m.Ctrl.WithCounts(fill(n, groups, m.Direction == Up))
}

// FirstOf returns how many pods of which role a revision has that has grown to so many: one role after the other. The error is that of the order.
func FirstOf(n int, groups []rc.ReplicaGroup, order []string) ([]rc.ReplicaGroup, error) {
	rolling, err := ordered(groups, order)
	return fill(n, rolling, true), err
}

func fill(n int, groups []rc.ReplicaGroup, fromFirst bool) []rc.ReplicaGroup {
	out := field.Copy(groups)
	for i := range out {
		k := i
		if !fromFirst {
			k = len(out) - 1 - i
		}
		have := min(n, *out[k].Count)
		n -= have
		out[k].Count = &have
	}
	return out
}

// dress writes into each controller what it has while the rollout is in charge.
func (w *Work) dress() {
	for _, m := range w.Members {
		if m.Ctrl.Service == nil {
			m.Ctrl.Service = &rc.Service{}
		}
		s := m.Ctrl.Service
		s.Name, s.Revision = w.Record.Service, m.Rev
		s.Min, s.Max, s.Standby = w.Record.Update.Min, w.Record.Max(), m.Standby
		if least := w.Record.Update.Min; w.Record.lowersMinimum() && m.Ctrl.MinAvailable != nil && *m.Ctrl.MinAvailable > least {
			m.Ctrl.MinAvailable = &least
		}
	}
}

// changed returns the controllers that differ from what was read, each with its next generation.
func (w *Work) changed() []rc.RC {
	var out []rc.RC
	for _, m := range w.Members {
		if reflect.DeepEqual(m.Ctrl, m.read) && !m.bump {
			continue
		}
		m.Ctrl.Generation = m.read.Generation + 1
		m.Ctrl.ChangedBy = "rollout " + w.Record.Term()
		if m.Direction == Down && !w.Record.State.Ended() {
			m.Ctrl.AllowMassStop = m.Ctrl.Generation // of this record, and of none that follows
		}
		if m.Ctrl.InStages() && m.read.AllowMassStop != 0 && m.read.AllowMassStop == m.read.Generation {
			m.Ctrl.AllowMassStop = m.Ctrl.Generation // what somebody let pass goes in several stages
		}
		out = append(out, uncounted(m.Ctrl))
	}
	return out
}

func (w *Work) audit(format string, args ...any) {
	w.d.Audit = append(w.d.Audit, fmt.Sprintf(format, args...))
}

// look makes the owner look again after d at the latest.
func (w *Work) look(d time.Duration) {
	if d = max(d, time.Millisecond); w.d.Again != 0 {
		d = min(d, w.d.Again)
	}
	w.d.Again = d
}
