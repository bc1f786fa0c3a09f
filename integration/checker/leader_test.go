package checker

import "testing"

const keyIncidents = "incidents"

// led is a world whose leader is f1, and the index of the leader's lock.
func led(t *testing.T) (w *world, lease uint64) {
	t.Helper()
	w = newWorld(t)
	return w, w.elect("f1", "noon")
}

func (w *world) elect(farm, since string) uint64 {
	return w.txn(kv("lock", leaseKey, fields{"id": farm, "since": since}).by("s-" + farm))
}

const leaseKey = "elections/farm/lease/holder"

func leading(farm string, lease uint64, ops ...Op) []Op {
	return append([]Op{kv("check-session", leaseKey, nil).by("s-" + farm), kv("check-index", leaseKey, nil).at(lease)},
		ops...)
}

func by(who string) Op { return kv("set", "audit/"+who, fields{"id": who, "who": who, "what": "mend"}) }

func TestTheLeaderWritesWhatBelongsToNoController(t *testing.T) {
	t.Parallel()
	w, lease := led(t)
	w.txn(leading("f1", lease, kv("set", keyIncidents, fields{"records": fields{}}), by("f1"))...)
	w.txn(leading("f1", lease, kv("delete", "audit/f1", nil))...)
	w.txn(kv("unlock", leaseKey, fields{"last": "f1"}).by("s-f1"))
	next := w.elect("f2", "one")
	w.txn(leading("f2", next, kv("set", "gone", fields{}), by("f2"))...)
	w.txn(kv("unlock", leaseKey, fields{"last": "f2"}).by("s-f2"))
	again := w.elect("f1", "two") // f1 leads again, and may write
	w.txn(leading("f1", again, kv("set", "gone", fields{"nodes": fields{}}))...)
	w.expect("")
}

func TestWithoutTheLeadersFence(t *testing.T) {
	t.Parallel()
	for _, op := range []Op{
		kv("set", keyIncidents, fields{}), kv("set", "gone", fields{}),
		kv("delete", "manifests/d", nil), kv("delete", "audit/f2", nil),
	} {
		w, _ := led(t)
		w.txn(by("f2"), kv("set", "manifests/d", fields{}))
		w.txn(op)
		w.expect("P1 not under the leader's fence")
	}
	w, _ := led(t)
	lock := w.txn(kv("unlock", lockKey, fields{"farm": "f1"}).by("s-f1"))
	w.txn(kv("check-index", lockKey, nil).at(lock), kv("check-index", rcKey, nil).at(w.rc),
		kv("set", "status/c", fields{"rc_id": "c", "observed_generation": 1}))
	w.expect("P1 not under the leader's fence")
}

func TestWithoutALeader(t *testing.T) {
	t.Parallel()
	w, _ := led(t)
	free := w.txn(kv("unlock", leaseKey, fields{"last": "f1"}).by("s-f1"))
	w.txn(kv("check-session", leaseKey, nil).by(""),
		kv("check-index", leaseKey, nil).at(free), kv("set", keyIncidents, fields{}))
	w.expect("P1 written while no farm led")
}

func TestUnderTheLeaseOfAnother(t *testing.T) {
	t.Parallel()
	w, lease := led(t)
	w.txn(leading("f1", lease, kv("set", keyIncidents, fields{}), by("f2"))...)
	w.expect("P1 written under another's lease")
}

// A leader writes nothing after its successor has written, even if it has the lock again.
func TestLeadersDoNotMix(t *testing.T) {
	t.Parallel()
	w, lease := led(t)
	w.txn(leading("f1", lease, kv("set", keyIncidents, fields{}))...)
	w.txn(kv("unlock", leaseKey, fields{"last": "f1"}).by("s-f1"))
	next := w.elect("f2", "one")
	w.txn(leading("f2", next, kv("set", keyIncidents, fields{"records": fields{}}))...)
	w.txn(kv("unlock", leaseKey, fields{"last": "f2"}).by("s-f2"))
	back := w.elect("f1", "noon") // the record has the time of its first election
	w.txn(leading("f1", back, kv("set", keyIncidents, fields{}))...)
	w.expect("P1 writes of two leaders mixed")
}

// The leader, under its fence, and operators may remove nodes that are gone. No other farm may remove such nodes.
func TestNodesAreRemovedByTheLeader(t *testing.T) {
	t.Parallel()
	node := func(w *world) *world {
		w.txn(kv("lock", "farms/f2", fields{"id": "f2"}).by("s-f2"))
		w.txn(kv("set", "nodes/0/n9", fields{
			"name": "n9", "capacity": fields{"slots": 2},
			"nonce": "n0", "consul_node": "n9",
		}))
		return w
	}
	w, lease := led(t)
	node(w).txn(leading("f1", lease, kv("delete-cas", "nodes/0/n9", nil), by("f1"))...)
	w.expect("")
	w, _ = led(t)
	node(w).txn(kv("delete", "nodes/0/n9", nil), by("ops"))
	w.expect("")
	w, _ = led(t)
	node(w).txn(kv("delete", "nodes/0/n9", nil), by("f2"))
	w.expect("P1 not under the leader's fence")
}
