package farm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// falseWitness makes a node report that the store went back from an epoch, which is derived from the present epoch. It
// reports this again when the preparer writes the record.
func (c *cluster) falseWitness(name string, of func(epoch string) string) (stop func()) {
	return c.background(func(ctx context.Context) error {
		for {
			schema, err := c.store.Schema.Get(ctx, store.Default)
			if err == nil {
				c.writeWitness(ctx, name, of(schema.Value.Epoch))
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	})
}

// writeWitness writes that report into the node's record. The node's token is enough for that; the preparer keeps the
// lock.
func (c *cluster) writeWitness(ctx context.Context, name, epoch string) {
	key := c.store.Keys().Nodes.Key(name)
	pair, err := c.client.Get(ctx, key, consul.Default)
	if err != nil || pair.Session == "" {
		return
	}
	record := map[string]any{}
	if json.Unmarshal(pair.Value, &record) != nil || record["regressed"] == epoch {
		return
	}
	record["regressed"] = epoch
	value, err := json.Marshal(record)
	if err != nil {
		c.t.Error(err)
	}
	// refused if the preparer has written first
	_, _ = c.client.Commit(ctx, []consul.Op{consul.CAS(key, value, pair.ModifyIndex)})
}

// renewals returns how often the epoch was renewed, and which sole witness the present epoch has.
func (c *cluster) renewals() (n int, witness string) {
	c.t.Helper()
	audits, corrupt, err := c.store.Audits.List(c.t.Context(), store.Consistent)
	if err = errors.Join(append(corrupt, err)...); err != nil {
		c.t.Fatal(err)
	}
	for _, a := range audits {
		if a.Value.What == "renew-nonce" {
			n++
		}
	}
	schema, err := c.store.Schema.Get(c.t.Context(), store.Consistent)
	if err != nil {
		c.t.Fatal(err)
	}
	return n, schema.Value.Witness
}

// A node's report that the store went back in time is ignored if it is impossible. Then no epoch begins, and all other
// work goes on.
func TestAnImpossibleWitnessIsIgnored(t *testing.T) {
	t.Parallel()
	for name, word := range map[string]string{
		"no ULID": "zz", "the last one": "7" + strings.Repeat("z", 25),
		"in two days": epochIn(48 * time.Hour),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			for i := range 3 {
				c.node(fmt.Sprintf("n%d", i), nil, nil)
			}
			c.falseWitness("n0", func(string) string { return word })
			consultest.Eventually(t, soon, func() error {
				rec, err := c.store.Nodes.Get(t.Context(), store.Default, "n0")
				if err == nil && rec.Value.WentBack != word {
					err = errors.New("the node has not made its report yet")
				}
				if store.IsCorrupt(err) { // an unreadable node is left out
					err = nil
				}
				return err
			})
			for round := range 3 { // each farm that starts checks the witnesses again
				stop := c.farm(fmt.Sprintf("f%d", round))
				id := fmt.Sprintf("web%d", round)
				c.apply(id, testManifest(id, 0), replicas(2))
				c.converged(id, 2)
				stop()
			}
			if n, _ := c.renewals(); n != 0 {
				t.Errorf("the epoch was renewed %d times", n)
			}
		})
	}
}

func epochIn(d time.Duration) string {
	var id ulid.ULID
	_ = id.SetTime(ulid.Timestamp(time.Now().Add(d)))
	return strings.ToLower(id.String())
}

// If one node reports again and again that the store went back in time, the epoch is renewed once. A second renewal
// waits for another witness, or for the node's operators.
func TestOneWitnessRenewsOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for i := range 3 {
		c.node(fmt.Sprintf("n%d", i), nil, nil)
	}
	c.farm("f1")
	c.farm("f2")
	c.apply("web", testManifest("web", 0), replicas(2))
	c.converged("web", 2)
	c.falseWitness("n0", func(epoch string) string { return epoch })
	consultest.Eventually(t, soon, func() error {
		if n, witness := c.renewals(); n != 1 || witness != "n0" {
			return fmt.Errorf("renewed %d times, by %q", n, witness)
		}
		return nil
	})
	c.apply("more", testManifest("more", 0), replicas(1))
	c.condition("more", rc.Holding, true, "node n0 alone reports again that the store went back in time")
	if n, _ := c.renewals(); n != 1 {
		t.Fatalf("renewed %d times because of one node", n)
	}

	stop := c.falseWitness("n1", func(epoch string) string { return epoch })
	consultest.Eventually(t, soon, func() error {
		if n, witness := c.renewals(); n < 2 || witness != "" {
			return fmt.Errorf("with another witness: renewed %d times, by %q", n, witness)
		}
		return nil
	})
	stop()
	c.writeWitness(t.Context(), "n1", "")
	releases := c.background(func(ctx context.Context) error { // whatever the epoch is then
		for {
			schema, err := c.store.Schema.Get(ctx, store.Default)
			ops, opsErr := c.store.NodeOps.Get(ctx, store.Consistent, "n0")
			if err == nil && (opsErr == nil || errors.Is(opsErr, store.ErrNotFound)) &&
				ops.Value.HoldReleased != schema.Value.Epoch {
				_ = c.store.Operator.ChangeNode(ctx, store.NodeChange{
					Ops: node.Ops{Name: "n0", HoldReleased: schema.Value.Epoch}, Index: ops.Index,
					Audit: store.NewAudit("test", "release-hold", "", nil),
				})
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	})
	c.converged("more", 1)
	releases()
}
