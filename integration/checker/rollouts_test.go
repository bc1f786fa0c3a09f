package checker

import (
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

// The service has two revisions in its rollout, and a controller for the pre_deploy of the second.
const (
	rolloutKey   = "rollouts/" + unit
	troubleKey   = rolloutKey + "/trouble"
	unitLock     = "locks/" + unit
	specKey      = "deployments/web/spec"
	rolledOne    = "rcs/" + unit + "-1"
	rolledTwo    = "rcs/" + unit + "-2"
	rolledPre    = "rcs/" + unit + "-2-pre"
	rolledSecond = "rcs/" + unit + "-3" // a controller of the unit that the rollout does not name
)

// rolling is a world with a rollout in f1's unit.
type rolling struct {
	*world
	rollout uint64
	records map[string]uint64 // indices of the controllers, by key
	fence   []Op
}

func newRolling(t *testing.T) *rolling {
	t.Helper()
	w := &rolling{world: newWorld(t), records: map[string]uint64{}}
	for _, key := range []string{rolledOne, rolledTwo, rolledPre, rolledSecond} {
		w.records[key] = w.txn(kv("set", key, rolled(key, 1)))
	}
	w.rollout = w.txn(kv("cas", rolloutKey, atStage("r1", 1)), kv("cas", specKey, fields{"id": unit, "service": "web"}))
	w.fence = w.takes(unit, "f1")
	return w
}

func rolled(key string, generation int) fields {
	return with(controllerOf(generation, 1), fields{"id": strings.TrimPrefix(key, "rcs/"), "name": "of-" + key})
}

func atStage(id string, stage int) fields {
	return fields{
		"id": id, "service": "web", "stage": stage, "revisions": []fields{{"rc": unit + "-1"}, {"rc": unit + "-2"}},
		"pre_deploy": fields{"rc": unit + "-2-pre"},
	}
}

// versions returns conditions on all controllers except some.
func (r *rolling) versions(but ...string) []Op {
	var ops []Op
	for _, key := range []string{rolledOne, rolledTwo, rolledPre, rolledSecond} {
		if !strings.Contains(strings.Join(but, " "), key) {
			ops = append(ops, kv("check-index", key, nil).at(r.records[key]))
		}
	}
	return ops
}

// changes is conditional on the record that was read.
func (r *rolling) changes(key string) Op { return kv("cas", key, rolled(key, 2)).at(r.records[key]) }

func (r *rolling) step(ops ...Op) {
	r.txn(append(append(append([]Op{}, r.fence...), r.versions()...), ops...)...)
}

// owner has only the fence.
func (r *rolling) owner(ops ...Op) { r.txn(append(append([]Op{}, r.fence...), ops...)...) }

func (r *rolling) deploy() Op {
	return kv("cas", specKey, fields{"id": unit, "service": "web", "revision": 3}).at(r.rollout)
}

func (r *rolling) writes(value fields) Op { return kv("cas", rolloutKey, value).at(r.rollout) }

func (r *rolling) dies() {
	r.command(typeSession, fields{"Op": "destroy", "Session": fields{"ID": "s-f1"}})
}

// Each case changes the rollout, or a controller that the rollout is in charge of.
func TestWritesOfRollouts(t *testing.T) {
	t.Parallel()
	const (
		unfenced, past  = "P1 rollout without a fence", "P1 controller changed past its rollout"
		unread, foreign = "P2 rollout without a controller's version", "P1 rollout of another unit"
		notLocked       = "P1 " + ruleRolloutNotLocked
	)
	says := func(who string) Op { return kv("set", "audit/1", fields{"who": who}) }
	asks := func(stage int) fields { return with(atStage("r1", stage), fields{"request": fields{"verb": "pause"}}) }
	for name, c := range map[string]struct {
		act   func(w *rolling)
		rules []string // the rules about rollouts and units whose violations must be found, and no others
	}{
		"a step": {func(w *rolling) { w.step(w.writes(atStage("r1", 2)), w.changes(rolledTwo), says("f1")) }, nil},
		"a step of another": {
			func(w *rolling) { w.step(w.writes(atStage("r1", 2)), says("f2")) },
			[]string{"P1 " + ruleStepOwner},
		},
		"a step without a fence": {func(w *rolling) {
			w.txn(append(w.versions(), w.writes(atStage("r1", 2)))...)
		}, []string{unfenced}},
		"a step of an earlier tenure": {func(w *rolling) {
			w.txn(append(w.versions(), w.fence[0], w.writes(atStage("r1", 2)))...)
		}, []string{unfenced}},
		"a step of a later session": {func(w *rolling) {
			w.txn(append(w.versions(), w.fence[1], w.writes(atStage("r1", 2)))...)
		}, []string{unfenced}},
		"a step under the lock of the service": {func(w *rolling) {
			w.txn(append(append(w.versions(), w.takes("rollout/web", "f1")...), w.writes(atStage("r1", 2)))...)
		}, []string{unfenced}},
		"a step under another unit's lock": {func(w *rolling) {
			w.txn(append(append(w.versions(), w.takes(another, "f1")...), w.writes(atStage("r1", 2)))...)
		}, []string{unfenced}},
		"a step after the owner's death": {func(w *rolling) {
			w.dies()
			w.txn(append(w.versions(), w.writes(atStage("r1", 2)))...)
		}, []string{notLocked}},
		"a step by a lock that no farm holds": {func(w *rolling) {
			w.dies()
			at := w.txn(kv("lock", unitLock, fields{"farm": "f1"}).by("s-f2"))
			fence := []Op{kv("check-session", unitLock, nil).by("s-f2"), kv("check-index", unitLock, nil).at(at)}
			w.txn(append(append(fence, w.versions()...), w.writes(atStage("r1", 2)))...)
		}, []string{notLocked}},
		"a step of the next owner": {func(w *rolling) {
			w.dies()
			w.fence = w.takes(unit, "f2")
			w.step(w.writes(atStage("r1", 2)), says("f2"))
		}, nil},
		"a step that does not know a controller": {func(w *rolling) {
			w.owner(append(w.versions(rolledOne), w.writes(atStage("r1", 2)))...)
		}, []string{unread}},
		"a step that does not know one beside": {func(w *rolling) {
			w.owner(append(w.versions(rolledSecond), w.writes(atStage("r1", 2)))...)
		}, []string{unread}},
		"a step that overwrites a controller": {func(w *rolling) {
			w.owner(append(w.versions(rolledTwo), w.writes(atStage("r1", 2)),
				kv("set", rolledTwo, rolled(rolledTwo, 2)))...)
		}, []string{unread}},
		"a step that names another unit's": {func(w *rolling) {
			w.step(w.writes(with(atStage("r1", 2), fields{"revisions": []fields{{"rc": another + "-1"}}})))
		}, []string{foreign}},
		"a step that runs another unit's": {func(w *rolling) {
			w.step(w.writes(with(atStage("r1", 2), fields{"pre_deploy": fields{"rc": "c"}})))
		}, []string{foreign}},
		"a step that leaves the record": {func(w *rolling) {
			w.step(kv("check-index", rolloutKey, nil).at(w.rollout),
				w.changes(rolledTwo))
		}, nil},
		"the last step": {func(w *rolling) {
			w.step(kv("delete", rolloutKey, nil),
				w.changes(rolledTwo))
		}, nil},
		"an end by nobody": {func(w *rolling) {
			w.txn(append(w.versions(),
				kv("delete", rolloutKey, nil))...)
		}, []string{unfenced}},
		"a request":                      {func(w *rolling) { w.txn(w.writes(asks(1))) }, nil},
		"a request after the owner died": {func(w *rolling) { w.dies(); w.txn(w.writes(asks(1))) }, nil},
		"a request, and more": {
			func(w *rolling) { w.txn(append(w.versions(), w.writes(asks(2)))...) },
			[]string{unfenced},
		},
		"a request of no version": {func(w *rolling) {
			w.txn(append(w.versions(), kv("set", rolloutKey, asks(1)))...)
		}, []string{unfenced}},
		"another rollout": {
			func(w *rolling) { w.txn(w.writes(atStage("r2", 1)), w.deploy(), w.changes(rolledOne)) },
			nil,
		},
		"another target": {
			func(w *rolling) { w.txn(w.writes(atStage("r1", 2)), w.deploy(), w.changes(rolledOne)) },
			nil,
		},
		"another rollout by nobody": {func(w *rolling) {
			w.txn(append(w.versions(), w.writes(atStage("r2", 1)))...)
		}, []string{unfenced}},
		"another rollout of no version": {func(w *rolling) {
			w.txn(append(w.versions(), kv("set", rolloutKey, atStage("r2", 1)), w.deploy())...)
		}, []string{unfenced}},
		"another rollout with a document of no version": {func(w *rolling) {
			w.txn(append(w.versions(), w.writes(atStage("r2", 1)), kv("set", specKey, fields{"id": unit}))...)
		}, []string{unfenced}},
		"another rollout with another service": {func(w *rolling) {
			w.txn(append(w.versions(), w.writes(atStage("r2", 1)),
				kv("cas", "deployments/api/spec", fields{"id": another}))...)
		}, []string{unfenced}},
		"the next rollout, while it is owned": {func(w *rolling) {
			w.step(kv("delete", rolloutKey, nil))
			w.txn(kv("cas", rolloutKey, atStage("r2", 1)), w.deploy())
		}, nil},
		"the next rollout by nobody": {func(w *rolling) {
			w.step(kv("delete", rolloutKey, nil))
			w.txn(append(w.versions(), kv("cas", rolloutKey, atStage("r2", 1)))...)
		}, []string{unfenced}},
		"trouble with a step": {func(w *rolling) { w.step(w.writes(atStage("r1", 2)), kv("set", troubleKey, 1)) }, nil},
		"trouble": {func(w *rolling) {
			w.step(kv("check-index", rolloutKey, nil).at(w.rollout),
				kv("set", troubleKey, 1))
		}, nil},
		"trouble by nobody": {
			func(w *rolling) { w.txn(append(w.versions(), kv("set", troubleKey, 1))...) },
			[]string{unfenced},
		},
		"trouble with a request": {func(w *rolling) {
			w.txn(append(w.versions(), w.writes(asks(1)),
				kv("set", troubleKey, 1))...)
		}, []string{unfenced}},
		"trouble after it is dead": {func(w *rolling) {
			w.dies()
			w.txn(append(w.versions(),
				kv("set", troubleKey, 1))...)
		}, []string{notLocked}},

		"a controller past it":      {func(w *rolling) { w.txn(w.changes(rolledOne)) }, []string{past}},
		"what runs before, past it": {func(w *rolling) { w.txn(w.changes(rolledPre)) }, []string{past}},
		"a controller by its owner": {func(w *rolling) { w.owner(w.changes(rolledOne)) }, []string{past}},
		"a controller under a former lock": {func(w *rolling) {
			w.txn(append(w.takes("rollout/web", "f1"),
				w.changes(rolledOne))...)
		}, []string{past}},
		"a controller of another deployment": {func(w *rolling) {
			w.txn(w.changes(rolledOne), kv("cas", "deployments/api/spec", fields{"id": another}))
		}, []string{past}},
		"a controller and a request": {
			func(w *rolling) { w.txn(w.writes(asks(1)), w.changes(rolledOne)) },
			[]string{past},
		},
		"a controller that goes":     {func(w *rolling) { w.owner(kv("delete", rolledOne, nil)) }, []string{past}},
		"a controller that it lacks": {func(w *rolling) { w.txn(w.changes(rolledSecond)) }, nil},
		"a controller after it": {func(w *rolling) {
			w.step(kv("delete", rolloutKey,
				nil))
			w.txn(w.changes(rolledOne))
		}, nil},
		"a controller of no unit's":    {func(w *rolling) { w.txn(kv("set", rcKey, controllerOf(2, 2))) }, nil},
		"a controller of another unit": {func(w *rolling) { w.begins(another + "-1"); w.begins(another + "-1") }, nil},
		"a controller, it cannot be read": {func(w *rolling) {
			w.step(kv("set", rolloutKey,
				"x"))
			w.txn(w.changes(rolledOne))
		}, []string{past}},
		"a controller of a rollout that no longer names it": {func(w *rolling) {
			w.step(w.writes(with(atStage("r1", 2), fields{"pre_deploy": nil})))
			w.txn(w.changes(rolledPre))
		}, nil},
		"a controller that is deleted": {func(w *rolling) {
			at := w.txn(w.deploy(), kv("set", rolledOne, with(rolled(rolledOne, 2),
				fields{"deleted_at": "2026-01-01T00:00:00Z"})))
			w.owner(kv("delete-cas", rolledOne, nil).at(at))
		}, nil},
		"a controller that is deleted, by nobody": {func(w *rolling) {
			at := w.txn(w.deploy(), kv("set", rolledOne, with(rolled(rolledOne, 2),
				fields{"deleted_at": "2026-01-01T00:00:00Z"})))
			w.txn(kv("delete-cas", rolledOne, nil).at(at))
		}, []string{past}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRolling(t)
			c.act(w)
			found := w.verdict().Count()
			for _, rule := range c.rules {
				if found[rule] == 0 {
					t.Errorf("found %v, expected %s", found, rule)
				}
				delete(found, rule)
			}
			for rule := range found {
				if strings.Contains(rule, "rollout") || strings.Contains(rule, "unit") {
					t.Errorf("found %s, expected %v", rule, c.rules)
				}
			}
		})
	}
}

// All steps and writes of a unit are of one session until a lock changes hands. The holder of a single revision's lock
// must not write beside the unit's owner.
func TestAStepIsOfTheOnlyWriter(t *testing.T) {
	t.Parallel()
	id := rc.RevisionID(unit, 1)
	for farm, want := range map[string]int{"f1": 0, "f2": 1} {
		w := newRolling(t)
		fence := w.fence
		if farm == "f2" {
			fence = w.takes(id, farm)
		}
		w.step(w.writes(atStage("r1", 2)))
		w.tells(id, 20, append(append([]Op{}, fence...), kv("check-index", rolledOne, nil).at(w.records[rolledOne]))...)
		if found := w.verdict().Count(); found["P1 "+ruleTwoWriters] != want {
			t.Errorf("written by %s beside a step: found %v, expected %d", farm, found, want)
		}
	}
}

// A violation proves that the fence failed, or that revisions ignored one another, or only that a condition is missing.
func TestBreachedAndOverdrawn(t *testing.T) {
	t.Parallel()
	for rule, want := range map[string][2]bool{
		ruleStepOwner: {true, false}, ruleRolloutNotLocked: {true, false}, ruleOwner: {true, false},
		ruleServiceMinimum: {false, true}, ruleServiceBound: {false, true}, "rollout without a fence": {},
	} {
		r := &Result{Violations: []Violation{{Rule: rule}}}
		if got := [2]bool{r.Breached(), r.Overdrawn()}; got != want {
			t.Errorf("%s: breached, overdrawn %v, expected %v", rule, got, want)
		}
	}
}
