package farm_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// runsOnly waits until nodes run n pods of web and have as many intents.
func (c *cluster) runsOnly(n int) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		intents, err := c.client.Keys(c.t.Context(), c.store.Keys().Intents.Key())
		if err != nil {
			return err
		}
		pods := 0
		for _, key := range intents {
			if key[len(key)-1] != '/' { // a marker
				pods++
			}
		}
		if on := c.running("web"); len(on) != n || pods != n {
			return fmt.Errorf("running: %v, intents: %v", on, intents)
		}
		return nil
	})
}

// If only the intents of pods are left, the pods run on. An operator's request to sweep stops the pod that it names,
// and the farm then removes all records of this pod.
func TestASweepStopsPodsThatHaveOnlyIntents(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.stray(nil)
	k := c.store.Keys()
	record, err := c.client.Get(t.Context(), k.Names.Key("web"), consul.Consistent)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.Commit(t.Context(),
		[]consul.Op{consul.DeleteTree(k.Pods.Below("web")), consul.Delete(record.Key)}); err != nil {
		t.Fatal(err)
	}
	c.farm("f1")
	c.apply("other", testManifest("other", 8081), replicas(0))
	consultest.Eventually(t, soon, func() error {
		_, err := c.store.Statuses.Get(t.Context(), store.Consistent, "other")
		return err
	})
	c.runsOnly(3)
	on := c.running("web")
	sweep := func(index int) {
		id := pod.Identity{RCID: "web", Role: "main", Index: index}
		c.ask("web", store.SweepOrphan, on[id][0], id)
	}
	sweep(1)
	c.runsOnly(2)
	c.nothingLeft("web")
	if left := c.running("web"); left[pod.Identity{RCID: "web", Role: "main", Index: 1}] != nil {
		t.Errorf("running: %v", left)
	}
	sweep(0)
	sweep(2)
	c.runsOnly(0)
	c.nothingLeft("web")
	found, _, err := c.store.ReservationsOf(t.Context(), []string{"n0", "n1", "n2"})
	for name, rec := range found {
		if len(rec.Value.Claims) != 0 {
			t.Errorf("%s holds %v", name, rec.Value.Claims)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// If a sweep removes the bell of a request before any farm has seen it, the next sweep finds the request.
func TestARequestWithoutABellIsFound(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.stray(nil)
	c.farm("f1")
	c.apply("other", testManifest("other", 8081), replicas(1))
	c.converged("other", 1)
	id := pod.Identity{RCID: "web", Role: "main"}
	r := store.Request{
		ID: store.NewID(), RCID: "web", Kind: store.SweepOrphan, Node: c.running("web")[id][0], Pod: id,
		By: "test", At: time.Now(),
	}
	value, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.Commit(t.Context(),
		[]consul.Op{consul.Set(c.store.Keys().Requests.Key("web", r.ID), value)}); err != nil {
		t.Fatal(err)
	}
	c.nothingLeft("web")
	if on := c.running("web"); len(on) != 0 {
		t.Errorf("running: %v", on)
	}
}

// A sweep that the leader asks for stops no pod of a controller with placements. A sweep of an operator stops all of
// them.
func TestTheLeadersSweepSparesPlacedPods(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.stray(nil)
	c.farm("f1")
	c.apply("other", testManifest("other", 8081), replicas(1))
	c.converged("other", 1) // the farm's hold has ended
	k, id := c.store.Keys(), pod.Identity{RCID: "web", Role: "main"}
	if _, err := c.client.Commit(t.Context(), []consul.Op{consul.Delete(k.Pods.Key(id.String()))}); err != nil {
		t.Fatal(err)
	}
	at := store.At{Node: c.running("web")[id][0], Identity: id}
	err := c.store.Leader("f1", c.client.Commit).AskSweep(t.Context(), at,
		store.NewAudit("f1", "sweep-orphan", "web", nil))
	if err != nil {
		t.Fatal(err)
	}
	consultest.Eventually(t, soon, func() error {
		left, err := c.client.Keys(t.Context(), k.Requests.Below("web"))
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("requests left: %v", left)
		}
		return err
	})
	placed, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
	if on := c.running("web"); err != nil || len(on) != 3 || len(placed) != 2 ||
		placed[0].Value.RunState != pod.Running || placed[1].Value.RunState != pod.Running {
		t.Errorf("running: %v, placed: %+v, %v", on, placed, err)
	}
	c.askWeb(store.SweepOrphan, at.Node, 0)
	c.nothingLeft("web")
	if on := c.running("web"); len(on) != 0 {
		t.Errorf("running: %v", on)
	}
}
