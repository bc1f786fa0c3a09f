package rollout_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// grouped makes a service whose second group has its own manifest.
func (w *world) grouped(counts ...int) {
	w.old(1, counts...)
	r := w.rcs[web1]
	r.GroupManifests = map[string]string{"spare": "s1"}
	w.rcs[web1] = r
	for _, p := range w.podsOf(web1) {
		p.digest = r.ManifestOf(p.role)
	}
	w.report(web1)
}

// spare changes the manifest of the second group.
func spare(digest string) func(*rc.RC) {
	return func(r *rc.RC) { r.GroupManifests = map[string]string{"spare": digest} }
}

// stagesOf carries out a rollout in place, and returns how many pods with a digest were available at the end of each
// stage.
func (w *world) stagesOf(t *testing.T, digest string) (proved []int) {
	t.Helper()
	w.calm = true
	for range 500 {
		if w.record == nil {
			return proved
		}
		stage := w.record.Stage
		w.round()
		if stage > 0 && (w.record == nil || w.record.Stage > stage) {
			n := 0
			for _, p := range w.podsOf(web1) {
				if p.digest == digest && p.available {
					n++
				}
			}
			proved = append(proved, n)
		}
	}
	t.Fatalf("it has not ended: %s %s", w.record.Phase, w.record.Reason)
	return nil
}

// A stage in place is over when enough of the pods that change are available with their new manifest. Pods of a group
// that does not change are not counted (P6).
func TestAStageInPlaceCountsOnlyPodsThatChange(t *testing.T) {
	for name, c := range map[string]struct {
		counts []int
		step   *rollout.Amount
		want   []int
	}{
		"one by one":            {[]int{4, 4}, amount(1), []int{1, 2, 3, 4}},
		"by default":            {[]int{20, 4}, nil, []int{1, 2, 3, 4}},
		"a share":               {[]int{20, 10}, &rollout.Amount{Percent: true, N: 30}, []int{3, 6, 9, 10}},
		"all":                   {[]int{2, 3}, &rollout.Amount{Percent: true, N: 100}, []int{3}},
		"more than that change": {[]int{20, 2}, amount(5), []int{2}},
	} {
		w := traced(t)
		w.grouped(c.counts...)
		w.must(t, w.deployInPlace(rollout.Knobs{Step: c.step, MaxUnavailable: amount(2)}, "d1", spare("s2")))
		if w.record.Stages != len(c.want) {
			t.Errorf("%s: %d stages in the forecast, want %d", name, w.record.Stages, len(c.want))
		}
		if u := w.record.Update; u.Step != c.want[0] && u.Ratio > 0 {
			t.Errorf("%s: stages of %d, want %d", name, u.Step, c.want[0])
		}
		if proved := w.stagesOf(t, "s2"); !slices.Equal(proved, c.want) {
			t.Errorf("%s: stages ended with %v pods of the new manifest, want %v", name, proved, c.want)
		}
		if w.ended.Record.State != rollout.Done || w.running("d1") != c.counts[0] || w.running("s2") != c.counts[1] ||
			w.rcs[web1].InPlace != nil {
			t.Error(name, w.counts())
		}
	}
}

// A step that is a share follows the number of pods that change, after other counts and during a rollback.
func TestAShareInPlaceFollowsTheCounts(t *testing.T) {
	for _, back := range []bool{false, true} {
		w := traced(t)
		w.calm = true
		w.grouped(20, 10)
		w.must(t, w.deployInPlace(rollout.Knobs{Step: &rollout.Amount{Percent: true, N: 20}, MaxUnavailable: amount(3)},
			"d1", spare("s2")))
		for w.record.Stage < 2 {
			w.round()
		}
		w.rescale(40, 20)
		if w.record.Update.Step != 4 {
			t.Errorf("stages of %d pods", w.record.Update.Step)
		}
		limit, most := w.rcs[web1].InPlace.Limit, 0
		if back {
			for w.rcs[web1].InPlace.Limit < 10 {
				w.round()
			}
			limit = 20 - w.rcs[web1].InPlace.Limit
			w.ask(rollout.RollbackVerb)
		}
		for i := 0; w.record != nil && i < 500; i++ {
			w.round()
			if p := w.rcs[web1].InPlace; p != nil {
				most, limit = max(most, p.Limit-limit), p.Limit
			}
		}
		if want := map[bool]int{false: 4, true: 8}[back]; w.record != nil || most != want {
			t.Errorf("back %t: stages of up to %d pods, want %d; %s", back, most, want, w.counts())
		}
	}
}

// If the new manifest of a group never becomes available, only the first stage gets it.
func TestTheFirstStageStopsABrokenGroupManifest(t *testing.T) {
	w := traced(t)
	w.grouped(4, 4)
	w.sick["s2"] = true
	w.must(t, w.deployInPlace(rollout.Knobs{Step: amount(1)}, "d1", spare("s2")))
	most := 0
	for range 400 {
		if w.record == nil {
			break
		}
		w.round()
		most = max(most, w.running("s2"))
	}
	if w.record != nil || w.ended.Record.State != rollout.Failed {
		t.Fatalf("%+v", w.record)
	}
	if most != 1 || w.running("s1") != 4 || w.running("d1") != 4 {
		t.Errorf("%d pods got the manifest; %s", most, w.counts())
	}
}

// Unavailable pods of a group that does not change neither delay a rollout or a rollback nor are its failures.
func TestAnUnchangedGroupDoesNotDelayTheRollout(t *testing.T) {
	for _, back := range []bool{false, true} {
		w := traced(t)
		w.grouped(2, 4)
		r := w.rcs[web1]
		r.MinAvailable = ptr(3)
		w.rcs[web1] = r
		p := w.podsOf(web1)[0]
		p.available, p.hopeless = false, true
		w.sick["d1"] = true
		w.must(t, w.deployInPlace(rollout.Knobs{Step: amount(2), MaxUnavailable: amount(3)}, "d1", spare("s2")))
		for i := 0; back && w.record != nil && w.running("s2") < 2 && i < 100; i++ {
			w.round()
		}
		if w.record == nil {
			t.Fatalf("back %t: %+v", back, w.ended.Record)
		}
		want, state := "s2", rollout.Done
		if back {
			w.ask(rollout.RollbackVerb)
			want, state = "s1", rollout.Failed
		}
		w.settle(300)
		if w.record != nil || w.ended.Record.State != state || w.running(want) != 4 || w.ended.InEffect == 0 {
			t.Errorf("back %t: %+v %s", back, w.record, w.counts())
		}
	}
}

// Either or both of the two groups may change, and an abandoned rollout may come before. Each stage ends when its share
// of the pods that change is upgraded. The rollout ends when all pods have the manifest of their role.
func TestRandomUpgradesOfGroupsEndStageByStage(t *testing.T) {
	for n := range 200 {
		w := newWorld(int64(n))
		w.tracing = true
		pick := w.rnd.Intn
		counts := []int{1 + pick(5), 1 + pick(5)}
		w.grouped(counts...)
		if pick(3) == 0 { // another rollout before, perhaps aborted
			w.must(t, w.deployInPlace(rollout.Knobs{Step: amount(1)}, fmt.Sprintf("d%d", 1+pick(2)),
				spare(fmt.Sprintf("s%d", 1+pick(2)))))
			for range pick(20) {
				w.round()
			}
			if w.record != nil && pick(2) == 0 {
				w.ask(rollout.AbortVerb)
			}
		}
		was, base, own := w.rcs[web1], fmt.Sprintf("d%d", 1+pick(3)), fmt.Sprintf("s%d", 1+pick(3))
		abandoned := was.InPlace != nil
		step := 1 + pick(3)
		w.must(t, w.deployInPlace(rollout.Knobs{Step: amount(step)}, base, spare(own)))
		changing := 0
		if base != was.ManifestDigest {
			changing += counts[0]
		}
		if own != was.GroupManifests["spare"] {
			changing += counts[1]
		}
		w.calm = true
		for i := 0; w.record != nil && i < 500; i++ {
			stage, record := w.record.Stage, w.record
			w.round()
			at := 0
			for _, p := range w.podsOf(web1) {
				if p.available && p.digest == map[string]string{"main": base, "spare": own}[p.role] &&
					p.digest != was.ManifestOf(p.role) {
					at++
				}
			}
			over := w.record == nil || w.record.Stage > stage
			if over && stage > 0 && !abandoned && at < min(stage*step, changing) {
				t.Fatalf("seed %d: stage %d of %+v is over with %d of %d pods that change", n, stage, record.Update, at,
					changing)
			}
		}
		w.rounds(60) // pods left by an abandoned rollout may follow
		if w.record != nil || w.ended.Record.State != rollout.Done || w.running(base) != counts[0] ||
			w.running(own) != counts[1] || len(w.broken) > 0 {
			t.Fatalf("seed %d: %+v %v %s", n, w.record, w.broken, w.counts())
		}
	}
}

// While one group changes, the other may get more pods, and the stage does not change. New pods have the new or the
// former manifest of their role.
func TestRescaleOfAnUnchangedGroupKeepsTheStage(t *testing.T) {
	w := traced(t)
	w.grouped(2, 4)
	w.must(t, w.deployInPlace(rollout.Knobs{Step: amount(2)}, "d1", spare("s2")))
	for i := 0; w.running("s2") < 2 && i < 100; i++ {
		w.round()
	}
	w.rescale(6, 4)
	if p, target := w.rcs[web1].InPlace, *w.record.Upward().Target; p.Limit != 2 || target != 2 || len(p.Roles) != 1 {
		t.Errorf("limit %+v, target %d", p, target)
	}
	w.rescale(6, 1)
	if target := *w.record.Upward().Target; target != 1 {
		t.Errorf("a target of %d of 1 pod", target)
	}
	w.settles(t, rollout.Done)
	if w.running("d1") != 6 || w.running("s2") != 1 {
		t.Error(w.counts())
	}
}

// A role changes if it loses its own manifest, or gets one. A new role with its own manifest is not counted, because it
// has no former manifest.
func TestWhichRolesAnUpgradeInPlaceCounts(t *testing.T) {
	role := func(name string, n int) rc.ReplicaGroup { return rc.ReplicaGroup{Role: name, Count: ptr(n)} }
	for name, c := range map[string]struct {
		digest string
		change func(*rc.RC)
		want   []string // roles; nil: all
		from   string
		limit  int
	}{
		"none":              {"d1", nil, nil, "", 8},
		"all":               {"d2", spare("s2"), nil, "d1", 0},
		"the base alone":    {"d2", nil, []string{"main"}, "d1", 0},
		"a group alone":     {"d1", spare("s2"), []string{"spare"}, "d1", 0},
		"as all others now": {"d1", func(r *rc.RC) { r.GroupManifests = nil }, []string{"spare"}, "d1", 0},
		"its own now": {
			"d1", func(r *rc.RC) { r.GroupManifests = map[string]string{"main": "m2", "spare": "s1"} },
			[]string{"main"},
			"d1", 0,
		},
		"a new role": {"d1", func(r *rc.RC) {
			r.ReplicaGroups = append(r.ReplicaGroups, role("third", 1))
			r.GroupManifests = map[string]string{"spare": "s2", "third": "t1"}
		}, []string{"spare"}, "d1", 0},
		"a new role with all": {
			"d2", func(r *rc.RC) { r.ReplicaGroups = append(r.ReplicaGroups, role("third", 1)) },
			[]string{"main", "third"},
			"d1", 0,
		},
		"a role less": {
			"d2", func(r *rc.RC) { r.ReplicaGroups, r.GroupManifests = r.ReplicaGroups[:1], nil }, nil, "d1", 0,
		},
	} {
		w := traced(t)
		w.grouped(4, 4)
		w.must(t, w.deployInPlace(rollout.Knobs{Step: amount(1)}, c.digest, c.change))
		p := w.rcs[web1].InPlace
		if !slices.Equal(p.Roles, c.want) || p.From != c.from || p.Limit != c.limit {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// No index of an ordered group may have two living copies. So only in-place is allowed if the old or the new controller
// has an ordered group.
func TestOrderedGroupsAllowOnlyInPlace(t *testing.T) {
	groups := map[bool][]rc.ReplicaGroup{false: groupsOf(3), true: groupsOf(3)}
	groups[true][0].Ordered = true
	for _, strategy := range []string{
		rollout.AvailabilityStrategy, rollout.BlueGreenStrategy, rollout.ResourceUtilStrategy, rollout.CanaryStrategy,
	} {
		for _, ordered := range []struct{ old, next, refused bool }{
			{true, true, true}, {false, true, true}, {true, false, true}, {false, false, false},
		} {
			old := rc.RC{
				ID: web1, Name: "web-r1", ManifestDigest: "d1", ReplicaGroups: groups[ordered.old], Generation: 3,
				Service: &rc.Service{Name: "web", Revision: 1},
			}
			next := rc.RC{
				ID: web2, Name: "web-r2", ManifestDigest: "d2", ReplicaGroups: groups[ordered.next],
				Service: &rc.Service{Name: "web", Revision: 2},
			}
			st := &rc.Status{RCID: web1, ObservedGeneration: 3, Desired: 3, Placed: 3, Available: 3, Epoch: "n1"}
			start := rollout.Start{
				ID: "R", Service: "web", By: "ann", Now: t0, Epoch: "n1", Knobs: rollout.Knobs{Strategy: strategy},
				New: next, Old: []rollout.Seen{{RC: old, Status: st}},
			}
			_, err := rollout.Begin(start)
			if ordered.refused && (!errors.Is(err, rollout.ErrRefused) ||
				!strings.Contains(err.Error(), "it has an ordered group")) || !ordered.refused && err != nil {
				t.Errorf("%s, %+v: %v", strategy, ordered, err)
			}
		}
	}
}
