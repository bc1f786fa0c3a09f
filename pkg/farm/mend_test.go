package farm_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// operate changes the operators' record of a node, as rcctl does: with the reservation in the same transaction.
func (c *cluster) operate(name string, change func(*node.Ops)) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		rec, err := c.store.NodeOps.Get(c.t.Context(), store.Consistent, name)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		rec.Value.Name = name
		change(&rec.Value)
		found, _, err := c.store.ReservationsOf(c.t.Context(), []string{name})
		if err != nil {
			return err
		}
		res := found[name]
		res.Value = res.Value.WithOps(rec.Value)
		return c.store.Operator.ChangeNode(c.t.Context(), store.NodeChange{
			Ops: rec.Value, Index: rec.Index, Reservation: &res, Audit: store.NewAudit("test", "operate", "", nil),
		})
	})
}

// drain begins or ends a drain.
func (c *cluster) drain(name string, drained bool) {
	c.t.Helper()
	c.operate(name, func(ops *node.Ops) {
		if ops.Drain = nil; drained {
			ops.Drain = &node.Drain{Since: time.Now()}
		}
	})
}

// relabel gives a node one label.
func (c *cluster) relabel(name, key, value string) {
	c.t.Helper()
	c.operate(name, func(ops *node.Ops) { ops.Labels = map[string]string{key: value} })
}

// ineligible waits until the field Ineligible of a node's reservation has the wanted value, and returns the
// reservation.
func (c *cluster) ineligible(name string, want bool) node.Reservation {
	c.t.Helper()
	var res node.Reservation
	consultest.Eventually(c.t, soon, func() error {
		found, corrupt, err := c.store.ReservationsOf(c.t.Context(), []string{name})
		if err = errors.Join(err, corrupt[name]); err != nil {
			return err
		}
		if res = found[name].Value; res.Ineligible != want {
			return fmt.Errorf("reservation %+v", res)
		}
		return nil
	})
	return res
}

// The operators' record decides whether a reservation is ineligible, even if the reservation was lost or is an older
// version (R13).
func TestReservationsHaveWhichNodesAreDrained(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.farm("f1")
	c.apply("web", testManifest("web", 8080), replicas(1))
	c.converged("web", 1)
	key := c.store.Keys().Reservations.Key("n1")
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
	if res := c.ineligible("n1", true); len(res.Claims) != 1 {
		t.Errorf("reservation %+v; the pod's share must stay", res)
	}
	if _, err := c.client.Commit(t.Context(), []consul.Op{consul.Delete(key)}); err != nil {
		t.Fatal(err)
	}
	c.ineligible("n1", true)
	audit, _, err := c.store.ListAudit(t.Context(), store.AuditFilter{Node: "n1"})
	if err != nil ||
		!slices.ContainsFunc(audit, func(a store.Audit) bool { return a.What == "mend" && a.Who == "f1" }) {
		t.Errorf("audit %+v, %v", audit, err)
	}

	c.drain("n1", false)
	c.ineligible("n1", false)
	c.put(key, closed.Value) // the node is not drained, but refuses pods
	c.apply("other", testManifest("other", 8081), replicas(1))
	c.converged("other", 1)
	c.ineligible("n1", false)
}

// A reservation that was lost is written again with the shares of all placed pods (P3), even if another controller
// places a pod there first. It does not matter which farms own the controllers.
func TestALostReservationIsRebuilt(t *testing.T) {
	t.Parallel()
	for _, busy := range []bool{false, true} {
		t.Run(fmt.Sprintf("busy %t", busy), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.node("n1", nil, nil)
			c.farm("f1")
			c.farm("f2")
			names := []string{"a", "b", "c", "d", "e"}
			last := len(names) - 1
			for i, name := range names[:last] {
				c.apply(name, testManifest(name, 8080+i), replicas(1))
			}
			for _, name := range names[:last] {
				c.converged(name, 1)
			}
			if _, err := c.client.Commit(t.Context(),
				[]consul.Op{consul.Delete(c.store.Keys().Reservations.Key("n1"))}); err != nil {
				t.Fatal(err)
			}
			if busy {
				c.apply(names[last], testManifest(names[last], 8080+last), replicas(1))
				c.converged(names[last], 1)
			} else {
				names = names[:last]
			}
			consultest.Eventually(t, soon, func() error {
				found, _, err := c.store.ReservationsOf(t.Context(), []string{"n1"})
				if err != nil {
					return err
				}
				for i, name := range names {
					h := found["n1"].Value.Claims[pod.Identity{RCID: name, Role: "main"}.String()]
					if !slices.Equal(h.Ports, []int{8080 + i}) {
						return fmt.Errorf("%s holds %+v of %+v", name, h, found["n1"].Value.Claims)
					}
				}
				return nil
			})
		})
	}
}

// The leader alerts to placements without a controller. Their pods run on, and stop when an operator asks for that.
func TestPlacementsWithoutAController(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	alerts := &recorder{}
	c.watchedFarm("f1", alerts)
	c.apply("web", testManifest("web", 8080), replicas(1))
	c.converged("web", 1)
	if _, err := c.client.Commit(t.Context(), []consul.Op{consul.Delete(c.store.Keys().RCs.Key("web"))}); err != nil {
		t.Fatal(err)
	}
	alerted := func(prefix string) {
		t.Helper()
		consultest.Eventually(t, soon, func() error {
			lines := alerts.about("Unreadable")
			if !slices.ContainsFunc(lines,
				func(line string) bool { return strings.HasPrefix(line, prefix+" pods/web/") }) {
				return fmt.Errorf("alerts: %q", lines)
			}
			return nil
		})
	}
	alerted("raise")
	if on := c.running("web"); len(on) != 1 {
		t.Errorf("running: %v", on)
	}
	id := pod.Identity{RCID: "web", Role: "main"}
	err := c.store.Operator.Ask(t.Context(), store.Request{
		ID: store.NewID(), RCID: "web", Kind: store.SweepOrphan,
		Node: "n1", Pod: id,
	}, store.NewAudit("test", "sweep", "web", nil))
	if err != nil {
		t.Fatal(err)
	}
	c.nothingLeft("web")
	alerted("resolve")
}

// stray makes a controller of three pods whose record was lost.
func (c *cluster) stray(react func(pod.Intent) pod.Reality) {
	c.t.Helper()
	for i := range 3 {
		c.node(fmt.Sprintf("n%d", i), nil, react)
	}
	stop := c.farm("f0")
	c.apply("web", testManifest("web", 8080), replicas(3))
	c.converged("web", 3)
	stop()
	if _, err := c.client.Commit(c.t.Context(), []consul.Op{consul.Delete(c.store.Keys().RCs.Key("web"))}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) askWeb(kind store.RequestKind, node string, index int) {
	c.t.Helper()
	c.ask("web", kind, node, pod.Identity{RCID: "web", Role: "main", Index: index})
}

// A request about one pod of a controller without a record stops no other pod of it.
func TestOnlyASweepStopsWhatAControllerLeftBehind(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.stray(nil)
	c.farm("f1")
	c.apply("other", testManifest("other", 8081), replicas(1))
	c.converged("other", 1) // the farm's hold has ended
	c.askWeb(store.RepairReservation, "n0", 0)
	c.askWeb(store.ForgetPod, "n0", 0)
	consultest.Eventually(t, soon, func() error {
		left, err := c.client.Keys(t.Context(), c.store.Keys().Requests.Below("web"))
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("requests left: %v", left)
		}
		return err
	})
	elapse(2 * time.Second) // two sweeps
	if on := c.running("web"); len(on) != 3 {
		t.Errorf("running: %v", on)
	}
	c.askWeb(store.SweepOrphan, "n1", 1)
	c.nothingLeft("web")
}

// The next farm goes on with a sweep while nodes have not yet confirmed the stops.
func TestASweepOutlivesItsFarm(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	stopped := make(chan struct{})
	letStop := sync.OnceFunc(func() { close(stopped) })
	c.stray(func(in pod.Intent) pod.Reality {
		if in.State == pod.Stopped {
			<-stopped
		}
		return simnode.Obey(in)
	})
	t.Cleanup(letStop)
	stop := c.farm("f1")
	c.askWeb(store.SweepOrphan, "n1", 1)
	consultest.Eventually(t, soon, func() error {
		recs, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
		for i := range recs {
			if err == nil && recs[i].Value.RunState != pod.Stopped {
				err = fmt.Errorf("%s has no intent to stop", recs[i].Value.Identity)
			}
		}
		return err
	})
	stop()
	c.farm("f2")
	letStop()
	c.nothingLeft("web")
}

// An older version of a reservation is brought up to date, because the capacity of the shares that it lacks could be
// given to other pods.
func TestAnOlderReservationIsMended(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.farm("f1")
	c.apply("web", testManifest("web", 8080), replicas(1))
	c.converged("web", 1)
	key := c.store.Keys().Reservations.Key("n1")
	old, err := c.client.Get(t.Context(), key, consul.Consistent)
	if err != nil {
		t.Fatal(err)
	}
	c.apply("web", testManifest("web", 8081), replicas(1))
	ports := func(want ...int) {
		t.Helper()
		consultest.Eventually(t, soon, func() error {
			found, _, err := c.store.ReservationsOf(t.Context(), []string{"n1"})
			if h := found["n1"].Value.Claims["web/main.0"]; err == nil && !slices.Equal(h.Ports, want) {
				err = fmt.Errorf("%+v", h)
			}
			return err
		})
	}
	ports(8081)
	c.put(key, old.Value)
	c.askWeb(store.RepairReservation, "n1", 0)
	ports(8081)
}
