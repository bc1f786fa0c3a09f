package rollout_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

func length(d time.Duration) *field.Duration { return ptr(field.Duration(d)) }

func (w *world) rounds(n int) {
	for range n {
		w.round()
	}
}

func TestAnUnavailablePodStallsTheStage(t *testing.T) {
	w := traced(t)
	w.old(1, 4)
	w.must(t, w.deploy(rollout.Knobs{OnTimeout: rollout.OnTimeoutPause}, 2, 4))
	w.run()
	w.own(web2)
	for range 100 {
		w.now = w.now.Add(time.Second)
		w.own(web1)
		w.own(web2)
		w.run()
	}
	w.has(t, map[string]int{web1: 4, web2: 1})
	if d := rollout.Decide(*w.record, w.observe()); d.Write || len(d.RCs) > 0 || d.Again != 19*time.Second+time.Second {
		t.Errorf("again after %s, %v", d.Again, d.RCs)
	}
	w.now = w.now.Add(20*time.Second - time.Nanosecond)
	if d := w.run(); d.Record.State != rollout.Progressing || d.Again != time.Millisecond {
		t.Error(d.Record.State, d.Again)
	}
	w.now = w.now.Add(time.Nanosecond)
	d := w.run()
	if r := d.Record; r.State != rollout.Paused || r.Resume != rollout.Progressing ||
		!strings.Contains(r.Reason, "no progress for 2m0s: 0 of 1 pods of web-r2 are available") || d.Alert == "" {
		t.Errorf("%+v", r)
	}
	w.ask(rollout.ResumeVerb)
	if r := w.record; r.State != rollout.Progressing || r.ProgressAt != w.now || r.Reason != "" {
		t.Errorf("%+v", r)
	}
}

func TestHopelessPodsFailTheStageAtOnce(t *testing.T) {
	for _, tt := range []struct {
		on   string
		want rollout.State
	}{
		{"", rollout.RollingBack},
		{rollout.OnTimeoutPause, rollout.Paused},
		{rollout.OnTimeoutContinue, rollout.Paused},
	} {
		w := traced(t)
		w.old(1, 4)
		w.must(t, w.deploy(rollout.Knobs{OnTimeout: tt.on}, 2, 4))
		w.run()
		w.own(web2)
		w.podsOf(web2)[0].hopeless = true
		w.own(web2)
		d := w.run()
		if r := d.Record; r.State != tt.want || !strings.Contains(r.Reason, "web-r2.main.0 on n: exit 1") ||
			len(r.Failures) != 1 || r.Failures[0].RC != web2 || len(d.Audit) != 1 || d.Alert == "" {
			t.Errorf("%s: %+v %v", tt.on, r, d.Audit)
		}
	}
}

func TestContinueWaitsAndAlertsOnce(t *testing.T) {
	w := traced(t)
	w.old(1, 4)
	w.must(t, w.deploy(rollout.Knobs{OnTimeout: rollout.OnTimeoutContinue, StageTimeout: length(time.Minute)}, 2, 4))
	w.run()
	w.own(web2)
	w.now = w.now.Add(time.Minute)
	if d := w.run(); d.Record.State != rollout.Progressing ||
		!strings.Contains(d.Record.Stuck, "no progress for 1m0s") {
		t.Errorf("%+v", d)
	}
	if d := w.run(); d.Alert != "" || d.Write {
		t.Errorf("%+v", d)
	}
	if d := w.after(time.Minute); !d.Write || d.Record.ProgressAt != w.now || d.Record.Stuck == "" {
		t.Errorf("Stuck is not written again after the next timeout: %+v", d)
	}
	w.own(web1)
	w.nodes(1)
	w.own(web2)
	if d := w.after(time.Second); d.Record.Stuck != "" {
		t.Errorf("there is progress, and Stuck is %q", d.Record.Stuck)
	}
	w.settles(t, rollout.Done)
}

func TestWithoutATimeoutNothingFails(t *testing.T) {
	w := traced(t)
	w.old(1, 4)
	w.must(t, w.deploy(rollout.Knobs{StageTimeout: length(0)}, 2, 4))
	w.run()
	w.now = w.now.Add(rollout.DefaultStageTimeout - time.Second)
	if d := w.run(); d.Write || d.Again != time.Second {
		t.Errorf("%+v", d)
	}
	w.now = w.now.Add(1000 * time.Hour)
	if d := w.run(); d.Record.State != rollout.Progressing || d.Record.Stuck == "" {
		t.Errorf("%+v", d)
	}
	if d := w.run(); d.Write || d.Again != rollout.DefaultStageTimeout {
		t.Errorf("%+v", d)
	}
	w.settles(t, rollout.Done)
}

func TestARollbackRestoresCountsAndGivesTheReason(t *testing.T) {
	w := traced(t)
	w.old(1, 6)
	w.must(t, w.deploy(rollout.Knobs{Step: amount(2)}, 2, 3))
	for len(w.podsOf(web2)) < 2 {
		w.round()
	}
	w.sick["d2"] = true
	for _, p := range w.podsOf(web2) {
		p.available, p.hopeless = false, true
	}
	w.settles(t, rollout.Failed)
	w.has(t, map[string]int{web1: 6, web2: 0})
	if d := w.ended; d.InEffect != 1 || !strings.HasSuffix(d.Record.Reason, "; web-r1 has all pods again") ||
		!strings.Contains(d.Record.Reason, "exit 1") {
		t.Errorf("%+v", d.Record)
	}
	if r := w.rcs[web1]; r.AllowMassStop != 0 {
		t.Errorf("%+v", r)
	}
}

func TestAFirstDeploymentThatFailsEnds(t *testing.T) {
	w := traced(t)
	w.sick["d1"] = true
	w.must(t, w.deploy(rollout.Knobs{}, 1, 4))
	w.settles(t, rollout.Failed)
	if d := w.ended; d.InEffect != 0 || !strings.Contains(d.Record.Reason, "there is no revision to go back to") ||
		!strings.Contains(d.Alert, "web has failed") {
		t.Errorf("%+v", d)
	}
	if len(w.podsOf(web1)) != 1 || desired(w.rcs[web1]) != 1 {
		t.Error("counts have changed")
	}
}

func TestFirstDeploymentObeysTheKnobs(t *testing.T) {
	for _, tt := range []struct {
		k     rollout.Knobs
		first int
	}{
		{rollout.Knobs{Step: amount(2)}, 2},
		{rollout.Knobs{MinAvailable: ptr(6)}, 6},
		{rollout.Knobs{MinAvailable: ptr(20), MaxSurge: amount(2)}, 10},
	} {
		w := traced(t)
		w.must(t, w.deploy(tt.k, 1, 10))
		w.run()
		if n := desired(w.rcs[web1]); n != tt.first {
			t.Errorf("%+v: %d pods at first", tt.k, n)
		}
		w.settles(t, rollout.Done)
		w.has(t, map[string]int{web1: 10})
		if r := w.rcs[web1]; w.ended.InEffect != 1 {
			t.Errorf("%+v", r)
		}
	}
}

func TestARolloutToZeroReplicasHasOneStage(t *testing.T) {
	w := traced(t)
	w.old(1, 3)
	w.must(t, w.deploy(rollout.Knobs{}, 2, 0))
	w.settles(t, rollout.Done)
	w.has(t, map[string]int{web1: 0, web2: 0})
	if w.ended.Record.Stage != 1 || w.ended.InEffect != 2 {
		t.Errorf("stage %d, in effect %d", w.ended.Record.Stage, w.ended.InEffect)
	}
}

func TestPauseAndResumeAndRefusedRequests(t *testing.T) {
	w := traced(t)
	w.old(1, 4)
	w.must(t, w.deploy(rollout.Knobs{}, 2, 4))
	w.run()
	w.ask(rollout.PromoteVerb)
	w.ask(rollout.ResumeVerb)
	if r := w.record; r.State != rollout.Progressing || r.Request != nil {
		t.Errorf("%+v", r)
	}
	w.ask(rollout.PauseVerb)
	if r := w.record; r.State != rollout.Paused || r.Resume != rollout.Progressing || r.Reason != "paused by bob" {
		t.Errorf("%+v", r)
	}
	n := desired(w.rcs[web2])
	w.rounds(300)
	if desired(w.rcs[web2]) != n || w.record.State != rollout.Paused {
		t.Error("counts change while it is paused")
	}
	w.ask(rollout.RollbackVerb)
	if w.record.State != rollout.RollingBack || w.record.Reason != "rolled back by bob" {
		t.Errorf("%+v", w.record)
	}
	w.ask(rollout.PauseVerb)
	if r := w.record; r.State != rollout.Paused || r.Resume != rollout.RollingBack {
		t.Errorf("%+v", r)
	}
	w.ask(rollout.RollbackVerb)
	if w.record.State != rollout.Paused {
		t.Error("a rollback was rolled back")
	}
	w.ask(rollout.ResumeVerb)
	if w.record.State != rollout.RollingBack {
		t.Error(w.record.State)
	}
	w.ask(rollout.RollbackVerb)
	w.settles(t, rollout.Failed)
	w.has(t, map[string]int{web1: 4, web2: 0})
}

func TestCanaryPromotesByItself(t *testing.T) {
	w := traced(t)
	w.old(1, 4)
	w.must(t, w.deploy(rollout.Knobs{Strategy: rollout.CanaryStrategy, AutoPromote: length(time.Minute)}, 2, 4))
	w.settles(t, rollout.WaitingForPromote)
	w.now = w.record.WaitingSince.Add(time.Minute - time.Second)
	if d := w.run(); d.Again != time.Second || d.Record.State != rollout.WaitingForPromote {
		t.Errorf("again %s", d.Again)
	}
	w.now = w.now.Add(time.Second)
	if d := w.run(); d.Record.State != rollout.Progressing || d.Record.Reason != "promoted after 1m0s" ||
		d.Record.ProgressAt != w.now || !d.Record.Promoted {
		t.Errorf("%+v", d.Record)
	}
	w.settles(t, rollout.Done)
}

func TestPausedCanaryWaitsAgain(t *testing.T) {
	w := traced(t)
	w.old(1, 4)
	w.must(t, w.deploy(rollout.Knobs{Strategy: rollout.CanaryStrategy}, 2, 4))
	w.settles(t, rollout.WaitingForPromote)
	w.ask(rollout.PauseVerb)
	w.ask(rollout.PromoteVerb)
	if w.record.State != rollout.Paused {
		t.Error(w.record.State)
	}
	w.ask(rollout.ResumeVerb)
	if w.record.State != rollout.WaitingForPromote || w.record.WaitingSince == nil {
		t.Errorf("%+v", w.record)
	}
	w.ask(rollout.PromoteVerb)
	w.settles(t, rollout.Done)
}

func TestBlueGreenSwitchesTheName(t *testing.T) {
	w := traced(t)
	w.old(1, 4)
	w.must(t, w.deploy(rollout.Knobs{Strategy: rollout.BlueGreenStrategy, KeepOld: length(time.Minute)}, 2, 4))
	w.settles(t, rollout.WaitingForPromote)
	w.has(t, map[string]int{web1: 4, web2: 4})
	if !w.rcs[web2].Service.Standby || w.rcs[web1].Service.Standby || w.serving() != 4 {
		t.Error("not only the new pods stand by")
	}
	w.ask(rollout.PromoteVerb)
	if w.rcs[web2].Service.Standby || w.record.Phase != rollout.Joining {
		t.Errorf("%s", w.record.Phase)
	}
	w.own(web2) // its nodes have not acted yet
	if d := w.run(); d.Record.Phase != rollout.Joining || w.rcs[web1].Service.Standby {
		t.Error("the old pods lose the name before the new ones have it")
	}
	for w.record.Phase != rollout.Keeping {
		w.round()
	}
	for _, p := range w.pods {
		if p.standby != (p.rc == web1) {
			t.Errorf("%+v", p)
		}
	}
	since := *w.record.WaitingSince
	w.now = since.Add(time.Minute - time.Nanosecond)
	w.run()
	w.has(t, map[string]int{web1: 4})
	w.settles(t, rollout.Done)
	w.has(t, map[string]int{web1: 0, web2: 4})
}

func TestBlueGreenGoesBackAfterTheSwitch(t *testing.T) {
	w := traced(t)
	w.old(1, 4)
	w.must(t, w.deploy(rollout.Knobs{
		Strategy: rollout.BlueGreenStrategy, KeepOld: length(time.Hour),
		AutoPromote: length(0),
	}, 2, 4))
	for w.record.Phase != rollout.Keeping {
		w.round()
	}
	w.ask(rollout.RollbackVerb)
	w.settles(t, rollout.Failed)
	w.has(t, map[string]int{web1: 4, web2: 0})
	if w.serving() != 4 || w.rcs[web1].Service.Standby || w.ended.InEffect != 1 {
		t.Errorf("%d serve, %+v", w.serving(), w.ended)
	}
}

func TestADelaySeparatesStages(t *testing.T) {
	w := traced(t)
	w.old(1, 2)
	w.must(t, w.deploy(rollout.Knobs{Delay: length(time.Minute)}, 2, 2))
	for w.record.Phase != rollout.Delaying {
		w.round()
	}
	since := *w.record.WaitingSince
	w.now = since.Add(time.Minute - time.Second)
	if d := w.run(); d.Again != time.Second || d.Record.Stage != 1 {
		t.Error(d.Again, d.Record.Stage)
	}
	w.now = since.Add(time.Minute)
	if d := w.run(); d.Record.Stage != 2 || d.Record.Phase != rollout.Moving || d.Record.StageSince != w.now {
		t.Errorf("%+v", d.Record)
	}
	w.settles(t, rollout.Done)
}

func TestPreDeployDecidesWhetherStagesBegin(t *testing.T) {
	for name, tt := range map[string]struct {
		seen  *rollout.PreDeployed
		after time.Duration
		state rollout.State
		want  string
	}{
		"runs":  {nil, 5*time.Minute - time.Second, rollout.Progressing, ""},
		"late":  {&rollout.PreDeployed{}, 5 * time.Minute, rollout.Failed, "has not ended within 5m0s"},
		"ended": {&rollout.PreDeployed{Finished: true}, 0, rollout.Progressing, ""},
		"exit": {
			&rollout.PreDeployed{Finished: true, Exit: 3, Tail: "oops"}, 0, rollout.Failed,
			"exit code 3; its log ends: oops",
		},
		"lost": {&rollout.PreDeployed{Lost: true}, 0, rollout.Failed, "its node is lost"},
		"refused": {
			&rollout.PreDeployed{Failed: "no such artifact"}, 0, rollout.Failed, "pre_deploy: no such artifact",
		},
	} {
		w := traced(t)
		w.old(1, 2)
		w.must(t, w.start(rollout.Start{
			ID: "A", Service: "web", Now: w.now, Epoch: w.epoch, PreDeploy: &rollout.PreDeploy{
				RC: webPre, Name: "web-pre",
			},
			New: rc.RC{
				ID: web2, Name: "web-r2", ManifestDigest: "d2", ReplicaGroups: groupsOf(2),
				Service: &rc.Service{Name: "web", Revision: 2},
			},
		}))
		w.now = w.now.Add(tt.after)
		w.pre = tt.seen
		d := w.run()
		over := name != "runs"
		if d.Record.State != tt.state || !strings.Contains(d.Record.Reason, tt.want) ||
			over != (len(d.Delete) == 1 && d.Delete[0] == webPre) {
			t.Errorf("%s: %+v, deletes %v", name, d.Record, d.Delete)
		}
		if grown := desired(w.rcs[web2]) > 0; grown != (name == "ended") {
			t.Errorf("%s: the new revision grows: %v", name, grown)
		}
		if name == "runs" && d.Again != time.Second {
			t.Error(d.Again)
		}
	}
}

func TestARestoredStoreBlocksTheRollout(t *testing.T) {
	w := traced(t)
	w.old(1, 4)
	w.must(t, w.deploy(rollout.Knobs{}, 2, 4))
	w.run()
	n := desired(w.rcs[web2])
	r2 := w.rcs[web2]
	r2.ReplicaGroups = groupsOf(0)
	w.rcs[web2], w.epoch, w.holding[web1] = r2, "n2", true
	if d := w.run(); !strings.Contains(d.Record.BlockedReason, "waiting for the owner of web-r1 to report") ||
		len(d.RCs) > 0 {
		t.Errorf("%+v", d.Record)
	}
	w.own(web1)
	w.own(web2)
	if d := w.run(); !strings.Contains(d.Record.BlockedReason, "the owner of web-r1 waits for the nodes") ||
		len(d.RCs) > 0 {
		t.Errorf("%+v", d.Record)
	}
	w.now = w.now.Add(time.Hour)
	delete(w.holding, web1)
	w.own(web1)
	d := w.run()
	if d.Record.BlockedReason != "" || d.Record.Epoch != "n2" || d.Record.State != rollout.Progressing ||
		d.Record.ProgressAt != w.now {
		t.Errorf("%+v", d.Record)
	}
	if desired(w.rcs[web2]) != n {
		t.Error("the counts were not written again")
	}
	w.settles(t, rollout.Done)
}

func TestTheBreakerAndUnreadableControllersBlockTheRollout(t *testing.T) {
	w := traced(t)
	w.old(1, 4)
	w.must(t, w.deploy(rollout.Knobs{}, 2, 4))
	w.breaker = "12 stops"
	if d := w.run(); d.Record.BlockedReason != "the breaker is tripped: 12 stops" || len(d.RCs) > 0 {
		t.Errorf("%+v", d)
	}
	w.ask(rollout.RollbackVerb)
	if w.record.State != rollout.Progressing {
		t.Error("it rolls back while it is blocked")
	}
	w.breaker = ""
	obs := w.observe()
	delete(obs.Revisions, web1)
	if d := rollout.Decide(*w.record, obs); d.Record.BlockedReason != "the controller of web-r1 cannot be read" ||
		len(d.RCs) > 0 || d.Again != 5*time.Second {
		t.Errorf("%+v", d)
	}
	obs.Revisions[web1] = rollout.Seen{}
	if d := rollout.Decide(*w.record, obs); len(d.Record.Revisions) != 1 || d.Record.State != rollout.Progressing ||
		d.Record.BlockedReason != "" {
		t.Errorf("%+v", d.Record)
	}
	obs = w.observe()
	obs.Revisions[web2] = rollout.Seen{}
	if d := rollout.Decide(*w.record, obs); d.Record.State != rollout.Failed || !d.Ended ||
		d.Record.Reason != "the controller of web-r2 is gone" {
		t.Errorf("%+v", d.Record)
	}
}
