package farm_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// ask writes a request to a controller's owner and returns its id.
func (c *cluster) ask(rcID string, kind store.RequestKind, nodeName string, id pod.Identity) string {
	c.t.Helper()
	r := store.Request{ID: store.NewID(), RCID: rcID, Kind: kind, Node: nodeName, Pod: id, By: "test", At: time.Now()}
	var err error
	if r.NodeIndex, _, err = c.store.NodeLock(c.t.Context(), nodeName); err != nil {
		c.t.Fatal(err)
	}
	if err := c.store.Operator.Ask(c.t.Context(), r, store.NewAudit("test", string(kind), rcID, nil)); err != nil {
		c.t.Fatal(err)
	}
	return r.ID
}

// answered reports whether a request is gone.
func (c *cluster) answered(rcID, id string) (bool, error) {
	_, err := c.client.Get(c.t.Context(), c.store.Keys().Requests.Key(rcID, id), consul.Consistent)
	if errors.Is(err, consul.ErrNotFound) {
		return true, nil
	}
	return false, err
}

// A request of a kind that this farm does not know, for example of a newer rcctl, waits for a farm that knows it.
func TestARequestOfAnUnknownKindStays(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.farm("f1")
	c.apply("web", testManifest("web", 0), replicas(1))
	c.converged("web", 1)
	request := c.ask("web", "polish-pod", "n1", pod.Identity{RCID: "web", Role: "main"})
	consultest.Eventually(t, soon, func() error {
		st, err := c.store.Statuses.Get(t.Context(), store.Default, "web")
		if err == nil && !strings.Contains(st.Value.LastError, "polish-pod") {
			err = fmt.Errorf("status %+v", st.Value)
		}
		return err
	})
	if done, err := c.answered("web", request); done || err != nil {
		t.Errorf("answered %t, %v", done, err)
	}
}

// A request to forget a pod waits while the node's reservation cannot be read, and is carried out after that.
func TestAForgetWaitsForAnUnreadableReservation(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	stop := c.node("n1", nil, nil)
	c.farm("f1")
	c.apply("web", testManifest("web", 8080), func(r *rc.RC) { r.NodeLoss.Action = "keep" })
	c.converged("web", 1)
	stop()
	c.condition("web", rc.NodeLost, true, "n1")
	key := c.store.Keys().Reservations.Key("n1")
	good := c.spoil(key)
	id := pod.Identity{RCID: "web", Role: "main"}
	requests := []string{
		c.ask("web", store.ForgetPod, "n1", id),
		c.ask("web", store.RepairReservation, "n1", pod.Identity{}),
	}
	consultest.Eventually(t, soon, func() error {
		st, err := c.store.Statuses.Get(t.Context(), store.Default, "web")
		if err == nil && strings.Count(st.Value.LastError, "reservations/n1") < 2 {
			err = fmt.Errorf("status %+v", st.Value)
		}
		return err
	})
	for _, r := range requests {
		if done, err := c.answered("web", r); done || err != nil {
			t.Errorf("request %s: answered %t, %v", r, done, err)
		}
	}
	c.put(key, good)
	c.ring("web")
	consultest.Eventually(t, soon, func() error {
		for _, r := range requests {
			if done, err := c.answered("web", r); !done || err != nil {
				return errors.Join(fmt.Errorf("request %s: answered %t", r, done), err)
			}
		}
		placed, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
		if err == nil && len(placed) != 0 {
			err = fmt.Errorf("placements %+v", placed)
		}
		return err
	})
}

// A requested repair releases the shares of replicas that have no copy on the node, even if they run elsewhere.
func TestARepairReleasesSharesWithoutAPod(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.farm("f1")
	c.apply("web", testManifest("web", 8080), replicas(1))
	c.converged("web", 1)
	c.node("n2", nil, nil)
	here, gone := pod.Identity{RCID: "web", Role: "main"}, pod.Identity{RCID: "web", Role: "main", Index: 7}
	other := pod.Identity{RCID: "local-db", Role: "main"} // no sweep looks at its shares
	leaked := node.Reservation{Claims: map[string]node.Claim{}}
	for _, id := range []pod.Identity{here, gone, other} {
		leaked.Claims[id.String()] = node.NewClaim(id, map[string]int{"http": 9000 + id.Index}, 0, 0)
	}
	c.put(c.store.Keys().Reservations.Key("n2"), mustJSON(t, leaked))
	r := c.ask("web", store.RepairReservation, "n2", pod.Identity{})
	consultest.Eventually(t, soon, func() error {
		found, _, err := c.store.ReservationsOf(t.Context(), []string{"n1", "n2"})
		if err != nil {
			return err
		}
		claims := found["n2"].Value.Claims
		if _, kept := claims[other.String()]; !kept || len(claims) != 1 || len(found["n1"].Value.Claims) != 1 {
			return fmt.Errorf("n1 %+v, n2 %+v", found["n1"].Value, found["n2"].Value)
		}
		if done, err := c.answered("web", r); !done {
			return errors.Join(errors.New("not answered"), err)
		}
		return nil
	})
	c.converged("web", 1)
}

// If a whole machine is declared gone, there are hundreds of requests, perhaps about several nodes. The locks of the
// nodes are read together.
func TestNodeLocksAreReadTogether(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.lockedIs("n1", true)
	c.visit("n2")
	names := []string{"n1", "n2"}
	for i := range 198 {
		names = append(names, fmt.Sprintf("never-seen-%d", i))
	}
	proxy := consultest.StartProxy(t, c.addr)
	client, err := consul.New(consul.Config{Address: proxy.Addr, CallTimeout: soon})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	locks, err := store.New(client, c.store.Keys()).NodeLocks(t.Context(), names)
	if err != nil {
		t.Fatal(err)
	}
	if n := proxy.Seen(); n != 2 || len(locks) != len(names) {
		t.Errorf("%d requests, %d locks", n, len(locks))
	}
	if !locks["n1"].Locked || locks["n2"].Locked {
		t.Errorf("n1 %+v, n2 %+v", locks["n1"], locks["n2"])
	}
	for _, name := range names[1:4] { // without n1, whose living preparer may write its record again
		index, locked, err := c.store.NodeLock(t.Context(), name)
		if want := (store.NodeLock{Index: index, Locked: locked}); err != nil || locks[name] != want ||
			(index != 0) != (name == "n2") {
			t.Errorf("%s: %+v, alone %+v, %v", name, locks[name], want, err)
		}
	}
}
