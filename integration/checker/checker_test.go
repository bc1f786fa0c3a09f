package checker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

// history makes a Raft log in the form in which Consul writes it.
type history struct {
	t      *testing.T
	log    []Entry
	events []Event
	late   time.Duration // added to the times of later entries
	// ids has the ids of controllers in the log, by the names that a test uses.
	ids map[string]string
}

// called gives an operation's controllers their ids in the log. A lock or a rollout gets the unit's id.
func (h *history) called(op Op) Op {
	for name, id := range h.ids {
		parts := strings.Split(op.DirEnt.Key, "/")
		for i, part := range parts {
			switch {
			case part == name && (parts[1] == "locks" || parts[1] == "rollouts"):
				parts[i] = rc.UnitOf(id)
			case part == name:
				parts[i] = id
			}
		}
		op.DirEnt.Key = strings.Join(parts, "/")
		for _, end := range []string{`"`, "/"} {
			op.DirEnt.Value = bytes.ReplaceAll(op.DirEnt.Value, []byte(`"`+name+end), []byte(`"`+id+end))
		}
	}
	return op
}

const epoch = int64(1_800_000_000) * int64(time.Second)

func (h *history) command(kind byte, request any) uint64 {
	h.t.Helper()
	var data bytes.Buffer
	data.WriteByte(kind)
	if err := codec.NewEncoder(&data, &codec.MsgpackHandle{}).Encode(request); err != nil {
		h.t.Fatal(err)
	}
	index := uint64(1)
	if n := len(h.log); n > 0 {
		index = h.log[n-1].Index + 1
	}
	h.log = append(h.log, Entry{
		Index: index, Kind: raftCommand, Data: data.Bytes(),
		At: epoch + int64(index)*int64(time.Millisecond) + int64(h.late),
	})
	return index
}

func (h *history) txn(ops ...Op) uint64 {
	h.t.Helper()
	type wrapped struct{ KV *Op }
	var request struct{ Ops []wrapped }
	for i := range ops {
		op := h.called(ops[i])
		request.Ops = append(request.Ops, wrapped{KV: &op})
	}
	return h.command(typeTxn, request)
}

func kv(verb, key string, value any) Op {
	op := Op{Verb: verb, DirEnt: dirEntry{Key: prefix + key}}
	if value != nil {
		op.DirEnt.Value, _ = json.Marshal(value) // plain maps always encode
	}
	return op
}

func (o Op) at(index uint64) Op        { o.DirEnt.ModifyIndex = index; return o }
func (o Op) by(session string) Op      { o.DirEnt.Session = session; return o }
func (h *history) last() uint64        { return h.log[len(h.log)-1].Index }
func (h *history) now() int64          { return h.log[len(h.log)-1].At }
func (h *history) replay() *state      { return h.replayTo(h.last()) }
func (h *history) add(events ...Event) { h.events = append(h.events, events...) }

func (h *history) replayTo(index uint64) *state {
	h.t.Helper()
	s := newState()
	for i := range h.log {
		if h.log[i].Index > index {
			break
		}
		if _, err := s.apply(&h.log[i]); err != nil {
			h.t.Fatal(err)
		}
	}
	return s
}

// verdict judges the history. Its final keys are the keys at the end of the replay.
func (h *history) verdict() *Result {
	h.t.Helper()
	final := Final{Index: h.last()}
	for _, g := range h.replay().groups {
		for _, k := range g {
			final.Keys = append(final.Keys,
				FinalKey{Key: k.Name, Value: k.Value, ModifyIndex: k.Index, Session: k.Session})
		}
	}
	r, err := judge(h.log, h.events, final, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

type fields map[string]any

// world is a cluster with two farms, of which f1 owns controller c, and two nodes; its pod c/main.0 runs on n1.
type world struct {
	*history
	lock, rc, schema, breaker, pod, reservation uint64
}

const (
	intentN1  = "intent/n1/c/main.0"
	realityN1 = "reality/n1/c/main.0"
	podKey    = "pods/c/main.0"
	lockKey   = "locks/c"
	rcKey     = "rcs/c"
)

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOf(t, nil)
}

// newWorldOf is like newWorld, with other ids for controllers.
func newWorldOf(t *testing.T, ids map[string]string) *world {
	t.Helper()
	w := &world{history: &history{t: t, ids: ids}}
	for _, name := range []string{"f1", "f2"} {
		w.command(typeRegister, fields{"Node": name, "Check": fields{"CheckID": "alive", "Status": "passing"}})
		w.command(typeSession, fields{"Op": "create", "Session": fields{
			"ID": "s-" + name, "Name": "rcfarm/farm/" + name + "@" + prefix, "Node": name,
			"Behavior": "release", "NodeChecks": []string{"alive"},
		}})
	}
	w.schema = w.txn(kv("set", "schema", fields{"nonce": "n0"}))
	w.breaker = w.txn(kv("set", "breaker", fields{}))
	for _, name := range []string{"n1", "n2"} {
		w.command(typeRegister, fields{"Node": name, "Check": fields{"CheckID": "serfHealth", "Status": "passing"}})
		w.command(typeSession, fields{
			"Op":      "create",
			"Session": fields{"ID": "s-" + name, "Name": "rcfarm/preparer/" + name + "@" + prefix, "Node": name},
		})
		record := fields{"name": name, "capacity": fields{"slots": 2}, "nonce": "n0", "consul_node": name}
		w.txn(kv("lock", "nodes/0/"+name, record).by("s-" + name))
	}
	w.rc = w.txn(kv("set", rcKey, controllerOf(1, 1)))
	w.lock = w.txn(kv("lock", lockKey, fields{"farm": "f1"}).by("s-f1"))
	w.pod = w.txn(w.fenced(
		kv("check-index", "schema", nil).at(w.schema),
		kv("cas", podKey, placed("n1", running, 10)), kv("set", intentN1, told(running, 10)),
		kv("cas", "reservations/n1", holding("c/main.0")),
	)...)
	w.reservation = w.pod
	w.ran(running, 10)
	w.txn(kv("set", realityN1, did("ready", 10, true)))
	return w
}

// fenced adds what every write of a controller's owner must carry.
func (w *world) fenced(ops ...Op) []Op {
	return append([]Op{
		kv("check-session", lockKey, nil).by("s-f1"), kv("check-index", lockKey, nil).at(w.lock),
		kv("check-index", rcKey, nil).at(w.rc),
	}, ops...)
}

// unversioned returns a write of the status under the fence, without a condition on the controller's version.
func (w *world) unversioned() []Op {
	return []Op{
		kv("check-session", lockKey, nil).by("s-f1"), kv("check-index", lockKey, nil).at(w.lock),
		kv("set", "status/c", fields{"rc_id": "c", "observed_generation": 1, "owner": "f1"}),
	}
}

// second places a second replica in a transaction with the owner's fence and the given operations.
func (w *world) second(node string, more ...Op) {
	p := placed(node, running, 30)
	p["index"] = 1
	w.txn(w.fenced(append([]Op{kv("cas", "pods/c/main.1", p)}, more...)...)...)
}

// restores takes the history back to its state at an index.
func (w *world) restores(index uint64) {
	asked := w.now() + 1
	w.log = append(w.log, Entry{Index: w.last() + 2, Kind: raftCommand + 1, At: asked + 1})
	w.add(Event{Kind: EventRestore, Index: index, Call: asked, At: asked + 2})
}

// ran records what node n1 did with the pod, right after the last entry.
func (w *world) ran(state string, revision int64) {
	w.add(Event{
		Kind: EventNode, At: w.now() + 1, Node: "n1", ID: "c/main.0", State: state, Revision: revision,
		Digest: "d1", Ports: map[string]int{"http": 80},
	})
}

// ends records that the pod runs at the end.
func (w *world) ends(revision int64) {
	w.add(Event{Kind: EventEnd, Node: "n1", ID: "c/main.0", State: running, Revision: revision, Digest: "d1"})
}

func (w *world) converged() {
	w.txn(w.fenced(kv("set", "status/c", fields{
		"rc_id": "c", "observed_generation": 1, "owner": "f1",
		"conditions": []fields{{"type": "Converged", "true": true}},
	}))...)
}

func controllerOf(generation, count int) fields {
	return fields{
		"id": "c", "name": "web", "manifest": "d1", "generation": generation,
		"replica_groups": []fields{{"role": "main", "count": count}},
	}
}

func placed(node, state string, revision int64) fields {
	return fields{
		"rc_id": "c", "role": "main", "index": 0, "node": node, "digest": "d1",
		"run_state": state, "revision": revision,
		"ports": fields{"http": 80},
	}
}

func told(state string, revision int64) fields {
	return fields{"rc_id": "c", "role": "main", "index": 0, "digest": "d1", "state": state, "revision": revision}
}

func did(state string, revision int64, available bool) fields {
	return fields{
		"rc_id": "c", "role": "main", "index": 0, "digest": "d1", "state": state,
		"revision": revision, "available": available,
	}
}

func holding(ids ...string) fields {
	claims := fields{}
	for _, id := range ids {
		claims[id] = fields{"ports": []int{80}}
	}
	return fields{"holders": claims}
}

func TestAnOrderlyHistoryHasNoViolations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.converged()
	w.ends(10)
	if r := w.verdict(); len(r.Violations) > 0 {
		t.Error(r.Violations)
	}
}

// A farm may send writes of several controllers together. Each write is judged separately, and needs its own fence.
func TestTwoControllersInOneTransaction(t *testing.T) {
	t.Parallel()
	for _, fenced := range []bool{true, false} {
		w := newWorld(t)
		record := controllerOf(1, 1)
		record["id"], record["name"], record["manifest"] = "d", "other", "d2"
		rc := w.txn(kv("set", "rcs/d", record))
		lock := w.txn(kv("lock", "locks/d", fields{"farm": "f1"}).by("s-f1"))
		w.rc = w.txn(kv("set", rcKey, controllerOf(2, 0)))
		p := placed("n2", running, 30)
		p["rc_id"], p["digest"] = "d", "d2"
		in := told(running, 30)
		in["rc_id"], in["digest"] = "d", "d2"
		ops := w.fenced(
			kv("check-index", "breaker", nil).at(w.breaker), kv("check-index", "schema", nil).at(w.schema),
			kv("cas", podKey, placed("n1", stopped, 20)).at(w.pod), kv("set", intentN1, told(stopped, 20)),
			kv("check-index", "rcs/d", nil).at(rc), kv("check-index", "locks/d", nil).at(lock),
			kv("cas", "pods/d/main.0", p), kv("set", "intent/n2/d/main.0", in),
			kv("cas", "reservations/n2", holding("d/main.0")),
		)
		if fenced {
			ops = append(ops, kv("check-session", "locks/d", nil).by("s-f1"))
		}
		w.txn(ops...)
		counts := w.verdict().Count()
		for rule := range counts {
			if strings.HasPrefix(rule, "P") && (fenced || rule != "P1 without a fence") {
				t.Errorf("fenced %v: found %v", fenced, counts)
			}
		}
		if !fenced && counts["P1 without a fence"] != 1 {
			t.Errorf("a part without a fence was not found; found %v", counts)
		}
	}
}

// A farm may write a status that names no owner, but only if the controller has no owner.
func TestAFarmMayWriteThatAControllerHasNoOwner(t *testing.T) {
	t.Parallel()
	const rule = "P1 without a fence"
	says := func(id string) Op { return kv("set", "status/"+id, fields{"rc_id": id}) }
	for name, tt := range map[string]struct {
		ops  []Op
		want int
	}{
		"free":      {[]Op{kv("check-not-exists", "locks/d", nil), says("d")}, 0},
		"not asked": {[]Op{says("d")}, 1},
		"owned":     {[]Op{kv("check-not-exists", "locks/d", nil), says("c")}, 1},
	} {
		w := newWorld(t)
		w.converged()
		w.txn(tt.ops...)
		if got := w.verdict().Count(); got[rule] != tt.want {
			t.Errorf("%s: found %v, want %d of %s", name, got, tt.want, rule)
		}
	}
}

// When a farm writes the status of a controller without an owner, the status keeps the generation that the last owner
// worked on, because an operator may have changed the controller since.
func TestAStatusWithoutAnOwnerKeepsItsGeneration(t *testing.T) {
	t.Parallel()
	const rule = "P2 superseded generation"
	says := func(generation int, owner, condition string) Op {
		return kv("set", "status/c", fields{
			"rc_id": "c", "observed_generation": generation, "owner": owner,
			"conditions": []fields{{"type": condition, "true": true}},
		})
	}
	for name, tt := range map[string]struct {
		says Op
		want int
	}{
		"no owner":           {says(1, "", "Unclaimed"), 0},
		"another generation": {says(3, "", "Unclaimed"), 1},
		"by an owner":        {says(1, "f1", "Unclaimed"), 1},
		"something else":     {says(1, "", "Converged"), 1},
	} {
		w := newWorld(t)
		w.converged()
		w.txn(w.fenced(says(1, "f1", "Converged"))...)
		w.rc = w.txn(kv("set", rcKey, controllerOf(2, 1)))
		w.txn(w.fenced(tt.says)...)
		if got := w.verdict().Count(); got[rule] != tt.want {
			t.Errorf("%s: found %v, want %d of %s", name, got, tt.want, rule)
		}
	}
}

// The checker finds a violation of every rule in a history that breaks the rule.
func TestBrokenHistoriesAreFound(t *testing.T) {
	t.Parallel()
	stopIntent, stopPod := kv("set", intentN1, told(stopped, 20)), placed("n1", stopped, 20)
	for rule, breakIt := range map[string]func(w *world){
		"P1 " + ruleOwner: func(w *world) {
			w.command(typeSession, fields{"Op": "destroy", "Session": fields{"ID": "s-f1"}})
			w.txn(kv("lock", lockKey, fields{"farm": "f2"}).by("s-f2"))
			w.txn(kv("set", "status/c", fields{"rc_id": "c", "observed_generation": 1, "owner": "f1"}))
		},
		"P1 without a fence": func(w *world) { w.txn(kv("set", intentN1, told(running, 11))) },
		"P1 share changed by another": func(w *world) {
			w.txn(kv("set", "reservations/n1", holding()))
		},
		"P2 without the controller's version": func(w *world) { w.txn(w.unversioned()...) },
		"P2 no such controller": func(w *world) {
			w.txn(kv("delete", rcKey, nil))
			w.txn(w.unversioned()...)
		},
		"P2 superseded generation": func(w *world) {
			w.txn(w.fenced(kv("set", "status/c", fields{"rc_id": "c", "observed_generation": 7, "owner": "f1"}))...)
		},
		"P2 superseded manifest": func(w *world) {
			p := placed("n2", running, 30)
			p["index"], p["digest"] = 1, "old"
			w.txn(w.fenced(kv("cas", "pods/c/main.1", p))...)
		},
		"P3 port placed twice": func(w *world) {
			p := placed("n1", running, 30)
			p["index"] = 1
			w.txn(w.fenced(kv("cas", "pods/c/main.1", p),
				kv("set", "reservations/n1", holding("c/main.0", "c/main.1")))...)
		},
		"P3 port used twice on a node": func(w *world) {
			w.add(Event{
				Kind: EventNode, At: w.now() + 1, Node: "n1", ID: "d/main.0", State: running, Revision: 10,
				Ports: map[string]int{"http": 80},
			})
		},
		"P3 placed without a share":       func(w *world) { w.second("n2", kv("set", "reservations/n2", holding())) },
		"P3 placed without a reservation": func(w *world) { w.second("n2") },
		"P3 placed on an unknown node": func(w *world) {
			w.second("n9", kv("set", "reservations/n9", holding("c/main.1")))
		},
		"P3 no share at the end": func(w *world) {
			w.txn(w.fenced(kv("set", "reservations/n1", holding()))...)
		},
		"P3 share of nobody at the end": func(w *world) {
			w.txn(w.fenced(kv("set", "reservations/n2", holding("c/main.7")))...)
		},
		"P3 more pods than slots": func(w *world) {
			p := placed("n1", running, 30)
			p["index"] = 1
			w.txn(w.fenced(kv("cas", "pods/c/main.1", p),
				kv("set", "reservations/n1", holding("c/main.0", "c/main.1", "d/main.0")))...)
		},
		"P4 stop that nobody asked for": func(w *world) {
			w.txn(w.fenced(kv("check-index", "breaker", nil).at(w.breaker),
				kv("cas", podKey, stopPod).at(w.pod), stopIntent)...)
		},
		"P4 stop without the breaker": func(w *world) {
			w.txn(w.fenced(kv("cas", podKey, stopPod).at(w.pod), stopIntent)...)
		},
		"P4 stop while the breaker is tripped": func(w *world) {
			w.change(2, 0, nil)
			w.breaker = w.txn(kv("set", "breaker", fields{"tripped": true}))
			w.stop(20)
		},
		"P4 revision not higher": func(w *world) {
			w.txn(w.fenced(kv("set", intentN1, told(stopped, 9)))...)
		},
		"P4 node acted without an intent": func(w *world) { w.ran(stopped, 12) },
		"P4 orphan not reported": func(w *world) {
			w.restores(w.last())
			w.add(Event{Kind: EventEnd, Node: "n1", ID: "gone/main.0", State: running, Revision: 10, Digest: "d1"})
		},
		"P5 given up before the stop was confirmed": func(w *world) {
			w.txn(w.fenced(kv("delete-cas", podKey, nil).at(w.pod), kv("delete", intentN1, nil))...)
		},
		"P5 given up while it runs": func(w *world) {
			w.txn(kv("set", realityN1, did(stopped, 10, false)))
			w.txn(w.fenced(kv("delete-cas", podKey, nil).at(w.pod), kv("delete", intentN1, nil))...)
		},
		"P5 share freed under a pod": func(w *world) { w.txn(w.fenced(kv("set", "reservations/n1", holding()))...) },
		"P6 below the minimum": func(w *world) {
			record := controllerOf(1, 1)
			record["min_available"] = 1
			w.rc = w.txn(kv("set", rcKey, record))
			w.txn(w.fenced(kv("check-index", "breaker", nil).at(w.breaker),
				kv("cas", podKey, stopPod).at(w.pod), stopIntent)...)
		},
		"P6 above the surge": func(w *world) {
			for i := 1; i < 4; i++ {
				p := placed("n2", running, 30)
				p["index"], p["ports"] = i, nil
				w.txn(w.fenced(kv("cas", fmt.Sprintf("pods/c/main.%d", i), p))...)
			}
		},
		"R7 static pod moved": func(w *world) {
			w.change(1, 1, fields{"strategy": "static"})
			p := placed("n2", running, 20)
			p["ghosts"] = []fields{{"node": "n1"}}
			w.txn(w.fenced(kv("check-index", "schema", nil).at(w.schema), kv("cas", podKey, p).at(w.pod),
				kv("cas", "reservations/n2", holding("c/main.0")))...)
		},
		"R1 echoed before the pages of orphans": func(w *world) {
			record := fields{"name": "n2", "nonce": "n1", "orphan_pages": fields{"edition": "e1", "count": 2}}
			w.txn(kv("set", "orphans/n2/0", fields{"edition": "e1", "nonce": "n1"}))
			w.txn(kv("set", "orphans/n2/1", fields{"page": 1, "edition": "e1", "nonce": "n0"}))
			w.txn(kv("lock", "nodes/0/n2", record).by("s-n2"))
		},
		"R1 placed without the epoch": func(w *world) {
			w.second("n2", kv("cas", "reservations/n2", holding("c/main.1")))
		},
		"final not converged":           func(*world) {},
		"final placed and does not run": func(w *world) { w.converged() },
		"final runs without a placement": func(w *world) {
			w.add(Event{Kind: EventEnd, Node: "n2", ID: "c/main.5", State: running, Revision: 10, Digest: "d1"})
		},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			breakIt(w)
			if counts := w.verdict().Count(); counts[rule] == 0 {
				t.Errorf("not found; found %v", counts)
			}
		})
	}
}

// A refused transaction changes nothing, and a session that ends releases its locks.
func TestReplayDecidesAsConsulDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.txn(w.fenced(kv("set", intentN1, told(running, 11)),
		kv("cas", podKey, placed("n2", running, 11)).at(w.pod+100))...)
	if in := w.replay().get(prefix + intentN1).intent(); in.Revision != 10 {
		t.Errorf("a refused transaction left revision %d", in.Revision)
	}
	ended := w.command(typeRegister, fields{"Node": "f1", "Check": fields{"CheckID": "alive", "Status": critical}})
	if k := w.replay().get(prefix + lockKey); k.Session != "" || k.Index != ended {
		t.Errorf("the lock of a dead session is %+v", k)
	}
}

// A restored snapshot takes the replay back. After that, placements wait for a new epoch. Writes that are under way may
// still land.
func TestRestoredSnapshot(t *testing.T) {
	t.Parallel()
	for late, want := range map[time.Duration]int{0: 0, onItsWay - 100*time.Millisecond: 0, onItsWay: 1} {
		w := newWorld(t)
		saved := w.last()
		w.txn(kv("set", "names/late", "late"))
		w.restores(saved)
		w.late += late // in addition to the millisecond between two entries
		w.second("n2", kv("check-index", "schema", nil).at(w.schema), kv("cas", "reservations/n2", holding("c/main.1")))
		j := newJudgement(nil, nil)
		if err := j.replay(w.log, w.events); err != nil {
			t.Fatal(err)
		}
		if j.state.get(prefix+"names/late") != nil || j.result.Restores != 1 {
			t.Errorf("%d restores; names/late is %v", j.result.Restores, j.state.get(prefix+"names/late"))
		}
		if counts := j.result.Count(); counts["R1 placed before the epoch was renewed"] != want {
			t.Errorf("%s late: found %v", late, counts)
		}
	}
}

// The result has the longest time that a restored store kept its epoch.
func TestTheEpochAfterARestore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i, took := range []time.Duration{time.Second, 3 * time.Second, 2 * time.Second} {
		saved := w.last()
		w.txn(kv("set", "names/late", "late"))
		w.restores(saved)
		w.late += took
		w.txn(kv("set", "schema", fields{"nonce": fmt.Sprint("n", i+1)}))
		w.txn(kv("set", "schema", fields{"nonce": fmt.Sprint("m", i+1)})) // renewed without a restore
		w.late += 5 * time.Second
	}
	j := newJudgement(nil, nil)
	if err := j.replay(w.log, w.events); err != nil {
		t.Fatal(err)
	}
	if after := j.result.RenewedAfter; after.Round(time.Second) != 3*time.Second {
		t.Errorf("the epoch was new within %s", after)
	}
}

// A stop that a node confirmed before a restore still counts as confirmed afterwards, because the node remembers it.
// Other stops do not.
func TestAStopThatARestoreTookBack(t *testing.T) {
	t.Parallel()
	const rule = "P5 given up before the stop was confirmed"
	for state, want := range map[string]int{stopped: 0, "ready": 1} {
		w := newWorld(t)
		stop := w.txn(w.fenced(
			kv("check-index", "breaker", nil).at(w.breaker), kv("cas", podKey, placed("n1", stopped, 20)).at(w.pod),
			kv("set", intentN1, told(stopped, 20)))...)
		w.ran(stopped, 20)
		w.txn(kv("set", realityN1, did(state, 20, false)))
		w.restores(stop)
		w.txn(w.fenced(kv("delete-cas", podKey, nil).at(stop), kv("delete", intentN1, nil))...)
		j := newJudgement(nil, nil)
		if err := j.replay(w.log, w.events); err != nil {
			t.Fatal(err)
		}
		if counts := j.result.Count(); counts[rule] != want {
			t.Errorf("%s: found %v, want %d of %s", state, counts, want, rule)
		}
	}
}

// A pod with `lost_since` counts as lost until a preparer holds its node, even if the machine's agent is back before.
func TestALostPodIsNotAvailable(t *testing.T) {
	t.Parallel()
	const rule = "P6 below the minimum"
	for name, tt := range map[string]struct {
		marked, held bool
		want         int
	}{"marked": {true, false, 0}, "not marked": {false, false, 1}, "marked, and back": {true, true, 1}} {
		w := newWorld(t)
		record := controllerOf(1, 1)
		record["min_available"] = 1
		w.rc = w.txn(kv("set", rcKey, record))
		if !tt.held {
			w.command(typeSession, fields{"Op": "destroy", "Session": fields{"ID": "s-n1"}})
		}
		if p := placed("n1", running, 10); tt.marked {
			p["lost_since"] = "2026-01-02T03:04:05Z"
			w.pod = w.txn(w.fenced(kv("cas", podKey, p).at(w.pod))...)
		}
		w.txn(w.fenced(
			kv("check-index", "breaker", nil).at(w.breaker), kv("cas", podKey, placed("n1", stopped, 20)).at(w.pod),
			kv("set", intentN1, told(stopped, 20)))...)
		if counts := w.verdict().Count(); counts[rule] != tt.want {
			t.Errorf("%s: found %v, want %d of %s", name, counts, tt.want, rule)
		}
	}
}

// If a node's record cannot be read, farms do not wait for stops on this node.
func TestACopyThatStopsOnAnUnreadableNodeTakesNoRoom(t *testing.T) {
	t.Parallel()
	const rule = "P6 above the surge"
	for value, violated := range map[string]bool{`["` + HostileMark + `"]`: false, "": true} {
		w := newWorld(t)
		w.pod = w.txn(w.fenced(
			kv("check-index", "breaker", nil).at(w.breaker), kv("cas", podKey, placed("n1", stopped, 20)).at(w.pod),
			kv("set", intentN1, told(stopped, 20)))...)
		if value != "" {
			w.txn(kv("lock", "nodes/0/n1", json.RawMessage(value)).by("s-n1"))
		}
		for i := 1; i < 3; i++ {
			p := placed("n2", running, 30)
			p["index"], p["ports"] = i, nil
			w.txn(w.fenced(kv("cas", fmt.Sprintf("pods/c/main.%d", i), p))...)
		}
		if found := w.verdict().Count(); (found[rule] > 0) != violated {
			t.Errorf("a record of %q: found %v", value, found)
		}
	}
}

// An unreadable report makes no copy available.
func TestACopyWithAnUnreadableReportIsNotAvailable(t *testing.T) {
	t.Parallel()
	const rule = "P6 below the minimum"
	for value, want := range map[string]int{`{"` + HostileMark + `":1}`: 0, "": 1} {
		w := newWorld(t)
		record := controllerOf(1, 1)
		record["min_available"] = 1
		w.rc = w.txn(kv("set", rcKey, record))
		if value != "" {
			w.txn(kv("set", "reality/n1/c/main.0", json.RawMessage(value)))
		}
		w.txn(w.fenced(
			kv("check-index", "breaker", nil).at(w.breaker), kv("cas", podKey, placed("n1", stopped, 20)).at(w.pod),
			kv("set", intentN1, told(stopped, 20)))...)
		if counts := w.verdict().Count(); counts[rule] != want {
			t.Errorf("a report of %q: found %v, want %d of %s", value, counts, want, rule)
		}
	}
}

// Placements wait for each node whose preparer passes all the time, until the node has reported under the new epoch
// what it runs.
func TestPlacingWaitsForSilentNodes(t *testing.T) {
	t.Parallel()
	const rule = "R1 placed before every node has spoken"
	preparer := func(status string) fields {
		return fields{"Node": "n2", "Check": fields{"CheckID": "rcfarm-preparer-n2-1-ttl", "Status": status}}
	}
	machine := func(status string) fields {
		return fields{"Node": "n2", "Check": fields{"CheckID": "serfHealth", "Status": status}}
	}
	echo := func(epoch string) Op {
		return kv("set", "nodes/0/n2", fields{
			"name": "n2", "capacity": fields{"slots": 2},
			"nonce": epoch, "consul_node": "n2",
		})
	}
	for name, tt := range map[string]struct {
		meanwhile func(w *world)
		want      int
	}{
		"silent":                  {func(*world) {}, 1},
		"echoes an older one":     {func(w *world) { w.txn(echo("n0")) }, 1},
		"echoes":                  {func(w *world) { w.txn(echo("n1")) }, 0},
		"echoes and starts again": {func(w *world) { w.txn(echo("n1")); w.txn(echo("")) }, 0},
		"fails for a moment": {func(w *world) {
			w.command(typeRegister, preparer(critical))
			w.command(typeRegister, preparer("passing"))
		}, 0},
		"its machine is away for a moment": {func(w *world) {
			w.command(typeRegister, machine(critical))
			w.command(typeRegister, machine("passing"))
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.command(typeRegister, preparer("passing"))
			w.schema = w.txn(kv("set", "schema", fields{"nonce": "n1"}))
			tt.meanwhile(w)
			p := placed("n2", running, 30)
			p["index"] = 1
			w.txn(w.fenced(kv("check-index", "schema", nil).at(w.schema), kv("cas", "pods/c/main.1", p),
				kv("cas", "reservations/n2", holding("c/main.1")))...)
			if counts := w.verdict().Count(); counts[rule] != tt.want {
				t.Errorf("found %v, want %d of %s", counts, tt.want, rule)
			}
		})
	}
}

// When another client has the lock, a value that was written under an earlier fence must not be read.
func TestFencedRegister(t *testing.T) {
	t.Parallel()
	op := func(client int, what string, fence uint64, value, outcome string, call, end int64) Event {
		return Event{Kind: EventLock, At: end, Lock: &LockOp{
			Client: client, Key: "0-0", Op: what, Fence: fence, Value: value, Outcome: outcome, Call: call, Return: end,
		}}
	}
	history := func(outcome string, late int64) []Event {
		return []Event{
			op(1, LockAcquire, 5, "", LockDone, 1, 2), op(1, LockWrite, 5, "a", outcome, 3, late),
			op(2, LockAcquire, 9, "", LockDone, 5, 6), op(2, LockWrite, 9, "b", LockDone, 7, 8),
			op(2, LockRead, 0, "b", LockDone, 9, 10), op(2, LockRead, 0, "a", LockDone, 12, 13),
		}
	}
	check := func(events []Event, rewound ...span) int {
		j := &judgement{result: &Result{Checked: map[string]int{}}, rewound: rewound}
		j.locks(events)
		return j.result.Count()["P1 "+ruleRegister]
	}
	if check(history(LockDone, 11)) != 1 || check(history(LockUnknown, 4)) != 1 {
		t.Error("a write that took effect after its tenure was not found")
	}
	if check(history(LockUnknown, 4)[:5]) != 0 || check(history(LockRefused, 11)[:5]) != 0 {
		t.Error("an orderly history was found at fault")
	}
	// Reads after a restore prove nothing about fences. Reads before the restore can prove a violation.
	if check(history(LockDone, 11), span{9, 9}) != 0 || check(history(LockDone, 11), span{14, 15}) != 1 ||
		check(history(LockDone, 11), span{0, 1}) != 1 {
		t.Error("a restore is not taken for what it is")
	}
}

// A pod that runs once may run again only if a restored snapshot took back the intent to run it, or the intent to stop
// it.
func TestAPodThatRunsOnceAfterARestore(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		started, stopped, again uint64 // indices of the intents; stopped zero: there was none
		want                    int
	}{
		"nothing was taken back":                     {10, 12, 31, 1},
		"its stop was":                               {10, 22, 31, 0},
		"its start was":                              {21, 22, 31, 0},
		"its start was, and it was not stopped":      {21, 0, 31, 0},
		"asked for again before that":                {21, 22, 24, 1},
		"stopped after that":                         {10, 31, 32, 1},
		"all of it happened after that":              {31, 32, 33, 1},
		"it was not stopped, and its start was kept": {10, 0, 31, 1},
	} {
		j := newJudgement(nil, nil)
		j.takenBack = []written{{after: 20, before: 30}}
		var events []Event
		for i, d := range []struct {
			node, state string
			index       uint64
		}{{"n1", running, c.started}, {"n1", stopped, c.stopped}, {"n2", running, c.again}} {
			if d.index == 0 {
				continue
			}
			e := Event{
				Kind: EventNode, At: int64(i), Node: d.node, ID: "c/main.0",
				State: d.state, Revision: int64(i), Once: true,
			}
			events = append(events, e)
			j.ordered[orderKey(e.Node, e.ID, e.Revision)] = asked{state: d.state, index: d.index}
		}
		j.once(events)
		if got := j.result.Count()["pre_deploy ran twice"]; got != c.want {
			t.Errorf("%s: %d violations, want %d", name, got, c.want)
		}
	}
}

// A pod that runs once may get its intent again on its node. The pod must not start on another node, or after a stop.
func TestAPodThatRunsOnce(t *testing.T) {
	t.Parallel()
	type did struct{ node, state string }
	for name, c := range map[string]struct {
		all  []did
		want int
	}{
		"told again":            {[]did{{"n1", running}, {"n1", running}}, 0},
		"stopped":               {[]did{{"n1", running}, {"n1", stopped}}, 0},
		"never ran":             {[]did{{"n1", stopped}, {"n1", running}}, 0},
		"started after a stop":  {[]did{{"n1", running}, {"n1", stopped}, {"n1", running}}, 1},
		"started on another":    {[]did{{"n1", running}, {"n2", running}}, 1},
		"stopped on another":    {[]did{{"n1", running}, {"n2", stopped}, {"n1", running}}, 0},
		"on another, and again": {[]did{{"n1", running}, {"n2", running}, {"n2", running}}, 1},
	} {
		var events []Event
		for i, d := range c.all {
			events = append(events, Event{
				Kind: EventNode, At: int64(i), Node: d.node, ID: "c/main.0",
				State: d.state, Revision: int64(i), Once: true,
			})
		}
		events = append(events, Event{Kind: EventNode, Node: "n7", ID: "c/main.0", State: running},
			Event{Kind: EventNode, Node: "n8", ID: "d/main.0", State: running, Once: true})
		j := newJudgement(nil, nil)
		j.once(events)
		if got := j.result.Count()["pre_deploy ran twice"]; got != c.want {
			t.Errorf("%s: %d violations, want %d", name, got, c.want)
		}
	}
}
