package farm_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func TestScaleUpAndDownAndDelete(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for i := range 5 {
		c.node(fmt.Sprintf("n%d", i), map[string]string{"rack": string("ab"[i%2])}, nil)
	}
	c.farm("f1")
	c.apply("web", testManifest("web", 8080), func(r *rc.RC) { r.NodeSelector = "rack=a"; replicas(3)(r) })
	c.converged("web", 3)
	for id, on := range c.running("web") {
		if len(on) != 1 || c.nodes[on[0]].Record.Labels["rack"] != "a" {
			t.Errorf("%s runs on %v; the selector is rack=a", id, on)
		}
	}
	c.apply("web", testManifest("web", 8080), func(r *rc.RC) { r.NodeSelector = ""; replicas(5)(r) })
	c.converged("web", 5)
	c.apply("web", testManifest("web", 8080), replicas(0))
	c.converged("web", 0)
	c.apply("web", testManifest("web", 8080), func(r *rc.RC) { now := time.Now(); r.DeletedAt = &now })
	consultest.Eventually(t, soon, func() error {
		if _, err := c.store.RCs.Get(t.Context(), store.Consistent, "web"); !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("the record is still there: %w", err)
		}
		return nil
	})
	c.nothingLeft("web")
}

// nothingLeft asserts that no record of a controller and no reservation remains.
func (c *cluster) nothingLeft(id string) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		pairs, err := c.client.List(c.t.Context(), c.store.Keys().Prefix(), consul.Consistent)
		if err != nil {
			return err
		}
		k := c.store.Keys()
		gone := map[string]bool{
			k.RCs.Key(id): true, k.Names.Key(id): true, k.Bells.Key(id): true,
			k.Locks.Key(id): true, k.Statuses.Key(id): true,
		}
		for _, p := range pairs {
			if gone[p.Key] {
				return fmt.Errorf("%s remains", p.Key)
			}
		}
		return nil
	})
}

func TestStaticPortsAreNeverSharedAndShortageIsReported(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.node("n2", nil, nil)
	c.farm("f1")
	c.apply("web", testManifest("web", 8080), replicas(3))
	consultest.Eventually(t, soon, func() error {
		st, err := c.store.Statuses.Get(t.Context(), store.Default, "web")
		if err != nil {
			return err
		}
		if !st.Value.Is(rc.InsufficientNodes) || st.Value.Available != 2 {
			return fmt.Errorf("status %+v", st.Value)
		}
		return nil
	})
	c.node("n3", nil, nil)
	c.converged("web", 3)
}

func TestFirstPodEverOnAnEmptyConsulAndTwoFarms(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.farm("f1")
	c.farm("f2")
	c.node("n1", nil, nil)
	for i := range 6 {
		c.apply(fmt.Sprintf("rc%d", i), testManifest("p", 0), replicas(1))
	}
	for i := range 6 {
		c.converged(fmt.Sprintf("rc%d", i), 1)
	}
}

func TestAnotherFarmTakesOver(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	stop := c.farm("f1")
	c.apply("web", testManifest("web", 0), replicas(2))
	c.converged("web", 2)
	before := c.running("web")
	c.farm("f2")
	stop()
	c.apply("web", testManifest("web", 0), replicas(3))
	c.converged("web", 3)
	for id := range before {
		if len(c.running("web")[id]) != 1 {
			t.Errorf("%s did not run on through the hand-over", id)
		}
	}
}

func TestWipedRecordsStopNothingAndAreAdopted(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.node("n2", nil, nil)
	c.farm("f1")
	c.apply("web", testManifest("web", 8080), replicas(2))
	c.converged("web", 2)
	saved, err := c.client.List(t.Context(), c.store.Keys().Prefix(), consul.Consistent)
	if err != nil {
		t.Fatal(err)
	}
	before := c.running("web")
	if _, err := c.client.Commit(t.Context(), []consul.Op{consul.DeleteTree(c.store.Keys().Prefix())}); err != nil {
		t.Fatal(err)
	}
	for _, p := range saved {
		k := c.store.Keys()
		if p.Key == k.RCs.Key("web") || p.Key == k.Names.Key("web") || p.Key == k.Bells.Key("web") ||
			len(p.Key) > 64 && p.Key[:len(k.Manifests.Key())] == k.Manifests.Key() {
			if _, err := c.client.Commit(t.Context(), []consul.Op{consul.Set(p.Key, p.Value)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	consultest.Eventually(t, soon, func() error {
		placements, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
		if err != nil || len(placements) != 2 {
			return fmt.Errorf("%d placements, %w", len(placements), err)
		}
		for _, p := range placements {
			if p.Value.AdoptedAtGeneration == 0 {
				return fmt.Errorf("%s was placed, not adopted", p.Value.Identity)
			}
		}
		return nil
	})
	c.converged("web", 2)
	for id, on := range before {
		if now := c.running("web")[id]; len(now) != 1 || now[0] != on[0] {
			t.Errorf("%s ran on %v, now on %v", id, on, now)
		}
	}
}

func TestChangedManifestUpgradesOneByOneAndHaltsAtTheFirstFailure(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	good, bad, better := testManifest("web", 8080), testManifest("web", 8081), testManifest("web", 8082)
	badBytes, _ := bad.Canonical()
	react := func(in pod.Intent) pod.Reality {
		r := pod.Reality{
			Identity: in.Identity, Digest: in.Digest, Revision: in.Revision, State: pod.StateReady,
			Available: true,
		}
		switch {
		case in.State == pod.Stopped:
			r.State, r.Available = pod.StateStopped, false
		case in.Digest == digestOf(badBytes):
			r.State, r.Available, r.Message = pod.StateFailed, false, "exec format error"
		}
		return r
	}
	for i := range 3 {
		c.node(fmt.Sprintf("n%d", i), nil, react)
	}
	c.farm("f1")
	c.apply("web", good, replicas(3))
	c.converged("web", 3)
	c.apply("web", bad, func(*rc.RC) {})
	consultest.Eventually(t, soon, func() error {
		st, err := c.store.Statuses.Get(t.Context(), store.Default, "web")
		if err != nil || !st.Value.Is(rc.Blocked) || st.Value.Available != 2 {
			return fmt.Errorf("status %+v, %w", st.Value, err)
		}
		return nil
	})
	c.apply("web", better, func(*rc.RC) {})
	c.converged("web", 3)
}
