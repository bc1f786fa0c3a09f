package rollout_test

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/rollout"
)

func ptr[T any](v T) *T { return &v }

// none stands for a field that is not set.
const none = -1

func opt(n int) *int {
	if n == none {
		return nil
	}
	return &n
}

func shown(b rollout.Bounds) [2]int {
	out := [2]int{none, none}
	for i, n := range []*int{b.Min, b.Max} {
		if n != nil {
			out[i] = *n
		}
	}
	return out
}

func TestBoundsForRevUp(t *testing.T) {
	for _, tt := range []struct {
		target, percent, least, most int
		want                         [2]int
	}{
		{11, 20, 10, 11, [2]int{10, 11}},
		{10, 20, 10, 11, [2]int{10, 11}},
		{5, 20, 10, 11, [2]int{5, 11}},
		{5, none, 10, 11, [2]int{5, 11}},
		{4, 100, 5, 8, [2]int{5, 8}},
		{4, 99, 5, 8, [2]int{4, 8}},
		{none, 20, 3, 5, [2]int{3, 5}},
		{2, 20, none, none, [2]int{none, none}},
	} {
		v := &rollout.Revision{Target: opt(tt.target), Percent: opt(tt.percent), Min: opt(tt.least), Max: opt(tt.most)}
		if got := shown(rollout.BoundsForRevUp(v)); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

func TestBoundsForRevDown(t *testing.T) {
	for _, tt := range []struct {
		percent, target, least, most int
		ready                        bool
		want                         [2]int
	}{
		{50, 3, 20, 30, false, [2]int{7, 9}},
		{none, 3, 20, 30, true, [2]int{0, 1}},
		{50, none, 21, 41, true, [2]int{21, 41}},
		{50, 18, 20, 30, true, [2]int{18, 18}},
		{50, 18, 17, 30, true, [2]int{17, 18}},
		{50, 17, 17, 30, true, [2]int{17, 17}},
		{50, 31, 17, 30, true, [2]int{17, 30}},
		{50, 30, 17, 30, true, [2]int{17, 30}},
		{50, 0, 17, 30, true, [2]int{0, 1}},
		{50, 5, none, none, true, [2]int{none, none}},
		{50, 5, none, 9, true, [2]int{none, 5}},
		{50, 5, 6, none, true, [2]int{5, 5}},
		{50, 5, 5, none, true, [2]int{5, none}},
	} {
		v := &rollout.Revision{Target: opt(tt.target), Percent: opt(tt.percent), Min: opt(tt.least), Max: opt(tt.most)}
		current := rollout.Bounds{Min: ptr(7), Max: ptr(9)}
		if got := shown(rollout.BoundsForRevDown(v, current, tt.ready)); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

func TestCountWithinBounds(t *testing.T) {
	for _, tt := range []struct{ least, most, target, has, want int }{
		{10, 11, 11, 3, 11},
		{10, 11, 5, 3, 10},
		{10, 11, 12, 3, 11},
		{3, 5, none, 4, 4},
		{3, 5, none, 9, 5},
		{3, 5, none, 1, 3},
		{0, 1, 1, 1, 0}, // no autoscaler chooses between them
		{1, 1, 1, 0, 1},
		{0, 2, 1, 0, 1},
		{0, 0, 1, 1, 0},
		{none, none, 2, 7, 2},
		{none, none, none, 7, 7},
		{none, 1, 1, 7, 1},
		{0, none, 1, 7, 1},
	} {
		b := rollout.Bounds{Min: opt(tt.least), Max: opt(tt.most)}
		if got := b.Count(opt(tt.target), tt.has); got != tt.want {
			t.Errorf("%+v: %d", tt, got)
		}
	}
}

func TestStageScaleUpIsReady(t *testing.T) {
	for _, tt := range []struct {
		desired, actual, target, least, most int
		want                                 bool
	}{
		{10, 10, 10, 8, 15, true},
		{8, 9, 10, 8, 15, true},
		{8, 8, 10, 8, 15, true},
		{7, 9, 10, 8, 15, false},
		{9, 7, 10, 8, 15, false},
		{7, 6, 7, 7, 7, false},
		{2, 2, 2, 9, 9, true},
		{2, 1, 2, 9, 9, false},
		{2, 2, 3, none, none, false},
		{3, 3, 3, none, none, true},
		{10, 10, none, 8, 9, false},
		{9, 10, none, 8, 9, false},
		{10, 9, none, 8, 9, false},
		{9, 9, none, 8, 9, true},
		{8, 8, none, 8, 9, true},
		{9, 9, none, 10, 10, false},
		{9, 9, none, none, none, true},
	} {
		v := &rollout.Revision{Target: opt(tt.target), Min: opt(tt.least), Max: opt(tt.most)}
		scale := rollout.Scale{Desired: tt.desired, Actual: tt.actual}
		if got := rollout.IsStageScaleUpReady(&scale, v); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
		if rollout.IsStageScaleUpReady(nil, v) {
			t.Errorf("%+v: it is ready without a status", tt)
		}
	}
}

func TestStageScaleDownIsReady(t *testing.T) {
	for _, tt := range []struct {
		desired, actual, target, most int
		want                          bool
	}{
		{8, 9, 10, 20, true},
		{8, 10, 10, 20, true},
		{8, 11, 10, 20, false},
		{11, 8, 10, 20, false},
		{10, 8, 10, 20, true},
		{9, 9, none, 10, true},
		{10, 10, none, 9, false},
		{10, 10, none, none, true},
	} {
		v := &rollout.Revision{Target: opt(tt.target), Max: opt(tt.most)}
		scale := rollout.Scale{Desired: tt.desired, Actual: tt.actual}
		if got := rollout.IsStageScaleDownReady(&scale, v); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
		if rollout.IsStageScaleDownReady(nil, v) {
			t.Errorf("%+v: it is ready without a status", tt)
		}
	}
}

func TestStageArithmetic(t *testing.T) {
	for _, tt := range []struct{ replicas, share, ratio, stage, step int }{
		{10, 80, 40, 5, 40},
		{6, 100, 40, 2, 34},
		{4, 100, 30, 1, 25},
		{8, 80, 20, 2, 20},
		{10, 100, 100, 10, 100},
		{10, 100, 1, 1, 10},
		{5, 50, 100, 10, 50}, // at most the percent that it has
		{0, 50, 10, 1, 50},   // no replicas: its whole percent goes at once
		{7, 0, 10, 7, 0},
		{0, 0, 10, 1, 0},
	} {
		stage := rollout.StageReplicas(tt.replicas, tt.share, tt.ratio)
		if stage != tt.stage {
			t.Errorf("%+v: a stage of %d", tt, stage)
		}
		if step := rollout.StagePercent(stage, tt.replicas, tt.share); step != tt.step {
			t.Errorf("%+v: a share of %d", tt, step)
		}
	}
}
