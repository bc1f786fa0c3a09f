package checker

import (
	"testing"
	"time"
)

func orderedGroup(n int) fields {
	return fields{"replica_groups": []fields{{"role": "main", "count": n, "ordered": true}}}
}

// A node is told to run an ordered index only while no other is told anything of it.
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

// A pod of an ordered group is given up without a word of its node only once its machine has been lost for as long as its manifest says.
func TestAnOrderedPodStopsItself(t *testing.T) {
	t.Parallel()
	const rule = "P5 given up before the stop was confirmed"
	for name, c := range map[string]struct {
		ordered   bool
		stopAfter string
		lost      time.Duration
		want      bool
	}{
		"for long enough": {true, "10s", time.Minute, false},
		"too short":       {true, "10m", time.Minute, true},
		"never":           {true, "", time.Minute, true},
		"not ordered":     {false, "10s", time.Minute, true},
	} {
		w := newWorld(t)
		more := fields{}
		if c.ordered {
			more = orderedGroup(1)
		}
		w.change(2, 1, more)
		m := fields{"launchables": []fields{}}
		if c.stopAfter != "" {
			m["disconnect"] = fields{"stop_after": c.stopAfter}
		}
		w.txn(kv("set", "manifests/d1", fields{"manifest": m}))
		p := with(placed("n1", stopped, 20), fields{"lost_since": time.Unix(0, w.now()).Add(-c.lost).UTC()})
		w.txn(w.fenced(kv("set", podKey, p), kv("set", intentN1, told(stopped, 20)))...)
		w.txn(w.fenced(kv("delete", podKey, nil), kv("delete", intentN1, nil))...)
		if found := w.verdict().Count(); (found[rule] > 0) != c.want {
			t.Errorf("%s: found %v", name, found)
		}
	}
}
