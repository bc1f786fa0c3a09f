package checker

import (
	"maps"
	"testing"
)

// A controller with a pod on each node places a pod only on a node without one. Its pods do not move. A pod is stopped
// only if its node is drained or no longer matches the selector.
func TestAPodOnEachNode(t *testing.T) {
	t.Parallel()
	const (
		moved   = "P6 moved from its node"
		two     = "P6 two on one node"
		unasked = "P4 stop that nobody asked for"
		minimum = "P6 below the minimum"
	)
	second := func(node string) func(*world) {
		return func(w *world) {
			p := placed(node, running, 30)
			p["index"], p["ports"] = 1, fields{}
			w.txn(w.fenced(kv("check-index", "schema", nil).at(w.schema), kv("cas", "pods/c/main.1", p),
				kv("set", "reservations/"+node, holding("c/main.1")))...)
		}
	}
	drain := func(w *world) { w.txn(kv("set", "nodeops/0/n1", fields{"drain": fields{}})) }
	for name, c := range map[string]struct {
		act  func(w *world)
		rule string
	}{
		"another node has one too": {second("n2"), ""},
		"its node has two":         {second("n1"), two},
		"it moves": {func(w *world) {
			p := placed("n2", running, 30)
			p["ghosts"] = []fields{{"node": "n1"}}
			w.txn(w.fenced(kv("check-index", "schema", nil).at(w.schema), kv("cas", podKey, p).at(w.pod),
				kv("set", "reservations/n2", holding("c/main.0")))...)
		}, moved},
		"its node asks for it":   {func(w *world) { w.stop(20) }, unasked},
		"its node is drained":    {func(w *world) { drain(w); w.stop(20) }, ""},
		"its node is relabelled": {func(w *world) { w.labels1(fields{"rack": "b"}); w.stop(20) }, ""},
		"its node is cordoned": {func(w *world) {
			w.txn(kv("set", "nodeops/0/n1", fields{"unschedulable": true}))
			w.stop(20)
		}, unasked},
		"the minimum is what asks": {func(w *world) {
			w.change(3, 0, eachNode(fields{"min_available": 1}))
			w.stop(20)
		}, minimum},
		"and none does": {func(w *world) {
			w.change(3, 0, eachNode(fields{"min_available": 1}))
			drain(w)
			w.stop(20)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.txn(kv("set", "nodes/0/n1", fields{
				"name": "n1", "capacity": fields{"slots": 9}, "nonce": "n0",
				"consul_node": "n1", "labels": fields{"rack": "a"},
			}))
			w.txn(kv("set", "nodes/0/n2", fields{
				"name": "n2", "capacity": fields{"slots": 9}, "nonce": "n0",
				"consul_node": "n2", "labels": fields{"rack": "a"},
			}))
			w.change(2, 0, eachNode(fields{}))
			c.act(w)
			found := w.verdict().Count()
			for _, rule := range []string{moved, two, unasked, minimum} {
				if (found[rule] > 0) != (rule == c.rule) && (c.rule != minimum || rule != unasked) {
					t.Errorf("found %v, expected %q", found, c.rule)
				}
			}
		})
	}
}

func eachNode(more fields) fields {
	all := fields{"mode": "each-node", "replica_groups": nil, "node_selector": "rack=a"}
	maps.Copy(all, more)
	return all
}
