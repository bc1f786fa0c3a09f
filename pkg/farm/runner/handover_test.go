package runner_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// carriedBy waits until a farm carries the service's rollout out.
func (w *world) carriedBy(farmID string) {
	w.t.Helper()
	consultest.Eventually(w.t, soon, func() error {
		by, err := w.Deployments.RunnerOf(w.t.Context(), "web")
		if by != farmID {
			err = errors.Join(fmt.Errorf("%q carries it out", by), err)
		}
		return err
	})
}

// midStage begins a rollout whose first stage waits for pods.
func (w *world) midStage() rollout.Record {
	w.t.Helper()
	w.running(3)
	w.slow[web2] = true
	w.owners()
	return w.deploy(2, 3, nil)
}

// moving waits until it does, and returns the record as it is then.
func (w *world) moving() (rec rollout.Record) {
	w.t.Helper()
	consultest.Eventually(w.t, soon, func() (err error) {
		rec, err = w.record()
		if err == nil && rec.Phase != rollout.Moving {
			err = errors.New(string(rec.Phase))
		}
		return err
	})
	return rec
}

// A farm that joins, and that a rollout prefers, gets it from the one that carries it out. It goes on where the stage stands.
func TestAFarmThatIsPreferredTakesOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	begun := w.midStage()
	ids := []string{"f1", "f2"}
	preferred := placement.PreferredOwner(begun.Term(), ids)
	first := &farm{id: ids[1-slices.Index(ids, preferred)]}
	members := w.members(first.id)
	w.runs(first, w.addr, members.list)
	before := w.moving()
	w.carriedBy(first.id)
	second := &farm{id: preferred}
	w.runs(second, w.addr, members.list)
	members.join(preferred, first, second)
	w.carriedBy(preferred)
	if after, err := w.record(); err != nil || !reflect.DeepEqual(before, after) {
		t.Errorf("the stage was\n%+v\nand is\n%+v, %v", before, after, err)
	}
	w.quicken(web2)
	if outcome, reason := w.ended(2); outcome != string(rollout.Done) {
		t.Errorf("%s: %s", outcome, reason)
	}
	w.only(web2, 3)
	w.noStepTwice()
	audits, _, err := w.ListAudit(t.Context(), store.AuditFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range audits {
		if a.Who == first.id && a.What != "rollout" || a.What == "rollout-succeeded" && a.Who != preferred {
			t.Errorf("%s wrote %s %s", a.Who, a.What, strings.Join(a.Changes, "; "))
		}
	}
}

// Where the farm that is preferred does not come, the other one takes the rollout again, and keeps it.
func TestTheFarmThatIsPreferredDoesNotCome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	begun := w.midStage()
	ids := []string{"f1", "f2"}
	preferred := placement.PreferredOwner(begun.Term(), ids)
	first := &farm{id: ids[1-slices.Index(ids, preferred)]}
	members := w.members(first.id)
	w.runs(first, w.addr, members.list)
	w.moving()
	w.carriedBy(first.id)
	lock := func() uint64 {
		p, err := w.client.Get(t.Context(), w.Keys().RolloutLocks.Key("web"), consul.Consistent)
		if err != nil {
			t.Fatal(err)
		}
		return p.LockIndex
	}
	claims := lock()
	members.join(preferred, first)
	consultest.Eventually(t, soon, func() error {
		if now := lock(); now == claims {
			return errors.New("not claimed again")
		}
		return nil
	})
	w.carriedBy(first.id)
	w.quicken(web2)
	if outcome, reason := w.ended(2); outcome != string(rollout.Done) {
		t.Errorf("%s: %s", outcome, reason)
	}
	w.only(web2, 3)
	w.noStepTwice()
}
