package farm_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

const (
	planners     = 8
	plannedNodes = 50
	plannedRCs   = 24
)

// sound reports what is wrong with the nodes' reservations: a port that two identities have, or more than a node offers.
func (c *cluster) sound(nodes map[string]*node.View) error {
	taken, _, err := c.store.ListReservations(c.t.Context())
	if err != nil {
		return err
	}
	for name, res := range taken {
		owner := map[int]string{}
		for key, h := range res.Claims {
			for _, port := range h.Ports {
				if other := owner[port]; other != "" {
					return fmt.Errorf("port %d of %s is given to %s and %s", port, name, other, key)
				}
				owner[port] = key
			}
		}
		used := scheduler.UsageOf(nodes[name], res)
		if limit := nodes[name].Capacity; used.Slots > limit.Slots || used.CPU > limit.CPU {
			return fmt.Errorf("%s offers %+v, and %+v is taken", name, limit, used)
		}
	}
	return nil
}

// unleaked reports shares that no placement explains, and placements without one.
func (c *cluster) unleaked() error {
	taken, _, err := c.store.ListReservations(c.t.Context())
	if err != nil {
		return err
	}
	placed, _, err := c.store.Pods.List(c.t.Context(), store.Consistent)
	if err != nil {
		return err
	}
	there := map[store.At]bool{}
	for i := range placed {
		p := &placed[i].Value
		there[store.At{Node: p.Node, Identity: p.Identity}] = true
		for _, g := range p.Ghosts {
			there[store.At{Node: g.Node, Identity: p.Identity}] = true
		}
	}
	for name, res := range taken {
		for _, h := range res.Claims {
			at := store.At{Node: name, Identity: h.Pod}
			if !there[at] {
				return fmt.Errorf("%s holds a share for %s, which is not there", name, h.Pod)
			}
			delete(there, at)
		}
	}
	if len(there) > 0 {
		return fmt.Errorf("%d copies have no share, such as %v", len(there), there)
	}
	return nil
}

// Eight farms place on the same fifty nodes, which have room for little more, and are killed and started at random: no port is given twice, nothing is given that a
// node does not have, and in the end each share has its pod, one that was left behind included.
func TestPlannersOnTheSameNodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	views := map[string]*node.View{}
	ready := make(chan struct{})
	fleet := simnode.Fleet{
		Name: "n", Size: plannedNodes, TTL: ttl, StartTime: 10 * time.Millisecond,
		Prepare: func(_ int, record *node.Node) {
			record.Capacity, record.PortRange = node.Capacity{Slots: 6, CPU: 400}, node.PortRange{Min: 20000, Max: 20007}
			views[record.Name] = &node.View{Node: *record}
		},
		OnReady: func() {
			select {
			case <-ready:
			default: // a later tenure
				close(ready)
			}
		},
	}
	fleet.Client, fleet.Store = c.connect()
	c.background(fleet.Run)
	<-ready
	stops := make([]func(), planners)
	for i := range stops {
		stops[i] = c.farm(fmt.Sprint("f", i))
	}
	planned := func(i, generation int) (string, *manifest.Manifest, func(*rc.RC)) {
		id := fmt.Sprint("rc-", i)
		m := sized(id, 0, manifest.Millicores(50+10*(i%5)))
		m.Ports = []manifest.Port{{Name: "http", Dynamic: true}}
		if i%4 == 0 {
			m.Ports = append(m.Ports, manifest.Port{Name: "admin", Port: 9000 + i%8})
		}
		return id, m, replicas(6 + (i+generation)%5)
	}
	rng := rand.New(rand.NewPCG(7, 7))
	generation := 0
	for ; generation < 5; generation++ {
		for i := range plannedRCs {
			c.apply(planned(i, generation))
		}
		for range 2 {
			at := rng.IntN(planners)
			stops[at]()
			if err := c.sound(views); err != nil {
				t.Fatal(err)
			}
			stops[at] = c.farm(fmt.Sprint("f", at))
		}
	}
	leaked := pod.Identity{RCID: "rc-0", Role: "main", Index: 99}
	c.claim(slices.Min(slices.Collect(maps.Keys(views))), map[string]node.Claim{leaked.String(): {Pod: leaked, CPU: 1}})
	for i := range plannedRCs {
		c.is(fmt.Sprint("rc-", i), rc.Converged, int64(generation))
	}
	if err := c.sound(views); err != nil {
		t.Fatal(err)
	}
	consultest.Eventually(t, soon, c.unleaked)
}
