package rollout_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

func TestProgressCountsPodsOfBothDirections(t *testing.T) {
	up := func(v rev) rev { v.dir = rollout.Up; return v }
	for _, tt := range []struct {
		name     string
		strategy string
		revs     []rev
		want     int
	}{
		{
			"both ways", rollout.AvailabilityStrategy,
			[]rev{{has: 3, extra: 2, target: 3}, up(rev{has: 4, target: 4, away: 1})},
			3 - 2,
		},
		{
			"no more than the targets", rollout.AvailabilityStrategy,
			[]rev{{has: 1, target: 2}, up(rev{has: 4, target: 3, extra: 1})},
			3,
		},
		{"not on unmanaged nodes", rollout.AvailabilityStrategy, []rev{up(rev{has: 4, target: 4, unmanaged: 1})}, 3},
		{"not those that stand by", rollout.AvailabilityStrategy, []rev{up(rev{has: 4, target: 4, standing: 1})}, 3},
		{
			"in place", rollout.InPlaceStrategy,
			[]rev{up(rev{has: 4, target: 3, upgrade: &rc.InPlace{Limit: 3}, updated: 2})},
			2,
		},
		{
			"in place no more than the target", rollout.InPlaceStrategy,
			[]rev{up(rev{has: 4, target: 3, extra: 1, upgrade: &rc.InPlace{Limit: 3}, updated: 4})},
			3,
		},
	} {
		rec, obs := staged(tt.strategy, rollout.Moving, rollout.Update{Step: 1, Surge: 1}, 4, tt.revs...)
		obs.Now = t0.Add(time.Second)
		if d := rollout.Decide(rec, obs); d.Record.Progress != tt.want || !d.Record.ProgressAt.Equal(obs.Now) ||
			d.Record.Phase != rollout.Moving {
			t.Errorf("%s: %d, want %d: %+v", tt.name, d.Record.Progress, tt.want, d.Record)
		}
	}
}

func TestAStageNamesWhatItWaitsFor(t *testing.T) {
	up := func(v rev) rev { v.dir = rollout.Up; return v }
	limit := &rc.InPlace{Limit: 3}
	for _, tt := range []struct {
		strategy string
		revs     []rev
		want     string
	}{
		{
			rollout.AvailabilityStrategy,
			[]rev{{has: 3, target: 3}, up(rev{has: 2, target: 2, unseen: true})},
			"the owner of web-r2 has not reported",
		},
		{
			rollout.AvailabilityStrategy,
			[]rev{{has: 3, target: 3}, up(rev{has: 2, target: 2, away: 1})},
			"1 of 2 pods of web-r2 are available",
		},
		{
			rollout.AvailabilityStrategy,
			[]rev{{has: 3, extra: 2, target: 3}, up(rev{has: 2, target: 2})},
			"2 pods of web-r1 have yet to stop",
		},
		{
			rollout.AvailabilityStrategy,
			[]rev{{has: 3, target: 3}, {has: 2, extra: 1, target: 2}, up(rev{has: 2, target: 2})},
			"1 pods of web-r2 have yet to stop",
		},
		{
			rollout.AvailabilityStrategy,
			[]rev{{has: 4, extra: -1, target: 3}, up(rev{has: 2, target: 2})},
			": pods have yet to stop",
		},
		{
			rollout.InPlaceStrategy,
			[]rev{up(rev{has: 4, target: 3, upgrade: limit, updated: 2})},
			"2 of 3 pods of web-r1 run the new manifest and are available",
		},
		{
			rollout.InPlaceStrategy,
			[]rev{up(rev{has: 4, extra: 1, target: 3, upgrade: limit, updated: 3})},
			": pods have yet to stop",
		},
	} {
		rec, obs := staged(tt.strategy, rollout.Moving, rollout.Update{Step: 1, Surge: 1}, 4, tt.revs...)
		rec.Progress = 100
		obs.Now = t0.Add(time.Minute)
		if d := rollout.Decide(rec, obs); d.Record.State != rollout.Paused ||
			!strings.HasSuffix(d.Record.Reason, tt.want) {
			t.Errorf("%s %q, want %q", d.Record.State, d.Record.Reason, tt.want)
		}
	}
}

// If a stage in place fails, its reason has the reason of the condition Blocked.
func TestAStageInPlaceNamesTheObstacle(t *testing.T) {
	rec, obs := staged(rollout.InPlaceStrategy, rollout.Moving, rollout.Update{Step: 1}, 4,
		rev{dir: rollout.Up, has: 4, target: 3, upgrade: &rc.InPlace{Limit: 3}, updated: 2})
	rec.Progress = 100
	obs.Now = t0.Add(time.Minute)
	for _, seen := range obs.Revisions {
		seen.Status.Conditions = rc.SetCondition(seen.Status.Conditions, rc.Blocked, true,
			"n2 has no capacity: resources", t0)
	}
	const want = "2 of 3 pods of web-r1 run the new manifest and are available; n2 has no capacity: resources"
	if d := rollout.Decide(rec, obs); d.Record.State != rollout.Paused || !strings.HasSuffix(d.Record.Reason, want) {
		t.Errorf("%s %q, want %q", d.Record.State, d.Record.Reason, want)
	}
}

// A status from before the last change of the limit does not end the stage.
func TestInPlaceWaitsForAStatusWithItsLimit(t *testing.T) {
	for _, tt := range []struct {
		upgrade *rc.InPlace
		over    bool
	}{{&rc.InPlace{Limit: 2}, false}, {&rc.InPlace{Limit: 4}, true}, {nil, true}} {
		rec, obs := staged(rollout.InPlaceStrategy, rollout.Moving, rollout.Update{Step: 2}, 4, rev{
			dir: rollout.Up, has: 4, target: 4, upgrade: tt.upgrade, updated: 4,
		})
		if d := rollout.Decide(rec, obs); (d.Record.State == rollout.Done) != tt.over {
			t.Errorf("%+v: %s %s", tt.upgrade, d.Record.State, d.Record.Phase)
		}
	}
}

func TestBlueGreenLeavesWithoutLostPods(t *testing.T) {
	for standing, want := range map[int]rollout.Phase{2: rollout.Leaving, 3: rollout.Keeping} {
		rec, obs := staged(rollout.BlueGreenStrategy, rollout.Leaving,
			rollout.Update{Step: 1, Surge: 4, KeepOld: *length(time.Hour)}, 4,
			rev{has: 4, target: 4, lost: 1, standing: standing, standby: true}, rev{dir: rollout.Up, has: 4, target: 4})
		if d := rollout.Decide(rec, obs); d.Record.Phase != want {
			t.Errorf("%d stand by: %s", standing, d.Record.Phase)
		}
	}
}

func TestTheRecordHasAtMostMaxFailingFailures(t *testing.T) {
	rec, obs := staged(rollout.AvailabilityStrategy, rollout.Moving, rollout.Update{Step: 1, Surge: 1}, 4,
		rev{has: 3, target: 3}, rev{dir: rollout.Up, has: 1, target: 1, away: 1})
	rec.Progress, obs.Now = 100, t0.Add(time.Minute)
	obs.Revisions[web2].Status.Failing = slices.Repeat([]rc.PodFailure{{Pod: "main.0", Node: "n", Reason: "exit 1"}},
		rc.MaxFailing+1)
	if d := rollout.Decide(rec, obs); len(d.Record.Failures) != rc.MaxFailing {
		t.Errorf("%+v", d.Record.Failures)
	}
}

// The reason of a rollback or abort has why pods were not available, because these pods are gone afterwards.
func TestARequestKeepsWhyPodsWereNotAvailable(t *testing.T) {
	failing := []rc.PodFailure{{Pod: "main.0", Node: "n4", Reason: "exit 1"}}
	for name, tt := range map[string]struct {
		away    int
		failing []rc.PodFailure
		unseen  bool
		state   rollout.State
		want    string
	}{
		"a pod fails": {
			1, failing, false, rollout.Progressing, " while 0 of 1 pods of web-r2 are available; main.0 on n4: exit 1",
		},
		"it was paused": {
			1, failing, false, rollout.Paused, " while 0 of 1 pods of web-r2 are available; main.0 on n4: exit 1",
		},
		"a pod is on its way": {1, nil, false, rollout.Progressing, " while 0 of 1 pods of web-r2 are available"},
		"all are available":   {0, nil, false, rollout.Progressing, ""},
		"one failed before":   {0, failing, false, rollout.Progressing, "; main.0 on n4: exit 1"},
		"nothing is known":    {1, failing, true, rollout.Progressing, ""},
	} {
		for verb, by := range map[rollout.Verb]string{
			rollout.RollbackVerb: "rolled back by bob", rollout.AbortVerb: "aborted by bob",
		} {
			rec, obs := staged(rollout.AvailabilityStrategy, rollout.Moving, rollout.Update{Step: 1, Surge: 1}, 4,
				rev{has: 3, target: 3}, rev{dir: rollout.Up, has: 1, target: 1, away: tt.away, unseen: tt.unseen})
			rec.State, rec.Request = tt.state, &rollout.Request{Verb: verb, By: "bob"}
			if tt.state == rollout.Paused {
				rec.Resume = rollout.Progressing
			}
			if !tt.unseen {
				obs.Revisions[web2].Status.Failing = tt.failing
			}
			if d := rollout.Decide(rec, obs); d.Record.Reason != by+tt.want {
				t.Errorf("%s, %s: %q, want %q", name, verb, d.Record.Reason, by+tt.want)
			}
		}
	}
}

// The reason of a stage that failed names each failing pod once.
func TestAFailedStageNamesTheFailingPods(t *testing.T) {
	for name, c := range map[string]struct {
		hopeless bool
		now      time.Time
		want     string
	}{
		"no progress": {
			false, t0.Add(time.Minute),
			"no progress for 1m0s: 0 of 1 pods of web-r2 are available; main.0 on n4: exit 1",
		},
		"hopeless": {true, t0, "waiting does not help: web-r2.main.0 on n4: exit 1"},
	} {
		rec, obs := staged(rollout.AvailabilityStrategy, rollout.Moving, rollout.Update{Step: 1, Surge: 1}, 4,
			rev{has: 3, target: 3}, rev{dir: rollout.Up, has: 1, target: 1, away: 1})
		obs.Revisions[web2].Status.Failing = []rc.PodFailure{
			{Pod: "main.0", Node: "n4", Reason: "exit 1", Hopeless: c.hopeless},
		}
		rec.Progress, obs.Now = 0, c.now
		if d := rollout.Decide(rec, obs); d.Record.Reason != c.want {
			t.Errorf("%s: %q, want %q", name, d.Record.Reason, c.want)
		}
	}
}

// An aborted rollback keeps the reason of the rollback. Failures of the old revision are not added.
func TestAnAbortedRollbackKeepsItsReason(t *testing.T) {
	const why = "no progress for 2m0s; main.0 on n4: exit 1"
	failed := []rollout.Failure{{RC: web2, PodFailure: rc.PodFailure{Pod: "main.0", Node: "n4", Reason: "exit 1"}}}
	for state, want := range map[rollout.State]string{
		rollout.RollingBack: "aborted by bob during the rollback: " + why,
		rollout.Paused:      "aborted by bob during the rollback; main.0 on n4: exit 1",
	} {
		rec, obs := staged(rollout.AvailabilityStrategy, rollout.Moving, rollout.Update{Step: 1, Surge: 1}, 4,
			rev{dir: rollout.Up, has: 3, target: 3, away: 1}, rev{has: 1, target: 1})
		obs.Revisions[rec.Revisions[0].RC].Status.Failing = []rc.PodFailure{
			{Pod: "main.2", Node: "n1", Reason: "its node was restarted"},
		}
		rec.State, rec.Reason, rec.Failures, rec.Request = state, why, failed, &rollout.Request{
			Verb: rollout.AbortVerb, By: "bob",
		}
		if state == rollout.Paused {
			rec.Resume, rec.Reason = rollout.RollingBack, "paused by eve"
		}
		d := rollout.Decide(rec, obs)
		if d.Record.Reason != want {
			t.Errorf("%s: %q, want %q", state, d.Record.Reason, want)
		}
		if diff := cmp.Diff(failed, d.Record.Failures); diff != "" {
			t.Errorf("%s: %s", state, diff)
		}
	}
}

func TestTheTailOfPreDeployIsCut(t *testing.T) {
	rec, obs := staged(rollout.AvailabilityStrategy, rollout.PreDeploying, rollout.Update{Step: 1, Surge: 1}, 4,
		rev{dir: rollout.Up})
	rec.PreDeploy = &rollout.PreDeploy{RC: webPre, Name: "web-pre", Until: t0.Add(time.Hour)}
	obs.PreDeploy = &rollout.PreDeployed{Finished: true, Exit: 1, Tail: strings.Repeat("z", rc.MaxReason)}
	d := rollout.Decide(rec, obs)
	if n := strings.Count(d.Record.Reason, "z"); n != rc.MaxReason/2-3 {
		t.Errorf("%d characters of the log", n)
	}
}

// If a gate causes a rollback, the first stage of the rollback begins at once.
func TestARefusingGateStartsTheRollbackAtOnce(t *testing.T) {
	for _, phase := range []rollout.Phase{rollout.BeforeStage, rollout.AfterStage} {
		u := rollout.Update{Step: 2, Surge: 2, OnTimeout: rollout.OnTimeoutRollback}
		u.Gates.BeforeStage = []rollout.Hook{{URL: "http://a", Retries: ptr(0)}}
		u.Gates.AfterStage = u.Gates.BeforeStage
		rec, obs := staged(rollout.AvailabilityStrategy, phase, u, 4, rev{has: 3, target: 3}, rev{
			dir: rollout.Up, has: 1, target: 1,
		})
		obs.Gate = &rollout.GateAnswer{Phase: phase, Stage: 1, Error: "no"}
		if d := rollout.Decide(rec, obs); d.Record.State != rollout.RollingBack || d.Record.Phase != rollout.Moving ||
			d.Record.Stage != 2 {
			t.Errorf("%s: %s %s, stage %d", phase, d.Record.State, d.Record.Phase, d.Record.Stage)
		}
	}
}

func TestAnAnswerAfterTheLastGateIsIgnored(t *testing.T) {
	u := rollout.Update{Step: 2, Surge: 2}
	u.Gates.BeforeStage = []rollout.Hook{{URL: "http://a"}}
	rec, obs := staged(rollout.AvailabilityStrategy, rollout.BeforeStage, u, 4, rev{has: 4}, rev{dir: rollout.Up})
	rec.Gate = &rollout.Gate{Index: 1}
	obs.Gate = &rollout.GateAnswer{Phase: rollout.BeforeStage, Index: 1, Stage: 1, Error: "no"}
	if d := rollout.Decide(rec, obs); d.Record.Phase != rollout.Moving {
		t.Errorf("%+v", d.Record)
	}
}

func TestResumeAsksTheGateAnew(t *testing.T) {
	u := rollout.Update{Step: 2, Surge: 2}
	u.Gates.BeforeStage = []rollout.Hook{{URL: "http://a"}}
	rec, obs := staged(rollout.AvailabilityStrategy, rollout.BeforeStage, u, 4, rev{has: 4}, rev{dir: rollout.Up})
	rec.State, rec.Resume, rec.Gate = rollout.Paused, rollout.Progressing, &rollout.Gate{Tries: 4, Error: "no"}
	rec.Request = &rollout.Request{Verb: rollout.ResumeVerb, By: "ann"}
	if d := rollout.Decide(rec, obs); d.Gate == nil || d.Record.Gate.Tries != 0 || d.Record.Gate.Error != "" {
		t.Errorf("%+v", d.Record.Gate)
	}
}

func TestADelayThatIsOverAsksForNoLook(t *testing.T) {
	rec, obs := staged(rollout.AvailabilityStrategy, rollout.Delaying,
		rollout.Update{Step: 1, Surge: 1, Delay: *length(time.Second)}, 4, rev{has: 4}, rev{dir: rollout.Up})
	rec.WaitingSince, obs.Now = &t0, t0.Add(time.Second)
	if d := rollout.Decide(rec, obs); d.Again != time.Minute || d.Record.Phase != rollout.Moving {
		t.Errorf("again after %s, %s", d.Again, d.Record.Phase)
	}
}

// A promotion begins a stage at once, without the delay between stages.
func TestAPromotionBeginsAStage(t *testing.T) {
	rec, obs := staged(rollout.CanaryStrategy, rollout.Promoting,
		rollout.Update{Step: 1, Surge: 1, CanaryPods: 1, Delay: *length(time.Hour)}, 4, rev{has: 3, target: 3},
		rev{dir: rollout.Up, has: 1, target: 1})
	rec.State, rec.Request = rollout.WaitingForPromote, &rollout.Request{Verb: rollout.PromoteVerb, By: "ann"}
	if d := rollout.Decide(rec, obs); d.Record.Stage != 2 || d.Record.Phase != rollout.Moving ||
		*d.Record.Revisions[1].Target != 2 {
		t.Errorf("%+v", d.Record)
	}
}

func TestEveryAlertIsKept(t *testing.T) {
	w := traced(t)
	w.old(1, 2)
	w.old(2, 2)
	w.must(t, w.deploy(rollout.Knobs{}, 3, 4))
	for desired(w.rcs[web1]) > 0 || desired(w.rcs[web2]) > 0 {
		w.round()
	}
	for _, id := range []string{web1, web2} {
		w.pods = append(w.pods, &simPod{rc: id, role: "main", digest: "d", stopping: true, lost: true})
	}
	w.settles(t, rollout.Done)
	if a := w.ended.Alert; !strings.HasPrefix(a, "web-r2 still has pods") ||
		!strings.Contains(a, "; web-r1 still has pods") {
		t.Error(a)
	}
	if !slices.Contains(w.ended.Audit, "rollout R3 of web: done") {
		t.Error(w.ended.Audit)
	}
}

func TestReasonIsAudited(t *testing.T) {
	w := traced(t)
	w.old(1, 2)
	w.must(t, w.deploy(rollout.Knobs{}, 2, 2))
	w.ask(rollout.AbortVerb)
	if !slices.Contains(w.ended.Audit, "rollout R2 of web: aborted: aborted by bob") {
		t.Error(w.ended.Audit)
	}
}

func TestARollbackWithoutTheNewControllerFails(t *testing.T) {
	rec, obs := staged(rollout.AvailabilityStrategy, rollout.Moving, rollout.Update{Step: 1, Surge: 1}, 4,
		rev{has: 3, target: 3}, rev{dir: rollout.Up, has: 1, target: 1})
	obs.Revisions[web2] = rollout.Seen{}
	rec.Request = &rollout.Request{Verb: rollout.RollbackVerb, By: "ann"}
	if d := rollout.Decide(rec, obs); d.Record.State != rollout.Failed ||
		!strings.Contains(d.Record.Reason, "no revision to go back to") {
		t.Errorf("%+v", d.Record)
	}
}

func TestARollbackToNoPodsFails(t *testing.T) {
	rec, obs := staged(rollout.AvailabilityStrategy, rollout.Moving, rollout.Update{Step: 1, Surge: 1}, 4, rev{},
		rev{dir: rollout.Up, has: 1, target: 1})
	rec.Revisions[0].Before = groupsOf(0)
	rec.Request = &rollout.Request{Verb: rollout.RollbackVerb, By: "ann"}
	if d := rollout.Decide(rec, obs); d.Record.State != rollout.Failed ||
		!strings.Contains(d.Record.Reason, "no revision to go back to") {
		t.Errorf("%+v", d.Record)
	}
}
