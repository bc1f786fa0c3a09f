package farm_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// newOwnCluster returns a cluster on its own Consul, for tests that change all of Consul.
func newOwnCluster(t *testing.T) *cluster {
	t.Helper()
	server, err := consultest.Start("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	return clusterAt(t, server.Addr)
}

// clusterAt returns a cluster that uses the Consul at an address alone.
func clusterAt(t *testing.T, addr string) *cluster {
	t.Helper()
	client, err := consul.New(consul.Config{Address: addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	keys, err := store.NewKeys(store.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{t: t, addr: addr, client: client, store: store.New(client, keys), nodes: map[string]*simnode.Node{}}
}

func (c *cluster) snapshot() []byte {
	c.t.Helper()
	saved, err := consultest.Snapshot(c.t.Context(), c.addr)
	if err != nil {
		c.t.Fatal(err)
	}
	return saved
}

// restored checks the result of a restore. After a hang of the server, consultest.DespiteHangs tries again.
func (c *cluster) restored(err error) {
	c.t.Helper()
	if errors.Is(err, consultest.ErrHung) {
		panic(consultest.ErrHung)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// The snapshot that is restored is older than all living sessions. The sessions vanish, so each daemon learns of the
// restore by the loss of its session. The epoch is still renewed (R1), and running pods are adopted where they run. The
// farm waits for a node that appears late.
func TestARestoreOlderThanTheSessions(t *testing.T) {
	t.Parallel()
	consultest.DespiteHangs(t, func() { testOldRestore(t) })
}

func testOldRestore(t *testing.T) {
	t.Helper()
	c := newOwnCluster(t)
	old := store.Schema{FormatVersion: store.FormatVersion, Epoch: store.NewID(), CreatedAt: time.Now().Add(-time.Hour)}
	c.put(c.store.Keys().Schema.Key(), mustJSON(t, old)) // the epoch is old, so no farm waits for nodes to appear
	c.apply("web", testManifest("web", 0), replicas(3))
	snapshot := c.snapshot()
	stop := map[string]func(){}
	for i := range 6 {
		name := fmt.Sprintf("n%d", i)
		stop[name] = c.node(name, nil, nil)
	}
	c.patientFarm("f1", ttl)
	c.converged("web", 3)
	before := c.running("web")
	late := before[pod.Identity{RCID: "web", Role: "main"}][0]
	stop[late]() // its pods run on
	c.restored(consultest.Restore(t.Context(), c.addr, snapshot))
	c.condition("web", rc.Holding, true, "the records are new")
	c.background(c.nodes[late].Resume)
	consultest.Eventually(t, soon, func() error {
		for id, on := range c.running("web") {
			if len(on) != 1 || before[id] == nil || on[0] != before[id][0] {
				t.Fatalf("%s ran on %v, now on %v", id, before[id], on)
			}
		}
		schema, err := c.store.Schema.Get(t.Context(), store.Default)
		if err != nil || schema.Value.Epoch <= old.Epoch {
			return fmt.Errorf("the epoch was not renewed: %w", err)
		}
		placements, corrupt, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
		if err = errors.Join(append(corrupt, err)...); err != nil {
			return err
		}
		if len(placements) != 3 {
			return fmt.Errorf("%d placements", len(placements))
		}
		for _, p := range placements {
			if p.Value.AdoptedAtGeneration == 0 {
				return fmt.Errorf("%s was placed, not adopted", p.Value.Identity)
			}
		}
		return nil
	})
	c.converged("web", 3)
}

// A snapshot is restored while a deleted controller is being removed: its last placement is gone, and its record is
// still there and unchanged. After the restore the placements are back, and must be removed, too.
func TestARestoreBeforeTheLastTransactionLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"before the last look", "after the last look"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			consultest.DespiteHangs(t, func() { testRestoreBeforeFinish(t, when == "after the last look") })
		})
	}
}

func testRestoreBeforeFinish(t *testing.T, afterLook bool) {
	t.Helper()
	c := newOwnCluster(t)
	c.put(c.store.Keys().Schema.Key(), mustJSON(t, store.Schema{
		FormatVersion: store.FormatVersion, Epoch: store.NewID(), CreatedAt: time.Now().Add(-time.Hour),
	}))
	c.node("n1", nil, nil)
	var once, again sync.Once
	var saved []byte
	result := make(chan error, 1)
	faults := &faulty{}
	faults.commit = func(b *store.Batch) error {
		var err error
		if len(b.Pods) == 1 && b.Pods[0].Placement == nil {
			once.Do(func() { saved, err = consultest.Snapshot(t.Context(), c.addr) })
		}
		return err
	}
	restore := func() error {
		var err error
		again.Do(func() {
			err = consultest.Restore(t.Context(), c.addr, saved)
			result <- err
		})
		return err
	}
	if afterLook {
		faults.finish = restore
	} else {
		faults.bump = restore
	}
	c.faultyFarm("f1", faults, nil)
	c.apply("web", testManifest("web", 8080), replicas(1))
	c.converged("web", 1)
	c.apply("web", testManifest("web", 8080), func(r *rc.RC) { now := time.Now(); r.DeletedAt = &now })
	select {
	case err := <-result:
		c.restored(err)
	case <-time.After(soon):
		t.Fatal("the controller was not removed")
	}
	c.nothingLeft("web")
	found, _, err := c.store.ReservationsOf(t.Context(), []string{"n1"})
	if err != nil || len(found["n1"].Value.Claims) != 0 {
		t.Errorf("reservation %+v, %v", found["n1"], err)
	}
}

// A snapshot is restored while no farm runs. The farm that starts then does not know the lost records, so it may place
// pods that already run. The preparers know these pods, and in the end each pod runs once.
func TestAFarmThatStartsAfterARestore(t *testing.T) {
	t.Parallel()
	consultest.DespiteHangs(t, func() { testFarmWithoutPast(t) })
}

func testFarmWithoutPast(t *testing.T) {
	t.Helper()
	c := newOwnCluster(t)
	old := store.Schema{FormatVersion: store.FormatVersion, Epoch: store.NewID(), CreatedAt: time.Now().Add(-time.Hour)}
	c.put(c.store.Keys().Schema.Key(), mustJSON(t, old)) // the epoch is old, so no farm waits for nodes to appear
	for i := range 6 {
		c.node(fmt.Sprintf("n%d", i), nil, nil)
	}
	stop := c.farm("f1")
	c.apply("web", testManifest("web", 8080), replicas(2))
	c.converged("web", 2)
	stop()
	c.apply("web", testManifest("web", 8080), replicas(4))
	snapshot := c.snapshot()
	stop = c.farm("f1")
	c.converged("web", 4)
	stop()
	c.restored(consultest.Restore(t.Context(), c.addr, snapshot))
	before := c.running("web")
	c.farm("f2")
	c.apply("web", testManifest("web", 8080), replicas(4)) // the change ends the adoption (R2)
	c.converged("web", 4)
	consultest.Eventually(t, soon, func() error {
		now := c.running("web")
		for id, on := range now {
			if len(on) != 1 || id.Index < 2 && on[0] != before[id][0] {
				return fmt.Errorf("%s ran on %v, now on %v", id, before[id], on)
			}
		}
		if len(now) != 4 {
			return fmt.Errorf("%d pods run", len(now))
		}
		return nil
	})
}

// An operator removes the record of a machine that is gone, and a new machine takes the name (docs/runbook.md). No farm
// concludes from this that the store went back in time.
func TestAReplacedMachineIsNotTakenForARestore(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	stop := c.node("n2", nil, nil)
	c.farm("f1")
	c.apply("web", testManifest("web", 0), replicas(1))
	c.converged("web", 1)
	schema, err := c.store.Schema.Get(t.Context(), store.Default)
	if err != nil {
		t.Fatal(err)
	}
	farm, err := c.client.Get(t.Context(), c.store.Keys().Farms.Key("f1"), consul.Consistent)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // the lock of each machine is as old as the lock of the machine before it
		stop()
		c.commit(consul.Delete(c.store.Keys().Nodes.Key("n2")))
		stop = c.replaced("n2")
		consultest.Eventually(t, soon, func() error {
			if rec, err := c.store.Nodes.Get(t.Context(), store.Consistent, "n2"); err != nil ||
				rec.Value.Epoch != schema.Value.Epoch {
				return fmt.Errorf("n2 is not back with the epoch: %+v, %w", rec.Value, err)
			}
			return nil
		})
		c.apply("web", testManifest("web", 0),
			func(r *rc.RC) { r.PodLabels = map[string]string{"round": store.NewID()} })
		c.converged("web", 1)
	}
	after, err := c.store.Schema.Get(t.Context(), store.Default)
	if err != nil || after.Index != schema.Index {
		t.Errorf("the cluster's record was %+v, now %+v, %v", schema, after, err)
	}
	if now, err := c.client.Get(t.Context(), c.store.Keys().Farms.Key("f1"), consul.Consistent); err != nil ||
		now.Session != farm.Session {
		t.Errorf("the farm's session was %s, now %s, %v", farm.Session, now.Session, err)
	}
}

// replaced runs another machine under the name of one that is gone.
func (c *cluster) replaced(name string) (stop func()) {
	c.mu.Lock()
	delete(c.nodes, name)
	c.mu.Unlock()
	return c.node(name, nil, nil)
}

func (c *cluster) commit(ops ...consul.Op) {
	c.t.Helper()
	if _, err := c.client.Commit(c.t.Context(), ops); err != nil {
		c.t.Fatal(err)
	}
}
