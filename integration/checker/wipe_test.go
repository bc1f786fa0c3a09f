package checker

import (
	"testing"
	"time"
)

// wiped deletes everything while the pod runs, and writes the controller back. f1 has its lock again, and the nodes
// have spoken.
func (w *world) wiped() {
	w.command(typeRegister, fields{
		"Node":  "n1",
		"Check": fields{"CheckID": "rcfarm-preparer-n1-1-ttl", "Status": "passing"},
	})
	call := w.now()
	w.txn(kv("delete-tree", "", nil))
	w.schema = w.txn(kv("set", "schema", fields{"nonce": "n1"}))
	w.rc = w.txn(kv("set", rcKey, controllerOf(1, 1)))
	w.add(Event{Kind: EventWipe, Call: call, At: w.now()})
	w.lock = w.txn(kv("lock", lockKey, fields{"farm": "f1"}).by("s-f1"))
	for _, name := range []string{"n1", "n2"} {
		w.txn(kv("lock", "nodes/0/"+name, fields{
			"name": name, "capacity": fields{"slots": 2}, "nonce": "n1",
			"consul_node": name,
		}).by("s-" + name))
	}
	w.breaker = w.txn(kv("set", "breaker", fields{}))
}

func (w *world) belled() { w.txn(kv("set", "bells/0/c", "1")) }

func (w *world) adopts() {
	p := placed("n1", running, 10)
	p["adopted_at_generation"] = 1
	w.pod = w.txn(w.fenced(kv("cas", podKey, p), kv("set", intentN1, told(running, 10)),
		kv("cas", "reservations/n1", holding("c/main.0")))...)
	w.txn(kv("set", realityN1, did("ready", 10, true)))
}

func TestAfterAWipe(t *testing.T) {
	t.Parallel()
	const notAdopted, again, stop = "R1 not adopted after a wipe",
		"R1 placed although it ran before a wipe", "P4 stopped after a wipe"
	const late = AdoptedWithin + 100*time.Millisecond
	const unbelled = BelledWithin + 100*time.Millisecond
	machine := func(w *world, status string) {
		w.command(typeRegister, fields{
			"Node":  "n1",
			"Check": fields{"CheckID": "rcfarm-preparer-n1-1-ttl", "Status": status},
		})
	}
	for name, c := range map[string]struct {
		then func(w *world)
		rule string
	}{
		"adopted":             {func(w *world) { w.adopts() }, ""},
		"adopted at the last": {func(w *world) { w.late += AdoptedWithin - 100*time.Millisecond; w.adopts() }, ""},
		"adopted too late":    {func(w *world) { w.belled(); w.late += late; w.adopts() }, notAdopted},
		"never adopted":       {func(*world) {}, notAdopted},
		"its bell comes with a sweep": {func(w *world) {
			w.late += BelledWithin - 100*time.Millisecond
			w.belled()
			w.late += AdoptedWithin - 100*time.Millisecond
			w.adopts()
		}, ""},
		"adopted too late after its bell": {func(w *world) {
			w.late += BelledWithin - 100*time.Millisecond
			w.belled()
			w.late += late
			w.adopts()
		}, notAdopted},
		"its bell comes twice": {func(w *world) {
			w.belled()
			w.late += AdoptedWithin / 2
			w.txn(kv("set", "bells/0/c", "2"))
			w.late += AdoptedWithin/2 + 100*time.Millisecond
			w.adopts()
		}, notAdopted},
		"its bell went before it came to stay": {func(w *world) {
			w.belled()
			w.txn(kv("delete", "bells/0/c", nil))
			w.late += late
			w.belled()
			w.adopts()
		}, ""},
		"adopted too late after the bell that stayed": {func(w *world) {
			w.belled()
			w.txn(kv("delete", "bells/0/c", nil))
			w.late += late
			w.belled()
			w.late += late
			w.adopts()
		}, notAdopted},
		"its bell went and comes too late": {func(w *world) {
			w.belled()
			w.txn(kv("delete", "bells/0/c", nil))
			w.late += unbelled
			w.belled()
			w.adopts()
		}, notAdopted},
		"another's bell": {func(w *world) {
			w.late += BelledWithin - 100*time.Millisecond
			w.txn(kv("set", "bells/0/d", "1"))
			w.late += time.Second
			w.adopts()
		}, notAdopted},
		"its bell comes too late": {func(w *world) { w.late += unbelled; w.belled(); w.adopts() }, notAdopted},
		"its preparer starts over": {func(w *world) {
			machine(w, critical)
			w.late += heardWithin - 100*time.Millisecond
			machine(w, "passing")
			w.late += unbelled
			w.adopts()
		}, notAdopted},
		"its preparer is away for long": {func(w *world) {
			machine(w, critical)
			w.late += heardWithin
			w.txn(kv("set", "names/later", "later"))
			machine(w, "passing")
			w.late += unbelled
			w.adopts()
		}, ""},
		"placed elsewhere while its preparer is away": {func(w *world) {
			machine(w, critical)
			w.txn(w.fenced(kv("check-index", "schema", nil).at(w.schema), kv("cas", podKey, placed("n2", running, 30)),
				kv("cas", "reservations/n2", holding("c/main.0")))...)
			w.late += heardWithin
			w.txn(kv("set", "names/later", "later"))
		}, ""},
		"its machine died": {func(w *world) {
			w.add(Event{Kind: EventLost, At: w.now() + 1, Node: "n1"})
			w.late += unbelled
			w.adopts()
		}, ""},
		"placed elsewhere": {func(w *world) {
			w.txn(w.fenced(kv("check-index", "schema", nil).at(w.schema), kv("cas", podKey, placed("n2", running, 30)),
				kv("cas", "reservations/n2", holding("c/main.0")))...)
		}, again},
		"placed anew": {func(w *world) {
			w.txn(w.fenced(kv("check-index", "schema", nil).at(w.schema), kv("cas", podKey, placed("n1", running, 30)),
				kv("cas", "reservations/n1", holding("c/main.0")))...)
		}, again},
		"stopped": {func(w *world) { w.adopts(); w.ran(stopped, 20) }, stop},
		"stopped after a change": {func(w *world) {
			w.adopts()
			w.rc = w.txn(kv("set", rcKey, controllerOf(2, 0)))
			w.ran(stopped, 20)
		}, ""},
		"stopped much later": {func(w *world) {
			w.adopts()
			w.late += unbelled
			w.txn(kv("set", "names/late", "late"))
			w.ran(stopped, 20)
		}, ""},
		"it was moving": {func(w *world) {
			p := placed("n2", running, 30)
			p["adopted_at_generation"] = 1
			w.txn(w.fenced(kv("cas", podKey, p), kv("cas", "reservations/n2", holding("c/main.0")))...)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if name == "it was moving" {
				p := placed("n2", running, 20)
				p["ghosts"] = []fields{{"node": "n1", "revision": 0}}
				w.txn(w.fenced(kv("check-index", "schema", nil).at(w.schema), kv("cas", podKey, p).at(w.pod),
					kv("cas", "reservations/n2", holding("c/main.0")))...)
			}
			w.wiped()
			c.then(w)
			w.txn(kv("set", "names/end", "end"))
			r := w.verdict()
			found := r.Count()
			for _, rule := range []string{notAdopted, again, stop} {
				if (found[rule] > 0) != (rule == c.rule) && (rule != notAdopted || c.rule != again) {
					t.Errorf("found %v, expected %q", found, c.rule)
				}
			}
			if r.Wipes != 1 || name == "adopted" && (r.Checked[ruleAdopted] != 1 || r.AdoptedAfter <= 0) {
				t.Errorf("%d wipes, %d adoptions judged, the last after %s", r.Wipes,
					r.Checked[ruleAdopted], r.AdoptedAfter)
			}
		})
	}
}

// After a wipe a controller may be deleted before its pod's node reports. The pod is then an orphan, which its node
// must list.
func TestOrphansOfAWipe(t *testing.T) {
	t.Parallel()
	const runs, silent = "final runs without a placement", "P4 orphan not reported"
	for name, c := range map[string]struct {
		away     time.Duration // how long its preparer is away, from the wipe on
		reported bool
		rule     string
	}{
		"its node was away":              {heardWithin + time.Second, true, ""},
		"it was away, and does not say":  {heardWithin + time.Second, false, silent},
		"its node was there":             {0, true, runs},
		"its node was away for a moment": {heardWithin - time.Second, true, runs},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.wiped()
			machine := func(status string) {
				w.command(typeRegister, fields{
					"Node":  "n1",
					"Check": fields{"CheckID": "rcfarm-preparer-n1-1-ttl", "Status": status},
				})
			}
			if c.away > 0 {
				machine(critical)
				w.late += c.away
				w.txn(kv("set", "names/later", "later"))
				machine("passing")
			}
			w.txn(kv("delete", rcKey, nil))
			if c.reported {
				orphan := fields{"rc_id": "c", "role": "main", "index": 0}
				w.txn(kv("set", "nodes/0/n1", fields{
					"name": "n1", "capacity": fields{"slots": 2}, "nonce": "n1",
					"consul_node": "n1", "orphans": []fields{orphan},
				}))
			}
			w.ends(10)
			found := w.verdict().Count()
			for _, rule := range []string{runs, silent} {
				if (found[rule] > 0) != (rule == c.rule) {
					t.Errorf("found %v, expected %q", found, c.rule)
				}
			}
		})
	}
}

// A deletion is an operator's mistake only if the run announced it, and one command deletes everything.
func TestOnlyAnAnnouncedWipeIsAMistake(t *testing.T) {
	t.Parallel()
	const rule = "P5 given up while it runs"
	for name, c := range map[string]struct {
		event func(call, at int64) Event
		key   string
		want  int
		more  []Op
	}{
		"an operator": {func(call, at int64) Event { return Event{Kind: EventWipe, Call: call, At: at} }, "", 0, nil},
		"nobody":      {nil, "", 1, nil},
		"somebody before it": {func(call, _ int64) Event {
			return Event{Kind: EventWipe, Call: call - 10, At: call - 1}
		}, "", 1, nil},
		"an operator, part of it": {
			func(call, at int64) Event { return Event{Kind: EventWipe, Call: call, At: at} },
			"pods/", 1, nil,
		},
		"an operator, on a condition": {
			func(call, at int64) Event { return Event{Kind: EventWipe, Call: call, At: at} }, "", 0,
			[]Op{kv("check-index", "schema", nil).at(newWorld(t).schema)},
		},
		"an operator, with more": {
			func(call, at int64) Event { return Event{Kind: EventWipe, Call: call, At: at} }, "", 1,
			[]Op{kv("delete", "names/x", nil)},
		},
	} {
		w := newWorld(t)
		call := w.now()
		w.txn(append(c.more, kv("delete-tree", c.key, nil))...)
		if c.event != nil {
			w.add(c.event(call, w.now()))
		}
		if found := w.verdict().Count(); found[rule] != c.want {
			t.Errorf("%s: found %v, expected %d of %q", name, found, c.want, rule)
		}
	}
}
