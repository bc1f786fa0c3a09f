package node_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/node"
)

// Matches gives the same result as a selector on a copy of all labels, with the operators' labels on top. It copies no
// labels.
func TestMatches(t *testing.T) {
	t.Parallel()
	selectors := []string{"", "a=1", "a!=1", "a in (1,2)", "a notin (1,2)", "a", "!a", "a=1,b", "a>1", "b!=2,!c"}
	draw := rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c"}),
		rapid.SampledFrom([]string{"", "1", "2", "3"}), 0, 3)
	rapid.Check(t, func(t *rapid.T) {
		v := &node.View{Node: node.Node{Labels: draw.Draw(t, "own")}, Ops: node.Ops{Labels: draw.Draw(t, "operators'")}}
		sel, err := labels.Parse(rapid.SampledFrom(selectors).Draw(t, "selector"))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := v.Matches(sel), sel.Matches(labels.Set(v.AllLabels())); got != want {
			t.Fatalf("%v and %v match %q: %v, want %v", v.Labels, v.Ops.Labels, sel, got, want)
		}
	})
}

func TestContainers(t *testing.T) {
	t.Parallel()
	var n node.Node
	if n.RunsContainers() || n.WhyNoContainers() != "not reported" {
		t.Errorf("%q", n.WhyNoContainers())
	}
	n.Containers = &node.Containers{Runc: "1.1.5"}
	if !n.RunsContainers() || n.WhyNoContainers() != "" {
		t.Errorf("%q", n.WhyNoContainers())
	}
	n.Name = "n1"
	n.Containers = &node.Containers{Lacks: []string{"no runc: install it", "no overlay mounts: /data: move it"}}
	if n.RunsContainers() || n.WhyNoContainers() != "no runc, no overlay mounts" || n.Check() != nil {
		t.Errorf("%q, %v", n.WhyNoContainers(), n.Check())
	}
	if cut := n.Fit(); len(cut) > 0 {
		t.Errorf("cut: %v", cut)
	}
	shared := n.Containers
	for range 20 {
		shared.Lacks = append(shared.Lacks, strings.Repeat("x", 2000))
	}
	if n.Check() == nil {
		t.Error("a long list is allowed")
	}
	cut := n.Fit()
	if err := n.Check(); err != nil || len(cut) != 1 || n.RunsContainers() || len(shared.Lacks) != 22 {
		t.Errorf("%v, cut: %v, shared: %d", err, cut, len(shared.Lacks))
	}
}
