package farm_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// drain begins or ends a drain, as rcctl does: with the reservation in the same transaction.
func (c *cluster) drain(name string, drained bool) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		rec, err := c.store.NodeOps(c.t.Context(), name)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		rec.Value.Name, rec.Value.Drain = name, nil
		if drained {
			rec.Value.Drain = &node.Drain{Since: time.Now()}
		}
		found, _, err := c.store.Reservations(c.t.Context(), []string{name})
		if err != nil {
			return err
		}
		res := found[name]
		res.Value = res.Value.Clone()
		res.Value.Closed = drained
		return c.store.ChangeNode(c.t.Context(), store.NodeChange{
			Ops: rec.Value, Index: rec.Index, Reservation: &res, Audit: store.NewAudit("test", "drain", "", nil),
		})
	})
}

// closed waits until the node's reservation says whether it is drained, and returns it.
func (c *cluster) closed(name string, want bool) node.Reservation {
	c.t.Helper()
	var res node.Reservation
	consultest.Eventually(c.t, soon, func() error {
		found, corrupt, err := c.store.Reservations(c.t.Context(), []string{name})
		if err = errors.Join(err, corrupt[name]); err != nil {
			return err
		}
		if res = found[name].Value; res.Closed != want {
			return fmt.Errorf("reservation %+v", res)
		}
		return nil
	})
	return res
}

// What operators said decides whether a reservation is closed, also when its record was lost or is an older one (R13).
func TestReservationsSayWhatIsDrained(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.farm("f1")
	c.apply("web", testManifest("web", 8080), replicas(1))
	c.converged("web", 1)
	key := c.store.Keys().Reservation("n1")
	open, err := c.client.Get(t.Context(), key, consul.Consistent)
	if err != nil {
		t.Fatal(err)
	}
	c.drain("n1", true)
	closed, err := c.client.Get(t.Context(), key, consul.Consistent)
	if err != nil {
		t.Fatal(err)
	}

	c.put(key, open.Value) // as in an older store
	if res := c.closed("n1", true); len(res.Holders) != 1 {
		t.Errorf("reservation %+v; the pod's share must stay", res)
	}
	if _, err := c.client.Commit(t.Context(), []consul.Op{consul.Delete(key)}); err != nil {
		t.Fatal(err)
	}
	c.closed("n1", true)
	audit, _, err := c.store.ListAudit(t.Context(), store.AuditFilter{Node: "n1"})
	if err != nil || len(audit) == 0 || audit[len(audit)-1].What != "mend" || audit[len(audit)-1].Who != "f1" {
		t.Errorf("audit %+v, %v", audit, err)
	}

	c.drain("n1", false)
	c.closed("n1", false)
	c.put(key, closed.Value) // nobody drains it, and pods are refused
	c.apply("other", testManifest("other", 8081), replicas(1))
	c.converged("other", 1)
	c.closed("n1", false)
}
