package farm_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// failing is a node on which no pod ever becomes available.
func failing(in pod.Intent) pod.Reality {
	r := pod.Reality{
		Identity: in.Identity, Digest: in.Digest, Revision: in.Revision, State: pod.StateCrashLooping, Hopeless: true,
		NeverAvailable: true, Message: "exec format error",
	}
	if in.State == pod.Stopped {
		r.State, r.Hopeless, r.NeverAvailable = pod.StateStopped, false, false
	}
	return r
}

// nodesOf returns the nodes of a controller's pods, sorted, and how many of the pods were never available on an earlier
// node.
func (c *cluster) nodesOf(id string) (nodes []string, tried int) {
	c.t.Helper()
	recs, corrupt, err := c.store.Pods.List(c.t.Context(), store.Consistent, id)
	if err != nil || len(corrupt) > 0 {
		c.t.Fatal(err, corrupt)
	}
	for i := range recs {
		p := &recs[i].Value
		if p.Tried() != nil {
			tried++
		}
		nodes = append(nodes, fmt.Sprintf("%s %s", p.Node, p.RunState))
	}
	slices.Sort(nodes)
	return nodes, tried
}

// Pods move off a machine on which they never become available. For later pods this machine is the last choice,
// although it is empty. Another controller may use it.
func TestABadMachineIsTheLastChoice(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n0", nil, failing)
	c.node("n1", nil, nil)
	c.node("n2", nil, nil)
	c.farm("f1")
	c.apply("web", testManifest("web", 0), replicas(3))
	c.converged("web", 3)
	c.apply("web", testManifest("web", 0), replicas(9))
	c.converged("web", 9)
	nodes, tried := c.nodesOf("web")
	if slices.Contains(nodes, "n0 running") || tried != 1 {
		t.Errorf("pods are on %v, %d of them were elsewhere before", nodes, tried)
	}
	c.apply("web", testManifest("web", 0), replicas(21)) // the other nodes have 20 slots
	consultest.Eventually(t, soon, func() error {
		if nodes, _ = c.nodesOf("web"); len(nodes) != 21 || !slices.Contains(nodes, "n0 running") {
			return fmt.Errorf("pods are on %v", nodes)
		}
		return nil
	})
}

// If no other node has capacity, the second node of a pod is its first. The pod has its own share there.
func TestTheSecondNodeMayBeTheFirst(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for i, react := range []func(pod.Intent) pod.Reality{failing, nil, nil} {
		c.node(fmt.Sprintf("n%d", i), nil, react)
	}
	c.farm("f1")
	c.apply("web", testManifest("web", 8080), replicas(3))
	consultest.Eventually(t, soon, func() error {
		nodes, tried := c.nodesOf("web")
		if want := []string{"n0 running", "n1 running", "n2 running"}; !slices.Equal(nodes, want) || tried != 1 {
			return fmt.Errorf("pods are on %v, %d were stopped", nodes, tried)
		}
		return nil
	})
}

// A machine on which no pod works empties at once, even if many new services are on it. The mass-stop breaker does not
// count these stops.
func TestManyServicesOnABadMachine(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n0", nil, failing)
	c.farm("f1")
	const services = 10
	for i := range services {
		c.apply(fmt.Sprintf("web%d", i), testManifest(fmt.Sprintf("web%d", i), 0), replicas(1))
	}
	consultest.Eventually(t, soon, func() error {
		for i := range services {
			if nodes, _ := c.nodesOf(fmt.Sprintf("web%d", i)); !slices.Equal(nodes, []string{"n0 running"}) {
				return fmt.Errorf("pods of web%d are on %v", i, nodes)
			}
		}
		return nil
	})
	c.node("n1", nil, nil)
	c.node("n2", nil, nil)
	for i := range services {
		c.converged(fmt.Sprintf("web%d", i), 1)
	}
	if b, err := c.store.Breaker.Get(t.Context(), store.Consistent); err != nil || b.Value.Tripped {
		t.Errorf("breaker %+v, %v", b.Value, err)
	}
}
