package checker

import (
	"maps"
	"testing"
	"time"
)

const marked = "2027-01-15T08:00:00Z"

func (w *world) agent(node, status string) {
	w.command(typeRegister, fields{"Node": node, "Check": fields{"CheckID": "serfHealth", "Status": status}})
}

// hit records that the run disturbs a machine from now on.
func (w *world) hit(machine string, lasts time.Duration) {
	w.add(Event{Kind: EventMachine, Node: machine, Call: w.now() - 1, At: w.now() + int64(lasts)})
}

// unheard ends the session of a node's preparer, and returns the death's index.
func (w *world) unheard(node string) uint64 {
	return w.command(typeSession, fields{"Op": "destroy", "Session": fields{"ID": "s-" + node}})
}

// marks writes `lost_since` for this death into the placement on n1.
func (w *world) marks(death uint64, more ...Op) {
	p := placed("n1", running, 10)
	p["lost_since"], p["dead_index"] = marked, death
	w.pod = w.txn(w.fenced(append(more, kv("cas", podKey, p).at(w.pod))...)...)
}

// proves is the condition that no preparer holds the record of n1 since this death.
func proves(death uint64) Op { return kv("check-index", "nodes/0/n1", nil).at(death) }

func TestOnlyDisturbedMachinesAreLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		act  func(w *world)
		rule string
	}{
		"its machine died": {func(w *world) {
			w.hit("n1", time.Hour)
			death := w.unheard("n1")
			w.agent("n1", critical)
			w.marks(death, proves(death))
		}, ""},
		"said again": {func(w *world) {
			w.hit("n1", time.Hour)
			death := w.unheard("n1")
			w.agent("n1", critical)
			w.marks(death, proves(death))
			w.agent("n1", "passing")
			w.marks(death)
		}, ""},
		"its agent failed, and is back": {func(w *world) {
			w.hit("n1", time.Hour)
			death := w.unheard("n1")
			w.agent("n1", critical)
			w.agent("n1", "passing")
			w.marks(death, proves(death))
		}, ""},
		"its preparer lives": {func(w *world) {
			w.hit("n1", time.Hour)
			w.agent("n1", critical)
			w.marks(1)
		}, "R10 lost while its preparer lives"},
		"its agent failed once, long before its preparer": {func(w *world) {
			w.hit("n1", time.Hour)
			w.agent("n1", critical)
			w.agent("n1", "passing")
			death := w.unheard("n1")
			w.marks(death, proves(death))
		}, "R10 lost without a word of Consul"},
		"another death": {func(w *world) {
			w.hit("n1", time.Hour)
			death := w.unheard("n1")
			w.agent("n1", critical)
			w.marks(death-1, proves(death))
		}, "R10 lost by another death"},
		"its death may be over": {func(w *world) {
			w.hit("n1", time.Hour)
			death := w.unheard("n1")
			w.agent("n1", critical)
			w.marks(death)
		}, "R10 lost by another death"},
		"it has no record": {func(w *world) {
			w.hit("n1", time.Hour)
			w.unheard("n1")
			w.agent("n1", critical)
			w.txn(kv("delete", "nodes/0/n1", nil))
			w.marks(0)
		}, "R10 lost without a record"},
		"nothing was done to it, but Consul says so": {func(w *world) {
			w.hit("n2", time.Hour)
			death := w.unheard("n1")
			w.agent("n1", critical)
			w.late += 2 * saidLate
			w.marks(death, proves(death))
		}, ""},
		"nothing was done to it, but Consul just said so": {func(w *world) {
			death := w.unheard("n1")
			w.agent("n1", critical)
			w.agent("n1", "passing")
			w.late += saidLate - time.Second
			w.marks(death, proves(death))
		}, ""},
		"nothing was done to it, and Consul takes it for alive": {func(w *world) {
			w.hit("n2", time.Hour)
			death := w.unheard("n1")
			w.agent("n1", critical)
			w.agent("n1", "passing")
			w.late += saidLate
			w.marks(death, proves(death))
		}, "R10 lost although its machine lives"},
		"something was done to it, though Consul takes it for alive": {func(w *world) {
			w.hit("n1", time.Hour)
			death := w.unheard("n1")
			w.agent("n1", critical)
			w.agent("n1", "passing")
			w.late += 2 * saidLate
			w.marks(death, proves(death))
		}, ""},
		"something was done to it long ago": {func(w *world) {
			w.hit("n1", time.Second)
			w.late += time.Second + 2*hitLate
			death := w.unheard("n1")
			w.agent("n1", critical)
			w.agent("n1", "passing")
			w.late += 2 * saidLate
			w.marks(death, proves(death))
		}, "R10 lost although its machine lives"},
		"something was done to the servers": {func(w *world) {
			w.hit("", time.Second)
			w.late += speakersLate
			death := w.unheard("n1")
			w.agent("n1", critical)
			w.agent("n1", "passing")
			w.late += 2 * saidLate
			w.marks(death, proves(death))
		}, ""},
		"something was done to the servers long ago": {func(w *world) {
			w.hit("", time.Second)
			w.late += 2 * speakersLate
			death := w.unheard("n1")
			w.agent("n1", critical)
			w.agent("n1", "passing")
			w.late += 2 * saidLate
			w.marks(death, proves(death))
		}, "R10 lost although its machine lives"},
		"it moved off a machine that lives": {func(w *world) {
			death := w.unheard("n1")
			p := placed("n2", running, 20)
			p["ghosts"] = []fields{{"node": "n1", "lost": true, "gone": true, "dead_index": death}}
			w.txn(w.fenced(proves(death), kv("check-index", "schema", nil).at(w.schema),
				kv("cas", podKey, p).at(w.pod), kv("cas", "reservations/n2", holding("c/main.0")))...)
		}, "R10 lost without a word of Consul"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c.act(w)
			w.expect(c.rule)
		})
	}
}

// For a while a farm need not know that a machine is lost, unless it has written `lost_since` itself.
func TestTheMinimumToleratesFarmsThatReadLate(t *testing.T) {
	t.Parallel()
	const rule = "P6 below the minimum"
	for name, c := range map[string]struct {
		late   time.Duration
		marked bool
		rule   string
	}{
		"just gone":           {0, false, ""},
		"gone for a while":    {heardLate - time.Second, false, ""},
		"gone for long":       {heardLate + time.Second, false, rule},
		"just gone, and said": {0, true, rule},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			// Two replicas, and one must stay. The one on n2 is stopped while the machine of the other is lost.
			w.place("n2", fields{"http": 80}, []int{80})
			w.txn(kv("set", "reality/n2/c/main.1", fields{
				"rc_id": "c", "role": "main", "index": 1, "digest": "d1",
				"state": "ready", "revision": 30, "available": true,
			}))
			w.change(1, 1, fields{"min_available": 1})
			w.hit("n1", time.Hour)
			death := w.unheard("n1")
			w.agent("n1", critical)
			if c.marked {
				w.marks(death, proves(death))
			}
			w.late += c.late
			p := placed("n2", stopped, 40)
			p["index"] = 1
			in := told(stopped, 40)
			in["index"] = 1
			w.txn(w.fenced(kv("check-index", "breaker", nil).at(w.breaker), kv("set", "pods/c/main.1", p),
				kv("set", "intent/n2/c/main.1", in))...)
			w.expect(c.rule)
		})
	}
}

// A pod that a living node runs is adopted there, not placed anew.
func TestARunningPodIsAdoptedNotPlaced(t *testing.T) {
	t.Parallel()
	const rule = "R1 placed although it runs"
	for name, c := range map[string]struct {
		before func(w *world)
		rule   string
	}{
		"it runs":             {func(*world) {}, rule},
		"it has stopped":      {func(w *world) { w.ran(stopped, 20) }, ""},
		"its node is dead":    {func(w *world) { w.unheard("n1") }, ""},
		"its machine is gone": {func(w *world) { w.add(Event{Kind: EventLost, At: w.now() + 1, Node: "n1"}) }, ""},
		"its node is back": {func(w *world) {
			w.unheard("n1")
			w.txn(kv("lock", "nodes/0/n1", fields{
				"name": "n1", "capacity": fields{"slots": 2},
				"nonce": "n0", "consul_node": "n1",
			}).by("s-n2"))
		}, ""},
		"its node is back for long": {func(w *world) {
			w.unheard("n1")
			w.txn(kv("lock", "nodes/0/n1", fields{
				"name": "n1", "capacity": fields{"slots": 2},
				"nonce": "n0", "consul_node": "n1",
			}).by("s-n2"))
			w.late += 2 * heardLate
		}, rule},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.txn(kv("delete", podKey, nil)) // as after a wipe, or the restore of a snapshot
			c.before(w)
			w.txn(w.fenced(kv("check-index", "schema", nil).at(w.schema), kv("cas", podKey, placed("n2", running, 30)),
				kv("cas", "reservations/n2", holding("c/main.0")))...)
			if found := w.promises(); (found[rule] > 0) != (c.rule != "") {
				t.Errorf("found %v, expected %q", found, c.rule)
			}
		})
	}
}

// CPU and memory are judged like slots: by the placements, and again by the reservation.
func TestResources(t *testing.T) {
	t.Parallel()
	const unreserved, reserved, shareless = "P3 more placed than CPU or memory",
		"P3 more reserved than CPU or memory", "P3 CPU or memory without a share"
	for name, c := range map[string]struct {
		capacity fields
		held     fields // by the new pod
		rules    []string
	}{
		"enough":         {fields{"slots": 9, "cpu": 1000, "memory": 200}, fields{"cpu": 500, "memory": 100}, nil},
		"without limits": {fields{"slots": 9}, fields{"cpu": 500, "memory": 100}, nil},
		"too little cpu": {
			fields{"slots": 9, "cpu": 999},
			fields{"cpu": 500, "memory": 100},
			[]string{unreserved, reserved},
		},
		"too little room": {
			fields{"slots": 9, "memory": 199},
			fields{"cpu": 500, "memory": 100},
			[]string{unreserved, reserved},
		},
		"others hold more":  {fields{"slots": 9, "cpu": 1000}, fields{"cpu": 501, "memory": 100}, []string{reserved}},
		"no share":          {fields{"slots": 9, "cpu": 1000}, fields{"cpu": 499, "memory": 100}, []string{shareless}},
		"no memory's share": {fields{"slots": 9, "cpu": 1000}, fields{"cpu": 500, "memory": 99}, []string{shareless}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.txn(kv("set", "manifests/d1", fields{"manifest": fields{"launchables": []fields{
				{"resources": fields{"cpu": 200, "memory": 100}}, {"resources": fields{"cpu": 300}},
			}}}))
			w.txn(kv("set", "nodes/0/n1",
				fields{"name": "n1", "capacity": c.capacity, "nonce": "n0", "consul_node": "n1"}))
			w.change(2, 2, nil)
			p := placed("n1", running, 30)
			p["index"], p["ports"] = 1, nil
			w.txn(w.fenced(kv("check-index", "schema", nil).at(w.schema), kv("cas", "pods/c/main.1", p),
				kv("set", "reservations/n1", fields{"holders": fields{
					"c/main.0": fields{"ports": []int{80}, "cpu": 500, "memory": 100}, "c/main.1": c.held,
				}}))...)
			want := map[string]int{}
			for _, rule := range c.rules {
				want[rule] = 1
			}
			if found := w.promises(); !maps.Equal(found, want) {
				t.Errorf("found %v, expected %v", found, want)
			}
		})
	}
}

// After a restore, a node whose machine died, and so has forgotten its stops, may run a stopped pod again, beside the
// pod that took its place, unless it had time to report the stop.
func TestAPortOfARevivedPod(t *testing.T) {
	t.Parallel()
	const rule = "P3 port used twice on a node"
	restore := func(w *world) { w.restores(w.last()); w.txn(kv("set", "names/later", "restored")) }
	dies := func(w *world) {
		w.add(Event{Kind: EventLost, At: w.now() + 2, Node: "n1"})
		w.txn(kv("set", "names/later", "later"))
	}
	pause := func(w *world) { w.late += 2 * heardLate; w.txn(kv("set", "names/later", "much later")) }
	for name, c := range map[string]struct {
		revision int64
		before   []func(*world)
		want     int
	}{
		"it died soon after a restore":  {10, []func(*world){restore, dies}, 0},
		"it died long before a restore": {10, []func(*world){dies, pause, restore}, 0},
		"it died long after a restore":  {10, []func(*world){restore, pause, dies}, 1},
		"nothing was restored":          {10, []func(*world){dies}, 1},
		"at a new revision":             {20, []func(*world){restore, dies}, 1},
		"it is told so only":            {20, nil, 1},
	} {
		w := newWorld(t)
		w.ran(stopped, 15)
		w.txn(kv("set", "names/later", "later"))
		for _, act := range c.before {
			act(w)
		}
		w.add(Event{
			Kind: EventNode, At: w.now() + 3, Node: "n1", ID: "c/main.7", State: running, Revision: 12,
			Ports: map[string]int{"http": 80},
		})
		w.txn(kv("set", "names/later", "still later"))
		w.ran(running, c.revision)
		w.txn(kv("set", "names/later", "last"))
		if counts := w.verdict().Count(); counts[rule] != c.want {
			t.Errorf("%s: found %v, want %d of %s", name, counts, c.want, rule)
		}
	}
}
