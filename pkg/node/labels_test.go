package node_test

import (
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/node"
)

var drawLabels = rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "ab"}),
	rapid.SampledFrom([]string{"", "1", "b", "1b"}), 0, 3)

// Labels have the same version if and only if they are the same. A layer without labels is no exception.
func TestLabelVersion(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawLabels.Draw(t, "a"), drawLabels.Draw(t, "b")
		if same := node.LabelVersion(a) == node.LabelVersion(b); same != maps.Equal(a, b) {
			t.Fatalf("%v and %v: %s and %s", a, b, node.LabelVersion(a), node.LabelVersion(b))
		}
		if node.LabelVersion(a) == "" {
			t.Fatalf("%v has no version", a)
		}
	})
	if got := node.LabelVersion(map[string]string{"rack": "a"}); got != "09579aaf44f8e2cc" {
		t.Errorf("version %s: all builds must make the same of the same labels", got)
	}
}

// A reservation accepts only the labels whose versions it has, in each layer. If it has no version, it accepts any
// labels.
func TestLabelVersionsAccept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		a, b node.LabelVersions
		want bool
	}{
		"the same": {
			node.LabelVersions{Own: "1", Operators: "2"},
			node.LabelVersions{Own: "1", Operators: "2"},
			true,
		},
		"other own": {
			node.LabelVersions{Own: "1", Operators: "2"},
			node.LabelVersions{Own: "3", Operators: "2"},
			false,
		},
		"others of the operators": {
			node.LabelVersions{Own: "1", Operators: "2"},
			node.LabelVersions{Own: "1", Operators: "3"},
			false,
		},
		"no versions": {node.LabelVersions{}, node.LabelVersions{Own: "1", Operators: "2"}, true},
		"no own version": {
			node.LabelVersions{Operators: "2"},
			node.LabelVersions{Own: "1", Operators: "2"},
			true,
		},
		"no own version, others": {
			node.LabelVersions{Operators: "3"},
			node.LabelVersions{Own: "1", Operators: "2"},
			false,
		},
	} {
		if c.a.Accepts(c.b) != c.want || c.b.Accepts(c.a) != c.want {
			t.Errorf("%s: %t, %t, want %t", name, c.a.Accepts(c.b), c.b.Accepts(c.a), c.want)
		}
	}
}

// The returned reservation has the operators' settings. Nothing else in it has changed.
func TestAReservationGetsTheOperatorsSettings(t *testing.T) {
	t.Parallel()
	ops := node.Ops{Name: "n1", Labels: map[string]string{"rack": "a"}, Drain: &node.Drain{}}
	before := node.Reservation{
		Labels: node.LabelVersions{Own: "own", Operators: "old"},
		Claims: map[string]node.Claim{"web/main.0": {}},
	}
	after := before.WithOps(ops)
	versions := node.NewView(node.Node{}, ops, true).LabelVersions
	if !after.Ineligible || after.Labels.Own != "own" || after.Labels.Operators != versions.Operators ||
		len(after.Claims) != 1 {
		t.Errorf("%+v", after)
	}
	versions.Own = "own"
	if before.Agrees(true, versions) || before.Agrees(false, versions) || after.Agrees(false, versions) ||
		!after.Agrees(true, versions) {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if before.Ineligible || before.Labels.Operators != "old" {
		t.Errorf("what it was made from has changed: %+v", before)
	}
}
