package checker

import (
	"fmt"
	"maps"
	"testing"
	"time"
)

func (w *world) stops(from, to int, since time.Time) {
	ops := []Op{kv("check-index", "breaker", nil).at(w.breaker)}
	for i := from; i < to; i++ {
		p := placed("n2", stopped, 40)
		p["index"], p["ports"], p["stopping_since"] = i, nil, since.UTC().Format(time.RFC3339Nano)
		in := told(stopped, 40)
		in["index"] = i
		ops = append(ops, kv("set", fmt.Sprintf("pods/c/main.%d", i), p),
			kv("set", fmt.Sprintf("intent/n2/c/main.%d", i), in))
	}
	w.txn(w.fenced(ops...)...)
}

func (w *world) resume() {
	w.txn(kv("set", "breaker", fields{"tripped": true}))
	w.breaker = w.txn(kv("set", "breaker", fields{"tripped": false}))
}

// Twenty pods run and none is desired. Ten may be stopped at once. Eleven may be stopped only if an operator allowed
// it, or slowly, or by two farms.
func TestMassStops(t *testing.T) {
	t.Parallel()
	const rule = "P4 more stopped than the breaker lets pass"
	for name, c := range map[string]struct {
		pods   int
		record fields
		act    func(w *world, now time.Time)
		rule   string
	}{
		"half":           {20, nil, func(w *world, now time.Time) { w.stops(1, 11, now) }, ""},
		"more than half": {20, nil, func(w *world, now time.Time) { w.stops(1, 12, now) }, rule},
		"all of a few":   {9, nil, func(w *world, now time.Time) { w.stops(1, 10, now) }, ""},
		"all of some":    {10, nil, func(w *world, now time.Time) { w.stops(1, 11, now) }, rule},
		"as it was meant": {
			20,
			fields{"allow_mass_stop": 2},
			func(w *world, now time.Time) { w.stops(1, 21, now) },
			"",
		},
		"as it was meant once": {20, fields{"allow_mass_stop": 1}, func(w *world, now time.Time) {
			w.stops(1, 21, now)
		}, rule},
		"in two steps": {20, nil, func(w *world, now time.Time) {
			w.stops(1, 11, now)
			w.stops(11, 13, now.Add(time.Second))
		}, rule},
		"resumed in between": {20, nil, func(w *world, now time.Time) {
			w.stops(1, 11, now)
			w.resume()
			w.stops(11, 14, now.Add(time.Second))
		}, ""},
		"too many since it was resumed": {20, nil, func(w *world, now time.Time) {
			w.stops(1, 11, now)
			w.resume()
			w.stops(11, 21, now.Add(time.Second))
		}, rule},
		"over a while": {20, nil, func(w *world, now time.Time) {
			w.stops(1, 6, now)
			w.stops(6, 12, now.Add(2*massStopWindow))
		}, ""},
		"by another session": {20, nil, func(w *world, now time.Time) {
			w.stops(1, 11, now)
			w.txn(kv("unlock", lockKey, fields{}).by("s-f1"))
			w.lock = w.txn(kv("lock", lockKey, fields{"farm": "f2"}).by("s-f2"))
			ops := w.fenced(kv("check-index", "breaker", nil).at(w.breaker))
			ops[0].DirEnt.Session = "s-f2"
			p := placed("n2", stopped, 40)
			p["index"], p["ports"], p["stopping_since"] = 11, nil, now.UTC().Format(time.RFC3339Nano)
			in := told(stopped, 40)
			in["index"] = 11
			w.txn(append(ops, kv("set", "pods/c/main.11", p), kv("set", "intent/n2/c/main.11", in))...)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.txn(kv("set", "nodes/0/n2", fields{
				"name": "n2", "capacity": fields{"slots": 99},
				"nonce": "n0", "consul_node": "n2",
			}))
			w.change(1, c.pods+1, nil)
			ops := []Op{kv("check-index", "schema", nil).at(w.schema)}
			claims := fields{}
			for i := 1; i <= c.pods; i++ {
				p := placed("n2", running, 30)
				p["index"], p["ports"] = i, nil
				ops = append(ops, kv("set", fmt.Sprintf("pods/c/main.%d", i), p))
				claims[fmt.Sprintf("c/main.%d", i)] = fields{}
			}
			w.txn(w.fenced(append(ops, kv("set", "reservations/n2", fields{"holders": claims}))...)...)
			record := fields{"min_available": 0}
			maps.Copy(record, c.record)
			w.change(2, 0, record)
			w.stop(20)
			w.ran(stopped, 20)
			w.txn(kv("set", realityN1, did(stopped, 20, false)))
			w.givesUp()
			c.act(w, time.Unix(0, w.now()))
			w.expect(c.rule)
		})
	}
}

func (w *world) other(pods int, more func(index int) fields) {
	record := controllerOf(1, pods)
	record["id"], record["name"] = "d", "other"
	w.txn(kv("set", "rcs/d", record))
	w.txn(kv("lock", "locks/d", fields{"farm": "f1"}).by("s-f1"))
	var ops []Op
	for i := range pods {
		p := placed("n2", running, 30)
		p["rc_id"], p["index"], p["ports"] = "d", i, nil
		if more != nil {
			maps.Copy(p, more(i))
		}
		ops = append(ops, kv("set", fmt.Sprintf("pods/d/main.%d", i), p))
	}
	w.txn(ops...)
}

// meant changes d, allowing many stops unless the fields differ, and stops some of its pods.
func (w *world) meant(change fields, from, to int) {
	record := controllerOf(2, 0)
	record["id"], record["name"], record["allow_mass_stop"] = "d", "other", 2
	maps.Copy(record, change)
	rc := w.txn(kv("set", "rcs/d", record))
	ops := []Op{kv("check-index", "rcs/d", nil).at(rc), kv("check-index", "breaker", nil).at(w.breaker)}
	for i := from; i < to; i++ {
		p := placed("n2", stopped, 40)
		p["rc_id"], p["index"], p["ports"], p["stopping_since"] = "d", i, nil,
			time.Unix(0, w.now()).UTC().Format(time.RFC3339Nano)
		ops = append(ops, kv("set", fmt.Sprintf("pods/d/main.%d", i), p))
	}
	w.txn(ops...)
}

// Eleven of the 21 pods of c are stopped, while many stops of another controller with forty pods are allowed.
func TestMassStopsBesideAllowedOnes(t *testing.T) {
	t.Parallel()
	const rule = "P4 more stopped than the breaker lets pass"
	of := func(count int) fields { return fields{"replica_groups": []fields{{"role": "main", "count": count}}} }
	gone := fields{"deleted_at": marked}
	for name, c := range map[string]struct {
		adopted int64 // generation at which the pods of d were adopted
		before  func(w *world)
		after   func(w *world) // after the farm decided on the stops of c
		rule    string
	}{
		"the other stays":       {0, nil, nil, ""},
		"it goes":               {0, func(w *world) { w.meant(gone, 0, 40) }, nil, rule},
		"it begins to go":       {0, func(w *world) { w.meant(gone, 0, 1) }, nil, rule},
		"it is to go":           {0, func(w *world) { w.meant(gone, 0, 0) }, nil, ""},
		"it goes later":         {0, nil, func(w *world) { w.meant(gone, 0, 40) }, ""},
		"it begins to go later": {0, nil, func(w *world) { w.meant(gone, 0, 1) }, ""},
		"it begins, the rest follows": {
			0, func(w *world) { w.meant(gone, 0, 1) },
			func(w *world) { w.meant(gone, 1, 40) }, rule,
		},
		"one of it stays":          {0, func(w *world) { w.meant(of(1), 0, 1) }, nil, ""},
		"none of it stay":          {0, func(w *world) { w.meant(of(0), 0, 1) }, nil, rule},
		"it stays as it was found": {2, func(w *world) { w.meant(of(0), 0, 1) }, nil, ""},
		"it was found before":      {1, func(w *world) { w.meant(of(0), 0, 1) }, nil, rule},
		"what was found is to go":  {2, func(w *world) { w.meant(gone, 0, 1) }, nil, rule},
		"it is disabled":           {0, func(w *world) { w.meant(fields{"disabled": true}, 0, 1) }, nil, ""},
		"it is changed again": {0, func(w *world) {
			w.meant(of(0), 0, 1)
			w.meant(fields{"generation": 3}, 0, 0)
		}, nil, ""},
		"it is changed again, with the word": {0, func(w *world) {
			w.meant(of(0), 0, 1)
			w.meant(fields{"generation": 3, "allow_mass_stop": 3}, 1, 2)
		}, nil, rule},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.txn(kv("set", "nodes/0/n2", fields{
				"name": "n2", "capacity": fields{"slots": 99},
				"nonce": "n0", "consul_node": "n2",
			}))
			w.change(2, 0, fields{"min_available": 0})
			var ops []Op
			for i := 1; i <= 20; i++ {
				p := placed("n2", running, 30)
				p["index"], p["ports"] = i, nil
				ops = append(ops, kv("set", fmt.Sprintf("pods/c/main.%d", i), p))
			}
			w.txn(ops...)
			w.other(40, func(int) fields { return fields{"adopted_at_generation": c.adopted} })
			if c.before != nil {
				c.before(w)
			}
			w.txn(kv("set", "names/later", "later"))
			decided := time.Unix(0, w.now())
			if c.after != nil {
				c.after(w)
			}
			w.stops(1, 12, decided)
			if found := w.promises(); (found[rule] > 0) != (c.rule != "") {
				t.Errorf("found %v, expected %q", found, c.rule)
			}
		})
	}
}
