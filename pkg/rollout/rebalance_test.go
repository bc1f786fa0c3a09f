package rollout_test

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// short returns a service of three revisions during a stage that takes a pod from r1. Then the given number of pods of
// r2 become unavailable.
func short(t *testing.T, k rollout.Knobs, away int) *world {
	t.Helper()
	w := traced(t)
	w.old(1, 3)
	w.old(2, 5)
	w.must(t, w.deploy(k, 3, 8))
	for desired(w.rcs[web1]) == 3 {
		w.run()
		w.own(web3)
		w.nodes(1)
		w.own(web3)
	}
	for _, p := range w.podsOf(web2)[:away] {
		p.available = false
	}
	w.sick["d2"] = true
	for _, id := range []string{web1, web2, web3} {
		w.own(id)
	}
	return w
}

func TestATargetMovesToARevisionWithIdlePods(t *testing.T) {
	for _, tt := range []struct {
		name   string
		k      rollout.Knobs
		away   int
		r1, r2 int
	}{
		{"r2 loses a pod instead of r1", rollout.Knobs{}, 1, 3, 4},
		{"no more than the stage takes", rollout.Knobs{}, 2, 3, 4},
		{"all serve", rollout.Knobs{}, 0, 2, 5},
		{"two at once", rollout.Knobs{Step: amount(2)}, 2, 3, 3},
		{"as many as are short", rollout.Knobs{Step: amount(2)}, 1, 2, 4},
	} {
		w := short(t, tt.k, tt.away)
		w.run()
		if r1, r2 := desired(w.rcs[web1]), desired(w.rcs[web2]); r1 != tt.r1 || r2 != tt.r2 {
			t.Errorf("%s: r1 %d, r2 %d, want %d and %d: %s", tt.name, r1, r2, tt.r1, tt.r2, w.counts())
		}
		for _, id := range []string{web1, web2} {
			w.own(id)
		}
		w.sick["d2"] = true
		w.settles(t, rollout.Done)
		w.has(t, map[string]int{web3: 8})
	}
}

func TestNoTargetMovesWithoutAStatus(t *testing.T) {
	w := short(t, rollout.Knobs{}, 1)
	w.status[web2].ObservedGeneration--
	w.run()
	if r1, r2 := desired(w.rcs[web1]), desired(w.rcs[web2]); r1 != 2 || r2 != 5 {
		t.Errorf("r1 %d, r2 %d", r1, r2)
	}
}
