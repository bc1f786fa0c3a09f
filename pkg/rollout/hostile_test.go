package rollout_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// spoil replaces one value somewhere in a record by another JSON value, or removes it.
func spoil(t *rapid.T, value any) any {
	hostile := rapid.SampledFrom([]any{
		nil, -1, 0, 1, 3, rc.MaxReplicas, rc.MaxReplicas + 1, math.MaxInt, math.MinInt, "", "x", "1000000h",
		[]any{},
		map[string]any{},
	})
	switch v := value.(type) {
	case map[string]any:
		if len(v) == 0 {
			return hostile.Draw(t, "value")
		}
		key := rapid.SampledFrom(slices.Sorted(maps.Keys(v))).Draw(t, "key")
		if _, whole := v["revisions"]; whole && rapid.Bool().Draw(t, "a part with numbers") {
			key = rapid.SampledFrom([]string{"revisions", "gate", "update", "groups"}).Draw(t, "key")
		}
		if rapid.IntRange(0, 5).Draw(t, "deeper") == 0 {
			delete(v, key)
		} else {
			v[key] = spoil(t, v[key])
		}
		return v
	case []any:
		if len(v) == 0 {
			return hostile.Draw(t, "value")
		}
		i := rapid.IntRange(0, len(v)-1).Draw(t, "index")
		v[i] = spoil(t, v[i])
		return v
	default:
		return hostile.Draw(t, "value")
	}
}

// decoded spoils a record the given number of times, and reads it back. It returns false if the record is refused.
func decoded[T interface{ Check() error }](t *rapid.T, like any, into T, times int) bool {
	data, err := json.Marshal(like)
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		t.Fatal(err)
	}
	for range times {
		value = spoil(t, value)
	}
	if data, err = json.Marshal(value); err != nil {
		t.Fatal(err)
	}
	return json.Unmarshal(data, into) == nil && into.Check() == nil
}

// If a record, its controllers and their statuses pass Check, Decide does not panic, and everything that it writes
// passes Check.
func TestDecideSurvivesEveryRecordThatPassesCheck(t *testing.T) {
	phases := []rollout.Phase{
		rollout.PreDeploying, rollout.BeforeStage, rollout.Planning, rollout.Moving, rollout.AfterStage,
		rollout.Delaying, rollout.Promoting, rollout.Joining,
		rollout.Leaving, rollout.Keeping, rollout.Ending,
	}
	rapid.Check(t, func(t *rapid.T) {
		good := fullRecord()
		good.Strategy = rapid.SampledFrom(rollout.StrategyNames()).Draw(t, "strategy")
		good.State = rapid.SampledFrom([]rollout.State{
			rollout.Progressing, rollout.RollingBack,
			rollout.WaitingForPromote, rollout.Paused,
		}).Draw(t, "state")
		good.SkipGates, good.Promoted = rapid.Bool().Draw(t, "skips gates"), rapid.Bool().Draw(t, "promoted")
		good.Phase, good.BlockedReason = rapid.SampledFrom(phases).Draw(t, "phase"), ""
		if good.State == rollout.WaitingForPromote {
			good.Phase = rollout.Promoting
		}
		verb := rapid.SampledFrom([]rollout.Verb{
			"", rollout.ResumeVerb, rollout.PromoteVerb, rollout.RollbackVerb,
			rollout.AbortVerb, "x",
		}).Draw(t, "verb")
		if good.Request = nil; verb != "" {
			good.Request = &rollout.Request{Verb: verb, By: "ann", At: t0}
		}
		if good.Strategy == rollout.InPlaceStrategy {
			good.Revisions = good.Revisions[1:]
		}
		var rec rollout.Record
		if !decoded(t, good, &rec, rapid.IntRange(0, 4).Draw(t, "spoiled")) {
			return
		}
		obs := rollout.Observed{Now: t0.Add(time.Hour), Epoch: rec.Epoch, Revisions: map[string]rollout.Seen{}}
		if rec.Gate != nil {
			obs.Gate = &rollout.GateAnswer{Phase: rec.Phase, Index: rec.Gate.Index, Stage: rec.Stage, Error: "no"}
		}
		for _, v := range rec.Revisions {
			ctrl := rc.RC{
				ID: v.RC, ManifestDigest: v.Manifest, ReplicaGroups: groupsOf(5), Generation: 3,
				InPlace: &rc.InPlace{From: "d0", Limit: 1},
			}
			status := rc.Status{
				RCID: v.RC, ObservedGeneration: 3, Epoch: rec.Epoch, Desired: 5, Placed: 5, Available: 5, Ghosts: 1,
				Stopping: 1, Updated: 1, Failing: []rc.PodFailure{{Pod: "main.0"}},
			}
			var seen rollout.Seen
			if !decoded(t, ctrl, &seen.RC, rapid.IntRange(0, 1).Draw(t, "spoiled controller")) || seen.RC.ID != v.RC {
				if rapid.Bool().Draw(t, "gone") {
					obs.Revisions[v.RC] = rollout.Seen{}
				}
				continue
			}
			seen.Status = &rc.Status{}
			if !decoded(t, status, seen.Status, rapid.IntRange(0, 2).Draw(t, "spoiled status")) {
				seen.Status = nil
			}
			obs.Revisions[v.RC] = seen
		}
		d := rollout.Decide(rec, obs)
		if err := d.Record.Check(); err != nil {
			t.Fatalf("it writes a record that does not pass Check: %v", err)
		}
		for i := range d.RCs {
			if err := d.RCs[i].Check(); err != nil {
				t.Fatalf("it writes a controller that does not pass Check: %v", err)
			}
		}
		if again := fmt.Sprint(d.Again); d.Again < 0 {
			t.Fatalf("it looks again after %s", again)
		}
	})
}
