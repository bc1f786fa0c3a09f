package rollout

// Bounds are the least and the most pods of a revision; nil: no such bound.
type Bounds struct {
	Min *int `json:"min"`
	Max *int `json:"max"`
}

func bounds(least, most int) Bounds { return Bounds{&least, &most} }

// Count returns a revision's pods: its target, or without one its present number, within the bounds. No autoscaler
// chooses between 0 and 1, so the bounds {0, 1} mean 0.
func (b Bounds) Count(target *int, has int) int {
	if b.Min != nil && b.Max != nil && *b.Min == 0 && *b.Max == 1 {
		return 0
	}
	n := has
	if target != nil {
		n = *target
	}
	if b.Max != nil {
		n = min(n, *b.Max)
	}
	if b.Min != nil {
		n = max(n, *b.Min)
	}
	return n
}

// BoundsForRevUp returns the bounds of a revision that grows. Until it has 100 percent, its minimum is at most the
// stage's target.
func BoundsForRevUp(v *Revision) Bounds {
	full := v.Percent != nil && *v.Percent == 100
	if v.Target == nil || v.Min == nil || full {
		return Bounds{v.Min, v.Max}
	}
	return Bounds{new(min(*v.Target, *v.Min)), v.Max}
}

// BoundsForRevDown returns the bounds of a revision that shrinks. They do not change until the new revision is ready.
// Without a percent it gets 0 pods.
func BoundsForRevDown(v *Revision, current Bounds, scaleUpReady bool) Bounds {
	switch {
	case !scaleUpReady:
		return current
	case v.Percent == nil:
		return bounds(0, 1)
	case v.Target == nil:
		return Bounds{v.Min, v.Max}
	case *v.Target == 0:
		return bounds(0, 1)
	case v.Min != nil && *v.Target < *v.Min:
		return Bounds{v.Target, v.Target}
	case v.Max != nil:
		return Bounds{v.Min, new(min(*v.Target, *v.Max))}
	default:
		return Bounds{v.Min, nil}
	}
}

// Scale is how many pods a revision asks for and has. For one that grows, Actual is its available pods, else all its
// copies: placed, stopping, and ghosts.
type Scale struct{ Desired, Actual int }

// IsStageScaleUpReady reports whether a revision has grown as the stage asks. has is nil without a status.
func IsStageScaleUpReady(has *Scale, v *Revision) bool {
	switch {
	case has == nil:
		return false
	case v.Target == nil:
		return within(has.Desired, v) && within(has.Actual, v)
	}
	need := *v.Target
	if v.Min != nil {
		need = min(need, *v.Min)
	}
	return has.Desired >= need && has.Actual >= need
}

func within(n int, v *Revision) bool {
	return (v.Min == nil || n >= *v.Min) && (v.Max == nil || n <= *v.Max)
}

// IsStageScaleDownReady is IsStageScaleUpReady for a revision that shrinks.
func IsStageScaleDownReady(has *Scale, v *Revision) bool {
	if has == nil {
		return false
	}
	most := v.Target
	if most == nil {
		most = v.Max
	}
	return most == nil || has.Desired <= *most && has.Actual <= *most
}

// StageReplicas returns how many of a revision's replicas a stage changes, at least one. percent is the revision's
// share of the service, and ratio the stage's share, both in percent. If percent is 0, the stage changes all.
func StageReplicas(replicas, percent, ratio int) int {
	if percent <= 0 {
		return max(1, replicas)
	}
	return max(1, replicas*ratio/percent)
}

// StagePercent returns the percentage of the service that a stage changes. stage is how many replicas of a revision it
// changes, and percent is the revision's share of the service.
func StagePercent(stage, replicas, percent int) int {
	if replicas <= 0 {
		return percent
	}
	return min(percent, (stage*percent+replicas-1)/replicas)
}
