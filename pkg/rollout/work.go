package rollout

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Work is a decision in the making.
type Work struct {
	Record  *Record
	Members []*Member // the revisions of the record whose controllers exist, in its order
	obs     Observed
	d       Decision
	asked   bool // the gate's answer has been used
}

// Member is a revision with its controller.
type Member struct {
	*Revision
	Ctrl rc.RC // with the changes of this decision
	// Status is nil if the status has another generation or epoch, or is holding or regressed.
	Status *rc.Status
	read   rc.RC
	raw    *rc.Status // nil if it has another generation than the controller
	bump   bool       // it gets a new generation even if nothing else changes
}

func newWork(rec Record, obs Observed) *Work {
	rec = field.Copy(rec)
	w := &Work{Record: &rec, obs: obs}
	w.match()
	return w
}

func (w *Work) match() {
	w.Members = nil
	for i := range w.Record.Revisions {
		v := &w.Record.Revisions[i]
		if seen := w.obs.Revisions[v.RC]; seen.RC.ID != "" {
			w.Members = append(w.Members, newMember(v, seen.counted(w.Record.Total()), w.obs.Epoch))
		}
	}
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

// correctFutureTimes replaces times in the future: the clock of the farm that wrote them was wrong.
func (w *Work) correctFutureTimes() {
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

// left returns how much of d is left after elapsed by the wall clock. If this process has watched for a shorter time,
// that time is used, because a clock that is ahead must not end d.
func (w *Work) left(d, elapsed time.Duration) time.Duration {
	if w.obs.Watched != nil {
		elapsed = min(elapsed, *w.obs.Watched)
	}
	return d - elapsed
}

// Now is the time of the decision.
func (w *Work) Now() time.Time { return w.obs.Now }

// In returns the members that go in a direction; those that go down in the order in which they shrink.
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
			case a.Abandoned && b.Abandoned:
				return cmp.Compare(b.Rev, a.Rev)
			case a.Abandoned:
				return -1
			case b.Abandoned:
				return 1
			default:
				return 0 // the oldest first, as in the record
			}
		})
	}
	return in
}

// Upward returns the member that goes up, nil for none.
func (w *Work) Upward() *Member {
	if up := w.In(Up); len(up) > 0 {
		return up[0]
	}
	return nil
}

// Max is the most pods that the service may have while pods are added.
func (r *Record) Max() int { return r.Total() + r.Update.Keep + r.Update.Surge }

// living returns how many pods of a revision are compared with the bound. Pods that stop are among them; pods on lost
// machines are not. Without a status it is the number that the revision asks for.
func (m *Member) living() int {
	if m.raw == nil {
		return m.desired()
	}
	return min(max(0, m.raw.Placed-m.raw.Lost)+max(0, m.raw.Stopping-m.raw.StoppingLost)+m.raw.Ghosts, rc.MaxPods)
}

func (m *Member) placed() int {
	if m.raw == nil {
		return m.desired()
	}
	return max(0, m.raw.Placed-m.raw.Lost)
}

func (m *Member) desired() int { return m.Ctrl.Asks() }

// peak returns the most pods that a revision has or may get before the next decision.
func (m *Member) peak() int { return max(m.desired(), m.living()) }

func (m *Member) serving() int {
	if m.Status == nil {
		return 0
	}
	return max(0, m.Status.Available-m.Status.StandingBy)
}

// idle returns how many pods can be removed without harm, because they are known to be unavailable for the minimum.
func (m *Member) idle() int {
	if m.Status == nil {
		return 0
	}
	return max(0, m.desired()-m.serving())
}

// up is for IsStageScaleUpReady. Pods on unmanaged nodes are no progress, nor pods that stand by although the revision
// should not.
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

func (m *Member) down() *Scale {
	if m.Status == nil {
		return nil
	}
	return &Scale{Desired: m.Status.Desired, Actual: m.living()}
}

// setCount sets how many pods a controller asks for. It fills groups in their order when it grows, and empties them in
// the same order when it shrinks. So one role after the other gets the new revision.
func (m *Member) setCount(n int, groups []rc.ReplicaGroup) {
	m.Ctrl.ReplicaGroups = m.Ctrl.WithCounts(fill(n, groups, m.Direction))
}

// CountsAt returns how many pods of each role a revision has when it has grown to n. The error names a mistake in
// order.
func CountsAt(n int, groups []rc.ReplicaGroup, order []string) ([]rc.ReplicaGroup, error) {
	rolling, err := ordered(groups, order)
	return fill(n, rolling, Up), err
}

func fill(n int, groups []rc.ReplicaGroup, d Direction) []rc.ReplicaGroup {
	out := field.Copy(groups)
	for i := range out {
		k := i
		if d != Up {
			k = len(out) - 1 - i
		}
		have := min(n, *out[k].Count)
		n -= have
		out[k].Count = &have
	}
	return out
}

func (w *Work) setServiceFields() {
	for _, m := range w.Members {
		if m.Ctrl.Service == nil {
			m.Ctrl.Service = &rc.Service{}
		}
		s := m.Ctrl.Service
		s.Name, s.Revision = w.Record.Service, m.Rev
		s.Min, s.Max, s.Standby = w.Record.Update.Min, w.Record.Max(), m.Standby
		least, own := w.Record.Update.Min, m.Ctrl.MinAvailable
		if w.Record.lowersMinimum() && own != nil && *own > least {
			m.Ctrl.MinAvailable = &least
		}
	}
}

func (w *Work) changed() []rc.RC {
	var out []rc.RC
	for _, m := range w.Members {
		if reflect.DeepEqual(m.Ctrl, m.read) && !m.bump {
			continue
		}
		m.Ctrl.Generation = m.read.Generation + 1
		m.Ctrl.ChangedBy = "rollout " + w.Record.Term()
		if m.Direction == Down && !w.Record.State.Ended() {
			m.Ctrl.AllowMassStop = m.Ctrl.Generation // for this generation only
		}
		if m.Ctrl.InStages() && m.read.AllowMassStop != 0 && m.read.AllowMassStop == m.read.Generation {
			m.Ctrl.AllowMassStop = m.Ctrl.Generation // an operator allowed the stop, which takes several stages
		}
		out = append(out, uncounted(m.Ctrl))
	}
	return out
}

func (w *Work) audit(format string, args ...any) {
	w.d.Audit = append(w.d.Audit,
		fmt.Sprintf("rollout %s of %s", w.Record.ID, w.Record.Service)+fmt.Sprintf(format, args...))
}

func (w *Work) lookWithin(d time.Duration) {
	if d = max(d, time.Millisecond); w.d.Again != 0 {
		d = min(d, w.d.Again)
	}
	w.d.Again = d
}
