package rollout

// Bounds are the least and the most pods that a revision has. nil: no such bound.
type Bounds struct {
	Min *int `json:"min"`
	Max *int `json:"max"`
}

func bounds(least, most int) Bounds { return Bounds{&least, &most} }

// Count returns how many pods a revision gets: its target within the bounds, or without one the nearest number to what it has. There is no
// autoscaler that would choose between 0 and 1, so {0, 1} is 0.
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

// BoundsForRevUp returns the bounds of a revision that grows: before it holds all of the service, its minimum does not ask for more than the stage.
func BoundsForRevUp(v *Revision) Bounds {
	full := v.Percent != nil && *v.Percent == 100
	if v.Target == nil || v.Min == nil || full {
		return Bounds{v.Min, v.Max}
	}
	least := min(*v.Target, *v.Min)
	return Bounds{&least, v.Max}
}

// BoundsForRevDown returns the bounds of a revision that shrinks. They stay as they are until the new revision is ready; one without a share goes.
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
		most := min(*v.Target, *v.Max)
		return Bounds{v.Min, &most}
	default:
		return Bounds{v.Min, nil}
	}
}

// Scale is how many pods a revision asks for and has. For a revision that grows, Actual is what is available; for one that shrinks, what is placed, stops,
// or is left elsewhere.
type Scale struct{ Desired, Actual int }

// IsStageScaleUpReady reports whether a revision has grown as far as the stage asks. has is nil where no status counts: what is unknown is not ready.
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

// IsStageScaleDownReady reports whether a revision has shrunk as far as the stage asks.
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

// StageReplicas returns by how many replicas a stage changes a revision that has the given number of them and holds percent of the service, where a
// stage is ratio percent of the service. At least one; all of them where it holds nothing.
func StageReplicas(replicas, percent, ratio int) int {
	if percent <= 0 {
		return max(1, replicas)
	}
	return max(1, replicas*ratio/percent)
}

// StagePercent returns how many percent of the service a stage of so many replicas moves away from a revision that holds percent with its replicas.
func StagePercent(stage, replicas, percent int) int {
	if replicas <= 0 {
		return percent
	}
	return min(percent, (stage*percent+replicas-1)/replicas)
}
