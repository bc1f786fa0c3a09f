package checker

import "testing"

// Who takes a lock works on what the lock protects.
func TestWhoMayOwn(t *testing.T) {
	t.Parallel()
	const rule = "P1 taken by a farm that may not own it"
	for name, tt := range map[string]struct {
		member  fields
		records []fields // of the unit's controllers, by their labels
		rule    string
	}{
		"a farm for all":                    {fields{}, []fields{{"team": "b"}}, ""},
		"a selector that matches":           {fields{"rc_selector": "team=a"}, []fields{{"team": "a"}}, ""},
		"it matches one revision":           {fields{"rc_selector": "team=a"}, []fields{{"team": "b"}, {"team": "a"}}, ""},
		"it matches none":                   {fields{"rc_selector": "team=a"}, []fields{{"team": "b"}, nil}, rule},
		"nothing is left to match":          {fields{"rc_selector": "team=a"}, nil, ""},
		"the owner of one revision":         {fields{"rc_selector": "none,!none", "rc_id": unit + "-1"}, []fields{nil, nil}, ""},
		"the owner of another's controller": {fields{"rc_selector": "none,!none", "rc_id": another}, []fields{nil, nil}, rule},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.txn(kv("lock", "farms/f2", with(fields{"id": "f2"}, tt.member)).by("s-f2"))
			for i, labels := range tt.records {
				id := unit + "-" + string(rune('1'+i))
				w.txn(kv("set", "rcs/"+id, with(controllerOf(1, 1), fields{"id": id, "name": id, "labels": labels})))
			}
			w.takes(unit, "f2")
			w.expect(tt.rule)
		})
	}
}
