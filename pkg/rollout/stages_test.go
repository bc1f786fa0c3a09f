package rollout_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// rev is a revision in the middle of a rollout. Its pods are available, except those that the fields away and lost
// count.
type rev struct {
	dir       rollout.Direction // "": down
	has       int               // pods that its controller asks for
	share     int               // percent; none: not set
	target    int               // none: not set
	extra     int               // pods beyond has
	away      int               // unavailable pods that are not lost
	lost      int
	stopping  int
	standing  int  // available pods that stand by
	unmanaged int  // available pods on unmanaged nodes
	unseen    bool // without a status
	other     bool // its status is of another epoch
	abandoned bool
	standby   bool
	upgrade   *rc.InPlace
	updated   int // available pods that run the new manifest
}

// staged returns a rollout in a phase, to n pods, with the revisions r1, r2 and so on.
func staged(
	strategy string, phase rollout.Phase, u rollout.Update, n int, revs ...rev,
) (rollout.Record, rollout.Observed) {
	u.StageTimeout = field.Duration(time.Minute)
	if u.OnTimeout == "" {
		u.OnTimeout = rollout.OnTimeoutPause
	}
	rec := rollout.Record{
		ID: "A", Service: "web", Strategy: strategy, State: rollout.Progressing, Epoch: "n1", Groups: groupsOf(n),
		Update: u, Stage: 1, Stages: 1,
		Phase: phase, ProgressAt: t0, Progress: -100,
	}
	obs := rollout.Observed{Now: t0, Epoch: "n1", Revisions: map[string]rollout.Seen{}}
	for i, v := range revs {
		if v.dir == "" {
			v.dir = rollout.Down
		}
		id, name := rc.RevisionID(unit, int64(i+1)), fmt.Sprintf("web-r%d", i+1)
		before := groupsOf(v.has + 20)
		if v.dir == rollout.Up {
			before = groupsOf(0)
		}
		rec.Revisions = append(rec.Revisions, rollout.Revision{
			RC: id, Name: name, Rev: int64(i + 1), Manifest: "d" + id, Direction: v.dir, Before: before,
			Abandoned: v.abandoned, Standby: v.standby,
			Percent: opt(v.share), Target: opt(v.target),
		})
		seen := rollout.Seen{RC: rc.RC{
			ID: id, Name: name, ManifestDigest: "d" + id, ReplicaGroups: groupsOf(v.has), Generation: 1,
			InPlace: v.upgrade,
			Service: &rc.Service{Name: "web", Revision: int64(i + 1), Standby: v.standby},
		}}
		placed := v.has + v.extra
		if !v.unseen {
			seen.Status = &rc.Status{
				RCID: id, ObservedGeneration: 1, Epoch: "n1", Desired: v.has, Placed: placed,
				Available: placed - v.away - v.lost, Lost: v.lost, Stopping: v.stopping,
				StandingBy: v.standing, UnmanagedAvailable: v.unmanaged, UpdatedAvailable: v.updated,
			}
		}
		if v.other {
			seen.Status.Epoch = "n0"
		}
		obs.Revisions[id] = seen
	}
	return rec, obs
}

// shares returns the targets and percents of a decision, such as "3 75%, 1 25%"; "-" if no stage was planned.
func shares(d rollout.Decision) string {
	if d.Ended || d.Record.Phase == rollout.Planning {
		return "-"
	}
	var out []string
	for _, v := range d.Record.Revisions {
		switch {
		case v.Target == nil:
			out = append(out, "-")
		case v.Percent == nil:
			out = append(out, fmt.Sprint(*v.Target))
		default:
			out = append(out, fmt.Sprintf("%d %d%%", *v.Target, *v.Percent))
		}
	}
	return strings.Join(out, ", ")
}

// These numbers can be worked out by hand. They hold for both strategies that move counts.
func TestStagesByRatio(t *testing.T) {
	for _, name := range []string{rollout.AvailabilityStrategy, rollout.ResourceUtilStrategy} {
		for _, tt := range []struct {
			ratio, n   int
			old, young rev
			want       string
		}{
			{30, 4, rev{has: 4, share: 100}, rev{has: 0}, "3 75%, 1 25%"},
			{20, 10, rev{has: 8, share: 80}, rev{has: 2, share: 20}, "6 60%, 4 40%"},
			{100, 6, rev{has: 6, share: 100}, rev{has: 0}, "0 0%, 6 100%"},
			{30, 0, rev{has: 3, share: 100}, rev{has: 0}, "0 0%, 0 100%"},
		} {
			size := max(1, tt.n*tt.ratio/100)
			u := rollout.Update{Ratio: tt.ratio, Step: size, Surge: size, Min: tt.n}
			if name == rollout.ResourceUtilStrategy {
				u.Surge, u.Unavailable, u.Min = 0, size, max(0, tt.n-size)
			}
			tt.young.dir = rollout.Up
			rec, obs := staged(name, rollout.Planning, u, tt.n, tt.old, tt.young)
			if got := shares(rollout.Decide(rec, obs)); got != tt.want {
				t.Errorf("%s, %d %% of %d: %s, want %s", name, tt.ratio, tt.n, got, tt.want)
			}
		}
	}
}

func TestStages(t *testing.T) {
	up := func(v rev) rev { v.dir = rollout.Up; return v }
	stay := func(n, share int) rev { return rev{dir: rollout.Stay, has: n, share: share, target: none} }
	for _, tt := range []struct {
		name     string
		strategy string // "": availability
		u        rollout.Update
		n        int
		revs     []rev
		want     string
	}{
		{
			"pods that stay use up the surge", "",
			rollout.Update{Step: 2, Surge: 2, Min: 10},
			10,
			[]rev{{has: 5, share: 50}, stay(4, 30), up(rev{has: 2, share: 20})},
			"5 50%, -, 3 20%",
		},
		{
			"pods that are not placed do not count", "",
			rollout.Update{Step: 2, Surge: 2, Min: 10},
			10,
			[]rev{{has: 6}, stay(3, 0), up(rev{has: 4, extra: -2})},
			"6 0%, -, 3 0%",
		},
		{
			"lost pods do not count", "",
			rollout.Update{Step: 2, Surge: 2, Min: 10},
			10,
			[]rev{{has: 6}, stay(3, 0), up(rev{has: 4, lost: 2})},
			"6 0%, -, 3 0%",
		},
		{
			"nothing moves at the bound", "",
			rollout.Update{Step: 1, Surge: 2, Min: 10},
			10,
			[]rev{{has: 5}, stay(3, 0), up(rev{has: 4, extra: -2})},
			"-",
		},
		{
			"first pods that are left", "",
			rollout.Update{Step: 1, Surge: 1, First: 6},
			10,
			[]rev{up(rev{has: 2})},
			"6 0%",
		},
		{
			"first pods are all there", "",
			rollout.Update{Step: 1, Surge: 1, First: 2},
			10,
			[]rev{up(rev{has: 2})},
			"3 0%",
		},
		{"first pods beyond the bound", "", rollout.Update{Step: 1}, 4, []rev{stay(4, 100), up(rev{})}, "-"},
		{
			"stop first", rollout.ResourceUtilStrategy,
			rollout.Update{Step: 2, Unavailable: 2, Min: 8},
			10,
			[]rev{{has: 10, share: 100}, up(rev{})},
			"8 80%, 2 20%",
		},
		{
			"stop first goes on", rollout.ResourceUtilStrategy,
			rollout.Update{Step: 2, Unavailable: 2, Min: 8},
			10,
			[]rev{{has: 8, share: 80}, up(rev{has: 2, share: 20})},
			"6 60%, 4 40%",
		},
		{
			"stop first as many as may be unavailable", rollout.ResourceUtilStrategy,
			rollout.Update{Step: 5, Unavailable: 2, Min: 8},
			10,
			[]rev{{has: 10, share: 100}, up(rev{})},
			"8 80%, 2 20%",
		},
		{
			"and go on", rollout.ResourceUtilStrategy,
			rollout.Update{Step: 5, Unavailable: 2, Min: 8},
			10,
			[]rev{{has: 8, share: 80}, up(rev{has: 2, share: 20})},
			"6 60%, 4 40%",
		},
		{
			"without a surge", "",
			rollout.Update{Step: 1, Unavailable: 2, Min: 8},
			10,
			[]rev{{has: 10, share: 100}, up(rev{})},
			"9 90%, 0 10%",
		},
		{
			"as many as the minimum allows", "",
			rollout.Update{Step: 5, Unavailable: 2, Min: 8},
			10,
			[]rev{{has: 10, share: 100}, up(rev{})},
			"8 80%, 0 20%",
		},
		{
			"a canary that is full does not move", rollout.CanaryStrategy,
			rollout.Update{Step: 2, CanaryPods: 2, Min: 8},
			10,
			[]rev{{has: 8}, up(rev{has: 2})},
			"-",
		},
		{
			"a canary in one stage", rollout.CanaryStrategy,
			rollout.Update{Step: 5, Surge: 5, CanaryPods: 1, Min: 10},
			10,
			[]rev{{has: 10, share: 100}, up(rev{})},
			"10 100%, 1 0%",
		},
		{
			"a canary larger than the surge", rollout.CanaryStrategy,
			rollout.Update{Step: 5, Surge: 2, CanaryPods: 4, Min: 7},
			10,
			[]rev{{has: 8, share: 80}, up(rev{has: 2, share: 20})},
			"8 80%, 4 20%",
		},
		{
			"a canary beside pods that stay", rollout.CanaryStrategy,
			rollout.Update{Step: 5, Surge: 3, CanaryPods: 2, Min: 8},
			10,
			[]rev{{has: 9, share: 80}, stay(1, 10), up(rev{})},
			"9 80%, -, 2 0%",
		},
		{
			"a canary of a lower number of pods", rollout.CanaryStrategy,
			rollout.Update{Step: 1, Surge: 1, Keep: 2, CanaryPods: 1, Min: 4},
			4,
			[]rev{{has: 6, share: 100}, up(rev{})},
			"6 100%, 1 0%",
		},
		{
			"a canary replaces one that does not serve", rollout.CanaryStrategy,
			rollout.Update{Step: 5, Surge: 1, CanaryPods: 1, Min: 8},
			10,
			[]rev{{has: 9, away: 1}, {has: 2, away: 2, abandoned: true}, up(rev{})},
			"9 0%, 1 0%, 0 0%",
		},
		{
			"a canary without a surge replaces its own number", rollout.CanaryStrategy,
			rollout.Update{Step: 5, Unavailable: 3, CanaryPods: 1, Min: 7},
			10,
			[]rev{{has: 10, share: 100}, up(rev{})},
			"9 90%, 0 10%",
		},
		{
			"a full canary leaves room for the pods that stay", rollout.CanaryStrategy,
			rollout.Update{Step: 5, Surge: 3, CanaryPods: 2, Min: 8},
			10,
			[]rev{{has: 10, share: 80}, stay(2, 20), up(rev{has: 2, share: 0})},
			"9 72%, -, 2 8%",
		},
		{
			"a canary without a surge frees one place for each pod that it lacks", rollout.CanaryStrategy,
			rollout.Update{Step: 5, Unavailable: 5, CanaryPods: 4, Min: 5},
			10,
			[]rev{{has: 7, share: 70}, up(rev{has: 3, share: 30})},
			"6 60%, 3 40%",
		},
		{
			"a canary replaces no more idle pods than it lacks", rollout.CanaryStrategy,
			rollout.Update{Step: 5, CanaryPods: 2, Min: 7},
			10,
			[]rev{{has: 9, away: 3}, up(rev{has: 1})},
			"8 0%, 1 0%",
		},
		{
			"all idle pods go before a last one comes", "",
			rollout.Update{Step: 1, Keep: 2, Min: 4},
			4,
			[]rev{{has: 3, away: 2}, up(rev{has: 3})},
			"1 0%, 3 0%",
		},
		{
			"idle pods stay while a new revision is complete and does not serve", rollout.ResourceUtilStrategy,
			rollout.Update{Step: 1, Keep: 2, Min: 4},
			4,
			[]rev{{has: 2, away: 2}, up(rev{has: 4, away: 4})},
			"-",
		},
		{
			"no extra pods once the new revision is to have the minimum", "",
			rollout.Update{Step: 2, Surge: 2, Keep: 2, Min: 2},
			4,
			[]rev{{has: 6, share: 100}, up(rev{})},
			"2 33%, 2 67%",
		},
		{
			"those that do not serve go first", "",
			rollout.Update{Step: 1, Min: 8},
			10,
			[]rev{{has: 8, share: 80}, {has: 2, share: 20, away: 2}, up(rev{})},
			"8 80%, 0 0%, 0 20%",
		},
		{
			"one of four does not serve", "",
			rollout.Update{Step: 1, Min: 8},
			10,
			[]rev{{has: 6}, {has: 4, away: 1}, up(rev{})},
			"6 0%, 3 0%, 0 0%",
		},
		{
			"those that stand by do not serve", "",
			rollout.Update{Step: 1, Min: 8},
			10,
			[]rev{{has: 10, standing: 2}, up(rev{})},
			"8 0%, 0 0%",
		},
		{
			"nothing moves without a status", "",
			rollout.Update{Step: 1, Min: 7},
			10,
			[]rev{{has: 8}, {has: 2, unseen: true}, up(rev{})},
			"-",
		},
		{
			"pods of another epoch are not idle", "",
			rollout.Update{Step: 1, Min: 8},
			10,
			[]rev{{has: 8}, {has: 2, other: true}, up(rev{})},
			"-",
		},
		{
			"pods that stop are waited for", "",
			rollout.Update{Step: 1, Min: 7},
			11,
			[]rev{{has: 8}, {has: 2, extra: 1}, up(rev{})},
			"-",
		},
		{
			"but not those of the new revision", "",
			rollout.Update{Step: 1, Min: 8},
			10,
			[]rev{{has: 9}, up(rev{stopping: 1})},
			"8 0%, 1 0%",
		},
		{
			"the share is one of the old pods", "",
			rollout.Update{Ratio: 20, Step: 2, Surge: 10, Min: 5},
			10,
			[]rev{{has: 12, share: 60}, {share: none}, up(rev{has: 1, share: 40})},
			"5 25%, 0 0%, 5 75%",
		},
		{
			"without a share it is one of all pods", "",
			rollout.Update{Ratio: 10, Step: 1, Surge: 10, Min: 10},
			10,
			[]rev{{has: 8}, up(rev{has: 2, share: none})},
			"7 0%, 3 0%",
		},
		{
			"the last stage has all", "",
			rollout.Update{Step: 2, Surge: 5, Min: 5},
			5,
			[]rev{{has: 2, share: 10}, up(rev{has: 3, share: 80})},
			"0 0%, 5 100%",
		},
		{
			"except pods that stay", "",
			rollout.Update{Step: 2, Surge: 5, Min: 5},
			5,
			[]rev{{has: 2, share: 20}, stay(3, 30), up(rev{has: 3, share: 50})},
			"0 0%, -, 5 70%",
		},
		{
			"the share of no pods goes at once", "",
			rollout.Update{Step: 2, Surge: 2, Min: 5},
			10,
			[]rev{{share: 30}, {has: 8, share: 40}, up(rev{has: 2, share: 30})},
			"0 0%, 6 30%, 4 70%",
		},
		{
			"unknown pods go last", "",
			rollout.Update{Step: 2, Surge: 2, Min: 5},
			10,
			[]rev{{has: 8, unseen: true}, {has: 2, away: 2}, up(rev{})},
			"8 0%, 0 0%, 2 0%",
		},
		{
			"pods that serve go last", "",
			rollout.Update{Step: 4, Surge: 4, Min: 2},
			10,
			[]rev{{has: 3, away: 2}, {has: 7}, up(rev{})},
			"0 0%, 6 0%, 4 0%",
		},
		{
			"the abandoned go first, the newest of them", "",
			rollout.Update{Step: 4, Surge: 4, Min: 5},
			10,
			[]rev{{has: 3}, {has: 3, abandoned: true}, {has: 3, abandoned: true}, {has: 3}, up(rev{})},
			"3 0%, 2 0%, 0 0%, 3 0%, 2 0%",
		},
		{
			"then the oldest", "",
			rollout.Update{Step: 8, Surge: 10, Min: 2},
			10,
			[]rev{{has: 3}, {has: 3, abandoned: true}, {has: 3, abandoned: true}, {has: 3}, up(rev{})},
			"0 0%, 0 0%, 0 0%, 2 0%, 8 0%",
		},
		{
			"lost pods do not use up the surge", "",
			rollout.Update{Step: 2, Surge: 2},
			6,
			[]rev{{has: 2, extra: 3, lost: 1, stopping: 2}, up(rev{})},
			"4 0%, 2 0%",
		},
		{
			"blue-green", rollout.BlueGreenStrategy,
			rollout.Update{Step: 1, Surge: 4, Min: 4},
			4,
			[]rev{{has: 4, share: 100}, up(rev{standby: true})},
			"4 100%, 4 0%",
		},
		{
			"blue-green below the bound", rollout.BlueGreenStrategy,
			rollout.Update{Step: 1, Surge: 4, Min: 4},
			4,
			[]rev{{has: 6, share: 100}, up(rev{standby: true})},
			"6 100%, 2 0%",
		},
		{
			"blue-green beside pods that stay", rollout.BlueGreenStrategy,
			rollout.Update{Step: 1, Surge: 4, Min: 4},
			4,
			[]rev{{has: 4, share: 90}, stay(1, 10), up(rev{standby: true})},
			"4 90%, -, 3 0%",
		},
		{
			"blue-green at the bound", rollout.BlueGreenStrategy,
			rollout.Update{Step: 1, Surge: 4, Min: 4},
			4,
			[]rev{{has: 6}, up(rev{has: 2, standby: true})},
			"-",
		},
		{
			"blue-green, standby pods go", rollout.BlueGreenStrategy,
			rollout.Update{Step: 1, Surge: 4, Min: 4},
			4,
			[]rev{{has: 5, away: 1}, {has: 1, standing: 1, standby: true}, up(rev{has: 2, standing: 2, standby: true})},
			"5 0%, 0 0%, 2 0%",
		},
		{
			"blue-green, it may still lose the name", rollout.BlueGreenStrategy,
			rollout.Update{Step: 1, Surge: 4, Min: 4},
			4,
			[]rev{{has: 5, away: 1}, {has: 1, standby: true}, up(rev{has: 2, standing: 2, standby: true})},
			"-",
		},
		{
			"blue-green, it must keep the name", rollout.BlueGreenStrategy,
			rollout.Update{Step: 1, Surge: 4, Min: 4},
			4,
			[]rev{{has: 5, away: 2}, {has: 1, standby: true}, up(rev{has: 2, standing: 2, standby: true})},
			"3 0%, 1 0%, 2 0%",
		},
		{
			"blue-green, nothing stands by", rollout.BlueGreenStrategy,
			rollout.Update{Step: 1, Surge: 4, Min: 4},
			4,
			[]rev{{has: 6, away: 3}, {standby: true}, up(rev{has: 2, standing: 2, standby: true})},
			"-",
		},
		{
			"blue-green, one is unknown", rollout.BlueGreenStrategy,
			rollout.Update{Step: 1, Surge: 4, Min: 4},
			4,
			[]rev{
				{has: 5, unseen: true},
				{has: 1, standing: 1, standby: true},
				up(rev{has: 2, standing: 2, standby: true}),
			},
			"-",
		},
		{
			"blue-green, one goes already", rollout.BlueGreenStrategy,
			rollout.Update{Step: 1, Surge: 4, Min: 4},
			4,
			[]rev{
				{has: 4, stopping: 1},
				{has: 1, standing: 1, standby: true},
				up(rev{has: 2, standing: 2, standby: true}),
			},
			"-",
		},
		{
			"blue-green has all", rollout.BlueGreenStrategy,
			rollout.Update{Step: 1, Surge: 4, Min: 4},
			4,
			[]rev{{has: 4, share: 100}, up(rev{has: 4, away: 1, standby: true})},
			"4 100%, 4 0%",
		},
	} {
		if tt.strategy == "" {
			tt.strategy = rollout.AvailabilityStrategy
		}
		rec, obs := staged(tt.strategy, rollout.Planning, tt.u, tt.n, tt.revs...)
		if got := shares(rollout.Decide(rec, obs)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// A rollback plans stages twice as large, and no canary.
func TestARollbackPlansLargerStages(t *testing.T) {
	rec, obs := staged(rollout.CanaryStrategy, rollout.Planning,
		rollout.Update{Step: 2, Surge: 4, CanaryPods: 1, Min: 10}, 10, rev{has: 8, share: 80}, rev{
			dir: rollout.Up, has: 2, share: 20,
		})
	rec.State = rollout.RollingBack
	if got := shares(rollout.Decide(rec, obs)); got != "4 40%, 6 60%" {
		t.Error(got)
	}
}

func TestARolloutThatHasAllPodsEnds(t *testing.T) {
	rec, obs := staged(rollout.AvailabilityStrategy, rollout.Planning, rollout.Update{Step: 1, Surge: 1}, 3,
		rev{dir: rollout.Up, has: 3})
	for _, r := range rollout.Decide(rec, obs).RCs { // as the rollout has written it
		r.Generation = 1
		r.Service.Max = 4
		obs.Revisions[r.ID] = rollout.Seen{RC: r, Status: obs.Revisions[r.ID].Status}
	}
	if d := rollout.Decide(rec, obs); d.Record.State != rollout.Done || d.InEffect != 1 {
		t.Errorf("%+v", d.Record)
	}
}

// If the minimum needs all pods of a revision, a stage removes unavailable pods of another revision.
func TestTargetsMoveToPodsThatDoNotServe(t *testing.T) {
	for _, tt := range []struct {
		name   string
		r1, r2 rev
		want   string
	}{
		{"one is short", rev{has: 3, target: 2}, rev{has: 5, target: 5, away: 1}, "3, 4, 2"},
		{"no more than the stage takes", rev{has: 3, target: 2}, rev{has: 5, target: 5, away: 2}, "3, 4, 2"},
		{"no more than is short", rev{has: 3, target: 1}, rev{has: 5, target: 5, away: 1}, "2, 4, 2"},
		{"the first revision is short", rev{has: 5, target: 5, away: 1}, rev{has: 3, target: 2}, "4, 3, 2"},
		{
			"pods that do not serve go anyway",
			rev{has: 3, target: 1, away: 1},
			rev{has: 5, target: 5, away: 2},
			"2, 4, 2",
		},
	} {
		tt.r1.share, tt.r2.share = none, none
		rec, obs := staged(rollout.AvailabilityStrategy, rollout.Moving, rollout.Update{Step: 2, Surge: 2, Min: 20}, 10,
			tt.r1, tt.r2, rev{dir: rollout.Up, has: 2, target: 2, share: none})
		if got := shares(rollout.Decide(rec, obs)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// With stop-first the bounds of the old revision fall at once, although the new revision has no pods yet.
func TestStopFirstLowersTheOldBoundsAtOnce(t *testing.T) {
	u := rollout.Update{Step: 2, Unavailable: 2, Min: 8}
	rec, obs := staged(rollout.ResourceUtilStrategy, rollout.Planning, u, 10, rev{has: 10, share: 100},
		rev{dir: rollout.Up})
	b := rollout.Decide(rec, obs).Record.Revisions[0].Bounds
	if b == nil || b.Min != nil && *b.Min > 8 {
		t.Errorf("%+v", b)
	}
}

// If a new version has a lower count, an old pod goes only after a new one is available, until the new version has its
// minimum.
func TestALowerCountWaitsForTheNewVersion(t *testing.T) {
	for name, tc := range map[string]struct {
		knobs   rollout.Knobs
		missing int
		n       int // 0: 3
	}{
		"availability": {knobs: rollout.Knobs{}},
		"resourceutil": {knobs: rollout.Knobs{Order: rollout.StopFirst}, missing: 1},
		"to one":       {knobs: rollout.Knobs{Order: rollout.StopFirst}, missing: 1, n: 1},
		"canary":       {knobs: rollout.Knobs{Canary: &rollout.Canary{Pods: 1}}},
		"larger step":  {knobs: rollout.Knobs{Step: amount(2), MaxSurge: amount(1)}},
		"no surge":     {knobs: rollout.Knobs{MaxSurge: amount(0), MaxUnavailable: amount(1)}, missing: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := traced(t)
			w.old(1, 6)
			n := cmp.Or(tc.n, 3)
			w.must(t, w.deploy(tc.knobs, 2, n))
			least := max(1, w.record.Update.Min)
			for range 400 {
				serve, remain := 0, 0
				for _, p := range w.podsOf(rc.RevisionID(unit, 2)) {
					if p.serves() && !p.stopping {
						serve++
					}
				}
				for _, p := range w.podsOf(rc.RevisionID(unit, 1)) {
					if !p.stopping {
						remain++
					}
				}
				if serve < least && remain+serve < 6-tc.missing {
					t.Fatalf("%d old pods are left beside %d new ones, and the minimum is %d", remain, serve, least)
				}
				if w.record == nil {
					break
				}
				if w.record.State == rollout.WaitingForPromote {
					w.ask(rollout.PromoteVerb)
				}
				w.round()
			}
			w.settles(t, rollout.Done)
			w.has(t, map[string]int{rc.RevisionID(unit, 1): 0, rc.RevisionID(unit, 2): n})
		})
	}
}
