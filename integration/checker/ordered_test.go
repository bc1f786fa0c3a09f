package checker

import (
	"testing"
	"time"
)

func orderedGroup(n int) fields {
	return fields{"replica_groups": []fields{{"role": "main", "count": n, "ordered": true}}}
}

// A node gets an intent to run an ordered index only while no other node has an intent for it.
func TestTwoCopiesOfAnOrderedIndex(t *testing.T) {
	t.Parallel()
	const rule = "P5 two copies of an ordered index"
	for name, c := range map[string]struct {
		ordered bool
		other   any // intent of n1
		want    bool
	}{
		"told to run":            {true, told(running, 10), true},
		"told to stop":           {true, told(stopped, 20), true},
		"told nothing":           {true, nil, false},
		"of a group without any": {false, told(stopped, 20), false},
	} {
		w := newWorld(t)
		more := fields{}
		if c.ordered {
			more = orderedGroup(1)
		}
		w.change(2, 1, more)
		ops := []Op{kv("set", "intent/n2/c/main.0", told(running, 30))}
		if c.other == nil {
			ops = append(ops, kv("delete", intentN1, nil))
		} else {
			ops = append(ops, kv("set", intentN1, c.other))
		}
		w.txn(w.fenced(ops...)...)
		if found := w.verdict().Count(); (found[rule] > 0) != c.want {
			t.Errorf("%s: found %v", name, found)
		}
	}
}

const (
	shortTTL = 6 * time.Second
	believes = 9 * time.Second // how long a node with shortTTL may count as in contact by its own clock
)

// stopping returns a manifest whose pods stop within 13 s after lost contact.
func stopping() fields {
	return fields{"launchables": []fields{{"stop_grace": "1s"}}, "disconnect": fields{"stop_after": "2s"}}
}

const stopsWithin = 13 * time.Second

// orderedWorld is a cluster whose only pod is of an ordered group, and has run on n1 since it became ordered.
func orderedWorld(t *testing.T, m fields) *world {
	t.Helper()
	w := newWorld(t)
	w.txn(kv("set", "manifests/d1", fields{"manifest": m}))
	w.change(2, 1, orderedGroup(1))
	for _, name := range []string{"n1", "n2"} {
		w.txn(kv("lock", "nodes/0/"+name, fields{
			"name": name, "capacity": fields{"slots": 2}, "nonce": "n0", "consul_node": name,
			"ttl": shortTTL.String(), "enforces_stop_after": true,
		}).by("s-" + name))
	}
	w.txn(w.fenced(kv("cas", podKey, placed("n1", running, 11)).at(w.pod), kv("set", intentN1, told(running, 11)))...)
	w.ran(running, 11)
	w.txn(kv("set", realityN1, did("ready", 11, true)))
	return w
}

// passes lets time pass, and writes something, so that the log shows it.
func (w *world) passes(d time.Duration) {
	w.late += d
	w.txn(kv("set", "bells/c", fields{"at": w.late.String()}))
}

// isLost makes the machine of n1 fail, orders the pod's stop, and returns its placement.
func (w *world) isLost() fields {
	w.hit("n1", time.Hour)
	death := w.unheard("n1")
	w.agent("n1", critical)
	p := with(placed("n1", stopped, 20), fields{"lost_since": time.Unix(0, w.now()).UTC(), "dead_index": death})
	w.txn(w.fenced(proves(death), kv("set", podKey, p), kv("set", intentN1, told(stopped, 20)))...)
	return p
}

// itself records that n1 has stopped its pod, after silent without contact by its own clock.
func (w *world) itself(revision int64, silent time.Duration) {
	w.add(Event{
		Kind: EventSelf, At: w.now() + 1, Call: w.now() + 1 - int64(silent), Node: "n1",
		ID: "c/main.0", Revision: revision,
	})
}

func (w *world) replaces() {
	w.txn(w.fenced(
		kv("delete", intentN1, nil), kv("set", podKey, placed("n2", running, 30)),
		kv("set", "intent/n2/c/main.0", told(running, 30)),
		kv("check-index", "schema", nil).at(w.schema), kv("delete", "reservations/n1", nil),
		kv("cas", "reservations/n2", holding("c/main.0")),
	)...)
	w.starts("n2", 30)
}

func (w *world) starts(node string, revision int64) {
	w.ran(running, revision)
	w.events[len(w.events)-1].Node = node
}

func TestOneLivingCopyOfAnOrderedIndex(t *testing.T) {
	t.Parallel()
	const (
		two   = "P5 two living copies of an ordered index"
		early = "P5 given up before the stop was confirmed"
		runs  = "P5 given up while it runs"
		late  = "P5 stopped by itself too late"
		never = "P5 did not stop by itself"
		old   = "P4 node obeyed an old revision"
		free  = believes + stopsWithin + time.Second // by then nothing runs
	)
	back := func(w *world) {
		w.agent("n1", "passing")
		w.command(typeSession, fields{
			"Op":      "create",
			"Session": fields{"ID": "s-n1", "Name": "rcfarm/preparer/n1@" + prefix, "Node": "n1"},
		})
		record := fields{
			"name": "n1", "capacity": fields{"slots": 2}, "nonce": "n0", "consul_node": "n1",
			"ttl": shortTTL.String(), "enforces_stop_after": true,
		}
		w.txn(kv("lock", "nodes/0/n1", record).by("s-n1"))
	}
	for name, c := range map[string]struct {
		act  func(w *world)
		want []string
	}{
		"it has stopped by itself": {func(w *world) {
			w.isLost()
			w.passes(15 * time.Second)
			w.itself(11, 12*time.Second)
			w.passes(free - 15*time.Second)
			w.replaces()
		}, nil},
		"it lives, and another one starts": {func(w *world) {
			w.isLost()
			w.passes(free)
			w.replaces()
		}, []string{runs, two}},
		"it stopped too late, and another one started before": {func(w *world) {
			w.isLost()
			w.passes(free)
			w.replaces()
			w.passes(time.Second)
			w.itself(11, stopsWithin+3*time.Second)
		}, []string{runs, two, late}},
		"another one starts although nothing was given up": {func(w *world) {
			w.txn(kv("set", "intent/n2/c/main.0", told(running, 30)))
			w.starts("n2", 30)
		}, []string{two, "P5 two copies of an ordered index"}},
		"it stopped, but was given up too early": {func(w *world) {
			w.isLost()
			w.itself(11, 2*time.Second)
			w.passes(believes + stopsWithin - time.Second)
			w.replaces()
		}, []string{early}},
		"it stopped too late by the log": {func(w *world) {
			w.isLost()
			w.passes(free + 2*time.Second)
			w.itself(11, stopsWithin)
		}, []string{late}},
		"it stopped just in time by the log": {func(w *world) {
			w.isLost()
			w.passes(free)
			w.itself(11, stopsWithin)
		}, nil},
		"it is back, and starts again at the same revision": {func(w *world) {
			w.unheard("n1")
			w.passes(10 * time.Second)
			w.itself(11, 5*time.Second)
			w.passes(time.Second)
			back(w)
			w.starts("n1", 11)
		}, nil},
		"it starts twice at the same revision": {func(w *world) {
			w.unheard("n1")
			w.passes(10 * time.Second)
			w.itself(11, 5*time.Second)
			back(w)
			w.starts("n1", 11)
			w.passes(time.Second)
			w.starts("n1", 11)
		}, []string{old}},
		"it starts again beside its successor": {func(w *world) {
			w.isLost()
			w.itself(11, 2*time.Second)
			w.passes(free)
			w.replaces()
			w.passes(time.Second)
			back(w)
			w.starts("n1", 11)
		}, []string{two}},
		"it is back, and ran all the time": {func(w *world) {
			w.unheard("n1")
			w.passes(free + 2*time.Second)
			back(w)
		}, []string{never}},
		"it is back in time": {func(w *world) {
			w.unheard("n1")
			w.passes(free)
			back(w)
		}, nil},
		"its machine died, and starts it again": {func(w *world) {
			w.add(Event{Kind: EventLost, At: w.now() + 1, Node: "n1"})
			w.isLost()
			w.passes(free)
			w.replaces()
		}, nil},
	} {
		w := orderedWorld(t, stopping())
		c.act(w)
		w.passes(time.Second)
		found := w.verdict().Count()
		for _, rule := range []string{
			two, early, runs, late, never, old, "P5 two copies of an ordered index",
			"P5 stopped by itself unasked", "P5 stopped by itself without running",
		} {
			want := false
			for _, r := range c.want {
				want = want || r == rule
			}
			if (found[rule] > 0) != want {
				t.Errorf("%s: want %q, found %v", name, c.want, found)
			}
		}
	}
}

// A copy that was started before its group became ordered may live beside another copy.
func TestAGroupThatBecomesOrdered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.change(2, 1, orderedGroup(1))
	w.starts("n2", 30)
	if found := w.verdict().Count(); found["P5 two living copies of an ordered index"] > 0 {
		t.Errorf("found %v", found)
	}
}

// A pod of an ordered group may be given up after the loss of its machine only after the sum in docs/design/contact.md,
// and only if every other condition holds.
func TestAnOrderedPodStopsItself(t *testing.T) {
	t.Parallel()
	const rule = "P5 given up before the stop was confirmed"
	with15 := with(stopping(), fields{"hooks": fields{"before_stop": fields{"timeout": "15s"}}})
	least := believes + stopsWithin
	for name, c := range map[string]struct {
		manifest fields
		passes   time.Duration
		act      func(w *world, p fields)
		want     bool
	}{
		"long enough":           {stopping(), least + time.Second, nil, false},
		"too short":             {stopping(), least - time.Second, nil, true},
		"with a hook":           {with15, least + 16*time.Second, nil, false},
		"too short with a hook": {with15, least + 14*time.Second, nil, true},
		"defaults": {
			with(stopping(), fields{"launchables": []fields{{}}}),
			least + 10*time.Second, nil, false,
		},
		"too short with defaults": {
			with(stopping(), fields{"launchables": []fields{{}}}), least + 8*time.Second, nil,
			true,
		},
		"never stops": {fields{"launchables": []fields{}}, time.Hour, nil, true},
		"not ordered": {stopping(), time.Hour, func(w *world, _ fields) { w.change(3, 1, fields{}) }, true},
		"its agent lives by now": {
			stopping(), time.Hour,
			func(w *world, _ fields) { w.agent("n1", "passing"); w.late += time.Minute }, true,
		},
		"not marked for so long": {
			stopping(), time.Hour,
			func(w *world, p fields) { p["lost_since"] = time.Unix(0, w.now()).UTC() }, true,
		},
		"marked before it was so": {
			stopping(), least - time.Second,
			func(_ *world, p fields) { p["lost_since"] = marked }, true,
		},
		"runs another version yet": {stopping(), time.Hour, func(_ *world, p fields) { p["digest"] = "d2" }, true},
	} {
		w := orderedWorld(t, c.manifest)
		p := w.isLost()
		w.itself(11, time.Second)
		w.passes(c.passes)
		if c.act != nil {
			c.act(w, p)
			w.txn(w.fenced(kv("set", podKey, p))...)
		}
		w.txn(w.fenced(kv("delete", podKey, nil), kv("delete", intentN1, nil))...)
		if found := w.verdict().Count(); (found[rule] > 0) != c.want {
			t.Errorf("%s: found %v", name, found)
		}
	}
}

// An adopted pod is kept (R2), except one of an ordered group whose machine is lost.
func TestAnAdoptedOrderedPod(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lost, ordered bool
		want          bool
	}{
		"on a lost machine": {true, true, false}, "on a living one": {false, true, true},
		"not ordered": {true, false, true},
	} {
		w := orderedWorld(t, stopping())
		if !c.ordered {
			w.change(2, 1, fields{})
		}
		p := with(placed("n1", running, 12), fields{"adopted_at_generation": 2})
		if c.lost {
			w.hit("n1", time.Hour)
			p["lost_since"], p["dead_index"] = marked, w.unheard("n1")
			w.agent("n1", critical)
		}
		w.txn(w.fenced(kv("set", podKey, p), kv("set", intentN1, told(running, 12)))...)
		p["run_state"], p["revision"] = stopped, 20
		w.txn(w.fenced(kv("set", podKey, p), kv("set", intentN1, told(stopped, 20)))...)
		if found := w.verdict().Count(); (found["P4 stop that nobody asked for"] > 0) != c.want {
			t.Errorf("%s: found %v", name, found)
		}
	}
}

// If the supervisors of a node do not enforce stops, time alone proves no stop.
func TestANodeThatEnforcesNothing(t *testing.T) {
	t.Parallel()
	w := orderedWorld(t, stopping())
	w.txn(kv("lock", "nodes/0/n1", fields{
		"name": "n1", "capacity": fields{"slots": 2}, "nonce": "n0",
		"consul_node": "n1", "ttl": shortTTL.String(),
	}).by("s-n1"))
	w.isLost()
	w.itself(11, time.Second)
	w.passes(time.Hour)
	w.txn(w.fenced(kv("delete", podKey, nil), kv("delete", intentN1, nil))...)
	if found := w.verdict().Count(); found["P5 given up before the stop was confirmed"] == 0 {
		t.Errorf("found %v", found)
	}
}
