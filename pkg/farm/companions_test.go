package farm_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Two revisions of the service web.
const (
	webUnit = "01hzzzzzzzzzzzzzzzzzzzwebs"
	webR1   = webUnit + "-1"
	webR2   = webUnit + "-2"
)

// revision makes a controller a revision of the service web, with n replicas.
func revision(rev int64, n, least, most int) func(*rc.RC) {
	return func(r *rc.RC) {
		r.ReplicaGroups[0].Count = &n
		r.Service = &rc.Service{Name: "web", Revision: rev, Min: least, Max: most}
	}
}

// conditionIs waits until a condition of a controller's present generation has this value.
func (c *cluster) conditionIs(id string, t rc.ConditionType, want bool) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		rec, err := c.store.RCs.Get(c.t.Context(), store.Consistent, id)
		if err != nil {
			return err
		}
		st, err := c.store.Statuses.Get(c.t.Context(), store.Default, id)
		if err == nil && (st.Value.Is(t) != want || st.Value.ObservedGeneration != rec.Value.Generation) {
			err = fmt.Errorf("%s: %+v", id, st.Value)
		}
		return err
	})
}

// Each of two revisions has one replica too many, but the minimum lets only one of all four replicas stop. One revision
// stops its replica, and the other one waits.
func TestTwoRevisionsShareOneMinimum(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.rolls(webUnit)
	c.farm("f1")
	c.apply(webR1, testManifest("web", 0), revision(1, 2, 3, 5))
	c.apply(webR2, testManifest("web2", 0), revision(2, 2, 3, 5))
	c.converged(webR1, 2)
	c.converged(webR2, 2)
	var both sync.WaitGroup
	for id, name := range map[string]string{webR1: "web", webR2: "web2"} {
		both.Go(func() { c.apply(id, testManifest(name, 0), revision(1, 1, 3, 5)) })
	}
	both.Wait()
	waits := ""
	consultest.Eventually(t, soon, func() error {
		for _, id := range []string{webR1, webR2} {
			st, err := c.store.Statuses.Get(t.Context(), store.Default, id)
			if err != nil {
				return err
			}
			if st.Value.Is(rc.WaitsForService) && st.Value.Desired == 1 {
				waits = id
			}
		}
		if waits == "" {
			return errors.New("none waits")
		}
		return nil
	})
	c.converged(map[string]string{webR1: webR2, webR2: webR1}[waits], 1)
	if n := len(c.running(webR1)) + len(c.running(webR2)); n != 3 {
		t.Errorf("%d run, want the minimum of three", n)
	}
	// Another replica of the first revision lets the waiting revision stop its own. Only the bell makes the farm look.
	there := map[string]string{webR1: webR2, webR2: webR1}[waits]
	name := map[string]string{webR1: "web2", webR2: "web"}[waits]
	c.apply(there, testManifest(name, 0), revision(1, 2, 3, 5))
	c.converged(waits, 1)
	c.converged(there, 2)
}

// A revision gets the pods that the bound still allows, and more pods when another revision has fewer. A revision whose
// record was removed delays no other revision.
func TestRevisionsShareOneBound(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.rolls(webUnit)
	c.farm("f1")
	c.apply(webR1, testManifest("web", 0), revision(1, 3, 0, 4))
	c.converged(webR1, 3)
	c.apply(webR2, testManifest("web2", 0), revision(2, 3, 2, 4))
	c.conditionIs(webR2, rc.WaitsForService, true)
	c.run(webR2, 1)
	c.apply(webR1, testManifest("web", 0), revision(1, 2, 2, 4))
	c.converged(webR1, 2)
	c.run(webR2, 2)
	if _, err := c.client.Commit(t.Context(), []consul.Op{consul.Delete(c.store.Keys().RCs.Key(webR1))}); err != nil {
		t.Fatal(err)
	}
	c.apply(webR2, testManifest("web2", 0), revision(2, 4, 2, 4))
	c.converged(webR2, 4)
}

// After the rollout was removed, the service's minimum and bound follow the operators' records.
func TestAServiceWithoutItsRollout(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.rolls(webUnit)
	c.farm("f1")
	c.apply(webR1, testManifest("web", 0), revision(1, 3, 3, 4))
	c.apply(webR2, testManifest("web2", 0), revision(2, 1, 3, 4))
	c.converged(webR1, 3)
	c.converged(webR2, 1)
	c.apply(webR1, testManifest("web", 0), revision(1, 1, 3, 4))
	c.conditionIs(webR1, rc.WaitsForService, true)
	c.run(webR1, 2)
	if _, err := c.client.Commit(t.Context(),
		[]consul.Op{consul.Delete(c.store.Keys().Rollouts.Key(webUnit))}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{webR1, webR2} {
		if err := c.store.Ring(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	c.converged(webR1, 1)
	c.conditionIs(webR1, rc.WaitsForService, false)
	c.apply(webR2, testManifest("web2", 0), revision(2, 5, 3, 4))
	c.converged(webR2, 5)
	if r := c.record(webR1); r.Service.Min != 3 {
		t.Errorf("%+v", r.Service)
	}
}

// The minimum may depend on the count of another revision. The count at the moment when a stop lands decides, not an
// earlier count.
func TestTheMinimumFollowsThePresentCounts(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	tries, early := 0, false // of the owner of webR1, which tries one stop after the other
	c.faultyFarm("f1", &faulty{commit: func(b *store.Batch) error {
		if b.RCID != webR1 || len(stops(b)) == 0 {
			return nil
		}
		if tries++; tries == 1 {
			c.apply(webR2, testManifest("web2", 0), revision(2, 3, 3, 6))
		} else if len(c.running(webR2)) == 0 {
			early = true
		}
		return nil
	}}, nil)
	c.apply(webR1, testManifest("web", 0), revision(1, 3, 3, 6))
	c.apply(webR2, testManifest("web2", 0), revision(2, 0, 3, 6))
	c.converged(webR1, 3)
	c.converged(webR2, 0)
	c.apply(webR1, testManifest("web", 0), revision(1, 0, 3, 6))
	c.converged(webR2, 3)
	c.converged(webR1, 0)
	if early || tries < 2 {
		t.Errorf("after %d tries pods stop before the other revision has replaced them", tries)
	}
	for _, id := range []string{webR1, webR2} {
		c.conditionIs(id, rc.WaitsForService, false)
	}
}

// run waits until n replicas of a controller run.
func (c *cluster) run(id string, n int) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		if got := len(c.running(id)); got != n {
			return fmt.Errorf("%d of %s run", got, id)
		}
		return nil
	})
}
