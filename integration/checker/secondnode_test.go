package checker

import (
	"fmt"
	"maps"
	"testing"
	"time"
)

// The pod was placed on its first node at began. Its stop began at left.
var (
	began = time.Unix(1_800_000_000, 0).UTC()
	left  = began.Add(time.Minute)
)

// leaving is a pod that leaves n1 for its second node.
type leaving struct {
	was, stop, says, rc, manifest fields
	unread, served                bool
}

// A pod may be stopped once because its node reports that it was never available, and is hopeless or had its time.
// Without one of these conditions, nobody asked for the stop.
func TestAStopForASecondNode(t *testing.T) {
	t.Parallel()
	const rule = "P4 stop that nobody asked for"
	for name, c := range map[string]struct {
		change func(l *leaving)
		rule   string
	}{
		"never available, hopeless": {func(*leaving) {}, ""},
		"its time is over": {func(l *leaving) {
			l.says["hopeless"], l.was["changed_at"] = false, left.Add(-progressDeadline-minReady)
		}, ""},
		"it has time": {func(l *leaving) {
			l.says["hopeless"], l.was["changed_at"] = false, left.Add(-progressDeadline-minReady+1)
		}, rule},
		"it has less time": {func(l *leaving) {
			l.says["hopeless"], l.rc["progress_deadline"], l.manifest["min_ready"] = false, "50s", "10s"
		}, ""},
		"its manifest gives it more": {func(l *leaving) {
			l.says["hopeless"], l.rc["progress_deadline"],
				l.manifest["health"] = false, "50s", fields{"min_ready": "11s"}
		}, rule},
		"its node does not say so":      {func(l *leaving) { delete(l.says, "never_available") }, rule},
		"it is available":               {func(l *leaving) { l.says["available"] = true }, rule},
		"it was available, and is said": {func(l *leaving) { l.served = true }, rule},
		"of another manifest":           {func(l *leaving) { l.says["digest"] = "d0" }, rule},
		"of an earlier revision":        {func(l *leaving) { l.says["revision"] = 9 }, rule},
		"whatever is reported":          {func(l *leaving) { l.unread = true }, rule},
		"it does not remember":          {func(l *leaving) { delete(l.stop, "avoid") }, rule},
		"it remembers another node": {func(l *leaving) {
			l.stop["avoid"] = []fields{{"node": "n2", "digest": "d1", "since": left}}
		}, rule},
		"it is stopped for another reason": {func(l *leaving) {
			l.stop["avoid"] = []fields{{"node": "n1", "digest": "d1", "since": left.Add(-time.Hour)}}
		}, rule},
		"it had one": {func(l *leaving) {
			l.was["avoid"] = []fields{{"node": "n2", "digest": "d1", "since": began}}
			l.stop["avoid"] = []fields{
				{"node": "n2", "digest": "d1", "since": began},
				{"node": "n1", "digest": "d1", "since": left},
			}
		}, rule},
		"it had one with another manifest": {func(l *leaving) {
			l.was["avoid"] = []fields{{"node": "n2", "digest": "d0", "since": began}}
		}, ""},
		"static":   {func(l *leaving) { l.rc["strategy"] = "static" }, rule},
		"in place": {func(l *leaving) { l.rc["in_place"] = fields{"from": "d0"} }, rule},
		"ordered": {func(l *leaving) {
			l.rc["replica_groups"] = []fields{{"role": "main", "count": 1, "ordered": true}}
		}, rule},
		"runs once": {
			func(l *leaving) { l.manifest["launchables"] = []fields{{"restart": fields{"policy": "never"}}} },
			rule,
		},
		"found": {func(l *leaving) { l.was["adopted_at_generation"] = 2 }, rule},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			l := leaving{
				was: placed("n1", running, 10), stop: placed("n1", stopped, 20),
				says: did("crash-looping", 10, false), rc: fields{}, manifest: fields{},
			}
			l.was["changed_at"], l.says["hopeless"], l.says["never_available"] = began, true, true
			l.stop["stopping_since"], l.stop["avoid"] = left, []fields{{"node": "n1", "digest": "d1", "since": left}}
			c.change(&l)
			w.txn(kv("set", "manifests/d1", fields{"manifest": l.manifest}))
			w.change(2, 1, l.rc)
			if !l.served { // delete the report with which the world began
				w.txn(kv("delete", realityN1, nil))
			}
			w.pod = w.txn(w.fenced(kv("cas", podKey, l.was).at(w.pod))...)
			told := []Op{
				kv("check-index", "breaker", nil).at(w.breaker), kv("cas", podKey, l.stop).at(w.pod),
				kv("set", intentN1, told(stopped, 20)),
			}
			if at := w.txn(kv("set", realityN1, l.says)); !l.unread {
				told = append(told, kv("check-index", realityN1, nil).at(at))
			}
			w.txn(w.fenced(told...)...)
			if found := w.promises(); (found[rule] > 0) != (c.rule != "") {
				t.Errorf("found %v, expected %q", found, c.rule)
			}
		})
	}
}

// The breaker does not count such stops, but stops that look like them.
func TestManySecondNodes(t *testing.T) {
	t.Parallel()
	const rule = "P4 more stopped than the breaker lets pass"
	for name, c := range map[string]struct {
		never bool
		rule  string
	}{"never available": {true, ""}, "available before": {false, rule}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.txn(kv("set", "nodes/0/n2", fields{
				"name": "n2", "capacity": fields{"slots": 99},
				"nonce": "n0", "consul_node": "n2",
			}))
			w.change(2, 12, fields{"min_available": 0})
			var ops []Op
			stops := []Op{kv("check-index", "breaker", nil).at(w.breaker)}
			for i := 1; i <= 12; i++ {
				key := fmt.Sprintf("c/main.%d", i)
				is := func(of fields, more fields) fields {
					of["index"], of["ports"] = i, nil
					maps.Copy(of, more)
					return of
				}
				ops = append(ops, kv("set", "pods/"+key, is(placed("n2", running, 30), fields{"changed_at": began})))
				at := w.txn(kv("set", "reality/n2/"+key,
					is(did("crash-looping", 30, false), fields{"hopeless": true, "never_available": c.never})))
				stops = append(stops, kv("check-index", "reality/n2/"+key, nil).at(at),
					kv("set", "pods/"+key, is(placed("n2", stopped, 40), fields{
						"stopping_since": left,
						"avoid":          []fields{{"node": "n2", "digest": "d1", "since": left}},
					})),
					kv("set", "intent/n2/"+key, is(told(stopped, 40), nil)))
			}
			w.txn(ops...)
			w.txn(w.fenced(stops...)...)
			found := w.promises()
			if (found[rule] > 0) != (c.rule != "") || c.rule == "" && found["P4 stop that nobody asked for"] > 0 {
				t.Errorf("found %v, expected %q", found, c.rule)
			}
		})
	}
}
