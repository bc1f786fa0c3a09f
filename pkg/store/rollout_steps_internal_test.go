package store

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// After the transaction that begins a rollout, all its records exist.
func TestADeploymentIsWhole(t *testing.T) {
	t.Parallel()
	farm, _ := begun(t)
	u := unitNow(t, farm)
	if u.Rollout.Value.ID != "one" || u.RolloutErr != nil || u.Trouble.Index != 0 ||
		u.Heads[newID].RC.Value.Name != "web-r2" ||
		u.Heads[oldID].RC.Value.Generation != 2 {
		t.Errorf("read %+v", u)
	}
	keys := farm.keys
	for _, key := range []string{
		keys.Names.Key("web-r2"), keys.Bells.Key(testUnit), keys.Drops.Key(testUnit), keys.Manifests.Key("d2"),
		keys.Prefix() + "rollouts/" + testUnit, keys.Entries.Key("web", "2"),
	} {
		if indexOf(t, farm, key) == 0 {
			t.Errorf("%s is missing", key)
		}
	}
}

// A deployment is refused if there is a rollout that it has not seen, or if a record changed from which it was
// computed. It replaces a rollout that it has seen, also while a farm owns the service.
func TestADeploymentIsRefused(t *testing.T) {
	t.Parallel()
	farm, _ := begun(t)
	third := revision(3, 0)
	if err := deploy(t, farm, rolloutOf("two", third), 0, Rec[rc.RC]{Value: third}); !errors.Is(err, ErrConflict) {
		t.Errorf("beside another rollout: %v", err)
	}
	if there, err := farm.RCs.Exists(t.Context(), third.ID); there || err != nil {
		t.Errorf("it left its controller: %v, %v", there, err)
	}
	u := unitNow(t, farm)
	old := u.Heads[oldID].RC
	stale := old
	stale.Index--
	next := rolloutOf("two", old.Value, third)
	if err := deploy(t, farm, next, u.Rollout.Index, stale, Rec[rc.RC]{Value: third}); !errors.Is(err, ErrConflict) {
		t.Errorf("over a changed controller: %v", err)
	}
	if err := deploy(t, farm, next, u.Rollout.Index-1, old, Rec[rc.RC]{Value: third}); !errors.Is(err, ErrConflict) {
		t.Errorf("over a changed rollout: %v", err)
	}
	bell := indexOf(t, farm, farm.keys.Bells.Key(testUnit))
	if err := deploy(t, farm, next, u.Rollout.Index, old, Rec[rc.RC]{Value: third}); err != nil {
		t.Errorf("in mid-course: %v", err)
	}
	if indexOf(t, farm, farm.keys.Bells.Key(testUnit)) == bell {
		t.Error("the bell of the unit has not rung")
	}
}

// A deployment that changes the rollout but no controller, for example the counts of other roles, rings the bell.
func TestADeploymentThatChangesNoControllerRings(t *testing.T) {
	t.Parallel()
	farm, _ := begun(t)
	u := unitNow(t, farm)
	if err := deploy(t, farm, u.Rollout.Value, u.Rollout.Index); err != nil {
		t.Fatal(err)
	}
	if after := unitNow(t, farm); after.BellIndex == u.BellIndex {
		t.Error("the bell of the unit has not rung")
	}
}

// All records that a step wrote have the index that CommitRollout returns, and others are unchanged.
func TestAStepLands(t *testing.T) {
	t.Parallel()
	farm, fence := begun(t)
	s := moved(next(t, farm, fence))
	audit := NewAudit("f", "rollout", newID, []string{"moved"})
	s.Audit = &audit
	index := committed(t, farm, s)
	u := unitNow(t, farm)
	if u.Rollout.Value.Stage != 1 || u.Rollout.Index != index || u.Heads[newID].RC.Index != index ||
		u.Heads[newID].RC.Value.Generation != 2 {
		t.Errorf("at %d: %+v, %+v", index, u.Rollout, u.Heads[newID].RC)
	}
	if indexOf(t, farm, farm.keys.Audits.Key(audit.ID)) != index ||
		u.Heads[oldID].RC.Index != s.Unit.Heads[oldID].RC.Index {
		t.Errorf("at %d: no audit record, or another controller changed", index)
	}

	same := moved(next(t, farm, fence)) // the step writes the rollout's record without a change
	same.Record.Stage--
	if index = committed(t, farm, same); index != indexOf(t, farm, farm.keys.RCs.Key(newID)) ||
		index <= u.Rollout.Index {
		t.Errorf("with the same record: %d, before %d", index, u.Rollout.Index)
	}
	without := moved(next(t, farm, fence))
	without.Record = nil
	was := without.Unit.Rollout.Index
	if index = committed(t, farm, without); index != indexOf(t, farm, farm.keys.RCs.Key(newID)) ||
		unitNow(t, farm).Rollout.Index != was {
		t.Errorf("without a record: %d", index)
	}
	alone := next(t, farm, fence)
	alone.Trouble = &RolloutTrouble{Rollout: "one", Reason: "look at it"}
	if index = committed(t, farm, alone); index != unitNow(t, farm).Trouble.Index {
		t.Errorf("with nothing but trouble: %d", index)
	}
	end := ended(next(t, farm, fence), rollout.Done, "")
	if index = committed(t, farm, end); index != indexOf(t, farm, farm.keys.Entries.Key("web", "2")) {
		t.Errorf("at the end: %d", index)
	}
}

// A step depends on the fence and on records of operators and of the rollout, but not on statuses, drops, the bell and
// alerts.
func TestAStepDependsOnNoReport(t *testing.T) {
	t.Parallel()
	farm, fence := begun(t)
	s := moved(next(t, farm, fence))
	for _, key := range []string{
		farm.keys.Statuses.Key(oldID), farm.keys.Drops.Key(testUnit),
		farm.keys.Bells.Key(testUnit), farm.keys.RolloutTroubles.Key(testUnit),
	} {
		if err := touch(t, farm, key); err != nil {
			t.Fatal(err)
		}
	}
	committed(t, farm, s)
}

// A step lands only if the fence holds, and the records from which it was decided are unchanged. Else nothing is
// written.
func TestAStepIsRefused(t *testing.T) {
	t.Parallel()
	touching := func(key func(k *Keys) string) func(*testing.T, *FarmSession, Fence) error {
		return func(t *testing.T, farm *FarmSession, _ Fence) error {
			t.Helper()
			return touch(t, farm, key(farm.keys))
		}
	}
	removing := func(key func(k *Keys) string) func(*testing.T, *FarmSession, Fence) error {
		return func(t *testing.T, farm *FarmSession, _ Fence) error {
			t.Helper()
			_, err := farm.c.Commit(t.Context(), []consul.Op{consul.Delete(key(farm.keys))})
			return err
		}
	}
	record, schema, breaker := func(k *Keys) string { return k.Rollouts.Key(testUnit) },
		func(k *Keys) string { return k.Schema.Key() }, func(k *Keys) string { return k.Breaker.Key() }
	changes, stays := func(k *Keys) string { return k.RCs.Key(newID) }, func(k *Keys) string { return k.RCs.Key(oldID) }
	for name, spoil := range map[string]func(*testing.T, *FarmSession, Fence) error{
		"an operator asks": func(t *testing.T, farm *FarmSession, _ Fence) error {
			t.Helper()
			return (&Operator{farm.db}).AskRollout(t.Context(), RolloutAsk{
				Service: "web", Request: rollout.Request{
					Verb: rollout.PauseVerb,
					By:   "op",
				}, Audit: NewAudit("op", "pause", "",
					nil),
			})
		},
		"the rollout changed":               touching(record),
		"the rollout is gone":               removing(record),
		"a controller that changes changed": touching(changes),
		"a controller that changes is gone": removing(changes),
		"a controller that stays changed":   touching(stays),
		"a controller that stays is gone":   removing(stays),
		"a controller came": touching(
			func(k *Keys) string { return k.RCs.Key(rc.RevisionID(testUnit, 3)) }),
		"the schema changed":  touching(schema),
		"the schema is gone":  removing(schema),
		"the breaker changed": touching(breaker),
		"the breaker is gone": removing(breaker),
		"the fence moved": func(t *testing.T, farm *FarmSession, f Fence) error {
			t.Helper()
			_, err := farm.Bump(t.Context(), f)
			return err
		},
		"nobody owns the unit": func(t *testing.T, farm *FarmSession, f Fence) error {
			t.Helper()
			return farm.Release(t.Context(), testUnit, f)
		},
		"the unit was claimed again": func(t *testing.T, farm *FarmSession, f Fence) error {
			t.Helper()
			if err := farm.Release(t.Context(), testUnit, f); err != nil {
				return err
			}
			_, err := farm.Claim(t.Context(), testUnit)
			return err
		},
		"the lock is gone": func(t *testing.T, farm *FarmSession, f Fence) error {
			t.Helper()
			_, err := farm.c.Commit(t.Context(), []consul.Op{consul.Delete(f.Key)})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			farm, fence := begun(t)
			// The step depends on the condition that revision 3, with only a status, has no record.
			if err := touch(t, farm, farm.keys.Statuses.Key(rc.RevisionID(testUnit, 3))); err != nil {
				t.Fatal(err)
			}
			read := next(t, farm, fence)
			if err := spoil(t, farm, fence); err != nil {
				t.Fatal(err)
			}
			before := everything(t, farm)
			with := func(change func(s *RolloutStep)) *RolloutStep {
				s := *read
				change(&s)
				return &s
			}
			audit := NewAudit("f", "rollout", newID, nil)
			for what, s := range map[string]*RolloutStep{
				"step": with(func(s *RolloutStep) { moved(s); s.Audit = &audit }),
				"end":  with(func(s *RolloutStep) { ended(moved(s), rollout.Done, "") }),
				"trouble": with(
					func(s *RolloutStep) { s.Trouble = &RolloutTrouble{Rollout: "one", Reason: "look at it"} }),
			} {
				if _, err := farm.CommitRollout(t.Context(), s); !errors.Is(err, ErrRefused) {
					t.Errorf("%s: %v", what, err)
				}
			}
			after := everything(t, farm)
			maps.DeleteFunc(after, func(key string, index uint64) bool { return before[key] == index })
			if len(after) > 0 {
				t.Errorf("written: %v", after)
			}
		})
	}
}

// If the breaker could not be read, the step has no condition on it.
func TestAStepWithoutABreaker(t *testing.T) {
	t.Parallel()
	farm, fence := begun(t)
	s := moved(next(t, farm, fence))
	s.Breaker = 0
	committed(t, farm, s)
}

// A rollout's last step removes its record, and writes the outcome into the history. It can leave alerts. The farm
// still owns the service.
func TestTheEndOfARollout(t *testing.T) {
	t.Parallel()
	farm, fence := begun(t)
	s := ended(next(t, farm, fence), rollout.Failed, "it did not get anywhere")
	audit := NewAudit("f", "rollout-failed", newID, nil)
	s.Audit, s.Trouble = &audit, &RolloutTrouble{Rollout: "one", Reason: "look at it", Ended: true}
	committed(t, farm, s)
	u := unitNow(t, farm)
	if u.Rollout.Index != 0 || u.RolloutErr != nil || !reflect.DeepEqual(u.Trouble.Value, *s.Trouble) ||
		len(u.Heads) != 2 {
		t.Errorf("read %+v", u)
	}
	if owner, err := (&Deployments{farm.db}).OwnerOf(t.Context(), testUnit); owner != "f" || err != nil {
		t.Errorf("the owner is %q, %v", owner, err)
	}
	p, err := farm.c.Get(t.Context(), farm.keys.Entries.Key("web", "2"), consul.Consistent)
	if err != nil {
		t.Fatal(err)
	}
	var entry map[string]any
	if err := json.Unmarshal(p.Value, &entry); err != nil || entry["outcome"] != "failed" ||
		entry["reason"] != s.Record.Reason ||
		entry["ended_at"] == nil || entry["later"] == nil {
		t.Errorf("history %s, %v", p.Value, err)
	}
	if _, err := farm.CommitRollout(t.Context(), s); !errors.Is(err, ErrRefused) {
		t.Errorf("a second time: %v", err)
	}
}

// A rollout ends even if its history is missing, unreadable, or of another rollout.
func TestARolloutEndsWhateverItsHistory(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{
		"unreadable":         "{",
		"of another rollout": `{"service":"web","revision":2,"rollout":"zero"}`, "missing": "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			farm, fence := begun(t)
			key := farm.keys.Entries.Key("web", "2")
			op := consul.Delete(key)
			if value != "" {
				op = consul.Set(key, []byte(value))
			}
			if _, err := farm.c.Commit(t.Context(), []consul.Op{op}); err != nil {
				t.Fatal(err)
			}
			before := indexOf(t, farm, key)
			committed(t, farm, ended(next(t, farm, fence), rollout.Done, ""))
			if unitNow(t, farm).Rollout.Index != 0 || indexOf(t, farm, key) != before {
				t.Error("it has not ended, or the entry changed")
			}
		})
	}
}

// A rollout's alerts are kept while it is under way. After its end, the last step's alerts are kept until another
// rollout makes a step.
func TestTroubleOfARollout(t *testing.T) {
	t.Parallel()
	farm, fence := begun(t)
	trouble := func(want string) {
		t.Helper()
		if got := unitNow(t, farm).Trouble.Value.Reason; got != want {
			t.Errorf("the alert is %q, want %q", got, want)
		}
	}
	tell := func(s *RolloutStep, reason string) *RolloutStep {
		s.Trouble = &RolloutTrouble{Rollout: s.Unit.Rollout.Value.ID, Reason: reason, Ended: s.Ended}
		return s
	}
	again := func(id string) {
		t.Helper()
		third := revision(2, 0)
		u := unitNow(t, farm)
		if err := deploy(t, farm, rolloutOf(id, u.Heads[oldID].RC.Value, third), 0, u.Heads[newID].RC); err != nil {
			t.Fatal(err)
		}
	}
	committed(t, farm, tell(moved(next(t, farm, fence)), "first"))
	trouble("first")
	committed(t, farm, moved(next(t, farm, fence)))
	trouble("first")
	committed(t, farm, tell(next(t, farm, fence), "second"))
	trouble("second")
	committed(t, farm, ended(next(t, farm, fence), rollout.Done, ""))
	trouble("")

	again("two")
	committed(t, farm, tell(ended(next(t, farm, fence), rollout.Failed, "no"), "third"))
	trouble("third")
	again("three")
	trouble("third")
	committed(t, farm, moved(next(t, farm, fence)))
	trouble("")

	// The next step removes unreadable alerts.
	if err := touch(t, farm, farm.keys.RolloutTroubles.Key(testUnit)); err != nil {
		t.Fatal(err)
	}
	trouble("")
	committed(t, farm, moved(next(t, farm, fence)))
	if indexOf(t, farm, farm.keys.RolloutTroubles.Key(testUnit)) != 0 {
		t.Error("what cannot be read is still there")
	}
}

// If a rollout cannot be read, ReadUnit returns its index, an error, and all other records of the unit.
func TestARolloutThatCannotBeRead(t *testing.T) {
	t.Parallel()
	farm, _ := begun(t)
	key := farm.keys.Rollouts.Key(testUnit)
	other := revision(1, 1)
	other.ID = rc.RevisionID("01hzzzzzzzzzzzzzzzzzzzwebt", 1)
	for name, value := range map[string]string{
		"garbage": "{", "of no state": `{"id":"one","service":"web"}`,
		"a copy of another unit's": string(asJSON(rolloutOf("one", other))),
	} {
		if _, err := farm.c.Commit(t.Context(), []consul.Op{consul.Set(key, []byte(value))}); err != nil {
			t.Fatal(err)
		}
		u := unitNow(t, farm)
		if !IsCorrupt(u.RolloutErr) || u.Rollout.Index != indexOf(t, farm, key) ||
			!reflect.DeepEqual(u.Rollout.Value, rollout.Record{}) || len(u.Heads) != 2 {
			t.Errorf("%s: %+v, %v", name, u.Rollout, u.RolloutErr)
		}
		if _, err := (&Deployments{farm.db}).RolloutOf(t.Context(), "web"); !IsCorrupt(err) {
			t.Errorf("%s: %v", name, err)
		}
		if _, corrupt, err := (&Deployments{farm.db}).ListRollouts(t.Context()); len(corrupt) != 1 || err != nil {
			t.Errorf("%s: listed %v, %v", name, corrupt, err)
		}
	}
}
