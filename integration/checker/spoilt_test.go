package checker

import "testing"

func (w *world) spoils(key string) uint64 { return w.txn(kv("set", key, HostileMark)) }

// No farm is to blame for records that the run spoils and repairs, and a farm may write that it cannot read them.
func TestSpoiltRecords(t *testing.T) {
	t.Parallel()
	unreadable := func(generation int) Op {
		conditions := []fields{{"type": "Unreadable", "true": true}}
		return kv("set", "status/c", fields{
			"rc_id": "c", "observed_generation": generation,
			"owner": "f1", "conditions": conditions,
		})
	}
	const frozen, generation = "P2 changed while its record cannot be read", "P2 superseded generation"
	for name, tt := range map[string]struct {
		act  func(w *world)
		rule string
	}{
		"a record": {func(w *world) {
			w.rc = w.spoils(rcKey)
			w.txn(w.fenced(unreadable(0))...)
			w.rc = w.txn(kv("set", rcKey, controllerOf(1, 1)))
		}, ""},
		"a placement, twice": {func(w *world) {
			w.spoils(podKey)
			w.spoils(podKey)
			w.txn(w.fenced(unreadable(0))...)
			w.pod = w.txn(kv("set", podKey, placed("n1", running, 10)))
			w.stopsAsAsked()
		}, ""},
		"pods are changed": {func(w *world) {
			w.rc = w.spoils(rcKey)
			w.txn(w.fenced(kv("set", intentN1, told(running, 20)))...)
		}, frozen},
		"another generation": {func(w *world) {
			w.rc = w.spoils(rcKey)
			w.txn(w.fenced(unreadable(7))...)
		}, generation},
		"mended in another way": {func(w *world) {
			w.spoils(podKey)
			w.txn(kv("set", podKey, placed("n2", running, 10)), kv("set", "reservations/n2", holding("c/main.0")))
		}, "P1 without a fence"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tt.act(w)
			found := w.promises()
			if tt.rule == "" && len(found) > 0 || tt.rule != "" && found[tt.rule] == 0 {
				t.Errorf("found %v, expected %q", found, tt.rule)
			}
		})
	}
}

func (w *world) stopsAsAsked() {
	w.rc = w.txn(kv("set", rcKey, controllerOf(2, 0)))
	w.stop(20)
}
