package checker

import (
	"strings"
	"testing"
)

const (
	rolloutKey     = "rollouts/web"
	rolloutLockKey = "locks/rollout/web"
)

// rolling is a world with a rollout of a service, which f1 carries out, and which is in charge of controller c.
type rolling struct {
	*world
	rollout, runs uint64
}

func newRolling(t *testing.T) *rolling {
	t.Helper()
	w := &rolling{world: newWorld(t)}
	w.rollout = w.txn(kv("cas", rolloutKey, atStage("r1", 1)), w.deploy())
	w.runs = w.txn(kv("lock", rolloutLockKey, fields{"farm": "f1"}).by("s-f1"))
	w.rc = w.txn(kv("set", rcKey, with(controllerOf(1, 1), fields{"mutator": "web/r1"})))
	return w
}

func atStage(id string, stage int) fields { return fields{"id": id, "service": "web", "stage": stage} }

// run is a transaction with the fence of the rollout's lock.
func (w *rolling) run(ops ...Op) {
	w.txn(append([]Op{kv("check-session", rolloutLockKey, nil).by("s-f1"), kv("check-index", rolloutLockKey, nil).at(w.runs)}, ops...)...)
}

// deploy is what a deployment writes besides.
func (w *rolling) deploy() Op { return kv("cas", "deployments/web/spec", "document").at(w.rollout) }

// writes is the operation that changes the rollout's record as it was read.
func (w *rolling) writes(value fields) Op { return kv("cas", rolloutKey, value).at(w.rollout) }

func (w *rolling) dies() {
	w.command(typeSession, fields{"Op": "destroy", "Session": fields{"ID": "s-f1"}})
}

// Who changes a rollout, and the controllers that it is in charge of.
func TestWritesOfRollouts(t *testing.T) {
	t.Parallel()
	next := controllerOf(2, 2)
	const unfenced, past = "P1 rollout without a fence", "P1 controller changed past its rollout"
	for name, c := range map[string]struct {
		act  func(w *rolling)
		rule string // the only one of these; empty: none
	}{
		"a step": {func(w *rolling) {
			w.run(w.writes(atStage("r1", 2)), kv("set", rcKey, next), kv("set", "audit/1", fields{"who": "f1"}))
		}, ""},
		"a step of another": {func(w *rolling) {
			w.run(w.writes(atStage("r1", 2)), kv("set", "audit/1", fields{"who": "f2"}))
		}, "P1 " + ruleRunner},
		"a step without a fence": {func(w *rolling) { w.txn(w.writes(atStage("r1", 2))) }, unfenced},
		"a step of an earlier tenure": {func(w *rolling) {
			w.txn(kv("check-session", rolloutLockKey, nil).by("s-f1"), w.writes(atStage("r1", 2)))
		}, unfenced},
		"a step after the runner's death": {func(w *rolling) {
			w.dies()
			w.txn(w.writes(atStage("r1", 2)))
		}, "P1 " + ruleRolloutNotLocked},
		"a step by a lock that no farm holds": {func(w *rolling) {
			w.dies()
			at := w.txn(kv("lock", rolloutLockKey, fields{"farm": "f1"}).by("s-f2"))
			w.txn(kv("check-session", rolloutLockKey, nil).by("s-f2"), kv("check-index", rolloutLockKey, nil).at(at), w.writes(atStage("r1", 2)))
		}, "P1 " + ruleRolloutNotLocked},
		"the last step":                 {func(w *rolling) { w.run(kv("delete", rolloutKey, nil), kv("delete", rolloutLockKey, nil)) }, ""},
		"an end by nobody":              {func(w *rolling) { w.txn(kv("delete", rolloutKey, nil)) }, unfenced},
		"a request":                     {func(w *rolling) { w.txn(w.writes(with(atStage("r1", 1), fields{"request": fields{"verb": "pause"}}))) }, ""},
		"a request, and more":           {func(w *rolling) { w.txn(w.writes(with(atStage("r1", 2), fields{"request": fields{"verb": "pause"}}))) }, unfenced},
		"a request of no version":       {func(w *rolling) { w.txn(kv("set", rolloutKey, with(atStage("r1", 1), fields{"request": "pause"}))) }, unfenced},
		"another rollout":               {func(w *rolling) { w.txn(w.writes(atStage("r2", 1)), w.deploy(), kv("set", rcKey, next)) }, ""},
		"another target":                {func(w *rolling) { w.txn(w.writes(atStage("r1", 2)), w.deploy(), kv("set", rcKey, next)) }, ""},
		"another rollout by nobody":     {func(w *rolling) { w.txn(w.writes(atStage("r2", 1))) }, unfenced},
		"another rollout of no version": {func(w *rolling) { w.txn(kv("set", rolloutKey, atStage("r2", 1)), w.deploy()) }, unfenced},
		"the next rollout": {func(w *rolling) {
			w.run(kv("delete", rolloutKey, nil), kv("delete", rolloutLockKey, nil))
			w.txn(kv("cas", rolloutKey, atStage("r2", 1)), w.deploy())
		}, ""},
		"the next rollout under a lock": {func(w *rolling) {
			w.run(kv("delete", rolloutKey, nil))
			w.txn(kv("cas", rolloutKey, atStage("r2", 1)), w.deploy())
		}, unfenced},
		"its bell":             {func(w *rolling) { w.txn(kv("set", rolloutKey+"/bell", 1)) }, ""},
		"a controller past it": {func(w *rolling) { w.txn(kv("set", rcKey, next)) }, past},
		"a controller and a request": {func(w *rolling) {
			w.txn(w.writes(with(atStage("r1", 1), fields{"request": 1})), kv("set", rcKey, next))
		}, past},
		"a controller that is freed":  {func(w *rolling) { w.run(kv("delete", rolloutKey, nil)); w.txn(kv("set", rcKey, next)) }, ""},
		"a controller of another one": {func(w *rolling) { w.txn(w.writes(atStage("r2", 1)), w.deploy()); w.txn(kv("set", rcKey, next)) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRolling(t)
			c.act(w)
			r := w.verdict()
			for rule := range r.Count() {
				if isOurs := strings.Contains(rule, "rollout"); isOurs && rule != c.rule {
					t.Errorf("found %s, expected %q", rule, c.rule)
				}
			}
			if r.Count()[c.rule] == 0 && c.rule != "" {
				t.Errorf("found %v, expected %s", r.Count(), c.rule)
			}
		})
	}
}

// What proves that the fence failed, or that revisions do not heed one another, is told from what is only missing.
func TestBreachedAndOverdrawn(t *testing.T) {
	t.Parallel()
	for rule, want := range map[string][2]bool{
		ruleRunner: {true, false}, ruleRolloutNotLocked: {true, false}, ruleOwner: {true, false},
		ruleServiceMinimum: {false, true}, ruleServiceBound: {false, true}, "rollout without a fence": {},
	} {
		r := &Result{Violations: []Violation{{Rule: rule}}}
		if got := [2]bool{r.Breached(), r.Overdrawn()}; got != want {
			t.Errorf("%s: breached, overdrawn %v, expected %v", rule, got, want)
		}
	}
}
