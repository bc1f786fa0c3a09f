package node_test

import (
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/node"
)

var drawLabels = rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "ab"}), rapid.SampledFrom([]string{"", "1", "b", "1b"}), 0, 3)

func drawStamps(t *rapid.T) node.Stamps {
	if rapid.Bool().Draw(t, "without stamps") {
		return node.Stamps{}
	}
	return node.Stamps{Own: node.LabelStamp(drawLabels.Draw(t, "own")), Operators: node.LabelStamp(drawLabels.Draw(t, "operators'"))}
}

// Labels have the same stamp if and only if they are the same. None are like any others.
func TestLabelStamp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawLabels.Draw(t, "a"), drawLabels.Draw(t, "b")
		if same := node.LabelStamp(a) == node.LabelStamp(b); same != maps.Equal(a, b) {
			t.Fatalf("%v and %v: %s and %s", a, b, node.LabelStamp(a), node.LabelStamp(b))
		}
		if node.LabelStamp(a) == "" {
			t.Fatalf("%v has no stamp", a)
		}
	})
	if got := node.LabelStamp(map[string]string{"rack": "a"}); got != "09579aaf44f8e2cc" {
		t.Errorf("stamp %s: all versions must make the same of the same labels", got)
	}
}

// A reservation is for the labels that it was stamped with, in each layer. One without a stamp is for any.
func TestStampsAccept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		a, b node.Stamps
		want bool
	}{
		"the same":                {node.Stamps{Own: "1", Operators: "2"}, node.Stamps{Own: "1", Operators: "2"}, true},
		"other own":               {node.Stamps{Own: "1", Operators: "2"}, node.Stamps{Own: "3", Operators: "2"}, false},
		"others of the operators": {node.Stamps{Own: "1", Operators: "2"}, node.Stamps{Own: "1", Operators: "3"}, false},
		"no stamps":               {node.Stamps{}, node.Stamps{Own: "1", Operators: "2"}, true},
		"no own stamp":            {node.Stamps{Operators: "2"}, node.Stamps{Own: "1", Operators: "2"}, true},
		"no own stamp, others":    {node.Stamps{Operators: "3"}, node.Stamps{Own: "1", Operators: "2"}, false},
	} {
		if c.a.Accepts(c.b) != c.want || c.b.Accepts(c.a) != c.want {
			t.Errorf("%s: %t, %t, want %t", name, c.a.Accepts(c.b), c.b.Accepts(c.a), c.want)
		}
	}
}

// What operators say is in the reservation afterwards, and nothing else of it has changed.
func TestTold(t *testing.T) {
	t.Parallel()
	ops := node.Ops{Name: "n1", Labels: map[string]string{"rack": "a"}, Drain: &node.Drain{}}
	before := node.Reservation{Labels: node.Stamps{Own: "own", Operators: "old"}, Claims: map[string]node.Claim{"web/main.0": {}}}
	after := before.AsOperatorsSay(ops)
	stamps := node.NewView(node.Node{}, ops, true).Stamps
	if !after.Ineligible || after.Labels.Own != "own" || after.Labels.Operators != stamps.Operators || len(after.Claims) != 1 {
		t.Errorf("%+v", after)
	}
	stamps.Own = "own"
	if before.Agrees(true, stamps) || before.Agrees(false, stamps) || after.Agrees(false, stamps) || !after.Agrees(true, stamps) {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if before.Ineligible || before.Labels.Operators != "old" {
		t.Errorf("what it was made from has changed: %+v", before)
	}
}
