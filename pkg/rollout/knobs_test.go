package rollout_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

func TestAmountInJSON(t *testing.T) {
	for text, want := range map[string]rollout.Amount{
		`3`: {N: 3}, `0`: {}, `"10%"`: {Percent: true, N: 10}, `"0%"`: {Percent: true},
		`"100%"`: {Percent: true, N: 100},
	} {
		var a rollout.Amount
		if err := json.Unmarshal([]byte(text), &a); err != nil || a != want {
			t.Errorf("%s: %+v, %v", text, a, err)
		}
		if back, err := json.Marshal(a); err != nil || string(back) != text {
			t.Errorf("%s: %s, %v", text, back, err)
		}
	}
	for _, text := range []string{`"3"`, `-1`, `"-1%"`, `"101%"`, `1.5`, `"x%"`, `""`, `"%"`, `"+3%"`} {
		var a rollout.Amount
		if err := json.Unmarshal([]byte(text), &a); err == nil || !strings.Contains(err.Error(), "percentage") {
			t.Errorf("%s: %+v, %v", text, a, err)
		}
	}
	for _, n := range []int{101, rc.MaxReplicas} {
		if a, err := rollout.ParseAmount(strconv.Itoa(n)); err != nil || a.N != n || a.Percent {
			t.Error(a, err)
		}
	}
	if a, err := rollout.ParseAmount(strconv.Itoa(rc.MaxReplicas + 1)); err == nil {
		t.Errorf("more pods than a controller may have: %+v", a)
	}
}

func TestKnobsInADocument(t *testing.T) {
	var k rollout.Knobs
	const document = `{"step":"25%","max_surge":2,"stage_timeout":"1m","canary":{"pods":3},` +
		`"gates":{"before_stage":[{"url":"http://x"}]}}`
	if err := field.Decode([]byte(document), &k); err != nil {
		t.Fatal(err)
	}
	if k.Step.String() != "25%" || k.MaxSurge.String() != "2" || k.StrategyName() != rollout.CanaryStrategy ||
		k.Gates.BeforeStage[0].URL != "http://x" {
		t.Errorf("%+v", k)
	}
}

func TestKnobsChooseAStrategy(t *testing.T) {
	for _, tt := range []struct {
		k     rollout.Knobs
		name  string
		stops bool
	}{
		{rollout.Knobs{}, "availability", false},
		{rollout.Knobs{Order: "start-first"}, "availability", false},
		{rollout.Knobs{Order: "stop-first"}, "resourceutil", true},
		{rollout.Knobs{Strategy: "resourceutil"}, "resourceutil", true},
		{rollout.Knobs{Strategy: "availability", Order: "stop-first"}, "availability", true},
		{rollout.Knobs{Canary: &rollout.Canary{Pods: 1}}, "canary", false},
		{rollout.Knobs{Strategy: "blue-green"}, "blue-green", false},
	} {
		if tt.k.StrategyName() != tt.name || tt.k.StopsFirst() != tt.stops {
			t.Errorf("%+v: %s %v", tt.k, tt.k.StrategyName(), tt.k.StopsFirst())
		}
	}
}

func TestWrongKnobsAreRefused(t *testing.T) {
	minus := length(-time.Second)
	for want, k := range map[string]rollout.Knobs{
		"strategy":                  {Strategy: "x"},
		"order":                     {Order: "x"},
		"on_timeout":                {OnTimeout: "x"},
		"step":                      {Step: &rollout.Amount{Percent: true}},
		"min_available":             {MinAvailable: ptr(-1)},
		"revision_history":          {RevisionHistory: ptr(-1)},
		"stage_timeout":             {StageTimeout: minus},
		"delay":                     {Delay: minus},
		"auto_promote":              {AutoPromote: minus},
		"keep_old":                  {KeepOld: minus},
		"canary.pods":               {Canary: &rollout.Canary{}},
		"gates.before_stage[0].url": {Gates: rollout.Gates{BeforeStage: []rollout.Hook{{URL: "ftp://x"}}}},
		"gates.after_stage[1].timeout": {
			Gates: rollout.Gates{AfterStage: []rollout.Hook{{URL: "http://x"}, {URL: "https://x", Timeout: length(0)}}},
		},
		"gates.after_stage[0].retries": {
			Gates: rollout.Gates{AfterStage: []rollout.Hook{{URL: "http://x", Retries: ptr(-1)}}},
		},
	} {
		errs := k.Validate()
		if len(errs) != 1 || errs[0].Field != want {
			t.Errorf("%s: %v", want, errs)
		}
	}
	fine := fullRecord().Knobs
	fine.MinAvailable, fine.RevisionHistory, fine.StageTimeout, fine.Delay, fine.Canary.Pods, fine.Step = ptr(0),
		ptr(0), length(0), length(0), 1, amount(1)
	fine.Gates.AfterStage[0].Retries, fine.Gates.AfterStage[0].Timeout = ptr(0), length(1)
	if errs := fine.Validate(); len(errs) > 0 {
		t.Error(errs)
	}
}

func TestKnobsBecomeNumbersOfPods(t *testing.T) {
	percent := func(n int) *rollout.Amount { return &rollout.Amount{Percent: true, N: n} }
	for name, tt := range map[string]struct {
		k      rollout.Knobs
		n, old int
		want   rollout.Update
		stages int
	}{
		"defaults": {rollout.Knobs{}, 20, 20, rollout.Update{Ratio: 10, Step: 2, Surge: 2, Min: 20}, 10},
		"few":      {rollout.Knobs{}, 3, 3, rollout.Update{Ratio: 10, Step: 1, Surge: 1, Min: 3}, 3},
		"none":     {rollout.Knobs{}, 0, 3, rollout.Update{Ratio: 10, Step: 1, Surge: 1}, 1},
		"number":   {rollout.Knobs{Step: amount(3)}, 20, 20, rollout.Update{Step: 3, Surge: 3, Min: 20}, 7},
		"surge": {
			rollout.Knobs{MaxSurge: percent(11)}, 10, 10, rollout.Update{Ratio: 10, Step: 1, Surge: 2, Min: 10}, 10,
		},
		"surge 1": {
			rollout.Knobs{MaxSurge: amount(1), Step: amount(5)}, 10, 10, rollout.Update{Step: 5, Surge: 1, Min: 10}, 10,
		},
		"unavailable": {
			rollout.Knobs{MaxUnavailable: percent(19)},
			10, 10,
			rollout.Update{Ratio: 10, Step: 1, Surge: 1, Unavailable: 1, Min: 9},
			10,
		},
		"all away": {
			rollout.Knobs{MaxUnavailable: amount(12)},
			10, 10,
			rollout.Update{Ratio: 10, Step: 1, Surge: 1, Unavailable: 10},
			10,
		},
		"least": {
			rollout.Knobs{MinAvailable: ptr(4)},
			10, 10,
			rollout.Update{Ratio: 10, Step: 1, Surge: 1, Min: 4, First: 4},
			10,
		},
		"both": {
			rollout.Knobs{MinAvailable: ptr(8), MaxUnavailable: amount(5)},
			10, 10,
			rollout.Update{Ratio: 10, Step: 1, Surge: 1, Unavailable: 2, Min: 8, First: 8},
			10,
		},
		"no surge": {
			rollout.Knobs{MinAvailable: ptr(8), MaxSurge: amount(0)},
			10, 10,
			rollout.Update{Ratio: 10, Step: 1, Unavailable: 2, Min: 8, First: 8},
			10,
		},
		"stop first": {
			rollout.Knobs{Order: "stop-first", Step: percent(30)},
			10, 10,
			rollout.Update{Ratio: 30, Step: 3, Unavailable: 3, Min: 7},
			4,
		},
		"stop both": {
			rollout.Knobs{Order: "stop-first", MaxSurge: amount(1)},
			10, 10,
			rollout.Update{Ratio: 10, Step: 1, Surge: 1, Unavailable: 1, Min: 9},
			10,
		},
		"canary": {
			rollout.Knobs{Canary: &rollout.Canary{Pods: 3}},
			10, 10,
			rollout.Update{Ratio: 10, Step: 1, Surge: 3, CanaryPods: 3, Min: 10},
			10,
		},
		"canary 1": {
			rollout.Knobs{Strategy: "canary"},
			10, 10,
			rollout.Update{Ratio: 10, Step: 1, Surge: 1, CanaryPods: 1, Min: 10},
			10,
		},
		"blue-green": {
			rollout.Knobs{Strategy: "blue-green"}, 4, 9, rollout.Update{Ratio: 10, Step: 1, Surge: 9, Min: 4}, 2,
		},
		"blue-green+": {
			rollout.Knobs{Strategy: "blue-green", MaxSurge: amount(9)},
			9, 4,
			rollout.Update{Ratio: 10, Step: 1, Surge: 9, Min: 9},
			2,
		},
	} {
		s := rollout.Start{
			ID: "A", Service: "web", Knobs: tt.k, New: rc.RC{
				ID: web2, Name: "web-r2", ManifestDigest: "d2", ReplicaGroups: groupsOf(tt.n),
				Service: &rc.Service{Name: "web", Revision: 2},
			},
			Old: []rollout.Seen{
				{RC: rc.RC{ID: web1, Name: "web-r1", ManifestDigest: "d1", ReplicaGroups: groupsOf(tt.old)}},
			},
		}
		tt.want.StageTimeout, tt.want.OnTimeout = field.Duration(2*time.Minute), rollout.OnTimeoutRollback
		got, err := rollout.Begin(s)
		if diff := cmp.Diff(tt.want, got.Record.Update); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
		if got.Record.Stages != tt.stages {
			t.Errorf("%s: %d stages", name, got.Record.Stages)
		}
	}
}

func TestWhatBeginWrites(t *testing.T) {
	w := traced(t)
	w.old(1, 4)
	w.must(t, w.deploy(rollout.Knobs{}, 2, 3, 2))
	up, down := w.rcs[web2], w.rcs[web1]
	if up.Generation != 1 || desired(up) != 0 || len(up.ReplicaGroups) != 2 || up.AllowMassStop != 0 {
		t.Errorf("%+v", up)
	}
	if down.Generation != 4 || down.AllowMassStop != 4 || desired(down) != 4 {
		t.Errorf("%+v", down)
	}
	if diff := cmp.Diff(&rc.Service{Name: "web", Revision: 1, Min: 5, Max: 6}, down.Service); diff != "" {
		t.Error(diff)
	}
}

func TestGroupsRollInOrder(t *testing.T) {
	w := traced(t)
	w.old(1, 2, 2)
	w.must(t, w.deploy(rollout.Knobs{GroupOrder: []string{"spare"}}, 2, 2, 2))
	var seen []string
	for w.record != nil {
		w.run()
		w.round()
		for _, id := range []string{web2} {
			line := ""
			for _, g := range w.rcs[id].ReplicaGroups {
				line += g.Role + string(rune('0'+*g.Count)) + " "
			}
			if len(seen) == 0 || seen[len(seen)-1] != line {
				seen = append(seen, line)
			}
		}
	}
	want := []string{"spare1 main0 ", "spare2 main0 ", "spare2 main1 ", "spare2 main2 "}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Error(diff)
	}
}

func TestRetargetTakesTheAbandonedDownFirst(t *testing.T) {
	w := traced(t)
	w.old(1, 6)
	w.must(t, w.deploy(rollout.Knobs{}, 2, 6))
	for len(w.podsOf(web2)) < 3 {
		w.round()
	}
	w.must(t, w.deploy(rollout.Knobs{}, 3, 6))
	if r := w.record; !r.Revisions[1].Abandoned || r.Revisions[0].Abandoned || r.ID != "R3" || len(r.Revisions) != 3 ||
		total(r.Revisions[0].Before) != 6 {
		t.Errorf("%+v", r.Revisions)
	}
	r1 := len(w.podsOf(web1))
	for len(w.podsOf(web2)) > 0 {
		w.round()
		if n := desired(w.rcs[web1]); n < min(r1, 3) && desired(w.rcs[web2]) > 0 {
			t.Fatalf("the old revision shrinks to %d before the abandoned one is gone", n)
		}
	}
	w.ask(rollout.RollbackVerb)
	w.settles(t, rollout.Failed)
	w.has(t, map[string]int{web1: 6, web2: 0, web3: 0})
}

func total(groups []rc.ReplicaGroup) int { return (&rc.RC{ReplicaGroups: groups}).Desired() }

func TestLeaveOld(t *testing.T) {
	w := traced(t)
	w.old(1, 2)
	w.must(t, w.deploy(rollout.Knobs{LeaveOld: true}, 2, 2))
	w.settles(t, rollout.Done)
	if r := w.rcs[web1]; r.ID == "" || r.DeletedAt != nil || desired(r) != 0 || len(w.ended.Delete) != 0 {
		t.Errorf("%+v", r)
	}
}

func TestAnOldControllerIsKeptWhileMachinesAreLost(t *testing.T) {
	w := traced(t)
	w.old(1, 2)
	w.must(t, w.deploy(rollout.Knobs{}, 2, 2))
	for desired(w.rcs[web1]) > 0 {
		w.round()
	}
	w.pods = append(w.pods, &simPod{rc: web1, role: "main", digest: "d1", stopping: true, lost: true})
	w.settles(t, rollout.Done)
	if r := w.rcs[web1]; r.DeletedAt != nil || !strings.Contains(w.ended.Alert, "web-r1 still has pods") {
		t.Errorf("%+v, alert %q", r, w.ended.Alert)
	}
	if s := w.rcs[web2].Service; s.Min != 2 || s.Max != 3 {
		t.Errorf("%+v", s)
	}
}

func TestTheStrategiesAreAllThere(t *testing.T) {
	source, err := os.ReadFile("strategy.go")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, m := range regexp.MustCompile(`(?m)^\t[A-Za-z]+Strategy += "([^"]+)"`).FindAllSubmatch(source, -1) {
		want = append(want, string(m[1]))
	}
	slices.Sort(want)
	names := rollout.StrategyNames()
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("constants are -, strategies have +:\n%s", diff)
	}
	for _, name := range names {
		if s := rollout.StrategyFor(name); s == nil || len(s.Steps()) == 0 {
			t.Error(name)
		}
	}
	first := func(strategy string) rollout.Step {
		return rollout.StrategyFor(strategy).Steps()[0]
	}
	if _, up := first(rollout.AvailabilityStrategy).(rollout.ScaleUpStep); !up {
		t.Error("availability does not go up first")
	}
	if down, ok := first(rollout.ResourceUtilStrategy).(rollout.ScaleDownStep); !ok || !down.First {
		t.Error("resourceutil does not go down first")
	}
}
