package rollout_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// starting returns the start of a rollout to n pods of web-r9, from controllers with the given numbers of pods.
func starting(k rollout.Knobs, n int, old ...int) rollout.Start {
	s := rollout.Start{
		ID: "B", Service: "web", Now: t0, Epoch: "n1", Knobs: k,
		New: rc.RC{
			ID: web9, Name: "web-r9", ManifestDigest: "d9", ReplicaGroups: groupsOf(n),
			Service: &rc.Service{Name: "web", Revision: 9},
		},
	}
	for i, n := range old {
		rev := int64(i + 1)
		s.Old = append(s.Old, rollout.Seen{RC: rc.RC{
			ID: rc.RevisionID(unit, rev), Name: fmt.Sprintf("web-r%d", rev), ManifestDigest: fmt.Sprintf("dr%d", rev),
			ReplicaGroups: groupsOf(n), Generation: 1,
			Service: &rc.Service{Name: "web", Revision: rev},
		}})
	}
	return s
}

func TestBeginSharesPercentsByReplicas(t *testing.T) {
	for _, tt := range []struct {
		old  []int
		want []int
	}{{[]int{6, 2}, []int{75, 25, 0}}, {[]int{0, 0}, []int{0, 0, 0}}, {[]int{5}, []int{100, 0}}} {
		started, err := rollout.Begin(starting(rollout.Knobs{}, 8, tt.old...))
		var got []int
		for _, v := range started.Record.Revisions {
			got = append(got, *v.Percent)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("%v: %v\n%s", tt.old, err, diff)
		}
	}
}

func TestBeginAbandonsAllButTheRevisionInEffect(t *testing.T) {
	for _, tt := range []struct {
		old      []int
		inEffect int64
		want     int // index of the revision that is not abandoned
	}{
		{[]int{2, 5}, 1, 0},
		{[]int{2, 5}, 2, 1},
		{[]int{2, 5}, 0, 1},
		{[]int{5, 2}, 7, 0}, // this revision does not exist any more
		{[]int{3, 3}, 0, 0},
		{[]int{3, 3}, 7, 0},
		{[]int{0, 0}, 0, none},
	} {
		s := starting(rollout.Knobs{}, 8, tt.old...)
		s.InEffect = tt.inEffect
		started, err := rollout.Begin(s)
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range started.Record.Revisions[:len(tt.old)] {
			if v.Abandoned != (i != tt.want) {
				t.Errorf("%v, in effect %d: %s is abandoned: %v", tt.old, tt.inEffect, v.Name, v.Abandoned)
			}
		}
	}
}

func TestBeginForecastsStages(t *testing.T) {
	for _, tt := range []struct {
		k    rollout.Knobs
		want int
	}{
		{rollout.Knobs{Step: amount(5), MaxSurge: amount(2), MaxUnavailable: amount(3)}, 6},
		{rollout.Knobs{Step: amount(5), MaxSurge: amount(0), MaxUnavailable: amount(3)}, 4},
		{rollout.Knobs{Strategy: "resourceutil", Step: amount(5), MaxSurge: amount(1), MaxUnavailable: amount(2)}, 4},
		{rollout.Knobs{Strategy: "resourceutil", Step: amount(2), MaxSurge: amount(1), MaxUnavailable: amount(2)}, 6},
		{rollout.Knobs{Step: amount(5)}, 3},
	} {
		started, err := rollout.Begin(starting(tt.k, 12, 12))
		if err != nil || started.Record.Stages != tt.want {
			t.Errorf("%+v: %d stages, want %d: %v", tt.k, started.Record.Stages, tt.want, err)
		}
	}
}

// A retarget keeps the counts from before the first rollout, unless they were 0.
func TestARetargetKeepsTheFormerCounts(t *testing.T) {
	for before, want := range map[int]int{0: 4, 7: 7} {
		running, err := rollout.Begin(starting(rollout.Knobs{}, 4, before))
		if err != nil {
			t.Fatal(err)
		}
		running.Record.Revisions[0].Abandoned = false
		s := starting(rollout.Knobs{}, 4, 4)
		s.ID = "C"
		started, err := rollout.Retarget(running.Record, s)
		if err != nil || total(started.Record.Revisions[0].Before) != want {
			t.Errorf("from %d: %+v, %v", before, started.Record.Revisions, err)
		}
	}
}

func TestControllersOfAnotherUnitAreRefused(t *testing.T) {
	const other = "01m82rq476dk3dzcatmcv2vmc5"
	running, err := rollout.Begin(starting(rollout.Knobs{}, 4, 4))
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*rollout.Start) string{
		"the new one": func(s *rollout.Start) string {
			s.New.ID = rc.RevisionID(other, 9)
			return "web-r1 is of " + unit
		},
		"the new one alone": func(s *rollout.Start) string { s.New.ID = other; return "web-r9 of " + other },
		"the first old one": func(s *rollout.Start) string {
			s.Old[0].RC.ID = rc.RevisionID(other, 1)
			return "web-r1 is of " + other
		},
		"the last old one":    func(s *rollout.Start) string { s.Old[1].RC.ID = other; return "web-r2 is of " + other },
		"an old one, no ULID": func(s *rollout.Start) string { s.Old[1].RC.ID = "r-1"; return "web-r2 is of r-1" },
		"pre_deploy": func(s *rollout.Start) string {
			s.PreDeploy.RC = rc.PreDeployID(other, 9)
			return "pre is of " + other
		},
		"none": func(*rollout.Start) string { return "" },
	} {
		for _, begin := range []func(rollout.Start) (rollout.Started, error){
			rollout.Begin, func(s rollout.Start) (rollout.Started, error) {
				return rollout.Retarget(running.Record, s)
			},
		} {
			s := starting(rollout.Knobs{}, 4, 4, 4)
			s.PreDeploy = &rollout.PreDeploy{RC: rc.PreDeployID(unit, 9), Name: "pre"}
			want := change(&s)
			_, err := begin(s)
			if want == "" && err != nil ||
				want != "" && (!errors.Is(err, rollout.ErrRefused) || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// upgrading returns the start of an upgrade in place of r1, with six pods.
func upgrading(k rollout.Knobs, was *rc.InPlace, digest, next string) rollout.Start {
	k.Strategy = rollout.InPlaceStrategy
	s := starting(k, 6, 6)
	s.Old[0].RC.ManifestDigest, s.Old[0].RC.InPlace = digest, was
	s.New = copied(s.Old[0].RC)
	s.New.ManifestDigest = next
	return s
}

func TestAnUpgradeContinuesAnAbandonedOne(t *testing.T) {
	for _, tt := range []struct {
		was          *rc.InPlace
		digest, next string
		want         rc.InPlace
	}{
		{nil, "d1", "d1", rc.InPlace{Limit: 6}},
		{nil, "d1", "d2", rc.InPlace{From: "d1"}},
		{&rc.InPlace{From: "d1", Limit: 2}, "d2", "d2", rc.InPlace{From: "d1", Limit: 2}},
		{&rc.InPlace{From: "d1", Limit: 2}, "d2", "d1", rc.InPlace{Limit: 4}},
		{&rc.InPlace{From: "d1", Limit: 9}, "d2", "d1", rc.InPlace{}},
		{&rc.InPlace{From: "d1", Limit: 2}, "d2", "d3", rc.InPlace{From: "d1"}},
		{&rc.InPlace{Limit: 2}, "d2", "d2", rc.InPlace{Limit: 2}},
		{&rc.InPlace{Limit: 2}, "d2", "d3", rc.InPlace{From: "d2"}},
		{&rc.InPlace{From: "d1", Limit: 9}, "d2", "d2", rc.InPlace{From: "d1", Limit: 6}},
	} {
		started, err := rollout.Begin(upgrading(rollout.Knobs{}, tt.was, tt.digest, tt.next))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&tt.want, started.RCs[0].InPlace); diff != "" {
			t.Errorf("%+v, from %s to %s: %s", tt.was, tt.digest, tt.next, diff)
		}
	}
}

// An upgrade of a group's own manifest keeps the former manifest of the group for a rollback. The record of the rollout
// has only counts.
func TestAnUpgradeOfOneGroupKeepsItsFormerManifest(t *testing.T) {
	start := upgrading(rollout.Knobs{}, nil, "d1", "d1")
	role := start.New.ReplicaGroups[0].Role
	start.Old[0].RC.GroupManifests = map[string]string{role: "g1"}
	start.New.GroupManifests = map[string]string{role: "g2"}
	start.New.ReplicaGroups[0].Env = map[string]string{"MODE": "new"}
	started, err := rollout.Begin(start)
	if err != nil {
		t.Fatal(err)
	}
	want := &rc.InPlace{From: "d1", FromGroups: map[string]string{role: "g1"}}
	if got := started.RCs[0]; !cmp.Equal(want, got.InPlace) || got.ManifestOf(role) != "g2" ||
		got.ReplicaGroups[0].Env["MODE"] != "new" {
		t.Errorf("%+v, %+v", got.InPlace, got)
	}
	if started.Record.Groups[0].Env != nil || started.Record.Revisions[0].Before[0].Env != nil {
		t.Errorf("%+v", started.Record)
	}
}

func TestAnUpgradeInPlaceSetsTheMinimumOfItsKnobs(t *testing.T) {
	for _, tt := range []struct {
		k    rollout.Knobs
		own  *int
		want int
	}{
		{rollout.Knobs{}, nil, none},
		{rollout.Knobs{MinAvailable: ptr(4)}, nil, 4},
		{rollout.Knobs{MaxUnavailable: amount(1)}, nil, 5},
		{rollout.Knobs{MinAvailable: ptr(4)}, ptr(3), 3},
	} {
		s := upgrading(tt.k, nil, "d1", "d2")
		s.New.MinAvailable = tt.own
		started, err := rollout.Begin(s)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(opt(tt.want), started.RCs[0].MinAvailable); diff != "" {
			t.Errorf("%+v: %s", tt, diff)
		}
	}
}

// If an upgrade replaces another upgrade, its rollback goes to the controller before both. If it replaces a rollback,
// its rollback goes to the present controller.
func TestAnUpgradeKeepsTheControllerBeforeTheReplacedOne(t *testing.T) {
	first, err := rollout.Begin(upgrading(rollout.Knobs{}, nil, "d1", "d2"))
	if err != nil {
		t.Fatal(err)
	}
	back := copied(first.Record)
	back.State, back.Before = rollout.RollingBack, nil
	for want, running := range map[string]rollout.Record{"d1": first.Record, "d2": back} {
		s := upgrading(rollout.Knobs{}, nil, "d2", "d3")
		s.ID = "C"
		started, err := rollout.Retarget(running, s)
		if err != nil || started.Record.Before.ManifestDigest != want {
			t.Errorf("it goes back to %+v, want %s: %v", started.Record.Before, want, err)
		}
	}
}

func TestRescaleInPlaceKeepsTheOrderOfGroups(t *testing.T) {
	w := traced(t)
	w.old(1, 4, 2)
	w.must(t, w.deployInPlace(rollout.Knobs{GroupOrder: []string{"spare"}}, "d2", nil))
	w.rescale(3, 1)
	if g := w.rcs[web1].ReplicaGroups; len(g) != 2 || g[0].Role != "main" || *g[0].Count != 3 || g[1].Role != "spare" ||
		*g[1].Count != 1 {
		t.Errorf("%+v", g)
	}
	if g := w.record.Groups; g[0].Role != "spare" || *g[0].Count != 1 {
		t.Errorf("%+v", g)
	}
}

func TestRescaleChangesTheOldRevision(t *testing.T) {
	for _, tt := range []struct {
		n, r1, r2 int
		up        rev
		want      []int
	}{
		{20, 5, 4, rev{has: 2}, []int{14, 4, 2}}, // the revision in effect gets the rest
		{12, 5, 4, rev{has: 2, target: 3}, []int{5, 4, 2}},
		{6, 5, 5, rev{has: 2}, []int{0, 4, 2}},
		{6, 5, 5, rev{has: 2, target: 4}, []int{0, 2, 2}},
		{1, 5, 5, rev{has: 2, target: 4}, []int{0, 0, 1}},
	} {
		tt.up.dir = rollout.Up
		if tt.up.target == 0 {
			tt.up.target = none
		}
		rec, obs := staged(rollout.AvailabilityStrategy, rollout.Planning, rollout.Update{Step: 1, Surge: 1}, 10,
			rev{has: tt.r1}, rev{has: tt.r2, abandoned: true}, tt.up)
		started, err := rollout.Rescale(rec, groupsOf(tt.n), obs, "ann")
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, r := range started.RCs {
			got = append(got, desired(r))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%+v: %s", tt, diff)
		}
	}
}

// An old revision with other roles keeps its roles. The first one gets the missing pods.
func TestRescaleKeepsTheRolesOfTheOldRevision(t *testing.T) {
	three := groupsOf(0, 0, 3)[2:]
	for _, tt := range []struct {
		before []rc.ReplicaGroup
		groups []rc.ReplicaGroup
		want   []rc.ReplicaGroup
	}{
		{groupsOf(2, 2), groupsOf(5, 1), groupsOf(5, 1)},
		{groupsOf(4), groupsOf(5, 2), groupsOf(7)},
		{groupsOf(2, 2), groupsOf(6), groupsOf(4, 2)},
		{groupsOf(4, 2), groupsOf(3), groupsOf(3, 0)},
		{groupsOf(4), three, groupsOf(3)},
		{groupsOf(2, 1), groupsOf(3), groupsOf(2, 1)},
	} {
		rec, obs := staged(rollout.AvailabilityStrategy, rollout.Planning, rollout.Update{Step: 1, Surge: 1}, 4,
			rev{has: 4}, rev{dir: rollout.Up, target: none})
		rec.Revisions[0].Before, rec.Groups = tt.before, tt.groups
		started, err := rollout.Rescale(rec, tt.groups, obs, "ann")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, started.Record.Revisions[0].Before); diff != "" {
			t.Errorf("%v: %s", tt.groups, diff)
		}
	}
}

func TestTheOldestRevisionsExpireExceptTheOneInEffect(t *testing.T) {
	for name, c := range map[string]struct {
		revisions []int64
		effect    int64
		keep      int
		want      []int64
	}{
		"the oldest":                   {[]int64{4, 2, 1, 3}, 4, 1, []int64{1, 2}},
		"one in effect that is old":    {[]int64{1, 2, 3, 4}, 1, 2, []int64{2}},
		"as many as are kept":          {[]int64{1, 2, 3}, 3, 2, nil},
		"fewer than are kept":          {[]int64{1, 2}, 2, 5, nil},
		"none is kept beside it":       {[]int64{1, 2, 3}, 2, 0, []int64{1, 3}},
		"the one in effect is unknown": {[]int64{1, 2, 3}, 9, 1, []int64{1, 2}},
	} {
		if got := rollout.Expired(c.revisions, c.effect, c.keep); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
