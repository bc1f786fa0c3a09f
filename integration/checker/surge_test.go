package checker

import "testing"

// If a pod's preparer is away, the pod may be replaced even without surge left, because the old copy does not count. A
// move beside a living preparer would add a pod.
func TestSurgeOfReplacedPods(t *testing.T) {
	t.Parallel()
	const rule = "P6 above the surge"
	for name, c := range map[string]struct {
		left       fields // the ghost on the node that the pod moves off
		dies, adds bool
		rule       string
	}{
		"its preparer is away": {left: fields{"node": "n1", "lost": true}, dies: true},
		"its preparer is away, and one is added": {
			left: fields{"node": "n1", "lost": true},
			dies: true, adds: true, rule: rule,
		},
		"its preparer lives": {left: fields{"node": "n1"}, rule: rule},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.change(1, 0, fields{"max_surge": 0}) // now there is one pod too many
			if c.dies {
				w.dies()
			}
			w.txn(kv("lock", "nodes/0/n3", fields{
				"name": "n3", "capacity": fields{"slots": 5},
				"nonce": "n0", "consul_node": "n3",
			}).by("s-f2"))
			p := placed("n3", running, 30)
			p["ghosts"] = []fields{c.left}
			ops := []Op{
				kv("check-index", "schema", nil).at(w.schema), kv("cas", podKey, p).at(w.pod),
				kv("cas", "reservations/n3", holding("c/main.0", "c/main.1")),
			}
			if c.adds {
				other := placed("n3", running, 30)
				other["index"], other["ports"] = 1, nil
				ops = append(ops, kv("cas", "pods/c/main.1", other))
			}
			w.txn(w.fenced(ops...)...)
			if got := w.promises()[rule]; (got > 0) != (c.rule != "") {
				t.Errorf("found %v, expected %q", w.promises(), c.rule)
			}
		})
	}
}
