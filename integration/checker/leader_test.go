package checker

import "testing"

const keyIncidents = "incidents"

// led is a world whose leader is f1; lease is the index of its lock.
func led(t *testing.T) (w *world, lease uint64) {
	t.Helper()
	w = newWorld(t)
	return w, w.elect("f1", "noon")
}

// elect gives a farm the lease.
func (w *world) elect(farm, since string) uint64 {
	return w.txn(kv("lock", leaseKey, fields{"id": farm, "since": since}).by("s-" + farm))
}

const leaseKey = "elections/farm/lease/holder"

// leading adds the leader's fence.
func leading(farm string, lease uint64, ops ...Op) []Op {
	return append([]Op{kv("check-session", leaseKey, nil).by("s-" + farm), kv("check-index", leaseKey, nil).at(lease)}, ops...)
}

func by(who string) Op { return kv("set", "audit/"+who, fields{"id": who, "who": who, "what": "mend"}) }

func TestTheLeaderWritesWhatBelongsToNobody(t *testing.T) {
	t.Parallel()
	w, lease := led(t)
	w.txn(leading("f1", lease, kv("set", keyIncidents, fields{"records": fields{}}), by("f1"))...)
	w.txn(leading("f1", lease, kv("delete", "audit/f1", nil))...)
	w.txn(kv("unlock", leaseKey, fields{"last": "f1"}).by("s-f1"))
	next := w.elect("f2", "one")
	w.txn(leading("f2", next, kv("set", "gone", fields{}), by("f2"))...)
	w.txn(kv("unlock", leaseKey, fields{"last": "f2"}).by("s-f2"))
	again := w.elect("f1", "two") // it leads once more, and has every right to
	w.txn(leading("f1", again, kv("set", "gone", fields{"nodes": fields{}}))...)
	w.expect("")
}

func TestWithoutTheLeadersFence(t *testing.T) {
	t.Parallel()
	for _, op := range []Op{kv("set", keyIncidents, fields{}), kv("set", "gone", fields{}), kv("delete", "manifests/d", nil), kv("delete", "audit/f2", nil)} {
		w, _ := led(t)
		w.txn(by("f2"), kv("set", "manifests/d", fields{}))
		w.txn(op)
		w.expect("P1 not under the leader's fence")
	}
	// A status of a controller that nobody owns.
	w, _ := led(t)
	lock := w.txn(kv("unlock", lockKey, fields{"farm": "f1"}).by("s-f1"))
	w.txn(kv("check-index", lockKey, nil).at(lock), kv("check-index", rcKey, nil).at(w.rc), kv("set", "status/c", fields{"rc_id": "c", "observed_generation": 1}))
	w.expect("P1 not under the leader's fence")
}

func TestWhileNobodyLeads(t *testing.T) {
	t.Parallel()
	w, _ := led(t)
	free := w.txn(kv("unlock", leaseKey, fields{"last": "f1"}).by("s-f1"))
	w.txn(kv("check-session", leaseKey, nil).by(""), kv("check-index", leaseKey, nil).at(free), kv("set", keyIncidents, fields{}))
	w.expect("P1 written while no farm led")
}

func TestUnderTheLeaseOfAnother(t *testing.T) {
	t.Parallel()
	w, lease := led(t)
	w.txn(leading("f1", lease, kv("set", keyIncidents, fields{}), by("f2"))...)
	w.expect("P1 written under another's lease")
}

// A leader that was followed by another one writes no more, whatever the lock says: two leaders' writes never mix.
func TestLeadersDoNotMix(t *testing.T) {
	t.Parallel()
	w, lease := led(t)
	w.txn(leading("f1", lease, kv("set", keyIncidents, fields{}))...)
	w.txn(kv("unlock", leaseKey, fields{"last": "f1"}).by("s-f1"))
	next := w.elect("f2", "one")
	w.txn(leading("f2", next, kv("set", keyIncidents, fields{"records": fields{}}))...)
	w.txn(kv("unlock", leaseKey, fields{"last": "f2"}).by("s-f2"))
	back := w.elect("f1", "noon") // as if it had never been away
	w.txn(leading("f1", back, kv("set", keyIncidents, fields{}))...)
	w.expect("P1 writes of two leaders mixed")
}

// Nodes that are gone are removed by the leader under its fence, or by operators; by no other farm.
func TestNodesAreRemovedByTheLeader(t *testing.T) {
	t.Parallel()
	node := func(w *world) *world {
		w.txn(kv("lock", "farms/f2", fields{"id": "f2"}).by("s-f2"))
		w.txn(kv("set", "nodes/0/n9", fields{"name": "n9", "capacity": fields{"slots": 2}, "nonce": "n0", "consul_node": "n9"}))
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
