package farm_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// portsOf returns, by node, which pod has which port, from the placements. It fails the test if a number is used twice.
func (c *cluster) portsOf(ids ...string) map[string]map[int]string {
	c.t.Helper()
	used := map[string]map[int]string{}
	for _, id := range ids {
		recs, corrupt, err := c.store.Pods.List(c.t.Context(), store.Consistent, id)
		if err != nil || len(corrupt) > 0 {
			c.t.Fatal(err, corrupt)
		}
		for _, r := range recs {
			p := r.Value
			if used[p.Node] == nil {
				used[p.Node] = map[int]string{}
			}
			for name, port := range p.Ports {
				what := p.Identity.String() + " " + name
				if other := used[p.Node][port]; other != "" || port == 0 {
					c.t.Errorf("P3: on %s port %d is given to %s and to %s", p.Node, port, other, what)
				}
				used[p.Node][port] = what
			}
		}
	}
	return used
}

// Several farms give out dynamic ports at the same time. Each node has six port numbers. A static port lies in the
// middle of the range.
func TestDynamicPorts(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for _, name := range []string{"n1", "n2"} {
		c.node(name, nil, nil)
	}
	c.farm("f1")
	c.farm("f2")
	two := testManifest("two", 0)
	two.Ports = []manifest.Port{{Name: "http", Dynamic: true}, {Name: "grpc", Dynamic: true}}
	c.apply("static", testManifest("static", 20003), replicas(2))
	c.converged("static", 2) // first, because a dynamic port could take its number
	c.apply("a", two, replicas(2))
	c.apply("b", two, replicas(2))
	c.converged("a", 2)
	c.converged("b", 2)
	before := c.portsOf("static", "a", "b")
	for name, ports := range before {
		if len(ports) != 5 {
			t.Errorf("%s has ports %v, want five", name, ports)
		}
		for port := range ports {
			if port < 20000 || port > 20005 {
				t.Errorf("%s gave %d away, which is not in its range", name, port)
			}
		}
	}

	// One port is left on each node, and each of these pods needs more.
	c.apply("c", two, replicas(1))
	consultest.Eventually(t, soon, func() error {
		st, err := c.store.Statuses.Get(t.Context(), store.Default, "c")
		if err != nil {
			return err
		}
		for _, cond := range st.Value.Conditions {
			if cond.Type == rc.InsufficientNodes && strings.Contains(cond.Reason, "ports: 2") {
				return nil
			}
		}
		return fmt.Errorf("status %+v", st.Value)
	})

	// A named port keeps its number over an upgrade. A removed port frees its number.
	one := testManifest("two", 1)
	one.Ports = []manifest.Port{{Name: "http", Dynamic: true}}
	c.apply("a", one, replicas(2))
	c.converged("a", 2)
	after := c.portsOf("static", "a", "b")
	for name, ports := range before {
		for port, what := range ports {
			if strings.HasPrefix(what, "a/") && strings.HasSuffix(what, "grpc") {
				delete(ports, port)
			}
		}
		if !maps.Equal(ports, after[name]) {
			t.Errorf("%s: ports are %v, want %v", name, after[name], ports)
		}
	}
	c.converged("c", 1) // the freed ports are enough for it
	c.portsOf("static", "a", "b", "c")
}

// A pod may listen on a port that it does not declare; its node then reports that port as in use. An upgrade that
// declares the port succeeds. No other pod with that port is placed there, and its status names the port.
func TestAnUpgradeDeclaresAPortThatThePodHas(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	record := node.Node{Name: "n1", Capacity: node.Capacity{Slots: 10}, Address: "127.0.0.1", PortsInUse: []int{9100}}
	c.nodes["n1"] = &simnode.Node{Record: record, TTL: ttl}
	c.nodes["n1"].Client, c.nodes["n1"].Store = c.connect()
	c.node("n1", nil, nil)
	c.farm("f1")
	c.apply("web", testManifest("web", 8080), replicas(1))
	c.apply("other", testManifest("other", 8081), replicas(1))
	c.converged("web", 1)
	c.converged("other", 1)
	with := func(id string, port int) *manifest.Manifest {
		m := testManifest(id, port)
		m.Ports = append(m.Ports, manifest.Port{Name: "metrics", Port: 9100})
		return m
	}
	c.apply("new", with("new", 8082), replicas(1))
	c.condition("new", rc.InsufficientNodes, true, "ports: 1")

	c.apply("web", with("web", 8080), replicas(1))
	c.converged("web", 1)
	c.apply("other", with("other", 8081), replicas(1))
	c.condition("other", rc.Blocked, true, "n1 has no room: ports: port 9100 is taken by web/main.0")
}
