package rollout_test

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// A service has its pods twice while others stand by, and no more often: what was given up makes room for what replaces it.
func TestRetargetOfBlueGreenTakesTheAbandonedDownFirst(t *testing.T) {
	w := traced(t)
	w.old(1, 3)
	k := rollout.Knobs{Strategy: rollout.BlueGreenStrategy}
	w.must(t, w.deploy(k, 2, 3))
	w.settles(t, rollout.WaitingForPromote)
	w.has(t, map[string]int{"r1": 3, "r2": 3})
	w.must(t, w.deploy(k, 3, 3))
	if most := w.record.Max(); most != 6 {
		t.Errorf("at most %d pods, want 6", most)
	}
	for rounds := 0; w.record.State == rollout.Progressing && rounds < 400; rounds++ {
		w.round()
		if n := len(w.podsOf("r1")); n != 3 {
			t.Fatalf("r1 has %d pods before the name is switched", n)
		}
	}
	w.settles(t, rollout.WaitingForPromote)
	w.has(t, map[string]int{"r1": 3, "r2": 0, "r3": 3})
	w.ask(rollout.PromoteVerb)
	w.settles(t, rollout.Done)
	w.has(t, map[string]int{"r1": 0, "r3": 3})
}

func TestBlueGreenAfterAnAbortTakesWhatStandsByDownFirst(t *testing.T) {
	w := traced(t)
	w.old(1, 3)
	k := rollout.Knobs{Strategy: rollout.BlueGreenStrategy}
	w.must(t, w.deploy(k, 2, 3))
	w.settles(t, rollout.WaitingForPromote)
	w.ask(rollout.AbortVerb)
	w.settles(t, rollout.Aborted)
	w.must(t, w.deploy(k, 3, 3))
	if most := w.record.Max(); most != 6 {
		t.Errorf("at most %d pods, want 6", most)
	}
	w.settles(t, rollout.WaitingForPromote)
	w.has(t, map[string]int{"r1": 3, "r2": 0, "r3": 3})
}

func TestRescaleOfARetargetedBlueGreen(t *testing.T) {
	w := traced(t)
	w.old(1, 3)
	k := rollout.Knobs{Strategy: rollout.BlueGreenStrategy}
	w.must(t, w.deploy(k, 2, 3))
	w.settles(t, rollout.WaitingForPromote)
	w.must(t, w.deploy(k, 3, 3))
	w.rescale(4)
	if most := w.record.Max(); most != 8 {
		t.Errorf("at most %d pods, want 8", most)
	}
	w.settles(t, rollout.WaitingForPromote)
	w.ask(rollout.PromoteVerb)
	w.settles(t, rollout.Done)
	w.has(t, map[string]int{"r1": 0, "r2": 0, "r3": 4})
}
