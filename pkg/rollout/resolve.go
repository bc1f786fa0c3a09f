package rollout

import (
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// resolve turns the knobs into numbers, for a service that will have n replicas and whose revisions ask for old.
func (k *Knobs) resolve(kind string, n, old int) (Update, error) {
	if errs := k.Validate(); errs.Err() != nil {
		return Update{}, fmt.Errorf("%w: %w", ErrRefused, errs)
	}
	return k.Numbers(kind, n, old), nil
}

// Numbers are valid knobs in pods, for a rollout of that strategy to n replicas of a service whose revisions ask for
// old.
func (k *Knobs) Numbers(kind string, n, old int) Update {
	u := Update{
		StageTimeout: field.Duration(k.StageTimeout.Or(DefaultStageTimeout)), OnTimeout: k.OnTimeout, Delay: field.Duration(k.Delay.Or(0)), LeaveOld: k.LeaveOld,
		AutoPromote: k.AutoPromote, KeepOld: field.Duration(k.KeepOld.Or(0)), Gates: field.Copy(k.Gates),
	}
	if u.OnTimeout == "" {
		u.OnTimeout = OnTimeoutRollback
	}
	step := Amount{true, DefaultStep}
	if k.Step != nil {
		step = *k.Step
	}
	if step.Percent {
		u.Ratio = step.N
	}
	u.Step = max(1, step.of(n))
	if kind == CanaryStrategy {
		u.CanaryPods = 1
		if k.Canary != nil {
			u.CanaryPods = k.Canary.Pods
		}
	}
	k.resolveRoom(&u, kind, n, old)
	return u
}

// resolveRoom says how many pods there may be beyond the desired number, and how many may be missing.
func (k *Knobs) resolveRoom(u *Update, kind string, n, old int) {
	stops := k.StopsFirst() || kind == InPlaceStrategy
	switch {
	case kind == BlueGreenStrategy:
		u.Surge = min(max(n, old), maxSurge)
	case k.MaxSurge != nil:
		u.Surge = k.MaxSurge.upTo(n)
	case !stops:
		u.Surge = max(u.Step, u.CanaryPods)
	}
	least := n
	if k.MinAvailable != nil {
		least = min(*k.MinAvailable, n)
		u.First = least
	}
	switch {
	case k.MaxUnavailable != nil:
		u.Unavailable = min(k.MaxUnavailable.of(n), n)
	case stops:
		u.Unavailable = min(u.Step, n)
	case u.Surge == 0 && k.MinAvailable != nil:
		u.Unavailable = n // less what has to be available
	}
	if k.MinAvailable != nil {
		u.Unavailable = min(u.Unavailable, n-least)
		u.Min = least
		return
	}
	u.Min = n - u.Unavailable
}

// room refuses knobs with which no stage could ever move.
func (k *Knobs) room(u Update, kind string, n int, hasOld bool) error {
	switch {
	case k.LeaveOld && !hasOld:
		return fmt.Errorf("%w: leave_old, and there is no old revision that could stay", ErrRefused)
	case n == 0 || !hasOld:
		return nil
	case kind == BlueGreenStrategy && k.MaxSurge != nil && k.MaxSurge.upTo(n) < n:
		return fmt.Errorf("%w: blue-green runs all new pods beside the old ones; max_surge is %s, allowed: %d or none", ErrRefused, k.MaxSurge, n)
	case kind == InPlaceStrategy && u.Unavailable == 0:
		return fmt.Errorf("%w: in-place takes pods before it has others: max_unavailable is 0, or min_available is %d of %d replicas; allowed: 1 or more may be missing", ErrRefused, u.Min, n)
	case kind != InPlaceStrategy && u.Surge == 0 && u.Unavailable == 0:
		return fmt.Errorf("%w: max_surge is 0 and max_unavailable is 0 (min_available %d of %d), so no pod could come or go; allowed: one of them is 1 or more", ErrRefused, u.Min, n)
	}
	return nil
}

// upTo returns the amount in replicas; a share that is not nothing is at least 1.
func (a Amount) upTo(n int) int {
	if a.Percent {
		return (n*a.N + 99) / 100
	}
	return a.N
}
