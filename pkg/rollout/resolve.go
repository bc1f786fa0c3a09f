package rollout

import (
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/field"
)

func (k *Knobs) resolve(strategy string, n, old int) (Update, error) {
	if errs := k.Validate(); errs.Err() != nil {
		return Update{}, fmt.Errorf("%w: %w", ErrRefused, errs)
	}
	return k.Numbers(strategy, n, old), nil
}

// Numbers turns valid knobs into numbers of pods. n is the number of replicas at the end, and old how many pods the
// service's revisions ask for now.
func (k *Knobs) Numbers(strategy string, n, old int) Update {
	u := Update{
		StageTimeout: field.Duration(k.StageTimeout.Or(DefaultStageTimeout)),
		OnTimeout:    k.OnTimeout,
		Delay:        field.Duration(k.Delay.Or(0)),
		LeaveOld:     k.LeaveOld,
		AutoPromote:  k.AutoPromote,
		KeepOld:      field.Duration(k.KeepOld.Or(0)),
		Gates:        field.Copy(k.Gates),
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
	u.Step = max(1, step.roundedDown(n))
	if strategy == CanaryStrategy {
		u.CanaryPods = 1
		if k.Canary != nil {
			u.CanaryPods = k.Canary.Pods
		}
	}
	k.resolveLimits(&u, strategy, n, old)
	return u
}

func (k *Knobs) resolveLimits(u *Update, strategy string, n, old int) {
	stops := k.StopsFirst() || strategy == InPlaceStrategy
	switch {
	case strategy == BlueGreenStrategy:
		u.Surge = min(max(n, old), maxSurge)
	case k.MaxSurge != nil:
		u.Surge = k.MaxSurge.roundedUp(n)
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
		u.Unavailable = min(k.MaxUnavailable.roundedDown(n), n)
	case stops:
		u.Unavailable = min(u.Step, n)
	case u.Surge == 0 && k.MinAvailable != nil:
		u.Unavailable = n // reduced below by the minimum
	}
	if k.MinAvailable != nil {
		u.Unavailable = min(u.Unavailable, n-least)
		u.Min = least
		return
	}
	u.Min = n - u.Unavailable
}

// checkLimits refuses knobs with which no stage could ever move.
func (k *Knobs) checkLimits(u Update, strategy string, n int, hasOld bool) error {
	switch {
	case k.LeaveOld && !hasOld:
		return fmt.Errorf("%w: leave_old is set, and there is no old revision to keep", ErrRefused)
	case n == 0 || !hasOld:
		return nil
	case strategy == BlueGreenStrategy && k.MaxSurge != nil && k.MaxSurge.roundedUp(n) < n:
		return fmt.Errorf("%w: blue-green runs all new pods beside the old ones; max_surge is %s, allowed: %d or none",
			ErrRefused, k.MaxSurge, n)
	case strategy == InPlaceStrategy && u.Unavailable == 0:
		return fmt.Errorf("%w: in-place stops a pod before it starts another: "+
			"max_unavailable is 0, or min_available is %d of %d replicas; allowed: 1 or more may be missing",
			ErrRefused, u.Min, n)
	case strategy != InPlaceStrategy && u.Surge == 0 && u.Unavailable == 0:
		return fmt.Errorf("%w: max_surge is 0 and max_unavailable is 0 (min_available %d of %d), "+
			"so no pod could start or stop; allowed: one of them is 1 or more", ErrRefused, u.Min, n)
	}
	return nil
}

func (a Amount) roundedUp(n int) int {
	if a.Percent {
		return (n*a.N + 99) / 100
	}
	return a.N
}
