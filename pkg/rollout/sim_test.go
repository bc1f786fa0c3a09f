package rollout_test

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// worlds returns how many random worlds a run simulates: ROLLOUT_WORLDS if that is set.
func worlds(t *testing.T) int {
	if text := os.Getenv("ROLLOUT_WORLDS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("ROLLOUT_WORLDS is %q; allowed: a number", text)
		}
		return n
	}
	switch {
	case testing.Short():
		return 500
	case raceEnabled:
		return 1000 // of each kind
	}
	return 3000
}

// In random worlds the minimum and the bound of the knobs hold during a rollout. The new revision never asks for more
// than its total, and a repeated decision changes nothing. When the world is calm the rollout ends.
func TestRandomWorlds(t *testing.T) { anyWorlds(t, newWorld) }

// The same holds if some machines let no pod become available, so that pods get a second node.
func TestRandomWorldsWithBadMachines(t *testing.T) {
	anyWorlds(t, func(seed int64) *world {
		w := newWorld(seed)
		w.machines = true
		return w
	})
}

func anyWorlds(t *testing.T, newWorld func(seed int64) *world) {
	t.Helper()
	n := worlds(t)
	var wg sync.WaitGroup
	seeds := make(chan int64)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed := range seeds {
				if _, err := randomWorld(newWorld(seed)); err != "" {
					w := newWorld(seed)
					w.tracing = true
					_, err = randomWorld(w)
					t.Errorf("seed %d: %s\n%s", seed, err, strings.Join(w.trace, "\n"))
				}
			}
		})
	}
	for seed := range int64(n) {
		if t.Failed() {
			break
		}
		seeds <- seed
	}
	close(seeds)
	wg.Wait()
}

func randomKnobs(w *world) rollout.Knobs {
	pick := w.rnd.Intn
	k := rollout.Knobs{Strategy: []string{"", "availability", "resourceutil", "canary", "blue-green"}[pick(5)]}
	if pick(2) == 0 {
		k.Step = &rollout.Amount{Percent: true, N: 10 + pick(91)}
	} else if pick(2) == 0 {
		k.Step = &rollout.Amount{N: 1 + pick(4)}
	}
	if pick(3) == 0 && k.Strategy != "blue-green" {
		k.MaxSurge = &rollout.Amount{N: pick(4)}
	}
	if pick(3) == 0 {
		k.MaxUnavailable = &rollout.Amount{N: pick(3)}
	}
	if pick(3) == 0 {
		k.MinAvailable = ptr(pick(9))
	}
	if k.Strategy == "canary" {
		k.Canary = &rollout.Canary{Pods: 1 + pick(4)}
	}
	if pick(2) == 0 {
		k.AutoPromote = ptr(field.Duration(time.Duration(pick(3)) * time.Second))
	}
	if pick(3) == 0 {
		k.Delay = ptr(field.Duration(2 * time.Second))
	}
	return k
}

// randomWorld rolls out one service in one world, and returns what was wrong.
func randomWorld(w *world) (*world, string) {
	pick := w.rnd.Intn
	for rev := range int64(pick(3)) {
		w.old(rev+1, 1+pick(7), pick(3))
	}
	newSick := pick(3) == 0
	w.sick["d5"] = newSick
	if err := w.deploy(randomKnobs(w), 5, 1+pick(7), pick(3)); err != nil {
		return w, ""
	}
	snapshot, at := w.snapshot(), 5+pick(20)
	for round := range 30 {
		w.disturb(round)
		if round == at && w.record != nil && pick(3) == 0 {
			w.restore(snapshot)
		}
		if round == 20 && w.record != nil && w.record.BlockedReason == "" && pick(4) == 0 {
			w.sick["d6"], newSick = newSick, false
			if w.deploy(randomKnobs(w), 6, 1+pick(7), pick(3)) == nil {
				w.sick["d6"] = false
			}
		}
		if round == 25 && w.record != nil && pick(6) == 0 {
			w.rescale(1+pick(7), pick(3))
		}
		w.round()
	}
	w.breaker, w.holding, w.calm = "", map[string]bool{}, true
	for range 600 {
		if w.record == nil {
			break
		}
		w.push()
		if w.record != nil && !w.machines && w.switching() && w.rcs[web7].ID == "" && pick(4) == 0 {
			w.deploy(randomKnobs(w), 7, 1+pick(7), pick(3))
		}
		w.round()
	}
	switch {
	case len(w.broken) > 0:
		return w, strings.Join(w.broken, "; ")
	case w.record != nil:
		return w, fmt.Sprintf("it has not ended: %s %s", w.record.State, w.record.Phase)
	}
	return w, w.judge()
}

// switching reports whether the service's name is on its way from one revision to another.
func (w *world) switching() bool {
	return slices.Contains([]rollout.Phase{rollout.Joining, rollout.Leaving, rollout.Keeping}, w.record.Phase)
}

// push acts as an operator who lets no rollout wait.
func (w *world) push() {
	switch {
	case w.record.State == rollout.WaitingForPromote:
		w.ask(rollout.PromoteVerb)
	case w.record.State == rollout.Paused, strings.Contains(w.record.BlockedReason, "as they were found"):
		w.ask(rollout.ResumeVerb)
	case w.record.State == rollout.RollingBack && w.record.Stuck != "": // remove pods whose controller is gone
		w.pods = slices.DeleteFunc(w.pods, func(p *simPod) bool { return w.rcs[p.rc].ID == "" })
	}
}

// judge checks the counts after a rollout has ended.
func (w *world) judge() string {
	d := w.ended
	up := d.Record.Upward()
	if d.Record.State == rollout.Done || d.InEffect != 0 {
		if n := desired(w.rcs[up.RC]); n != d.Record.Total() {
			return fmt.Sprintf("%s is in effect and asks for %d of %d pods", up.Name, n, d.Record.Total())
		}
	}
	for _, id := range w.ids() {
		r := w.rcs[id]
		if d.Record.State == rollout.Done && id != up.RC && (r.DeletedAt == nil || r.Desired() > 0) {
			return fmt.Sprintf("%s is left with the count %d", id, r.Desired())
		}
	}
	return ""
}

// disturb lets random faults happen.
func (w *world) disturb(round int) {
	pick := w.rnd.Intn
	for _, p := range w.pods {
		switch {
		case p.stopping:
		case pick(60) == 0:
			p.available = false
		case pick(80) == 0:
			p.lost, p.available = true, false
		}
	}
	if round%10 == 7 && pick(4) == 0 {
		w.breaker = "too many stops"
	} else if round%10 == 9 {
		w.breaker = ""
	}
	for id := range w.holding {
		if pick(4) == 0 {
			delete(w.holding, id)
		}
	}
}

func (w *world) rescale(counts ...int) {
	started, err := rollout.Rescale(*w.record, groupsOf(counts...), w.observe(), "ann")
	if err != nil {
		return
	}
	for _, r := range started.RCs {
		w.rcs[r.ID] = r
	}
	w.record = &started.Record
	w.bounds(started.Record)
	w.log("rescale to %v", counts)
}
