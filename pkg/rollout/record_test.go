package rollout_test

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func groupsOf(counts ...int) []rc.ReplicaGroup {
	roles := []string{"main", "spare", "third"}
	var out []rc.ReplicaGroup
	for i, n := range counts {
		out = append(out, rc.ReplicaGroup{Role: roles[i], Count: ptr(n)})
	}
	return out
}

func fullRecord() rollout.Record {
	hook := rollout.Hook{URL: "https://gate.example/x", Timeout: ptr(field.Duration(time.Second)), Retries: ptr(2)}
	knobs := rollout.Knobs{
		Strategy: "canary", Order: "start-first", Step: &rollout.Amount{Percent: true, N: 20},
		MaxSurge: &rollout.Amount{N: 3}, MaxUnavailable: &rollout.Amount{N: 1},
		MinAvailable: ptr(4), StageTimeout: ptr(field.Duration(time.Minute)), OnTimeout: "pause",
		Delay: ptr(field.Duration(time.Second)), LeaveOld: true, RevisionHistory: ptr(3),
		Canary: &rollout.Canary{Pods: 2}, AutoPromote: ptr(field.Duration(time.Hour)),
		KeepOld:    ptr(field.Duration(time.Minute)),
		Gates:      rollout.Gates{BeforeStage: []rollout.Hook{hook}, AfterStage: []rollout.Hook{hook}},
		GroupOrder: []string{"main"},
	}
	return rollout.Record{
		ID: "01K", Service: "web", Strategy: "canary", State: rollout.Paused, Resume: rollout.Progressing,
		Reason: "paused by ann", By: "ann", Epoch: "n1",
		Revisions: []rollout.Revision{
			{
				RC: web1, Name: "web-r1", Rev: 1, Manifest: "d1", Direction: rollout.Down, Percent: ptr(60),
				Target: ptr(3), Min: ptr(5), Max: ptr(5), Bounds: &rollout.Bounds{Min: ptr(3), Max: ptr(3)},
				Before: groupsOf(5), Abandoned: true, Standby: true,
			},
			{
				RC: web2, Name: "web-r2", Rev: 2, Manifest: "d2", Direction: rollout.Up, Percent: ptr(40),
				Target: ptr(2), Min: ptr(5), Max: ptr(5), Before: groupsOf(0),
			},
		},
		Groups: groupsOf(5), Knobs: knobs,
		Update: rollout.Update{
			Ratio: 20, Step: 1, Surge: 3, Unavailable: 1, Min: 4, First: 4, StageTimeout: field.Duration(time.Minute),
			OnTimeout: "pause", Delay: field.Duration(time.Second),
			LeaveOld: true, CanaryPods: 2, AutoPromote: ptr(field.Duration(time.Hour)),
			KeepOld: field.Duration(time.Minute), Gates: knobs.Gates,
		},
		Stage: 2, Stages: 5, Phase: rollout.BeforeStage, StartedAt: t0, StageSince: t0, ProgressAt: t0, Progress: 3,
		WaitingSince: &t0, BlockedReason: "the breaker is tripped",
		Gate: &rollout.Gate{Index: 1, Tries: 2, NextAt: &t0, Error: "503"}, SkipGates: true,
		PreDeploy: &rollout.PreDeploy{RC: web2 + "-pre", Name: "web-pre", Until: t0}, Promoted: true,
		Before:  &rc.RC{ID: "a", ManifestDigest: "d1", ReplicaGroups: groupsOf(5)},
		Request: &rollout.Request{Verb: rollout.PauseVerb, By: "ann", At: t0},
		Failures: []rollout.Failure{
			{RC: web2, PodFailure: rc.PodFailure{Pod: "main.0", Node: "n1", Reason: "exit 1", Hopeless: true}},
		},
	}
}

// Other versions read the JSON of a record. If a field is renamed, they lose it.
func TestRecordInJSON(t *testing.T) {
	data, err := json.MarshalIndent(fullRecord(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/record.json")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(data)+"\n"); diff != "" {
		t.Error(diff)
	}
	var back rollout.Record
	if err := json.Unmarshal(want, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fullRecord(), back); diff != "" {
		t.Error(diff)
	}
	if err := back.Check(); err != nil {
		t.Error(err)
	}
}

func TestARecordAtItsLimitsPasses(t *testing.T) {
	for name, reach := range map[string]func(*rollout.Record){
		"tries":  func(r *rollout.Record) { r.Gate.Tries = rollout.MaxGateRetries + 1 },
		"gate":   func(r *rollout.Record) { r.Gate.Index, r.Gate.Tries = 0, 0 },
		"rev":    func(r *rollout.Record) { r.Revisions[0].Rev = rc.MaxGeneration },
		"target": func(r *rollout.Record) { r.Revisions[0].Target = ptr(rc.MaxPods) },
		"stages": func(r *rollout.Record) { r.Stage, r.Stages = rc.MaxPods, rc.MaxPods },
		"far":    func(r *rollout.Record) { r.Progress = rc.MaxPods },
		"back":   func(r *rollout.Record) { r.Progress = -rc.MaxPods },
		"surge":  func(r *rollout.Record) { r.Update.Surge = rc.MaxPods - rc.MaxReplicas },
	} {
		r := fullRecord()
		reach(&r)
		if err := r.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// For example, a record with revisions of two units, or with a pre_deploy controller of another unit, is refused.
func TestAWrongRecordIsRefused(t *testing.T) {
	const foreign = "01bx5zzkbkactav9wevgemmvrz"
	for name, tt := range map[string]struct {
		spoil func(*rollout.Record)
		want  string
	}{
		"id":      {func(r *rollout.Record) { r.ID = "" }, "no id"},
		"service": {func(r *rollout.Record) { r.Service = "" }, "no id or no service"},
		"strategy": {
			func(r *rollout.Record) { r.Strategy = "x" },
			`strategy "x"; allowed: availability, blue-green, canary, in-place, resourceutil`,
		},
		"state":  {func(r *rollout.Record) { r.State = "x" }, `state "x"`},
		"resume": {func(r *rollout.Record) { r.Resume = "" }, "would resume"},
		"phase":  {func(r *rollout.Record) { r.Phase = "x" }, `phase "x"`},
		"waits": {
			func(r *rollout.Record) { r.State = rollout.WaitingForPromote },
			`waits for promote in the phase "before-stage"`,
		},
		"revisions":  {func(r *rollout.Record) { r.Revisions = nil }, "no revision"},
		"groups":     {func(r *rollout.Record) { r.Groups = nil }, "no replica group"},
		"group":      {func(r *rollout.Record) { r.Groups = groupsOf(-1) }, "groups of the rollout"},
		"in place":   {func(r *rollout.Record) { r.Strategy = "in-place" }, "one revision"},
		"rc":         {func(r *rollout.Record) { r.Revisions[0].RC = "" }, "incomplete"},
		"name":       {func(r *rollout.Record) { r.Revisions[0].Name = "" }, "incomplete"},
		"rev":        {func(r *rollout.Record) { r.Revisions[0].Rev = 0 }, "incomplete"},
		"manifest":   {func(r *rollout.Record) { r.Revisions[0].Manifest = "" }, "incomplete"},
		"repeated":   {func(r *rollout.Record) { r.Revisions[0].RC = web2 }, "repeated"},
		"direction":  {func(r *rollout.Record) { r.Revisions[0].Direction = "x" }, `direction "x"`},
		"target":     {func(r *rollout.Record) { r.Revisions[0].Target = ptr(-1) }, "target below 0"},
		"percent":    {func(r *rollout.Record) { r.Revisions[0].Percent = ptr(101) }, "percentage"},
		"percentage": {func(r *rollout.Record) { r.Revisions[0].Percent = ptr(-1) }, "percentage"},
		"no target": {
			func(r *rollout.Record) { r.Phase, r.Revisions[0].Target = rollout.Moving, nil },
			`no target for web-r1, and is in the phase "moving"`,
		},
		"far target": {
			func(r *rollout.Record) { r.Revisions[0].Target = ptr(math.MaxInt) }, "target: 9223372036854775807",
		},
		"far min":   {func(r *rollout.Record) { r.Revisions[0].Min = ptr(math.MaxInt) }, "min: 9223372036854775807"},
		"bounds":    {func(r *rollout.Record) { r.Revisions[0].Bounds.Max = ptr(-1) }, "bounds.max: -1"},
		"no before": {func(r *rollout.Record) { r.Revisions[0].Before = nil }, "does not have the groups of web-r1"},
		"no count":  {func(r *rollout.Record) { r.Revisions[0].Before[0].Count = nil }, `no count for role "main"`},
		"counts":    {func(r *rollout.Record) { r.Groups = groupsOf(rc.MaxReplicas, 1) }, "10001 replicas in all"},
		"before": {
			func(r *rollout.Record) { r.Before.ReplicaGroups[0].Count = nil }, "the controller before the rollout",
		},
		"tries":     {func(r *rollout.Record) { r.Gate.Tries = rollout.MaxGateRetries + 2 }, "gate.tries: 1002"},
		"far stage": {func(r *rollout.Record) { r.Stage = rc.MaxPods + 1 }, "stage: 1000001"},
		"far back":  {func(r *rollout.Record) { r.Progress = -rc.MaxPods - 1 }, "progress: -1000001"},
		"far surge": {
			func(r *rollout.Record) { r.Update.Surge = rc.MaxPods - rc.MaxReplicas + 1 }, "update.surge: 990001",
		},
		"surge":      {func(r *rollout.Record) { r.Update.Surge = math.MaxInt }, "update.surge: 9223372036854775807"},
		"keep":       {func(r *rollout.Record) { r.Update.Keep = rc.MaxReplicas - r.Total() + 1 }, "update.keep"},
		"step":       {func(r *rollout.Record) { r.Update.Step = math.MaxInt }, "update.step"},
		"canary":     {func(r *rollout.Record) { r.Update.CanaryPods = math.MaxInt }, "update.canary_pods"},
		"delay":      {func(r *rollout.Record) { r.Update.Delay = math.MaxInt64 }, "update.delay"},
		"knobs":      {func(r *rollout.Record) { r.Knobs.MaxSurge.N = math.MaxInt }, "knobs.max_surge"},
		"gate":       {func(r *rollout.Record) { r.Gate.Index = -1 }, "gate.index: -1"},
		"stage":      {func(r *rollout.Record) { r.Stage = -1 }, "stage: -1"},
		"rev number": {func(r *rollout.Record) { r.Revisions[0].Rev = math.MaxInt64 }, "incomplete"},
		"units": {
			func(r *rollout.Record) { r.Revisions[1].RC = foreign + "-2" },
			"two units, " + web1 + " and " + foreign + "-2",
		},
		"alone":     {func(r *rollout.Record) { r.Revisions[1].RC = "alone" }, "two units, " + web1 + " and alone"},
		"first run": {func(r *rollout.Record) { r.PreDeploy.RC = foreign + "-2-pre" }, `names "` + foreign + `-2-pre"`},
		"no run":    {func(r *rollout.Record) { r.PreDeploy.RC = "" }, `names "" as its pre_deploy controller`},
		"two up":    {func(r *rollout.Record) { r.Revisions[0].Direction = rollout.Up }, "2 revisions"},
		"none up":   {func(r *rollout.Record) { r.Revisions[1].Direction = rollout.Down }, "0 revisions"},
	} {
		rec := fullRecord()
		tt.spoil(&rec)
		if err := rec.Check(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, fine := range map[string]func(*rollout.Record){
		"zero":     func(r *rollout.Record) { r.Revisions[0].Target, r.Revisions[0].Percent = ptr(0), ptr(0) },
		"kept":     func(r *rollout.Record) { r.Update.Keep = rc.MaxReplicas - r.Total() },
		"hundred":  func(r *rollout.Record) { r.Revisions[0].Percent = ptr(100) },
		"back":     func(r *rollout.Record) { r.Resume = rollout.RollingBack },
		"moves":    func(r *rollout.Record) { r.State, r.Resume = rollout.Progressing, "" },
		"in place": func(r *rollout.Record) { r.Strategy, r.Revisions = "in-place", r.Revisions[1:] },
		"rollback": func(r *rollout.Record) {
			r.Phase, r.Revisions[0].Target, r.Revisions[1].Target = rollout.Planning, nil, nil
		},
		"stays on": func(r *rollout.Record) {
			r.Phase, r.Revisions[0].Target, r.Revisions[0].Direction = rollout.Moving, nil, rollout.Stay
		},
		"stays": func(r *rollout.Record) { r.Revisions[0].Direction = rollout.Stay },
	} {
		rec := fullRecord()
		fine(&rec)
		if err := rec.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestARecordHasItsRevisionsAndItsPreDeploy(t *testing.T) {
	t.Parallel()
	r := rollout.Record{Revisions: []rollout.Revision{{RC: "u-1"}, {RC: "u-2"}}}
	for id, want := range map[string]bool{"u-1": true, "u-2": true, "u-3": false, "u-2-pre": false} {
		if got := r.Has(id); got != want {
			t.Errorf("%s: %t", id, got)
		}
	}
	r.PreDeploy = &rollout.PreDeploy{RC: "u-2-pre"}
	for id, want := range map[string]bool{"u-1": true, "u-2-pre": true, "u-3": false, "u-3-pre": false} {
		if got := r.Has(id); got != want {
			t.Errorf("with a pre_deploy, %s: %t", id, got)
		}
	}
}

func TestTheLimitsOfAnUpgradeInPlace(t *testing.T) {
	t.Parallel()
	limits := &rc.InPlace{Limit: 2}
	s := rollout.Started{
		Record: rollout.Record{
			Strategy:  rollout.InPlaceStrategy,
			Revisions: []rollout.Revision{{RC: "u-1", Direction: rollout.Down}, {RC: "u-2", Direction: rollout.Up}},
		},
		RCs: []rc.RC{{ID: "u-1", InPlace: &rc.InPlace{Limit: 1}}, {ID: "u-2", InPlace: limits}},
	}
	if got := s.InPlace(); got != limits {
		t.Errorf("%+v", got)
	}
	without := s
	without.RCs = s.RCs[:1]
	other := s
	other.Record.Strategy = rollout.AvailabilityStrategy
	back := s
	back.Record.Revisions = s.Record.Revisions[:1]
	for name, s := range map[string]rollout.Started{
		"its controller is not written": without, "another strategy": other, "no new revision": back,
	} {
		if got := s.InPlace(); got != nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
