package checker

import (
	"testing"
	"time"
)

// n2's own label is rack=a.
func (w *world) labels(labels fields) { w.txn(kv("set", "nodeops/0/n2", fields{"labels": labels})) }

// A pod may be placed on n2 if n2's labels match at that moment. Operators' labels take precedence over n2's own.
func TestAPodIsPlacedByPresentLabels(t *testing.T) {
	t.Parallel()
	const rule = "P3 placed where the selector does not match"
	for name, c := range map[string]struct {
		selector string
		act      func(w *world)
		adopted  bool
		rule     string
	}{
		"any node":                   {"", func(w *world) { w.labels(fields{"rack": "b"}) }, false, ""},
		"its own label":              {"rack=a", func(*world) {}, false, ""},
		"another":                    {"rack=b", func(*world) {}, false, rule},
		"a label that it lacks":      {"disk=ssd", func(*world) {}, false, rule},
		"operators added it":         {"disk=ssd", func(w *world) { w.labels(fields{"disk": "ssd"}) }, false, ""},
		"operators changed it":       {"rack=b", func(w *world) { w.labels(fields{"rack": "b"}) }, false, ""},
		"operators just changed it":  {"rack=a", func(w *world) { w.labels(fields{"rack": "b"}) }, false, rule},
		"what was found is not told": {"rack=b", func(*world) {}, true, ""},
		"operators took it back": {"rack=b", func(w *world) {
			w.labels(fields{"rack": "b"})
			w.labels(nil)
		}, false, rule},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.txn(kv("set", "nodes/0/n2", fields{
				"name": "n2", "capacity": fields{"slots": 9}, "nonce": "n0",
				"consul_node": "n2", "labels": fields{"rack": "a"},
			}))
			w.change(2, 2, fields{"node_selector": c.selector})
			c.act(w)
			p := placed("n2", running, 30)
			p["index"] = 1
			if c.adopted {
				p["adopted_at_generation"] = 2
			}
			w.txn(w.fenced(kv("check-index", "schema", nil).at(w.schema), kv("cas", "pods/c/main.1", p),
				kv("set", "reservations/n2", holding("c/main.1")))...)
			r := w.verdict()
			if found := r.Count(); (found[rule] > 0) != (c.rule != "") {
				t.Errorf("found %v, expected %q", found, c.rule)
			}
			if looked := r.Checked[ruleSelected] > 0; looked != (c.selector != "" && !c.adopted) {
				t.Errorf("looked: %t", looked)
			}
		})
	}
}

// A pod may be stopped because its node does not match, now or a moment ago.
func TestAPodMayStopBecauseOfLabels(t *testing.T) {
	t.Parallel()
	const rule = "P4 stop that nobody asked for"
	for name, c := range map[string]struct {
		act  func(w *world)
		rule string
	}{
		"it matches":       {func(*world) {}, rule},
		"it does not":      {func(w *world) { w.labels1(fields{"rack": "b"}) }, ""},
		"it matches again": {func(w *world) { w.labels1(fields{"rack": "b"}); w.labels1(nil) }, ""},
		"it matches again for long": {func(w *world) {
			w.labels1(fields{"rack": "b"})
			w.labels1(nil)
			w.late += heardLate + time.Second
		}, rule},
		"another label changed": {func(w *world) { w.labels1(fields{"disk": "b"}); w.labels1(nil) }, rule},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.txn(kv("set", "nodes/0/n1", fields{
				"name": "n1", "capacity": fields{"slots": 9}, "nonce": "n0",
				"consul_node": "n1", "labels": fields{"rack": "a"},
			}))
			w.change(2, 1, fields{"node_selector": "rack=a", "min_available": 0})
			c.act(w)
			w.stop(20)
			r := w.verdict()
			if found := r.Count(); (found[rule] > 0) != (c.rule != "") {
				t.Errorf("found %v, expected %q", found, c.rule)
			}
		})
	}
}

func (w *world) labels1(labels fields) { w.txn(kv("set", "nodeops/0/n1", fields{"labels": labels})) }

func TestRelabellingIsCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.labels(fields{"rack": "b"})
	w.txn(kv("set", "nodeops/0/n2", fields{"labels": fields{"rack": "b"}, "unschedulable": true}))
	w.labels(nil)
	if r := w.verdict(); r.Relabelled != 2 {
		t.Errorf("%d times, want 2", r.Relabelled)
	}
}
