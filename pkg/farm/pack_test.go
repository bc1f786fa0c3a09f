package farm_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Each request about a dead machine brings five operations: the placement, the intent, the reservation, the removal of
// the request, and the condition that no preparer holds the machine's record. Even with many requests, no transaction
// has more operations than Consul takes.
func TestManyForgetsOnDistinctNodesAreCarriedOut(t *testing.T) {
	t.Parallel()
	const pods = 60
	c := newCluster(t)
	client, st := c.connect()
	fleet := &simnode.Fleet{
		Name: "rack", Size: pods, Client: client, Store: st, TTL: ttl,
		Prepare: func(_ int, n *node.Node) {
			n.Capacity.Slots = 1
		},
	}
	stop := c.background(fleet.Run)
	c.farm("f1")
	c.apply("web", testManifest("web", 0),
		func(r *rc.RC) { replicas(pods)(r); r.MaxPerNode = 1; r.NodeLoss.Action = "keep" })
	c.arrived("web", pods)
	stop()
	c.condition("web", rc.NodeLost, true, fmt.Sprintf("%d on nodes without a preparer", pods))
	placed, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
	if err != nil {
		t.Fatal(err)
	}
	keys := c.store.Keys()
	var ops []consul.Op
	for _, rec := range placed {
		r := store.Request{
			ID: store.NewID(), RCID: "web", Kind: store.ForgetPod, Node: rec.Value.Node,
			Pod: rec.Value.Identity, By: "test", At: time.Now(),
		}
		if r.NodeIndex, _, err = c.store.NodeLock(t.Context(), r.Node); err != nil {
			t.Fatal(err)
		}
		ops = append(ops, consul.Set(keys.Requests.Key("web", r.ID), mustJSON(t, r)))
	}
	if _, err := c.client.Commit(t.Context(),
		append(ops, consul.Set(keys.Bells.Key("web"), []byte(store.NewID())))); err != nil {
		t.Fatal(err)
	}
	consultest.Eventually(t, soon, func() error {
		asked, err := c.client.Keys(t.Context(), keys.Requests.Below("web"))
		if err != nil {
			return err
		}
		left, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
		if err == nil && len(asked)+len(left) > 0 {
			err = fmt.Errorf("%d requests, %d placements", len(asked), len(left))
		}
		return err
	})
	taken, _, err := c.store.ListReservations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range taken {
		if len(r.Claims) > 0 {
			t.Errorf("%s still holds %v", name, r.Claims)
		}
	}
}

// arrived waits for n available pods.
func (c *cluster) arrived(id string, n int) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		st, err := c.store.Statuses.Get(c.t.Context(), store.Default, id)
		if err == nil && (st.Value.Available != n || !st.Value.Is(rc.Converged)) {
			err = fmt.Errorf("status %+v", st.Value)
		}
		return err
	})
}

// A change that is larger than any transaction is not made, and the status reports that. The rest of the plan is
// carried out. A forget of former copies makes the change smaller.
func TestATooLargeChangeDelaysNoOthers(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.farm("f1")
	c.apply("web", testManifest("web", 0), replicas(2))
	c.converged("web", 2)
	placed, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
	if err != nil || len(placed) != 2 {
		t.Fatal(placed, err)
	}
	p := placed[0].Value
	key := c.store.Keys().Pods.Key(p.Identity.String())
	for i := range 130 {
		p.Ghosts = append(p.Ghosts, pod.Ghost{Node: fmt.Sprintf("gone-%d", i), Since: time.Now(), MachineLost: true})
	}
	c.put(key, mustJSON(t, p))
	c.apply("web", testManifest("web", 0), func(r *rc.RC) { now := time.Now(); r.DeletedAt = &now })
	c.condition("web", rc.Blocked, true, "more than one transaction takes")
	consultest.Eventually(t, soon, func() error {
		left, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
		if err == nil && (len(left) != 1 || left[0].Value.Index != 0) {
			err = fmt.Errorf("placements %+v", left)
		}
		return err
	})
	p.Ghosts = p.Ghosts[:10]
	c.put(key, mustJSON(t, p))
	c.ring("web")
	consultest.Eventually(t, soon, func() error {
		left, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
		if err == nil && (len(left) != 1 || left[0].Value.RunState != pod.Stopped) {
			err = fmt.Errorf("placements %+v", left)
		}
		return err
	})
}
