package farm_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// revision makes a controller a revision of the service web, with so many replicas.
func revision(rev int64, n, least, most int, companions ...string) func(*rc.RC) {
	return func(r *rc.RC) {
		r.ReplicaGroups[0].Count = &n
		r.Service = &rc.Service{Name: "web", Revision: rev, Companions: companions, Min: least, Max: most}
	}
}

// inCharge says that a rollout is in charge of a controller.
func inCharge(change func(*rc.RC)) func(*rc.RC) {
	return func(r *rc.RC) {
		change(r)
		r.Mutator = "web/r1"
	}
}

// conditionIs waits until a condition of a controller's present generation is, or is not, true.
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

// Each of two revisions has one replica too many, and of all four one may go. Both owners have read that, and each stops one of its
// own: only the first may land.
func TestTwoRevisionsLeaveOneMinimum(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.rollout("r1", rollout.Progressing)
	var mu sync.Mutex
	arrived := map[string]chan struct{}{"a": make(chan struct{}), "b": make(chan struct{})}
	first := map[string]bool{}
	c.faultyFarm("f1", &faulty{commit: func(b *store.Batch) error {
		if len(stops(b)) == 0 {
			return nil
		}
		mu.Lock()
		again := first[b.RCID]
		first[b.RCID] = true
		mu.Unlock()
		if !again {
			close(arrived[b.RCID])
			<-arrived["a"]
			<-arrived["b"]
		}
		return nil
	}}, nil)
	c.apply("a", testManifest("web", 0), inCharge(revision(1, 2, 3, 5, "b")))
	c.apply("b", testManifest("web2", 0), inCharge(revision(2, 2, 3, 5, "a")))
	c.converged("a", 2)
	c.converged("b", 2)
	var both sync.WaitGroup
	for id, name := range map[string]string{"a": "web", "b": "web2"} {
		other := map[string]string{"a": "b", "b": "a"}[id]
		both.Go(func() { c.apply(id, testManifest(name, 0), inCharge(revision(1, 1, 3, 5, other))) })
	}
	both.Wait()
	waits := ""
	consultest.Eventually(t, soon, func() error {
		for _, id := range []string{"a", "b"} {
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
	c.converged(map[string]string{"a": "b", "b": "a"}[waits], 1)
	if n := len(c.running("a")) + len(c.running("b")); n != 3 {
		t.Errorf("%d run, want the minimum of three", n)
	}
	// A third replica elsewhere lets the other one go, and nobody but the bell says so.
	there, name := map[string]string{"a": "b", "b": "a"}[waits], map[string]string{"a": "web2", "b": "web"}[waits]
	c.apply(there, testManifest(name, 0), inCharge(revision(1, 2, 3, 5, waits)))
	c.converged(waits, 1)
	c.converged(there, 2)
}

// A revision gets what room the service has, and goes on as another one leaves it; one that is gone, whoever removed its record, holds
// nobody up.
func TestRevisionsShareOneBound(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.rollout("r1", rollout.Progressing)
	var mu sync.Mutex
	var unchecked []string
	c.faultyFarm("f1", &faulty{commit: func(b *store.Batch) error {
		mu.Lock()
		defer mu.Unlock()
		for _, w := range b.Pods {
			if w.Index == 0 && b.RCID == "b" && (b.Companions["a"].Stops == 0 || !b.NotifyCompanions) {
				unchecked = append(unchecked, w.Identity.String())
			}
		}
		return nil
	}}, nil)
	c.apply("a", testManifest("web", 0), inCharge(revision(1, 3, 0, 4)))
	c.converged("a", 3)
	if _, err := c.client.Commit(t.Context(), []consul.Op{consul.Delete(c.store.Keys().Stops.Key("a"))}); err != nil {
		t.Fatal(err) // whoever needs it makes it
	}
	c.apply("b", testManifest("web2", 0), inCharge(revision(2, 3, 2, 4, "a")))
	c.conditionIs("b", rc.WaitsForService, true)
	c.run("b", 1)
	c.apply("a", testManifest("web", 0), inCharge(revision(1, 2, 2, 4, "b")))
	c.converged("a", 2)
	c.run("b", 2)
	mu.Lock()
	if len(unchecked) > 0 {
		t.Errorf("placed without a look at the other revision: %v", unchecked)
	}
	mu.Unlock()
	if _, err := c.client.Commit(t.Context(), []consul.Op{consul.Delete(c.store.Keys().RCs.Key("a"))}); err != nil {
		t.Fatal(err)
	}
	c.apply("b", testManifest("web2", 0), inCharge(revision(2, 4, 2, 4, "a")))
	c.converged("b", 4)
}

// Once the rollout is gone, what operators ask for is what the minimum of the service follows, and the bound.
func TestAServiceWithoutItsRollout(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.rollout("r1", rollout.Progressing)
	c.farm("f1")
	c.apply("a", testManifest("web", 0), inCharge(revision(1, 3, 3, 4, "b")))
	c.apply("b", testManifest("web2", 0), inCharge(revision(2, 1, 3, 4, "a")))
	c.converged("a", 3)
	c.converged("b", 1)
	c.apply("a", testManifest("web", 0), inCharge(revision(1, 1, 3, 4, "b")))
	c.conditionIs("a", rc.WaitsForService, true)
	c.run("a", 2)
	if _, err := c.client.Commit(t.Context(), []consul.Op{consul.Delete(c.store.Keys().Rollouts.Key("web"))}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b"} {
		if err := c.store.Ring(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	c.converged("a", 1)
	c.conditionIs("a", rc.WaitsForService, false)
	c.apply("b", testManifest("web2", 0), revision(2, 5, 3, 4, "a"))
	c.converged("b", 5)
	if r := c.record("a"); r.Mutator != "" || r.Service.Min != 3 || len(r.Service.Companions) != 1 {
		t.Errorf("%+v", r.Service)
	}
}

// The minimum that follows the counts of another revision is that of its record when the stop lands, whatever it was before.
func TestTheMinimumFollowsTheCountsOfThePresent(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	tries, early := 0, false // of the owner of a, which makes one after the other
	c.faultyFarm("f1", &faulty{commit: func(b *store.Batch) error {
		if b.RCID != "a" || len(stops(b)) == 0 {
			return nil
		}
		if tries++; tries == 1 {
			c.apply("b", testManifest("web2", 0), revision(2, 3, 3, 6, "a"))
		} else if len(c.running("b")) == 0 {
			early = true
		}
		return nil
	}}, nil)
	c.apply("a", testManifest("web", 0), revision(1, 3, 3, 6, "b"))
	c.apply("b", testManifest("web2", 0), revision(2, 0, 3, 6, "a"))
	c.converged("a", 3)
	c.converged("b", 0)
	c.apply("a", testManifest("web", 0), revision(1, 0, 3, 6, "b"))
	c.converged("b", 3)
	c.converged("a", 0)
	if early || tries < 2 {
		t.Errorf("after %d tries pods stop that the other revision's have not replaced", tries)
	}
	for _, id := range []string{"a", "b"} {
		c.conditionIs(id, rc.WaitsForService, false)
	}
}

// run waits until so many replicas of a controller run.
func (c *cluster) run(id string, n int) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		if got := len(c.running(id)); got != n {
			return fmt.Errorf("%d of %s run", got, id)
		}
		return nil
	})
}

// A look that waits for nodes reads no companions. One that finds then that a pod has to stop reads them after all, and keeps to the minimum.
func TestCompanionsAreReadWhereTheyMatter(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, func(in pod.Intent) pod.Reality {
		r := simnode.Obey(in)
		if r.RCID == "a" && in.Identity.Index == 1 && r.Available {
			r.State, r.Available = pod.StateStarting, false
		}
		return r
	})
	c.rollout("r1", rollout.Progressing)
	without, beside := make(chan struct{}, 100), atomic.Int32{}
	c.faultyFarm("f1", &faulty{
		early: func(e store.Expected) {
			if e.RCID == "a" && len(e.Companions) == 0 && len(e.Realities) > 0 {
				select {
				case without <- struct{}{}:
				default: // enough are known
				}
			}
		},
		companions: func(rcID string) {
			if rcID == "a" {
				beside.Add(1)
			}
		},
	}, nil)
	c.apply("b", testManifest("web2", 0), inCharge(revision(2, 2, 3, 6, "a")))
	c.converged("b", 2)
	c.apply("a", testManifest("web", 0), inCharge(revision(1, 2, 3, 6, "b")))
	c.run("a", 2)
	<-without
	before := beside.Load()
	c.apply("a", testManifest("web", 0), inCharge(revision(1, 0, 3, 6, "b")))
	c.conditionIs("a", rc.WaitsForService, true)
	c.run("a", 1)
	for id := range c.running("a") {
		if id.Index != 0 {
			t.Errorf("%s runs, and not the one that counts", id)
		}
	}
	if beside.Load() == before {
		t.Error("a stop was decided without companions")
	}
	c.apply("b", testManifest("web2", 0), inCharge(revision(2, 3, 3, 6, "a")))
	c.run("a", 0)
}

// A look reads at once where companions' pods are by now, as far as its farm knows, and what is taken where its pods stop.
func TestALookReadsAtOnceWhatItNeeds(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.rollout("r1", rollout.Progressing)
	var mu sync.Mutex
	var beside, stopping store.Expected // the last looks of a with companions, and with a stop under way
	later := 0                          // readings of nothing but what is taken
	c.faultyFarm("f1", &faulty{
		early: func(e store.Expected) {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case e.RCID == "a" && len(e.Companions) > 0:
				beside = e
			case e.RCID == "a" && len(e.NodesFreed) > 0:
				stopping = e
			}
		},
		wanted: func(w store.Wanted) {
			mu.Lock()
			defer mu.Unlock()
			if len(w.Reservations) > 0 && len(w.Realities)+len(w.Intents) == 0 {
				later++
			}
		},
	}, nil)
	c.apply("b", testManifest("web2", 0), inCharge(revision(2, 1, 0, 9, "a")))
	c.apply("a", testManifest("web", 0), inCharge(revision(1, 2, 0, 9, "b")))
	c.converged("a", 2)
	c.apply("b", testManifest("web2", 0), inCharge(revision(2, 3, 0, 9, "a")))
	c.converged("b", 3)
	mu.Lock()
	later = 0
	mu.Unlock()
	c.apply("a", testManifest("web", 0), inCharge(revision(1, 1, 0, 9, "b")))
	c.converged("a", 1)
	mu.Lock()
	defer mu.Unlock()
	for id := range c.running("b") {
		if !slices.Contains(beside.Realities, store.At{Node: "n1", Identity: id}) {
			t.Errorf("%s was not read at once with %v", id, beside.Realities)
		}
	}
	if !slices.Equal(stopping.NodesFreed, []string{"n1"}) || later > 0 {
		t.Errorf("what is taken where a pod stops was read at once on %v, and %d times later", stopping.NodesFreed, later)
	}
}
