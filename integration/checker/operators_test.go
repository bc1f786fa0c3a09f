package checker

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
)

// promises leaves out violations that only mean that the history ends early.
func (w *world) promises() map[string]int {
	counts := w.verdict().Count()
	for rule := range counts {
		if !strings.HasPrefix(rule, "P") && !strings.HasPrefix(rule, "R") || strings.HasSuffix(rule, "at the end") {
			delete(counts, rule)
		}
	}
	return counts
}

// expect fails the test unless exactly this rule was broken, or none if it is "".
func (w *world) expect(rule string) {
	w.t.Helper()
	found := w.promises()
	if rule == "" && len(found) > 0 || rule != "" && (len(found) != 1 || found[rule] == 0) {
		w.t.Errorf("found %v, expected %q", found, rule)
	}
}

func (w *world) change(generation, count int, more fields) {
	record := controllerOf(generation, count)
	maps.Copy(record, more)
	w.rc = w.txn(kv("set", rcKey, record))
}

func (w *world) stop(revision int64) {
	w.pod = w.txn(w.fenced(kv("check-index", "breaker", nil).at(w.breaker),
		kv("cas", podKey, placed("n1", stopped, revision)).at(w.pod), kv("set", intentN1, told(stopped, revision)))...)
}

func (w *world) place(node string, ports fields, held []int) {
	p := placed(node, running, 30)
	p["index"], p["ports"] = 1, ports
	claims := fields{"c/main.1": fields{"ports": held}}
	if node == "n1" {
		claims["c/main.0"] = fields{"ports": []int{80}}
	}
	w.txn(w.fenced(kv("check-index", "schema", nil).at(w.schema), kv("cas", "pods/c/main.1", p),
		kv("set", "reservations/"+node, fields{"holders": claims}))...)
}

// asks returns the operation that removes the request.
func (w *world) asks(kind, node string) Op {
	w.txn(kv("set", "requests/c/r1",
		fields{"rc_id": "c", "kind": kind, "node": node, "pod": fields{"rc_id": "c", "role": "main", "index": 0}}))
	return kv("delete", "requests/c/r1", nil)
}

// In a restored store a pod moves to a node that has stopped it since the snapshot. A disabled controller's pod returns
// to its former node only if that node has stopped the pod too.
func TestADisabledControllersPodReturnsOnlyIfItStopped(t *testing.T) {
	t.Parallel()
	for state, rule := range map[string]string{stopped: "", "ready": "P2 removed while disabled"} {
		w := newWorld(t)
		p := placed("n2", running, 20)
		p["ghosts"] = []fields{{"node": "n1"}}
		w.pod = w.txn(w.fenced(kv("check-index", "schema", nil).at(w.schema), kv("cas", podKey, p).at(w.pod),
			kv("cas", "reservations/n2", holding("c/main.0")))...)
		w.change(2, 1, fields{"disabled": true, "min_available": 0})
		w.txn(kv("set", "reality/n2/c/main.0", did(stopped, 21, false)))
		w.txn(kv("set", realityN1, did(state, 22, state != stopped)))
		w.txn(w.fenced(kv("check-index", "breaker", nil).at(w.breaker),
			kv("cas", podKey, placed("n1", stopped, 30)).at(w.pod),
			kv("set", "reservations/n2", holding()))...)
		w.expect(rule)
	}
}

func (w *world) dies() {
	w.command(typeSession, fields{"Op": "destroy", "Session": fields{"ID": "s-n1"}})
	w.add(Event{Kind: EventLost, At: w.now() + 1, Node: "n1"})
}

func (w *world) givesUp(more ...Op) {
	w.txn(w.fenced(append(more, kv("delete-cas", podKey, nil).at(w.pod), kv("delete", intentN1, nil),
		kv("set", "reservations/n1", holding()))...)...)
}

func TestAForgottenCopyCountsAsStopped(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind, node string
		dies       bool
		rule       string
	}{
		"on a dead node":   {forgetPod, "n1", true, ""},
		"another copy":     {forgetPod, "n2", true, "P5 given up before the stop was confirmed"},
		"another request":  {"repair-reservation", "n1", true, "P5 given up before the stop was confirmed"},
		"on a living node": {forgetPod, "n1", false, "P5 forgotten on a living node"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.change(1, 0, nil)
			if c.dies {
				w.dies()
			}
			w.givesUp(w.asks(c.kind, c.node))
			w.expect(c.rule)
		})
	}
	w := newWorld(t)
	w.dies()
	done := w.asks(forgetPod, "n1")
	w.givesUp()
	w.txn(w.fenced(done)...)
	w.expect("")
}

func TestForcedDrain(t *testing.T) {
	t.Parallel()
	whenever := time.Unix(0, epoch)
	for name, c := range map[string]struct {
		drain fields
		ended time.Duration // how long before the stop the drain ended; zero: the drain has not ended
		rule  string
	}{
		"past its deadline":  {fields{"force": true, "deadline": whenever}, 0, ""},
		"before it":          {fields{"force": true, "deadline": whenever.Add(time.Hour)}, 0, "P6 below the minimum"},
		"not forced":         {fields{"deadline": whenever}, 0, "P6 below the minimum"},
		"ended a moment ago": {fields{"force": true, "deadline": whenever}, time.Millisecond, ""},
		"ended before it forced": {
			fields{"force": true, "deadline": whenever.Add(time.Hour)},
			time.Millisecond, "P6 below the minimum",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.change(1, 1, fields{"min_available": 1})
			w.txn(kv("set", "nodeops/0/n1", fields{"name": "n1", "drain": c.drain}))
			if c.ended > 0 {
				w.txn(kv("set", "nodeops/0/n1", fields{"name": "n1"}))
			}
			w.stop(20)
			w.expect(c.rule)
		})
	}
	// An adopted pod is stopped at its generation only for a drain that began after the adoption.
	for since, rule := range map[time.Duration]string{-time.Second: "P4 stop that nobody asked for", time.Second: ""} {
		for _, ended := range []bool{false, true} {
			w := newWorld(t)
			p := placed("n1", running, 11)
			p["adopted_at_generation"], p["changed_at"] = 1, whenever
			w.pod = w.txn(w.fenced(kv("cas", podKey, p).at(w.pod), kv("set", intentN1, told(running, 11)))...)
			w.txn(kv("set", "nodeops/0/n1",
				fields{"name": "n1", "drain": fields{"force": true, "since": whenever.Add(since)}}))
			if ended {
				w.txn(kv("set", "nodeops/0/n1", fields{"name": "n1"}))
			}
			w.stop(20)
			w.expect(rule)
		}
	}
	for name, rule := range map[string]string{"n1": "", "n2": "P4 stop that nobody asked for"} {
		w := newWorld(t)
		p := placed("n1", running, 11)
		p["adopted_at_generation"], p["changed_at"] = 1, whenever
		w.pod = w.txn(w.fenced(kv("cas", podKey, p).at(w.pod), kv("set", intentN1, told(running, 11)))...)
		before := w.last()
		w.txn(kv("set", "nodeops/0/"+name,
			fields{"name": name, "drain": fields{"force": true, "since": whenever.Add(time.Second)}}))
		w.restores(before)
		w.stop(20)
		j := newJudgement(nil, nil)
		if err := j.replay(w.log, w.events); err != nil {
			t.Fatal(err)
		}
		if counts := j.result.Count(); counts["P4 stop that nobody asked for"] != map[bool]int{true: 1}[rule != ""] {
			t.Errorf("drained %s: %v", name, counts)
		}
	}
	// Long after its end a drain justifies nothing.
	w := newWorld(t)
	w.txn(kv("set", "nodeops/0/n1", fields{"name": "n1", "drain": fields{"force": true}}))
	w.txn(kv("set", "nodeops/0/n1", fields{"name": "n1"}))
	w.stop(20)
	w.log[len(w.log)-1].At += int64(time.Minute)
	w.expect("P4 stop that nobody asked for")
}

// A tripped breaker forbids new stops until it is reset. Stops from before, and their repetitions, are allowed.
func TestTrippedBreaker(t *testing.T) {
	t.Parallel()
	const rule = "P4 stop while the breaker is tripped"
	trip := func(w *world, tripped bool) { w.breaker = w.txn(kv("set", "breaker", fields{"tripped": tripped})) }
	for name, c := range map[string]struct {
		do    func(w *world)
		rule  string
		trips int
	}{
		"stopped while it is tripped": {func(w *world) { trip(w, true); w.stop(20) }, rule, 1},
		"stopped before":              {func(w *world) { w.stop(20); trip(w, true) }, "", 1},
		"said again":                  {func(w *world) { w.stop(20); trip(w, true); w.stop(30) }, "", 1},
		"after it was reset":          {func(w *world) { trip(w, true); trip(w, false); w.stop(20) }, "", 1},
		"tripped twice": {
			func(w *world) { trip(w, true); trip(w, false); trip(w, true); w.stop(20) },
			rule, 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.change(2, 0, nil)
			c.do(w)
			w.expect(c.rule)
			if n := w.verdict().Trips; n != c.trips {
				t.Errorf("%d trips were counted, expected %d", n, c.trips)
			}
		})
	}
}

// Pods of a static controller are stopped by force, or because there are too many, but not to move them. Pods of a
// dynamic controller may be stopped to move them.
func TestStaticPodsDoNotMove(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		strategy string
		drain    fields
		count    int
		rule     string
	}{
		"static, drained":  {"static", fields{}, 1, "P4 stop that nobody asked for"},
		"static, by force": {"static", fields{"force": true}, 1, ""},
		"static, too many": {"static", fields{}, 0, ""},
		"dynamic, drained": {"dynamic", fields{}, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.change(1, c.count, fields{"strategy": c.strategy})
			w.txn(kv("set", "nodeops/0/n1", fields{"name": "n1", "drain": c.drain}))
			w.stop(20)
			w.expect(c.rule)
		})
	}
}

// A pod that returns to its former node is available again if that node still runs its manifest.
func TestAReturnedPodIsAsAvailableAsBefore(t *testing.T) {
	t.Parallel()
	for digest, rule := range map[string]string{"d1": "", "d0": "P6 below the minimum"} {
		w := newWorld(t)
		w.change(1, 1, fields{"min_available": 1})
		p := placed("n2", running, 20)
		p["ghosts"] = []fields{{"node": "n1", "lost": true}}
		w.pod = w.txn(w.fenced(kv("check-index", "schema", nil).at(w.schema), kv("cas", podKey, p).at(w.pod),
			kv("cas", "reservations/n2", holding("c/main.0")))...)
		r := did("ready", 10, true)
		r["digest"] = digest
		w.txn(kv("set", realityN1, r))
		p = placed("n1", running, 30)
		p["ghosts"] = []fields{{"node": "n2", "revision": 30}}
		w.txn(w.fenced(kv("check-index", "breaker", nil).at(w.breaker), kv("cas", podKey, p).at(w.pod),
			kv("set", intentN1, told(running, 30)),
			kv("set", "intent/n2/c/main.0", told(stopped, 30)))...)
		w.expect(rule)
	}
}

// Surge is two, no pod is desired, and two more are placed on n3: one too many if the copy on n1 counts.
func TestSurge(t *testing.T) {
	t.Parallel()
	const rule = "P6 above the surge"
	agentFails := func(w *world) {
		w.command(typeRegister, fields{"Node": "n1", "Check": fields{"CheckID": "serfHealth", "Status": critical}})
	}
	back := func(w *world) {
		w.txn(kv("lock", "nodes/0/n1", fields{
			"name": "n1", "capacity": fields{"slots": 2},
			"nonce": "n0", "consul_node": "n1",
		}).by("s-f2"))
	}
	later := func(w *world) { w.late += 2 * heardLate }
	leaves := func(w *world, ghost fields) {
		p := placed("n2", stopped, 20)
		p["ports"], p["ghosts"] = nil, []fields{ghost}
		w.pod = w.txn(w.fenced(kv("check-index", "breaker", nil).at(w.breaker), kv("cas", podKey, p).at(w.pod))...)
		w.command(typeSession, fields{"Op": "destroy", "Session": fields{"ID": "s-n2"}})
	}
	for name, c := range map[string]struct {
		before func(w *world)
		rule   string
	}{
		"it runs":                          {func(*world) {}, rule},
		"it is asked to stop":              {func(w *world) { w.stop(20) }, rule},
		"asked to stop, no preparer":       {func(w *world) { w.stop(20); w.dies() }, ""},
		"runs, no preparer":                {func(w *world) { w.dies() }, rule},
		"runs, its machine is gone":        {func(w *world) { w.dies(); agentFails(w) }, ""},
		"asked to stop, back a moment ago": {func(w *world) { w.stop(20); w.dies(); back(w) }, ""},
		"asked to stop, back for long":     {func(w *world) { w.stop(20); w.dies(); back(w); later(w) }, rule},
		"runs, no preparer for a moment":   {func(w *world) { w.dies(); back(w) }, rule},
		"a former copy that is to go":      {func(w *world) { leaves(w, fields{"node": "n1"}) }, rule},
		"a former copy that stops":         {func(w *world) { leaves(w, fields{"node": "n1", "revision": 20}) }, rule},
		"a former copy that is lost":       {func(w *world) { leaves(w, fields{"node": "n1", "lost": true}) }, ""},
		"a former copy, and no preparer":   {func(w *world) { w.dies(); leaves(w, fields{"node": "n1"}) }, ""},
		"a surge that leaves room for all": {func(w *world) { w.change(1, 0, fields{"max_surge": 3}) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.change(1, 0, fields{"max_surge": 2})
			c.before(w)
			w.txn(kv("lock", "nodes/0/n3", fields{
				"name": "n3", "capacity": fields{"slots": 5},
				"nonce": "n0", "consul_node": "n3",
			}).by("s-f2"))
			var ops []Op
			for i := 1; i <= 2; i++ {
				p := placed("n3", running, 30)
				p["index"], p["ports"] = i, nil
				ops = append(ops, kv("cas", fmt.Sprintf("pods/c/main.%d", i), p))
			}
			w.txn(w.fenced(append(ops, kv("check-index", "schema", nil).at(w.schema),
				kv("cas", "reservations/n3", holding("c/main.1", "c/main.2")))...)...)
			if got := w.promises()[rule]; (got > 0) != (c.rule != "") {
				t.Errorf("found %v, expected %q", w.promises(), c.rule)
			}
		})
	}
}

func TestDisabled(t *testing.T) {
	t.Parallel()
	for _, disabled := range []bool{true, false} {
		rule := func(name string) string {
			if disabled {
				return name
			}
			return ""
		}
		w := newWorld(t)
		w.change(2, 0, fields{"disabled": disabled})
		w.stop(20)
		w.expect(rule("P2 removed while disabled"))

		w = newWorld(t)
		w.change(2, 2, fields{"disabled": disabled})
		w.place("n2", fields{"http": 80}, []int{80})
		w.expect(rule("P2 placed while disabled"))

		w = newWorld(t)
		w.change(2, 0, nil)
		w.stop(20)
		w.change(3, 0, fields{"disabled": disabled})
		w.ran(stopped, 20)
		w.txn(kv("set", realityN1, did(stopped, 20, false)))
		w.givesUp()
		w.expect("")
	}
}

func TestPorts(t *testing.T) {
	t.Parallel()
	asked := fields{"manifest": fields{"ports": []fields{
		{"name": "http", "port": 80},
		{"name": "admin", "dynamic": true},
	}}}
	for name, c := range map[string]struct {
		node  string
		ports fields
		held  []int
		rule  string
	}{
		"as they should be":       {"n2", fields{"http": 80, "admin": 9001}, []int{80, 9001}, ""},
		"a port that it not held": {"n2", fields{"http": 80, "admin": 9001}, []int{80}, "P3 port without a share"},
		"out of the range": {
			"n2",
			fields{"http": 80, "admin": 7},
			[]int{7, 80},
			"P3 not the ports that the manifest asks for",
		},
		"no number": {"n2", fields{"http": 80}, []int{80}, "P3 not the ports that the manifest asks for"},
		"another static port": {
			"n2",
			fields{"http": 81, "admin": 9001},
			[]int{81, 9001},
			"P3 not the ports that the manifest asks for",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.txn(kv("set", "manifests/d1", asked))
			w.txn(kv("set", "nodes/0/n2", fields{
				"name": "n2", "capacity": fields{"slots": 2}, "nonce": "n0",
				"port_range": fields{"min": 9000, "max": 9010},
			}))
			w.change(2, 2, nil)
			w.place(c.node, c.ports, c.held)
			w.expect(c.rule)
		})
	}
}

// A pod that moved off a node keeps its ports and its slot there until its stop is confirmed, also if the reservation
// lacks them.
func TestRoomByPlacementsAlone(t *testing.T) {
	t.Parallel()
	moved := func(t *testing.T, ghosts []fields) *world {
		t.Helper()
		w := newWorld(t)
		p := placed("n2", running, 20)
		p["ghosts"] = ghosts
		w.change(2, 2, nil)
		w.pod = w.txn(w.fenced(kv("check-index", "schema", nil).at(w.schema), kv("cas", podKey, p).at(w.pod),
			kv("cas", "reservations/n2", holding("c/main.0")))...)
		return w
	}
	second := func(w *world, ports fields, held []int) {
		p := placed("n1", running, 30)
		p["index"], p["ports"] = 1, ports
		w.txn(w.fenced(kv("check-index", "schema", nil).at(w.schema), kv("cas", "pods/c/main.1", p),
			kv("set", "reservations/n1",
				fields{"holders": fields{"c/main.0": fields{"ports": []int{}}, "c/main.1": fields{"ports": held}}}))...)
	}
	w := moved(t, []fields{{"node": "n1", "ports": fields{"http": 90}}})
	second(w, fields{"http": 80}, []int{80})
	w.expect("")
	w = moved(t, []fields{{"node": "n1"}})
	second(w, fields{"http": 80}, []int{80})
	w.expect("P3 port placed twice")

	w = moved(t, []fields{{"node": "n1"}})
	second(w, fields{"http": 81}, []int{81})
	p := placed("n1", running, 40)
	p["index"], p["ports"] = 2, nil
	w.change(3, 3, nil)
	w.txn(w.fenced(kv("check-index", "schema", nil).at(w.schema), kv("cas", "pods/c/main.2", p),
		kv("set", "reservations/n1", holding("c/main.1", "c/main.2")))...)
	if found := w.promises(); found["P3 more pods placed than slots"] != 1 {
		t.Errorf("found %v", found)
	}
}

func TestPortReservedTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.change(2, 2, nil)
	w.add(Event{Kind: EventLeak, Node: "n2", ID: "c/main.900"})
	w.txn(kv("set", "reservations/n2", fields{"holders": fields{"c/main.900": fields{"ports": []int{80}}}}))
	w.expect("") // the run leaked this claim
	p := placed("n2", running, 30)
	p["index"] = 1
	w.txn(w.fenced(kv("check-index", "schema", nil).at(w.schema), kv("cas", "pods/c/main.1", p),
		kv("set", "reservations/n2", holding("c/main.900", "c/main.1")))...)
	w.expect("P3 port reserved twice")
}

// A node whose machine died may obey earlier intents again. A node whose machine lives must not do so.
func TestLostMachine(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{true, false} {
		w := newWorld(t)
		rule := "P4 node obeyed an old revision"
		if lost {
			w.dies()
			rule = ""
		}
		w.txn(kv("set", "names/x", "x"))
		w.ran(running, 10)
		w.expect(rule)
	}
}

// An orphan without a controller gets a placement to be stopped; nothing else is placed without a controller.
func TestAnOrphanWithoutAControllerIsOnlyStopped(t *testing.T) {
	t.Parallel()
	for _, listed := range []string{"on a page", "in the record", ""} {
		w := newWorld(t)
		record := fields{"name": "n2", "capacity": fields{"slots": 2}, "nonce": "n0"}
		switch orphans := []fields{{"rc_id": "c", "role": "main", "index": 1}}; listed {
		case "on a page":
			w.txn(kv("set", "orphans/n2/0", fields{"edition": "e1", "nonce": "n0", "orphans": orphans}))
			record["orphan_pages"] = fields{"edition": "e1", "count": 1}
		case "in the record":
			record["orphans"] = orphans
		}
		w.txn(kv("set", "nodes/0/n2", record))
		w.asks(sweepOrphan, "n2")
		w.txn(kv("delete", rcKey, nil))
		p := placed("n2", running, 30)
		p["index"] = 1
		w.txn(
			kv("check-session", lockKey, nil).by("s-f1"), kv("check-index", lockKey, nil).at(w.lock),
			kv("check-not-exists", rcKey, nil),
			kv("check-index", "schema", nil).at(w.schema), kv("cas", "pods/c/main.1", p),
			kv("cas", "reservations/n2", holding("c/main.1")),
		)
		if listed != "" {
			w.expect("")
		} else {
			w.expect("P2 placed for no controller")
		}
	}
}

// An operator asked to stop an orphan. The stop continues after the request was removed.
func TestASweepGoesOnAfterItsRequest(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{sweepOrphan, forgetPod} {
		w := newWorld(t)
		done := w.asks(kind, "n2")
		w.txn(kv("delete", rcKey, nil))
		fence := []Op{
			kv("check-session", lockKey, nil).by("s-f1"), kv("check-index", lockKey, nil).at(w.lock),
			kv("check-not-exists", rcKey, nil),
			kv("check-index", "breaker", nil).at(w.breaker),
		}
		w.txn(append(fence, done)...)
		w.txn(append(fence, kv("cas", podKey, placed("n1", stopped, 20)).at(w.pod),
			kv("set", intentN1, told(stopped, 20)))...)
		if kind == sweepOrphan {
			w.expect("")
		} else {
			w.expect("P4 stop that nobody asked for")
		}
	}
}
