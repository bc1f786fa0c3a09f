package rollout_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// A service has at most twice its pods: the pods of the abandoned revision stop before pods of the next revision are
// added.
func TestRetargetOfBlueGreenTakesTheAbandonedDownFirst(t *testing.T) {
	w := traced(t)
	w.old(1, 3)
	k := rollout.Knobs{Strategy: rollout.BlueGreenStrategy}
	w.must(t, w.deploy(k, 2, 3))
	w.settles(t, rollout.WaitingForPromote)
	w.has(t, map[string]int{web1: 3, web2: 3})
	w.must(t, w.deploy(k, 3, 3))
	if most := w.record.Max(); most != 6 {
		t.Errorf("at most %d pods, want 6", most)
	}
	for rounds := 0; w.record.State == rollout.Progressing && rounds < 400; rounds++ {
		w.round()
		if n := len(w.podsOf(web1)); n != 3 {
			t.Fatalf("r1 has %d pods before the name is switched", n)
		}
	}
	w.settles(t, rollout.WaitingForPromote)
	w.has(t, map[string]int{web1: 3, web2: 0, web3: 3})
	w.ask(rollout.PromoteVerb)
	w.settles(t, rollout.Done)
	w.has(t, map[string]int{web1: 0, web3: 3})
}

func TestBlueGreenAfterAnAbortRemovesStandbyPodsFirst(t *testing.T) {
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
	w.has(t, map[string]int{web1: 3, web2: 0, web3: 3})
}

func TestRescaleOfARetargetedBlueGreenDoublesTheBound(t *testing.T) {
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
	w.has(t, map[string]int{web1: 0, web2: 0, web3: 4})
}

// switching takes a rollout from r1 to a phase of the switch to r2.
func switching(t *testing.T, p rollout.Phase) *world {
	t.Helper()
	w := traced(t)
	w.old(1, 3)
	w.must(t, w.deploy(rollout.Knobs{
		Strategy: rollout.BlueGreenStrategy,
		KeepOld:  ptr(field.Duration(time.Hour)),
	}, 2, 3))
	w.settles(t, rollout.WaitingForPromote)
	w.ask(rollout.PromoteVerb)
	for rounds := 0; w.record.Phase != p; rounds++ {
		if rounds == 100 {
			t.Fatalf("it is in phase %s, and never in %s", w.record.Phase, p)
		}
		w.own(web1)
		w.own(web2)
		w.nodes(0.3)
		w.run()
	}
	w.own(web1)
	w.own(web2)
	w.nodes(1)
	return w
}

// After a retarget during the switch the service has at most twice its pods. The revision that had the name on all
// nodes keeps it until the new revision has it. A rollback goes back to that revision.
func TestARetargetDuringTheSwitchKeepsTheName(t *testing.T) {
	for phase, keeps := range map[rollout.Phase]string{
		rollout.Joining: web1, rollout.Leaving: web2, rollout.Keeping: web2,
	} {
		for _, sick := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, sick %v", phase, sick), func(t *testing.T) {
				w := switching(t, phase)
				w.sick["d3"] = sick
				w.must(t, w.deploy(rollout.Knobs{
					Strategy:     rollout.BlueGreenStrategy,
					StageTimeout: ptr(field.Duration(time.Minute)),
				}, 3, 3))
				if most := w.record.Max(); most != 6 {
					t.Errorf("at most %d pods, want 6", most)
				}
				for rounds := 0; w.record != nil && w.record.State == rollout.Progressing && rounds < 400; rounds++ {
					w.round()
					if n := len(w.podsOf(keeps)); n != 3 {
						t.Fatalf("%s has %d pods before the name is switched", keeps, n)
					}
				}
				if sick {
					w.settles(t, rollout.Failed)
					w.has(t, map[string]int{keeps: 3, web3: 0})
					return
				}
				w.settles(t, rollout.WaitingForPromote)
				w.has(t, map[string]int{keeps: 3, web3: 3})
				w.ask(rollout.PromoteVerb)
				w.settles(t, rollout.Done)
				w.has(t, map[string]int{web1: 0, web2: 0, web3: 3})
			})
		}
	}
}

// The same holds if the rollout was aborted during the switch.
func TestAnAbortDuringTheSwitchKeepsTheName(t *testing.T) {
	for phase, keeps := range map[rollout.Phase]string{
		rollout.Joining: web1, rollout.Leaving: web2, rollout.Keeping: web2,
	} {
		w := switching(t, phase)
		w.ask(rollout.AbortVerb)
		w.settles(t, rollout.Aborted)
		w.must(t, w.deploy(rollout.Knobs{Strategy: rollout.BlueGreenStrategy}, 3, 3))
		if most := w.record.Max(); most != 6 {
			t.Errorf("%s: at most %d pods, want 6", phase, most)
		}
		for _, v := range w.record.Revisions {
			if id := rc.RevisionID(unit, v.Rev); v.Abandoned != (id != keeps && id != web3) {
				t.Errorf("%s: %+v", phase, v)
			}
		}
		w.settles(t, rollout.WaitingForPromote)
		w.has(t, map[string]int{keeps: 3, web3: 3})
	}
}

// If no revision is known to be in effect, and all pods stand by, the revision with the most pods is in effect.
func TestIfAllStandByTheLargestRevisionIsInEffect(t *testing.T) {
	w := traced(t)
	for rev, n := range map[int64]int{1: 2, 2: 3, 4: 1} {
		w.old(rev, n)
		id := rc.RevisionID(unit, rev)
		w.rcs[id].Service.Standby = true
	}
	w.nodes(1)
	w.must(t, w.deploy(rollout.Knobs{Strategy: rollout.BlueGreenStrategy}, 5, 3))
	for _, v := range w.record.Revisions {
		if v.Abandoned != (v.Rev == 1 || v.Rev == 4) || !v.Standby {
			t.Errorf("%+v", v)
		}
	}
}

// If the pods that had the name are not available, the switch cannot be undone, and these pods stop first.
func TestASwitchOfPodsThatDoNotServeIsNotStuck(t *testing.T) {
	w := switching(t, rollout.Joining)
	w.sick["d1"] = true
	for _, p := range w.podsOf(web1) {
		p.available = false
	}
	w.own(web1)
	w.must(t, w.deploy(rollout.Knobs{Strategy: rollout.BlueGreenStrategy}, 3, 3))
	w.settles(t, rollout.WaitingForPromote)
	w.has(t, map[string]int{web1: 0, web2: 3, web3: 3})
	w.ask(rollout.PromoteVerb)
	w.settles(t, rollout.Done)
	w.has(t, map[string]int{web1: 0, web2: 0, web3: 3})
}

// After other counts, the bound is the sum of the new count and the larger of both counts.
func TestRescaleAfterAReversedSwitchLimitsThePods(t *testing.T) {
	w := switching(t, rollout.Joining)
	w.must(t, w.deploy(rollout.Knobs{Strategy: rollout.BlueGreenStrategy}, 3, 3))
	w.rescale(2)
	if most := w.record.Max(); most != 5 {
		t.Errorf("at most %d pods, want 5", most)
	}
	w.settles(t, rollout.WaitingForPromote)
	w.has(t, map[string]int{web1: 2, web3: 2})
}

// New pods that stand by replace no old pods yet: after other counts, the old revision has all pods under the name.
func TestRescaleCountsNoNewPodsThatStandBy(t *testing.T) {
	for _, n := range []int{2, 5} {
		w := traced(t)
		w.old(1, 3)
		w.must(t, w.deploy(rollout.Knobs{Strategy: rollout.BlueGreenStrategy}, 2, 3))
		w.settles(t, rollout.WaitingForPromote)
		w.rescale(n)
		if got := desired(w.rcs[web1]); got != n {
			t.Errorf("r1 asks for %d pods, want %d", got, n)
		}
		for range 20 {
			w.round()
		}
		w.has(t, map[string]int{web1: n})
		w.ask(rollout.PromoteVerb)
		w.settles(t, rollout.Done)
		w.has(t, map[string]int{web1: 0, web2: n})
	}
}

// If a rollout replaces a paused rollback, the goal of the rollback is the revision in effect.
func TestARetargetOfAPausedRollbackKeepsItsGoal(t *testing.T) {
	for _, strategy := range []string{rollout.BlueGreenStrategy, rollout.AvailabilityStrategy} {
		w := traced(t)
		w.old(1, 3)
		w.must(t, w.deploy(rollout.Knobs{Strategy: strategy}, 2, 3))
		for range 5 {
			w.round()
		}
		w.ask(rollout.RollbackVerb)
		w.ask(rollout.PauseVerb)
		if w.record == nil || w.record.State != rollout.Paused {
			t.Fatalf("%s: not paused: %+v", strategy, w.record)
		}
		w.must(t, w.deploy(rollout.Knobs{}, 3, 3))
		for _, v := range w.record.Revisions {
			if v.Direction == rollout.Down && v.Abandoned != (v.RC == web2) {
				t.Errorf("%s: %+v", strategy, v)
			}
		}
		w.settles(t, rollout.Done)
	}
}

// If the revision in effect stands by, the revision that has the name keeps it. Otherwise no pod would have it.
func TestBlueGreenLeavesTheNameToTheRevisionThatHasIt(t *testing.T) {
	w := traced(t)
	w.old(1, 3)
	w.old(2, 3)
	w.rcs[web1].Service.Standby = true
	w.must(t, w.start(rollout.Start{
		ID: "R3", Service: "web", By: "ann", Now: w.now, Epoch: w.epoch,
		Knobs: rollout.Knobs{Strategy: rollout.BlueGreenStrategy}, InEffect: 1,
		New: rc.RC{
			ID: web3, Name: "web-r3", ManifestDigest: "d3", ReplicaGroups: groupsOf(3), Strategy: rc.Dynamic,
			Generation: 1,
			Service:    &rc.Service{Name: "web", Revision: 3},
		},
	}))
	for _, v := range w.record.Revisions {
		if v.Standby != (v.RC != web2) {
			t.Errorf("%+v", v)
		}
	}
}

// The first deployment of a service waits for promote like every other.
func TestTheFirstRevisionWaitsForPromote(t *testing.T) {
	for strategy, pods := range map[string]int{rollout.CanaryStrategy: 1, rollout.BlueGreenStrategy: 3} {
		w := traced(t)
		w.must(t, w.deploy(rollout.Knobs{Strategy: strategy}, 1, 3))
		w.settles(t, rollout.WaitingForPromote)
		w.has(t, map[string]int{web1: pods})
		w.ask(rollout.PromoteVerb)
		w.settles(t, rollout.Done)
		w.has(t, map[string]int{web1: 3})
	}
}
