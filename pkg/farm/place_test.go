package farm_test

import (
	"fmt"
	"maps"
	"testing"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/deploy"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A farm places pods on the nodes that the preview shows, one document after the other on the same nodes. No two nodes
// are equally full.
func TestPodsGoWhereThePreviewShows(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for i, cpu := range []int64{1000, 2000, 4000, 8000, 16000, 3000} {
		name := fmt.Sprintf("n%d", i)
		n := &simnode.Node{TTL: ttl, Record: node.Node{
			Name: name, Labels: map[string]string{"rack": string("ab"[i%2])},
			Capacity: node.Capacity{Slots: 100, CPU: cpu}, Address: "127.0.0.1",
		}}
		n.Client, n.Store = c.connect()
		c.nodes[name] = n
		c.node(name, nil, nil)
	}
	if _, err := c.store.EnsureSchema(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.farm("f1")
	consultest.Eventually(t, soon, func() error {
		state, _, err := deploy.State(t.Context(), c.store)
		for name := range c.nodes {
			if v := state.Nodes[name]; err == nil && (v == nil || !v.Alive || !v.Spoke(state.Epoch)) {
				err = fmt.Errorf("%s: %+v", name, v)
			}
		}
		return err
	})
	two, three := 2, 3
	for _, doc := range []struct {
		name   string
		port   int
		change func(*rc.RC)
	}{
		{
			"spread", 0,
			func(r *rc.RC) { replicas(5)(r); r.Spread = rc.Spread{Label: "rack", Skew: 1, When: rc.Require} },
		},
		{
			"prefers", 0,
			func(r *rc.RC) { replicas(3)(r); r.Affinity = []rc.Preference{{Selector: "rack=b", Weight: 5}} },
		},
		{"packed", 0, func(r *rc.RC) { replicas(3)(r); r.Placing = rc.PlacePack }},
		{"port", 8080, func(r *rc.RC) { replicas(4)(r); r.NodeSelector = "rack=a" }}, // there are three such nodes
		{"groups", 0, func(r *rc.RC) {
			r.ReplicaGroups = []rc.ReplicaGroup{
				{Role: "primary", Count: &two, Affinity: []rc.Preference{{Selector: "rack=a", Weight: 1}}},
				{Role: "read", Count: &three, Spread: rc.Spread{Label: "rack"}},
			}
		}},
		{"each", 0, onEach("")},
	} {
		r := rc.RC{
			Name: doc.name, Strategy: rc.Dynamic,
			ReplicaGroups: []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: new(int)}},
		}
		doc.change(&r)
		if r.Mode == rc.EachNode {
			r.NodeSelector = ""
		}
		m := testManifest(doc.name, doc.port)
		m.Launchables[0].Resources.CPU = 100
		if doc.name == "spread" {
			m.Launchables[0].Resources.CPU = 500
		}
		state, corrupt, err := deploy.State(t.Context(), c.store)
		if err != nil || len(corrupt) > 0 {
			t.Fatal(err, corrupt)
		}
		shown, err := inspect.Place(rc.SpecOf(&r, m), nil, state)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]int{}
		for _, g := range append(shown.Groups, shown.GroupPlacing) {
			for _, n := range g.Nodes {
				if n.Gets > 0 {
					want[n.Name] += n.Gets
				}
			}
		}
		c.apply(doc.name, m, func(rec *rc.RC) {
			doc.change(rec)
			rec.NodeSelector = r.NodeSelector
		})
		c.statusOf(doc.name, func(st *rc.Status) bool { return st.Available == shown.Found && st.Available > 0 })
		recs, _, err := c.store.Pods.List(t.Context(), store.Consistent, doc.name)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int{}
		for _, rec := range recs {
			got[rec.Value.Node]++
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: pods are on %v, want %v", doc.name, got, want)
		}
	}
}
