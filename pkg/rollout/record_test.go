package rollout_test

import (
	"encoding/json"
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
		Strategy: "canary", Order: "start-first", Step: &rollout.Amount{Percent: true, N: 20}, MaxSurge: &rollout.Amount{N: 3}, MaxUnavailable: &rollout.Amount{N: 1},
		MinAvailable: ptr(4), StageTimeout: ptr(field.Duration(time.Minute)), OnTimeout: "pause", Delay: ptr(field.Duration(time.Second)), LeaveOld: true, RevisionHistory: ptr(3),
		Canary: &rollout.Canary{Pods: 2}, AutoPromote: ptr(field.Duration(time.Hour)), KeepOld: ptr(field.Duration(time.Minute)),
		Gates: rollout.Gates{BeforeStage: []rollout.Hook{hook}, AfterStage: []rollout.Hook{hook}}, GroupOrder: []string{"main"},
	}
	return rollout.Record{
		ID: "01K", Service: "web", Strategy: "canary", State: rollout.Paused, Resume: rollout.Progressing, Reason: "paused by ann", By: "ann", Epoch: "n1",
		Revisions: []rollout.Revision{
			{RC: "a", Name: "web-r1", Rev: 1, Manifest: "d1", Direction: rollout.Down, Percent: ptr(60), Target: ptr(3), Min: ptr(5), Max: ptr(5), Bounds: &rollout.Bounds{Min: ptr(3), Max: ptr(3)}, Before: groupsOf(5), Abandoned: true, Standby: true},
			{RC: "b", Name: "web-r2", Rev: 2, Manifest: "d2", Direction: rollout.Up, Percent: ptr(40), Target: ptr(2), Min: ptr(5), Max: ptr(5), Before: groupsOf(0)},
		},
		Groups: groupsOf(5), Knobs: knobs,
		Update: rollout.Update{
			Ratio: 20, Step: 1, Surge: 3, Unavailable: 1, Min: 4, First: 4, StageTimeout: field.Duration(time.Minute), OnTimeout: "pause", Delay: field.Duration(time.Second),
			LeaveOld: true, CanaryPods: 2, AutoPromote: ptr(field.Duration(time.Hour)), KeepOld: field.Duration(time.Minute), Gates: knobs.Gates,
		},
		Stage: 2, Stages: 5, Phase: rollout.BeforeStage, StartedAt: t0, StageSince: t0, ProgressAt: t0, Progress: 3, WaitingSince: &t0, BlockedReason: "the breaker is tripped",
		Gate: &rollout.Gate{Index: 1, Tries: 2, NextAt: &t0, Error: "503"}, SkipGates: true, PreDeploy: &rollout.PreDeploy{RC: "p", Name: "web-pre", Until: t0}, Promoted: true,
		Before: &rc.RC{ID: "a"}, Request: &rollout.Request{Verb: rollout.PauseVerb, By: "ann", At: t0},
		Failures: []rollout.Failure{{RC: "b", PodFailure: rc.PodFailure{Pod: "main.0", Node: "n1", Reason: "exit 1", Hopeless: true}}},
	}
}

// The JSON of a record is what other versions read: a field that is renamed here is one that they lose.
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

func TestCheckRecord(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(*rollout.Record)
		want  string
	}{
		"id":         {func(r *rollout.Record) { r.ID = "" }, "no id"},
		"service":    {func(r *rollout.Record) { r.Service = "" }, "no id or no service"},
		"strategy":   {func(r *rollout.Record) { r.Strategy = "x" }, `strategy "x"; allowed: availability, blue-green, canary, in-place, resourceutil`},
		"state":      {func(r *rollout.Record) { r.State = "x" }, `state "x"`},
		"resume":     {func(r *rollout.Record) { r.Resume = "" }, "would go back"},
		"phase":      {func(r *rollout.Record) { r.Phase = "x" }, `phase "x"`},
		"revisions":  {func(r *rollout.Record) { r.Revisions = nil }, "no revision"},
		"groups":     {func(r *rollout.Record) { r.Groups = nil }, "no replica group"},
		"group":      {func(r *rollout.Record) { r.Groups = groupsOf(-1) }, "groups of the rollout"},
		"in place":   {func(r *rollout.Record) { r.Strategy = "in-place" }, "one revision"},
		"rc":         {func(r *rollout.Record) { r.Revisions[0].RC = "" }, "incomplete"},
		"name":       {func(r *rollout.Record) { r.Revisions[0].Name = "" }, "incomplete"},
		"rev":        {func(r *rollout.Record) { r.Revisions[0].Rev = 0 }, "incomplete"},
		"manifest":   {func(r *rollout.Record) { r.Revisions[0].Manifest = "" }, "incomplete"},
		"repeated":   {func(r *rollout.Record) { r.Revisions[0].RC = "b" }, "repeated"},
		"direction":  {func(r *rollout.Record) { r.Revisions[0].Direction = "x" }, `direction "x"`},
		"target":     {func(r *rollout.Record) { r.Revisions[0].Target = ptr(-1) }, "target below 0"},
		"percent":    {func(r *rollout.Record) { r.Revisions[0].Percent = ptr(101) }, "percentage"},
		"percentage": {func(r *rollout.Record) { r.Revisions[0].Percent = ptr(-1) }, "percentage"},
		"two up":     {func(r *rollout.Record) { r.Revisions[0].Direction = rollout.Up }, "2 revisions"},
		"none up":    {func(r *rollout.Record) { r.Revisions[1].Direction = rollout.Down }, "0 revisions"},
	} {
		rec := fullRecord()
		tt.spoil(&rec)
		if err := rec.Check(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, fine := range map[string]func(*rollout.Record){
		"zero":     func(r *rollout.Record) { r.Revisions[0].Target, r.Revisions[0].Percent = ptr(0), ptr(0) },
		"hundred":  func(r *rollout.Record) { r.Revisions[0].Percent = ptr(100) },
		"back":     func(r *rollout.Record) { r.Resume = rollout.RollingBack },
		"moves":    func(r *rollout.Record) { r.State, r.Resume = rollout.Progressing, "" },
		"in place": func(r *rollout.Record) { r.Strategy, r.Revisions = "in-place", r.Revisions[1:] },
		"stays":    func(r *rollout.Record) { r.Revisions[0].Direction = rollout.Stay },
	} {
		rec := fullRecord()
		fine(&rec)
		if err := rec.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
