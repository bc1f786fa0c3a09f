package checker

import "testing"

// A farm that takes a lock by mistake must not write what the lock protects.
func TestAnOutsiderWritesNothing(t *testing.T) {
	t.Parallel()
	const rule = "P1 " + ruleOutsider
	for name, tt := range map[string]struct {
		member  fields
		records []fields // labels of each of the unit's controllers
		rule    string
	}{
		"a farm for all":           {fields{}, []fields{{"team": "b"}}, ""},
		"a selector that matches":  {fields{"rc_selector": "team=a"}, []fields{{"team": "a"}}, ""},
		"it matches one revision":  {fields{"rc_selector": "team=a"}, []fields{{"team": "b"}, {"team": "a"}}, ""},
		"it matches none":          {fields{"rc_selector": "team=a"}, []fields{{"team": "b"}, nil}, rule},
		"nothing is left to match": {fields{"rc_selector": "team=a"}, nil, ""},
		"the owner of one revision": {
			fields{"rc_selector": "none,!none", "rc_id": unit + "-1"},
			[]fields{nil, nil},
			"",
		},
		"the owner of another's controller": {
			fields{"rc_selector": "none,!none", "rc_id": another},
			[]fields{nil, nil},
			rule,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.txn(kv("lock", "farms/f2", with(fields{"id": "f2"}, tt.member)).by("s-f2"))
			var of Op
			for i, labels := range tt.records {
				id := unit + "-" + string(rune('1'+i))
				at := w.txn(kv("set", "rcs/"+id,
					with(controllerOf(1, 1), fields{"id": id, "name": id, "labels": labels})))
				of = kv("check-index", "rcs/"+id, nil).at(at)
			}
			under := w.takes(unit, "f2")
			w.expect("")
			if tt.records == nil {
				return // a write without a record breaks other rules
			}
			w.tells(unit+"-"+string(rune('0'+len(tt.records))), 20, append(under, of)...)
			w.expect(tt.rule)
		})
	}
}

// Labels may change after the lock was taken, and the lock may go to a farm that may own the unit.
func TestAnOutsiderMayBecomeTheOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.txn(kv("lock", "farms/f2", fields{"id": "f2", "rc_selector": "team=a"}).by("s-f2"))
	id := unit + "-1"
	labelled := func(team string) Op {
		record := with(controllerOf(1, 1), fields{"id": id, "name": id, "labels": fields{"team": team}})
		return kv("check-index", "rcs/"+id, nil).at(w.txn(kv("set", "rcs/"+id, record)))
	}
	labelled("b")
	under := w.takes(unit, "f2")
	w.tells(id, 20, append(under, labelled("a"))...)
	of := labelled("b")
	w.txn(kv("unlock", "locks/"+unit, fields{"farm": "f2"}).by("s-f2"))
	w.tells(id, 30, append(w.takes(unit, "f1"), of)...)
	w.expect("")
}

// Any farm may own a unit without a record until one comes that its selector does not match.
func TestAnOutsiderOfAUnitThatGetsARecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.txn(kv("lock", "farms/f2", fields{"id": "f2", "rc_selector": "team=a"}).by("s-f2"))
	under := w.takes(unit, "f2")
	id := unit + "-1"
	record := with(controllerOf(1, 1), fields{"id": id, "name": id, "labels": fields{"team": "b"}})
	of := kv("check-index", "rcs/"+id, nil).at(w.txn(kv("set", "rcs/"+id, record)))
	w.tells(id, 20, append(under, of)...)
	w.expect("P1 " + ruleOutsider)
}
