package store

import (
	"errors"
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// farmSession returns a farm under a living session, below a prefix with a schema and a breaker.
func farmSession(t *testing.T, id string) *FarmSession {
	t.Helper()
	st, node, _ := nodeSession(t) // only its session is used
	if _, err := st.EnsureSchema(t.Context()); err != nil {
		t.Fatal(err)
	}
	return st.FarmSession(node.sess, id)
}

// RolloutOf finds a rollout by the name of its service. OwnerOf finds the owner by the unit.
func TestRolloutOfAService(t *testing.T) {
	t.Parallel()
	farm, fence := begun(t)
	d := &Deployments{farm.db}
	rec, err := d.RolloutOf(t.Context(), "web")
	if err != nil || rec.Value.ID != "one" || rec.Value.Unit() != testUnit ||
		rec.Index != unitNow(t, farm).Rollout.Index {
		t.Errorf("%+v, %v", rec, err)
	}
	if _, err := d.RolloutOf(t.Context(), "api"); !errors.Is(err, ErrNotFound) {
		t.Errorf("of no service: %v", err)
	}
	owner := func(unit, want string) {
		t.Helper()
		if got, err := d.OwnerOf(t.Context(), unit); got != want || err != nil {
			t.Errorf("the owner of %s is %q, want %q; %v", unit, got, want, err)
		}
	}
	owner(testUnit, "f")
	owner("01hzzzzzzzzzzzzzzzzzzzwebt", "")
	committed(t, farm, ended(next(t, farm, fence), rollout.Done, ""))
	if _, err := d.RolloutOf(t.Context(), "web"); !errors.Is(err, ErrNotFound) {
		t.Errorf("after it has ended: %v", err)
	}
	if err := farm.Release(t.Context(), testUnit, fence); err != nil {
		t.Fatal(err)
	}
	owner(testUnit, "") // no farm holds the lock
	if _, err := farm.c.Commit(t.Context(), []consul.Op{consul.Set(farm.keys.Deployed.Key("web"),
		[]byte("{"))}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.RolloutOf(t.Context(), "web"); !IsCorrupt(err) {
		t.Errorf("of a service that cannot be read: %v", err)
	}
}

// RolloutFor returns the rollout of a controller's service, during which operators cannot change the controller.
func TestRolloutForAController(t *testing.T) {
	t.Parallel()
	farm, fence := begun(t)
	d, operator := &Deployments{farm.db}, &Operator{farm.db}
	hasRollout := func(r rc.RC, want bool) {
		t.Helper()
		if got, err := d.RolloutFor(t.Context(), &r); err != nil || (got != nil) != want || want && got.ID != "one" {
			t.Errorf("of %s: %+v, %v", r.ID, got, err)
		}
	}
	preDeploy := rc.RC{ID: rc.PreDeployID(testUnit, 2)}
	alone := rc.RC{ID: testUnit}
	other := rc.RC{ID: rc.RevisionID("01hzzzzzzzzzzzzzzzzzzzwebt", 1), Service: &rc.Service{Name: "web", Revision: 1}}
	hasRollout(revision(1, 3), true)
	hasRollout(revision(9, 0), true)
	hasRollout(preDeploy, true)
	hasRollout(alone, false)
	hasRollout(other, false)
	change := func() error {
		rec := unitNow(t, farm).Heads[oldID].RC
		rec.Value.Generation++
		return operator.ChangeRC(t.Context(), RCChange{
			RC: rec.Value, Index: rec.Index,
			Audit: NewAudit("op", "scale", oldID, nil),
		})
	}
	if err := change(); !errors.Is(err, ErrConflict) || !consul.RefusedOn(err, farm.keys.Rollouts.Key(testUnit)) {
		t.Errorf("changed past its rollout: %v", err)
	}
	committed(t, farm, ended(next(t, farm, fence), rollout.Done, ""))
	hasRollout(revision(1, 3), false)
	hasRollout(preDeploy, false)
	if err := change(); err != nil {
		t.Errorf("after its rollout: %v", err)
	}
	if err := touch(t, farm, farm.keys.Rollouts.Key(testUnit)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.RolloutFor(t.Context(), &preDeploy); !IsCorrupt(err) {
		t.Errorf("of a record that cannot be read: %v", err)
	}
}

// ListRollouts returns no alerts, although their keys are below the same prefix.
func TestListRollouts(t *testing.T) {
	t.Parallel()
	farm, fence := begun(t)
	s := moved(next(t, farm, fence))
	s.Trouble = &RolloutTrouble{Rollout: "one", Reason: "look at it"}
	committed(t, farm, s)
	recs, corrupt, err := (&Deployments{farm.db}).ListRollouts(t.Context())
	if err != nil || len(corrupt) != 0 || len(recs) != 1 || recs[0].Value.ID != "one" {
		t.Errorf("%+v, %v, %v", recs, corrupt, err)
	}
}

// An operator's request is written into the record, and rings the bell unless refused.
func TestWhatAnOperatorAsks(t *testing.T) {
	t.Parallel()
	farm, _ := begun(t)
	ask := func(service, id string, verb rollout.Verb) error {
		return (&Operator{farm.db}).AskRollout(t.Context(), RolloutAsk{
			Service: service, ID: id, Request: rollout.Request{
				Verb: verb,
				By:   "op",
			}, Audit: NewAudit("op", string(verb), "",
				nil),
		})
	}
	rung := func() uint64 { t.Helper(); return indexOf(t, farm, farm.keys.Bells.Key(testUnit)) }
	before := rung()
	if err := ask("api", "", rollout.PauseVerb); !errors.Is(err, ErrNotFound) {
		t.Errorf("of no service: %v", err)
	}
	if err := ask("web", "zero", rollout.PauseVerb); !errors.Is(err, ErrConflict) {
		t.Errorf("of another rollout: %v", err)
	}
	if rung() != before {
		t.Error("it rang for what was refused")
	}
	if err := ask("web", "one", rollout.PauseVerb); err != nil {
		t.Error(err)
	}
	asked := unitNow(t, farm)
	if r := asked.Rollout.Value.Request; r == nil || r.Verb != rollout.PauseVerb || r.By != "op" ||
		rung() != asked.Rollout.Index || rung() == before {
		t.Errorf("asked %+v; rung at %d, before %d", r, rung(), before)
	}
	if err := ask("web", "one", rollout.PauseVerb); err != nil {
		t.Errorf("a second time: %v", err)
	}
	if err := ask("web", "", rollout.AbortVerb); !errors.Is(err, ErrAsked) {
		t.Errorf("beside another request: %v", err)
	}
	if rung() != asked.Rollout.Index {
		t.Error("it rang once more")
	}
	audits := audited(t, farm)
	if n := len(slices.DeleteFunc(audits, func(a Audit) bool { return a.What != "pause" })); n != 1 {
		t.Errorf("%d audit records of one request", n)
	}
	if err := touch(t, farm, farm.keys.RolloutTroubles.Key(testUnit)); err != nil {
		t.Fatal(err)
	}
	for value, is := range map[string]func(error) bool{
		"{": IsCorrupt,
		"":  func(err error) bool { return errors.Is(err, ErrNotFound) },
	} {
		op := consul.Delete(farm.keys.Rollouts.Key(testUnit))
		if value != "" {
			op = consul.Set(farm.keys.Rollouts.Key(testUnit), []byte(value))
		}
		if _, err := farm.c.Commit(t.Context(), []consul.Op{op}); err != nil {
			t.Fatal(err)
		}
		if err := ask("web", "", rollout.AbortVerb); !is(err) {
			t.Errorf("of %q: %v", value, err)
		}
	}
}
