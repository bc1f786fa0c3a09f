package farm_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// mute runs a preparer whose check passes in the catalog, and that never writes its record.
func (c *cluster) mute(name string) (stop func()) {
	client, st := c.connect()
	cfg := c.session("preparer", name)
	cfg.Meta = st.PreparerMeta(name)
	return c.background(func(ctx context.Context) error {
		return client.RunSession(ctx, cfg, func(ctx context.Context, _ *consul.Session) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
	})
}

func (c *cluster) passing(names ...string) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		if got, err := c.store.Passing(c.t.Context()); err != nil || len(got) != len(names) {
			return fmt.Errorf("passing are %v, %w", got, err)
		}
		return nil
	})
}

// A preparer whose check passes, but that cannot answer, delays all changes, and the status reports this, until an
// operator releases the hold for it. The release is valid for the present epoch only.
func TestAHoldIsReleased(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.mute("n2")
	c.passing("n1", "n2")
	c.farm("f1")
	c.apply("web", testManifest("web", 0), replicas(2))
	c.condition("web", rc.Holding, true, "what they run: n2 (for one that cannot: rcctl farm release-hold NODE)")
	schema, err := c.store.Schema.Get(t.Context(), store.Default)
	if err != nil {
		t.Fatal(err)
	}
	release := func(index uint64, epoch string) uint64 {
		t.Helper()
		ops := node.Ops{Name: "n2", HoldReleased: epoch}
		if err := c.store.Operator.ChangeNode(t.Context(),
			store.NodeChange{
				Ops: ops, Index: index,
				Audit: store.NewAudit("test", "release-hold", "", nil),
			}); err != nil {
			t.Fatal(err)
		}
		rec, err := c.store.NodeOps.Get(t.Context(), store.Consistent, "n2")
		if err != nil {
			t.Fatal(err)
		}
		return rec.Index
	}
	index := release(0, "00"+schema.Value.Epoch[2:]) // a release for another epoch
	for range 3 {
		c.apply("web", testManifest("web", 0), replicas(2))
		c.condition("web", rc.Holding, true, "n2")
	}
	if n := len(c.running("web")); n > 0 {
		t.Fatalf("%d pods were placed in spite of the hold", n)
	}
	release(index, schema.Value.Epoch)
	c.converged("web", 2)
}

// If one farm has found the nodes synced, its successor need not wait for them to appear. But it still needs the
// answers of all nodes.
func TestASuccessorDoesNotWaitAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	stop := c.farm("f1")
	c.apply("web", testManifest("web", 0), replicas(1))
	c.converged("web", 1)
	schema, err := c.store.Schema.Get(t.Context(), store.Default)
	if err != nil {
		t.Fatal(err)
	}
	consultest.Eventually(t, soon, func() error {
		if epoch, err := c.store.SyncedEpoch(t.Context()); err != nil || epoch != schema.Value.Epoch {
			return fmt.Errorf("synced for %q, %w; want %q", epoch, err, schema.Value.Epoch)
		}
		return nil
	})
	stop()
	stopMute := c.mute("n2")
	c.passing("n1", "n2")
	c.patientFarm("f2", time.Hour)
	c.apply("web", testManifest("web", 0), replicas(2))
	c.condition("web", rc.Holding, true, "what they run: n2")
	stopMute()
	c.converged("web", 2)
}

// A farm waits in an epoch for which no farm has found the nodes synced, even if the store has another epoch as synced.
func TestASuccessorWaitsForAnotherEpoch(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	for i, marked := range []string{`{"nonce":"0"}`, `broken`, ``} {
		c.put(c.store.Keys().Synced.Key(), []byte(marked))
		id := fmt.Sprintf("f%d", i)
		stop := c.patientFarm(id, time.Hour)
		c.apply("web", testManifest("web", 0), replicas(1))
		c.statusOf("web", func(st *rc.Status) bool { return st.Owner == id && st.Is(rc.Holding) })
		c.condition("web", rc.Holding, true, "the records are new")
		stop()
	}
	if n := len(c.running("web")); n > 0 {
		t.Errorf("%d pods were placed", n)
	}
}

// After the epoch was renewed, Consul refuses the write that the hold of the former epoch has ended.
func TestALateEndOfAHoldIsRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	schema, err := c.store.EnsureSchema(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	session := c.store.FarmSession(&consul.Session{}, "f1")
	if err := session.RenewEpoch(t.Context(), schema.Value.Epoch, ""); err != nil {
		t.Fatal(err)
	}
	if err := session.MarkSynced(t.Context(), schema); !errors.Is(err, store.ErrRefused) {
		t.Errorf("marked: %v", err)
	}
	if epoch, err := c.store.SyncedEpoch(t.Context()); err != nil || epoch != "" {
		t.Errorf("synced for %q, %v", epoch, err)
	}
}
