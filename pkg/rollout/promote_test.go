package rollout_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// promoted has the strategies that wait for promote, with the pods of the old and of the new revision at that time.
var promoted = map[string]struct {
	knobs    rollout.Knobs
	old, new int
}{
	rollout.CanaryStrategy: {
		rollout.Knobs{Strategy: rollout.CanaryStrategy, Canary: &rollout.Canary{Pods: 1}}, 4, 1,
	},
	rollout.BlueGreenStrategy: {rollout.Knobs{Strategy: rollout.BlueGreenStrategy}, 4, 4},
}

// waiting returns a world whose rollout waits for promote.
func waiting(t *testing.T, strategy string, change func(*rollout.Knobs)) *world {
	t.Helper()
	w := traced(t)
	w.old(1, 4)
	k := promoted[strategy].knobs
	k.StageTimeout = length(time.Minute)
	if change != nil {
		change(&k)
	}
	w.must(t, w.deploy(k, 2, 4))
	w.settles(t, rollout.WaitingForPromote)
	w.has(t, map[string]int{web1: promoted[strategy].old, web2: promoted[strategy].new})
	return w
}

// sicken makes all pods of the new revision unavailable, or available again, and lets the owner decide.
func (w *world) sicken(sick bool) rollout.Decision {
	w.sick["d2"] = sick
	w.nodes(1)
	w.own(web1)
	w.own(web2)
	return w.run()
}

// after lets time pass without other changes, and lets the owner decide.
func (w *world) after(d time.Duration) rollout.Decision {
	w.now = w.now.Add(d)
	return w.run()
}

// If new pods become unavailable while a rollout waits for promote, stage_timeout starts.
func TestUnavailablePodsTimeOutWhileItWaitsForPromote(t *testing.T) {
	for strategy := range promoted {
		for on, want := range map[string]rollout.State{
			"": rollout.RollingBack, rollout.OnTimeoutPause: rollout.Paused,
			rollout.OnTimeoutContinue: rollout.WaitingForPromote,
		} {
			w := waiting(t, strategy, func(k *rollout.Knobs) { k.OnTimeout = on })
			w.after(time.Hour) // available pods do not time out
			if w.record.State != rollout.WaitingForPromote || w.record.Unfit() {
				t.Fatalf("%s %q: %+v", strategy, on, w.record)
			}
			if d := w.sicken(true); !d.Record.Unfit() || d.Record.ProgressAt != w.now || d.Again != time.Minute {
				t.Errorf("%s %q: its pods are unavailable, and it is not unfit: %+v", strategy, on, d)
			}
			if d := w.after(time.Minute - time.Second); d.Write || d.Again != time.Second {
				t.Errorf("%s %q: %+v", strategy, on, d)
			}
			d := w.after(time.Second)
			if d.Record.State != want {
				t.Errorf("%s %q: %s, want %s", strategy, on, d.Record.State, want)
			}
			why := d.Record.Reason + d.Record.Stuck
			if !strings.HasPrefix(why, "no progress for 1m0s: 0 of ") ||
				!strings.Contains(why, "pods of web-r2 are available") {
				t.Errorf("%s %q: %q", strategy, on, why)
			}
			if again := w.run(); again.Write {
				t.Errorf("%s %q: the same decision again changes something: %+v", strategy, on, again)
			}
			switch want {
			case rollout.RollingBack:
				w.settles(t, rollout.Failed)
				w.has(t, map[string]int{web1: 4, web2: 0})
			case rollout.Paused: // after resume it waits for promote, and the timeout starts again
				w.ask(rollout.ResumeVerb)
				if r := w.record; r.State != rollout.WaitingForPromote || !r.Unfit() || r.ProgressAt != w.now ||
					r.Reason != "" {
					t.Errorf("%s: resumed: %+v", strategy, r)
				}
			default:
				if r := w.sicken(false).Record; r.Stuck != "" || r.Unfit() {
					t.Errorf("%s: its pods are available again: %+v", strategy, r)
				}
			}
		}
	}
}

// auto_promote promotes pods that have been available for its time, and no others.
func TestAutoPromoteIsOnlyForAvailablePods(t *testing.T) {
	for strategy := range promoted {
		w := waiting(t, strategy, func(k *rollout.Knobs) { k.AutoPromote = ptr(field.Duration(30 * time.Second)) })
		w.after(20 * time.Second)
		w.sicken(true)
		if d := w.after(20 * time.Second); d.Record.Promoted {
			t.Errorf("%s: unavailable pods were promoted", strategy)
		}
		w.sicken(false)
		if d := w.after(29 * time.Second); d.Record.Promoted || d.Again != time.Second {
			t.Errorf("%s: promoted %v, again after %s", strategy, d.Record.Promoted, d.Again)
		}
		if d := w.after(time.Second); !d.Record.Promoted || d.Record.Reason != "promoted after 30s" {
			t.Errorf("%s: %+v", strategy, d.Record)
		}
	}
}

// The farm itself refuses to promote unavailable and unknown pods. It removes the request, because otherwise later
// requests would wait for it.
func TestPromoteOfUnavailablePodsIsRefused(t *testing.T) {
	for strategy := range promoted {
		w := waiting(t, strategy, nil)
		w.sicken(true)
		w.ask(rollout.PromoteVerb)
		if r := w.record; r.Promoted || r.Request != nil || r.State != rollout.WaitingForPromote {
			t.Errorf("%s: %+v", strategy, r)
		}
		w.record.Request = &rollout.Request{Verb: rollout.PromoteVerb, By: "bob", Force: true}
		if d := w.run(); !d.Record.Promoted || d.Record.State != rollout.Progressing || d.Record.Stuck != "" {
			t.Errorf("%s, forced: %+v", strategy, d.Record)
		}

		w = waiting(t, strategy, nil)
		delete(w.status, web2)
		w.ask(rollout.PromoteVerb)
		if r := w.record; r.Promoted || r.Request != nil || r.Unfit() {
			t.Errorf("%s, unknown: %+v", strategy, r)
		}
	}
}

// If the new controller is gone or cannot be read, no request panics, and every request is removed.
func TestRequestsAreRemovedWithoutTheNewController(t *testing.T) {
	verbs := []rollout.Verb{
		rollout.PauseVerb, rollout.ResumeVerb, rollout.PromoteVerb, rollout.AbortVerb, rollout.RollbackVerb,
	}
	for strategy := range promoted {
		for _, verb := range verbs {
			for _, force := range []bool{false, true} {
				for _, gone := range []bool{false, true} {
					w := waiting(t, strategy, nil)
					obs := w.observe()
					if delete(obs.Revisions, web2); gone {
						obs.Revisions[web2] = rollout.Seen{}
					}
					w.record.Request = &rollout.Request{Verb: verb, By: "bob", Force: force}
					if d := rollout.Decide(*w.record, obs); d.Record.Request != nil || d.Record.Promoted {
						t.Errorf("%s %s, force %v, gone %v: %+v", strategy, verb, force, gone, d.Record)
					}
				}
			}
		}
	}
}

func TestRefusedPromotionIsAudited(t *testing.T) {
	w := waiting(t, rollout.CanaryStrategy, nil)
	w.sicken(true)
	w.record.Request = &rollout.Request{Verb: rollout.PromoteVerb, By: "bob"}
	d := w.run()
	want := "rollout R2 of web: bob asked to promote it, which is refused: 0 of 1 pods of web-r2 are available"
	if len(d.Audit) != 1 || d.Audit[0] != want {
		t.Errorf("%q", d.Audit)
	}
}

func TestUnknownPodsAreNeitherPromotedNorTimedOut(t *testing.T) {
	w := waiting(t, rollout.CanaryStrategy, func(k *rollout.Knobs) { k.AutoPromote = ptr(field.Duration(time.Second)) })
	delete(w.status, web2)
	if d := w.after(time.Hour); d.Write || d.Again != 0 {
		t.Errorf("%+v", d)
	}
}

// The farm knows only that pods on unmanaged nodes ran. It neither promotes them nor lets them time out.
func TestPodsOnUnmanagedNodesAreNeitherPromotedNorTimedOut(t *testing.T) {
	for strategy, p := range promoted {
		w := waiting(t, strategy, func(k *rollout.Knobs) { k.AutoPromote = ptr(field.Duration(time.Second)) })
		status := *w.status[web2]
		away := status
		away.UnmanagedAvailable = 1
		w.status[web2] = &away
		w.after(time.Hour)
		if r := w.record; r.State != rollout.WaitingForPromote || r.Promoted || r.Unfit() {
			t.Errorf("%s: %+v", strategy, r)
		}
		w.ask(rollout.PromoteVerb)
		if w.record.Promoted {
			t.Errorf("%s: promoted, although 1 of %d pods is on an unmanaged node", strategy, p.new)
		}
		w.status[web2] = &status
		if d := w.run(); !d.Record.Promoted {
			t.Errorf("%s: %+v", strategy, d.Record)
		}
	}
}

// If unavailable pods become unknown, the rollout does not fail. When they are unavailable again the timeout starts
// again.
func TestAnUnknownStateRestartsTheTimeout(t *testing.T) {
	for strategy := range promoted {
		w := waiting(t, strategy, nil)
		w.sicken(true)
		sick := w.status[web2]
		delete(w.status, web2)
		for range 3 {
			if d := w.after(time.Hour); d.Record.State != rollout.WaitingForPromote || d.Record.Unfit() {
				t.Errorf("%s: %+v", strategy, d.Record)
			}
		}
		w.status[web2] = sick
		if d := w.run(); !d.Record.Unfit() || d.Record.ProgressAt != w.now {
			t.Errorf("%s: %+v", strategy, d.Record)
		}
		if d := w.after(time.Minute); d.Record.State != rollout.RollingBack {
			t.Errorf("%s: %+v", strategy, d.Record)
		}
	}
}

// A canary with hopeless pods fails at once, like a stage that moves.
func TestAHopelessCanaryFailsAtOnce(t *testing.T) {
	w := waiting(t, rollout.CanaryStrategy, nil)
	p := w.podsOf(web2)[0]
	p.available, p.hopeless = false, true
	w.own(web2)
	if d := w.run(); d.Record.State != rollout.RollingBack ||
		!strings.HasPrefix(d.Record.Reason, "waiting does not help: web-r2.main.0") {
		t.Errorf("%+v", d.Record)
	}
}
