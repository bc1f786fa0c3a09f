package rollout_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/rollout"
)

func gated(on string) rollout.Knobs {
	return rollout.Knobs{OnTimeout: on, Step: amount(2), Gates: rollout.Gates{
		BeforeStage: []rollout.Hook{{URL: "http://a"}, {URL: "http://b", Timeout: length(time.Second)}},
		AfterStage:  []rollout.Hook{{URL: "http://c", Retries: ptr(1)}},
	}}
}

func TestGatesAreAskedInOrder(t *testing.T) {
	w := traced(t)
	w.old(1, 4)
	w.must(t, w.deploy(gated(""), 2, 4))
	var asked []string
	w.gates = func(c *rollout.GateCall) string {
		asked = append(asked, c.Hook.URL)
		if c.Timeout != 10*time.Second && c.Hook.URL != "http://b" ||
			c.Hook.URL == "http://b" && c.Timeout != time.Second {
			t.Error(c.Timeout)
		}
		if desired(w.rcs[web2]) != 0 && len(asked) < 3 {
			t.Error("a stage began before its gates had agreed")
		}
		return ""
	}
	w.settles(t, rollout.Done)
	if got := strings.Join(asked, " "); got != "http://a http://b http://c http://a http://b http://c" {
		t.Error(got)
	}
}

func TestAGateThatRefusesFailsTheStage(t *testing.T) {
	for _, tt := range []struct {
		on    string
		state rollout.State
	}{{"", rollout.RollingBack}, {rollout.OnTimeoutPause, rollout.Paused}} {
		w := traced(t)
		w.old(1, 4)
		w.must(t, w.deploy(gated(tt.on), 2, 4))
		asked := 0
		w.gates = func(c *rollout.GateCall) string {
			if c.Hook.URL == "http://c" {
				asked++
				return "503"
			}
			return ""
		}
		for w.record != nil && w.record.State == rollout.Progressing {
			w.round()
			if g := w.record.Gate; g != nil && g.Tries == 1 && (g.Error != "503" || g.NextAt == nil) {
				t.Errorf("%+v", g)
			}
		}
		if asked != 2 || w.record.State != tt.state ||
			!strings.Contains(w.record.Reason, "gate http://c refused stage 1: 503") {
			t.Errorf("asked %d times, %s, %s", asked, w.record.State, w.record.Reason)
		}
		if tt.state == rollout.RollingBack {
			w.settles(t, rollout.Failed)
		} else {
			w.gates = func(*rollout.GateCall) string { return "" }
			w.ask(rollout.ResumeVerb)
			w.settles(t, rollout.Done)
		}
	}
}

func TestAGateWaitsBetweenTries(t *testing.T) {
	w := traced(t)
	w.old(1, 4)
	w.must(t, w.deploy(gated(""), 2, 4))
	d := rollout.Decide(*w.record, w.observe())
	if d.Gate == nil || d.Gate.Phase != rollout.BeforeStage || d.Gate.Index != 0 || d.Gate.Stage != 1 ||
		d.Gate.Stages != d.Record.Stages {
		t.Fatalf("%+v", d.Gate)
	}
	w.write(d)
	w.answer = &rollout.GateAnswer{Phase: rollout.BeforeStage, Stage: 1, Error: "no"}
	d = w.run()
	if d.Gate != nil || d.Again != time.Second || d.Record.Gate.Tries != 1 ||
		!d.Record.Gate.NextAt.Equal(w.now.Add(time.Second)) {
		t.Errorf("%+v %s", d.Gate, d.Again)
	}
	w.now = w.now.Add(time.Second)
	for name, a := range map[string]rollout.GateAnswer{
		"stage": {Phase: rollout.BeforeStage, Stage: 2}, "phase": {Phase: rollout.AfterStage, Stage: 1},
		"index": {Phase: rollout.BeforeStage, Stage: 1, Index: 1},
	} {
		obs := w.observe()
		obs.Gate = &a
		if d := rollout.Decide(*w.record, obs); d.Gate == nil || d.Gate.Index != 0 || d.Record.Gate.Index != 0 {
			t.Errorf("%s: an answer to another call was used", name)
		}
	}
}

func TestGatesAreSkipped(t *testing.T) {
	w := traced(t)
	w.old(1, 4)
	w.must(t, w.deploy(gated(""), 2, 4))
	w.record.SkipGates = true
	w.gates = func(c *rollout.GateCall) string { t.Error(c.Hook.URL); return "" }
	w.settles(t, rollout.Done)
}
