package checker

import "testing"

// Writes need locks that are held, even if the writes do not check the locks.
func TestWritersHaveTheLocks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.txn(kv("unlock", lockKey, fields{"farm": "f1"}).by("s-f1"))
	w.txn(kv("set", "reservations/n1", holding()))
	if found := w.promises(); found["P1 lock not held by a farm"] != 1 {
		t.Errorf("a share was taken under no lock; found %v", found)
	}
	w = newWorld(t)
	w.txn(kv("unlock", lockKey, fields{"farm": "f1"}).by("s-f1"))
	w.lock = w.txn(kv("lock", lockKey, fields{"farm": "f1"}).by("s-n2"))
	w.txn(kv("check-session", lockKey, nil).by("s-n2"), kv("check-index", lockKey, nil).at(w.lock),
		kv("check-index", rcKey, nil).at(w.rc),
		kv("cas", podKey, placed("n1", running, 20)).at(w.pod), kv("set", intentN1, told(running, 20)))
	w.expect("P1 lock not held by a farm")
	// A claim is changed without any lock.
	w = newWorld(t)
	w.txn(kv("set", "reservations/n1", fields{"holders": fields{"c/main.0": fields{"ports": []int{80, 81}}}}))
	w.expect("P1 share changed by another")
}

// A session with its own TTL has the incarnation in its name. A session of another farm, or of another cluster, does
// not count.
func TestSessionsOfBothKinds(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]string{
		"rcfarm/farm/f1@rcfarm/": "", "rcfarm/farm/f1@rcfarm//01j": "",
		"rcfarm/farm/f11@rcfarm//01j": "P1 lock not held by a farm",
		"rcfarm/farm/f1@other/":       "P1 lock not held by a farm", "rcfarm/farm/f1": "P1 lock not held by a farm",
	} {
		w := newWorld(t)
		w.command(typeSession, fields{
			"Op":      "create",
			"Session": fields{"ID": "s-ttl", "Name": name, "Node": "f1", "Behavior": "release"},
		})
		w.txn(kv("unlock", lockKey, fields{"farm": "f1"}).by("s-f1"))
		w.lock = w.txn(kv("lock", lockKey, fields{"farm": "f1"}).by("s-ttl"))
		w.txn(kv("check-session", lockKey, nil).by("s-ttl"), kv("check-index", lockKey, nil).at(w.lock),
			kv("check-index", rcKey, nil).at(w.rc),
			kv("cas", podKey, placed("n1", running, 20)).at(w.pod), kv("set", intentN1, told(running, 20)))
		w.expect(rule)
	}
}

// All locks of a transaction about two controllers must be held by one farm.
func TestMergedUnderOneSession(t *testing.T) {
	t.Parallel()
	for _, session := range []string{"s-f1", "s-f2"} {
		w := newWorld(t)
		record := controllerOf(1, 1)
		record["id"], record["name"], record["manifest"] = "d", "other", "d2"
		rc := w.txn(kv("set", "rcs/d", record))
		lock := w.txn(kv("lock", "locks/d", fields{"farm": session[2:]}).by(session))
		in := told(running, 30)
		in["rc_id"] = "d"
		w.txn(w.fenced(
			kv("set", intentN1, told(running, 20)),
			kv("check-session", "locks/d", nil).by(session), kv("check-index", "locks/d", nil).at(lock),
			kv("check-index", "rcs/d", nil).at(rc),
			kv("set", "intent/n2/d/main.0", in),
		)...)
		if session == "s-f1" {
			w.expect("")
		} else {
			w.expect("P1 written under two sessions")
		}
	}
}
