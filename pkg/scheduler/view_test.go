package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

func viewed(names ...string) map[string]*node.View {
	nodes := map[string]*node.View{}
	for i, name := range names {
		nodes[name] = node.NewView(node.Node{
			Name: name, Address: "10.0.0." + name[1:], Labels: map[string]string{"rack": "a", "disk": "ssd"},
			Capacity: node.Capacity{Slots: 10 * (i + 1)},
		}, node.Ops{}, true)
	}
	return nodes
}

// A view shows the nodes with the operators' settings, and excludes the same nodes as the rule.
func TestViewShowsNodesAsTheRuleDoes(t *testing.T) {
	t.Parallel()
	nodes := viewed("n1", "n2", "n3", "n4")
	nodes["n2"].SetOps(node.Ops{Labels: map[string]string{"rack": "b"}})
	nodes["n3"].SetOps(node.Ops{Unschedulable: true})
	sel := labels.SelectorFromSet(labels.Set{"rack": "a"})
	v := scheduler.NewView(scheduler.Cluster{
		Ask: scheduler.Ask{RCID: "rc", Spread: "rack"}, Nodes: nodes, Rule: &scheduler.Rule{Selector: sel},
		Left: scheduler.Reasons{scheduler.NotAlive: 2},
		Pods: slices.Values([]scheduler.Placed{{Pod: identity("rc", 0), Node: "n1"}}),
	})
	for range 2 {
		eligible, excluded := v.Eligible()
		if len(eligible) != 2 || eligible[0].Name() != "n1" || eligible[1].Name() != "n4" ||
			excluded.String() != "drained: 1, not alive: 2, selector: 1" {
			t.Fatalf("eligible %v, others %s", eligible, excluded)
		}
	}
	n2, ok := v.Node("n2")
	if !ok || n2.Label("rack") != "b" || n2.Matches(sel) || n2.Address() != "10.0.0.2" || n2.Capacity().Slots != 20 ||
		!n2.Alive() || v.Excludes(n2) != scheduler.Selector {
		t.Errorf("n2 is shown as %+v", n2)
	}
	n2.Labels()["rack"] = "changed"
	if n2.Label("rack") != "b" || len(n2.Labels()) != 2 {
		t.Error("labels of a view can be changed")
	}
	if _, ok := v.Node("n9"); ok || len(slices.Collect(v.Nodes())) != 4 || len(slices.Collect(v.Pods())) != 1 {
		t.Errorf("the view has %d nodes", len(slices.Collect(v.Nodes())))
	}
	for range v.Nodes() {
		break // the iteration ends here
	}
	all := scheduler.NewView(scheduler.Cluster{Nodes: nodes})
	if eligible, excluded := all.Eligible(); len(eligible) != 4 || len(excluded) != 0 ||
		len(slices.Collect(all.Pods())) != 0 {
		t.Errorf("without a rule: %v, %v", eligible, excluded)
	}
}

// The built-in scheduler returns the eligible nodes of the view, and keeps no books.
func TestByLabelKeepsNoBooks(t *testing.T) {
	t.Parallel()
	var s scheduler.Scheduler = new(scheduler.ByLabel)
	v := scheduler.NewView(scheduler.Cluster{Nodes: viewed("n2", "n1")})
	if names, refused, err := s.EligibleNodes(t.Context(), v); err != nil ||
		!slices.Equal(names, []string{"n1", "n2"}) || len(refused) != 0 {
		t.Errorf("%v, %v, %v", names, refused, err)
	}
	if _, err := s.AllocateNodes(t.Context(), scheduler.Owner{}, v, nil); !errors.Is(err, scheduler.ErrNoBooks) {
		t.Errorf("it allocates: %v", err)
	}
	if err := s.DeallocateNodes(t.Context(), scheduler.Owner{}, nil); err != nil {
		t.Error(err)
	}
	if _, keeps := s.(scheduler.Books); keeps {
		t.Error("it keeps books")
	}
}

// The cost of a view does not depend on the size of the cluster.
func TestAViewCopiesNothing(t *testing.T) {
	nodes := viewed("n1")
	for i := range 5000 {
		nodes[fmt.Sprint("m", i)] = nodes["n1"]
	}
	pods := func(yield func(scheduler.Placed) bool) {
		for range 5000 {
			if !yield(scheduler.Placed{Node: "n1"}) {
				return
			}
		}
	}
	sum := 0
	if n := testing.AllocsPerRun(10, func() {
		v := scheduler.NewView(scheduler.Cluster{Nodes: nodes, Pods: pods})
		for at := range v.Nodes() {
			sum += len(at.Label("rack"))
		}
		for p := range v.Pods() {
			sum += len(p.Node)
		}
	}); n > 5 || sum == 0 {
		t.Errorf("%v allocations", n)
	}
}

// smallFirst prefers small nodes. But a pod still goes to a node with the fewest pods of its controller.
type smallFirst struct{ scheduler.NoBooks }

func (smallFirst) EligibleNodes(_ context.Context, v *scheduler.View) ([]string, scheduler.Reasons, error) {
	nodes, others := v.Eligible()
	slices.SortStableFunc(nodes, func(a, b scheduler.Node) int { return a.Capacity().Slots - b.Capacity().Slots })
	var names []string
	for _, n := range nodes {
		names = append(names, n.Name())
	}
	return names, others, nil
}

// A scheduler without books, which decides in which order nodes are tried. A program with its own farm sets it as
// app.FarmConfig.Scheduler. A program beside the farms serves it with remote.Handler.
func ExampleScheduler() {
	var s scheduler.Scheduler = smallFirst{}
	v := scheduler.NewView(scheduler.Cluster{
		Ask: scheduler.Ask{RCID: "01m81", RCName: "web", Selector: "disk=ssd", Desired: 3},
		Nodes: map[string]*node.View{
			"large": {Alive: true, Node: node.Node{Name: "large", Capacity: node.Capacity{Slots: 64}}},
			"small": {Alive: true, Node: node.Node{Name: "small", Capacity: node.Capacity{Slots: 8}}},
		},
	})
	names, _, err := s.EligibleNodes(context.Background(), v)
	fmt.Println(names, err)
	// Output: [small large] <nil>
}
