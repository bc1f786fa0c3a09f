package farm_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"path"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
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

// unsound returns what is wrong with a node's reservation: a port that two identities have, or more than the node
// offers.
func unsound(v *node.View, res node.Reservation) error {
	owner := map[int]string{}
	for key, h := range res.Claims {
		for _, port := range h.Ports {
			if other := owner[port]; other != "" {
				return fmt.Errorf("port %d of %s is given to %s and %s", port, v.Name, other, key)
			}
			owner[port] = key
		}
	}
	used, limit := scheduler.UsageOf(v, res), v.Capacity
	if used.Slots > limit.Slots || used.CPU > limit.CPU || used.Memory > limit.Memory {
		return fmt.Errorf("%s offers %+v, and %+v is taken", v.Name, limit, used)
	}
	return nil
}

// judgeShares checks each version of the nodes' reservations that a query without pauses sees, and counts the versions.
func (c *cluster) judgeShares(ctx context.Context, nodes map[string]*node.View, versions *atomic.Int64) error {
	judged := map[string]uint64{}
	for index := "0"; ; {
		url := fmt.Sprintf("http://%s/v1/kv/%s?recurse&wait=5s&index=%s", c.addr, c.store.Keys().Reservations.Key(),
			index)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		var pairs []consul.Pair
		if resp.StatusCode == http.StatusOK { // 404: there is no reservation yet
			err = json.NewDecoder(resp.Body).Decode(&pairs)
		}
		_ = resp.Body.Close()
		if err != nil {
			return err
		}
		index = resp.Header.Get("X-Consul-Index")
		for _, p := range pairs {
			v := nodes[path.Base(p.Key)]
			if v == nil || judged[p.Key] == p.ModifyIndex {
				continue
			}
			judged[p.Key] = p.ModifyIndex
			versions.Add(1)
			var res node.Reservation
			if err := json.Unmarshal(p.Value, &res); err != nil {
				return err
			}
			if err := unsound(v, res); err != nil {
				return fmt.Errorf("at index %d: %w", p.ModifyIndex, err)
			}
		}
	}
}

// planner is a farm that can be killed.
type planner struct {
	id      string
	line    *consultest.Proxy
	journal *simnode.Journal
	stop    func()
	struck  atomic.Bool // its last batch met the verdict
}

func (c *cluster) planner(id string, journal *simnode.Journal) *planner {
	p := &planner{id: id, line: consultest.StartProxy(c.t, c.addr), journal: journal}
	p.stop = c.farmBy(id, p.line.Addr, 500*time.Millisecond, journal)
	return p
}

// doom makes the planner's next batch with reservations its last request to Consul.
func (p *planner) doom(last consultest.Verdict) {
	p.line.Set(func(r *http.Request) consultest.Verdict {
		switch {
		case p.struck.Load():
			return consultest.CutBefore
		case r.URL.Path != "/v1/txn":
			return consultest.Forward
		}
		body, err := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if err != nil || !bytes.Contains(body, []byte(`"Verb":"check-session"`)) ||
			!bytes.Contains(body, []byte("/reservations/")) {
			return consultest.Forward
		}
		p.struck.Store(true)
		return last
	})
}

// kill ends the planner as if its machine died: its sessions and locks stay.
func (p *planner) kill() {
	p.line.Cut()
	p.stop()
}

// unleaked returns an error if there is a share without a placement, or a placement without a share.
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
				return fmt.Errorf("%s has a share for %s, which has no copy there", name, h.Pod)
			}
			delete(there, at)
		}
	}
	if len(there) > 0 {
		return fmt.Errorf("%d copies have no share, such as %v", len(there), there)
	}
	return nil
}

// leak adds a share without a placement to a node that has capacity for it. The share is checked like all others.
func (c *cluster) leak(nodes map[string]*node.View, leaked node.Claim) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		found, _, err := c.store.ReservationsOf(c.t.Context(), slices.Collect(maps.Keys(nodes)))
		if err != nil {
			return err
		}
		for name, rec := range found {
			res := rec.Value.Clone()
			if res.Claims[leaked.Pod.String()] = leaked; unsound(nodes[name], res) != nil {
				continue
			}
			_, err = c.client.Commit(c.t.Context(),
				[]consul.Op{consul.CAS(c.store.Keys().Reservations.Key(name), mustJSON(c.t, res), rec.Index)})
			return err
		}
		return errors.New("no node has capacity")
	})
}

// Eight farms place pods on the same fifty nodes, which have little spare capacity. The farms are killed and started at
// random. No port is given twice, and no node gives more than it has. In the end each share has its pod, even a share
// that was left behind. A killed farm leaves its sessions and locks. It also leaves a batch in flight: Consul never
// gets the batch, or the answer is lost, or the batch arrives after later writes. Half of the farms start again and end
// their old sessions. For the others the TTL runs out while another farm takes over.
func TestPlannersOnTheSameNodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	views := map[string]*node.View{}
	ready := make(chan struct{})
	fleet := simnode.Fleet{
		Name: "n", Size: plannedNodes, TTL: ttl, StartTime: 10 * time.Millisecond,
		Prepare: func(_ int, record *node.Node) {
			record.Capacity = node.Capacity{Slots: 6, CPU: 400, Memory: 300}
			record.PortRange = node.PortRange{Min: 20000, Max: 20007}
			if views[record.Name] == nil { // later tenures must not change the views that judgeShares uses
				views[record.Name] = &node.View{Node: *record}
			}
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
	var versions atomic.Int64
	endJudging := c.background(func(ctx context.Context) error { return c.judgeShares(ctx, views, &versions) })
	farms := make([]*planner, planners)
	for i := range farms {
		farms[i] = c.planner(fmt.Sprint("f", i), &simnode.Journal{})
	}
	planned := func(i, generation int) (string, *manifest.Manifest, func(*rc.RC)) {
		id := fmt.Sprint("rc-", i)
		m := sized(id, 0, manifest.Millicores(50+10*(i%5)))
		m.Launchables[0].Resources.Memory = manifest.Bytes(30 + 10*((i+2)%5))
		m.Ports = []manifest.Port{{Name: "http", Dynamic: true}}
		if i%4 == 0 {
			m.Ports = append(m.Ports, manifest.Port{Name: "admin", Port: 9000 + i%8})
		}
		return id, m, replicas(6 + (i+generation)%5)
	}
	rng := rand.New(rand.NewPCG(7, 7))
	ends := []consultest.Verdict{consultest.CutBefore, consultest.CutAfter, consultest.Delay}
	struck, generation := 0, 0
	for ; generation < 5; generation++ {
		victims := rng.Perm(planners)[:2]
		for i, at := range victims {
			farms[at].doom(ends[(2*generation+i)%len(ends)])
		}
		for i := range plannedRCs {
			c.apply(planned(i, generation))
		}
		for i, at := range victims {
			dead := farms[at]
			dead.kill()
			if i == 0 {
				farms[at] = c.planner(dead.id, dead.journal)
			} else {
				farms[at] = c.planner(fmt.Sprint("f", planners+generation), &simnode.Journal{})
			}
			if !dead.struck.Load() {
				continue
			}
			struck++
			if ends[(2*generation+i)%len(ends)] == consultest.Delay {
				dead.line.Release(t)
			}
		}
	}
	leaked := pod.Identity{RCID: "rc-0", Role: "main", Index: 99}
	c.leak(views, node.Claim{Pod: leaked, CPU: 1})
	for i := range plannedRCs {
		c.is(fmt.Sprint("rc-", i), rc.Converged, int64(generation))
	}
	consultest.Eventually(t, soon, c.unleaked)
	endJudging()
	t.Logf("%d versions of reservations, %d of %d kills struck a batch", versions.Load(), struck, 2*generation)
	if struck == 0 || versions.Load() < plannedNodes {
		t.Error("too few versions or kills to prove anything")
	}
}
