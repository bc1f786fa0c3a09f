package farm

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// gateStore is a store in which some nodes count as living, and the gate stands.
type gateStore struct {
	Gatekeeper // whatever else is called fails

	counts []string // nodes that emulate nothing, and count
	asked  int
	first  string // what the gate may be raised to at once
	gate   store.Rec[store.Gate]
}

func (s *gateStore) FirstRaise(context.Context, store.Rec[store.Gate]) (string, error) {
	return s.first, nil
}

func (s *gateStore) PresentGate(context.Context) (store.Rec[store.Gate], error) { return s.gate, nil }

func (s *gateStore) Writers(context.Context) ([]feature.Writer, error) {
	s.asked++
	living := []feature.Writer{{Kind: "farm", Name: "f1", Emulates: feature.Known.Newest()}}
	for _, name := range s.counts {
		living = append(living, feature.Writer{Kind: "node", Name: name})
	}
	return living, nil
}

func (s *gateStore) RaiseGate(_ context.Context, _ store.Rec[store.Gate], to string) error {
	s.gate.Value.Version = to
	return nil
}

// gateWorld is a leader of a cluster with three nodes of its own version, and one older one.
func gateWorld(t *testing.T, old *node.View) (*gateDuty, *gateStore, func(after time.Duration)) {
	t.Helper()
	w := emptyCache()
	newest := feature.Known.Newest()
	w.records[0] = map[string]*node.View{"old": old}
	for _, name := range []string{"a", "b", "c"} {
		w.records[0][name] = &node.View{Node: node.Node{Name: name, EmulationVersion: newest}, Alive: true}
	}
	w.as.farms = []store.Member{{ID: "f1", EmulationVersion: newest}}
	w.as.schema.Value.Epoch = "e1"
	w.publish()
	cfg := Config{}
	cfg.setDefaults()
	st := &gateStore{gate: store.Rec[store.Gate]{Index: 7, Value: store.Gate{Version: feature.Oldest}}}
	d := &gateDuty{speaker: newSpeaker(&core{cfg: cfg, log: obs.Discard(), cache: w, kit: &kit{nodeSync: &nodeSync{}}}), as: st}
	d.kit.nodeSync.begin("e1")
	d.kit.nodeSync.found("e1", "")
	now := time.Unix(1e9, 0)
	return d, st, func(after time.Duration) {
		t.Helper()
		now = now.Add(after)
		if err := d.look(t.Context(), now); err != nil {
			t.Fatal(err)
		}
	}
}

// A node that is cut off holds the gate back for as long as the store says that it counts, however long its machine is lost; then the gate is raised.
func TestANodeThatIsCutOffHoldsTheGate(t *testing.T) {
	t.Parallel()
	d, st, look := gateWorld(t, &node.View{Node: node.Node{Name: "old"}, FreeIndex: 9, MachineLost: true})
	d.cache.machinesLost = map[string]uint64{"old": 9}
	d.cache.sources = nil
	d.cache.publish()
	st.counts = []string{"old"}
	for range 100 {
		look(10 * time.Second)
	}
	if st.gate.Value.Version != feature.Oldest {
		t.Fatalf("the gate was raised to %s past a node with pods", st.gate.Value.Version)
	}
	if most := 100*10/30 + 1; st.asked == 0 || st.asked > most {
		t.Errorf("the store was asked %d times, want once in a sweep", st.asked)
	}
	st.counts = nil
	look(30 * time.Second)
	look(d.cfg.StableAfter)
	if st.gate.Value.Version != feature.Known.Newest() {
		t.Errorf("the gate is %s once nothing is left there", st.gate.Value.Version)
	}
}

// The gate stays while the store is not in order: most nodes gone, or not all heard of.
func TestTheGateStaysWhileTheStoreIsNotInOrder(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(d *gateDuty){
		"most are gone": func(d *gateDuty) {
			for _, name := range []string{"a", "b"} {
				v := *d.cache.records[0][name]
				v.Alive, v.FreeIndex = false, 9
				d.cache.records[0][name] = &v
			}
		},
		"not synced": func(d *gateDuty) {
			d.cache.as.schema.Value.Epoch = "e2"
			delete(d.cache.records[0], "old")
		},
	} {
		d, st, look := gateWorld(t, &node.View{Node: node.Node{Name: "old"}, FreeIndex: 9})
		spoil(d)
		d.cache.publish()
		for range 10 {
			look(30 * time.Second)
		}
		if st.gate.Value.Version != feature.Oldest {
			t.Errorf("%s: the gate was raised to %s", name, st.gate.Value.Version)
		}
	}
}

// A node that came back and went again counts until the store has been asked anew.
func TestANodeThatCameBackCountsAgain(t *testing.T) {
	t.Parallel()
	d, _, look := gateWorld(t, &node.View{Node: node.Node{Name: "old"}, FreeIndex: 9})
	look(0)
	if got := len(d.cache.writers(d.gone)); got != 4 {
		t.Errorf("%d count without it", got)
	}
	d.cache.records[0]["old"] = &node.View{Node: node.Node{Name: "old"}, FreeIndex: 10}
	d.cache.publish()
	if got := len(d.cache.writers(d.gone)); got != 5 {
		t.Errorf("%d count with it", got)
	}
}

// What holds the gate back is told as a finding of the leader, who is of the oldest version and need not know what waits; it is over with the gate.
func TestWhatHoldsTheGateIsTold(t *testing.T) {
	t.Parallel()
	d, st, look := gateWorld(t, &node.View{Node: node.Node{Name: "old", Version: "0.1.0"}, Alive: true})
	st.counts = []string{"old"}
	look(0)
	told, _ := d.unreadable.all()
	if text := told[gateKey]; !strings.Contains(text, "what version "+feature.Known.Newest()+" brings waits, as the version gate is 0.0.0") || !strings.Contains(text, "node old") {
		t.Fatalf("%q", text)
	}
	d.cache.records[0]["old"] = &node.View{Node: node.Node{Name: "old", EmulationVersion: feature.Known.Newest()}, Alive: true}
	d.cache.publish()
	st.counts = nil
	look(0)
	look(d.cfg.StableAfter)
	look(0)
	if told, _ := d.unreadable.all(); st.gate.Value.Version != feature.Known.Newest() || len(told) != 0 {
		t.Fatalf("at %s: %v", st.gate.Value.Version, told)
	}
	d.cache.as.farms = append(d.cache.as.farms, store.Member{ID: "f2", EmulationVersion: "99.0.0"})
	look(0)
	told, _ = d.unreadable.all()
	if text := told[gateKey]; !strings.Contains(text, "what version 99.0.0 brings waits") || !strings.Contains(text, "farm f1") {
		t.Errorf("%q", text)
	}
}

// It is told once it has lasted for an hour, with who holds it back then, and not while an upgrade goes on.
func TestAHeldGateIsToldAfterAnHour(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC()
	held := func(who string) map[string]string { return map[string]string{gateKey: who} }
	next, tells, active, again := trackRecords(nil, held("all nodes"), now, nil, true)
	if got := next[gateKey]; len(got) != 1 || got[0].Type != alert.GateHeld || len(tells)+len(active) != 0 || again != time.Hour {
		t.Fatalf("%+v, %+v, %v, %s", next, tells, active, again)
	}
	if next, tells, _, again = trackRecords(next, held("some"), now.Add(59*time.Minute), nil, false); len(tells) != 0 || again != time.Minute {
		t.Fatalf("%+v, %s", tells, again)
	}
	next, tells, _, _ = trackRecords(next, held("node n7"), now.Add(time.Hour), nil, true)
	if len(tells) != 1 || tells[0].Reason != "node n7" || !tells[0].Since.Equal(now) {
		t.Fatalf("%+v", tells)
	}
	if next, tells, _, _ = trackRecords(next, nil, now.Add(2*time.Hour), map[string]bool{tells[0].ID(): true}, false); len(tells) != 0 || len(next) != 1 {
		t.Fatalf("over, for a leader who has not looked: %+v", tells)
	}
	if _, tells, _, _ = trackRecords(next, nil, now.Add(2*time.Hour), nil, true); len(tells) != 1 || !tells[0].Resolved {
		t.Fatalf("%+v", tells)
	}
	if next, tells, _, _ = trackRecords(map[string][]rc.Incident{gateKey: {{Type: alert.GateHeld, Since: now, Key: "k"}}}, nil, now.Add(10*time.Minute), nil, true); len(tells)+len(next) != 0 {
		t.Errorf("an upgrade that took ten minutes: %+v", tells)
	}
}

// A gate that an operator has just made is raised at the first look, and at no later one.
func TestTheFirstGateIsRaisedAtOnce(t *testing.T) {
	t.Parallel()
	_, st, look := gateWorld(t, &node.View{Node: node.Node{Name: "old"}, Alive: true})
	st.first, st.counts = "0.1.0", []string{"old"}
	look(0)
	if st.gate.Value.Version != "0.1.0" {
		t.Errorf("the gate is %s", st.gate.Value.Version)
	}
	st.first = "0.2.0"
	look(time.Second)
	if st.gate.Value.Version != "0.1.0" {
		t.Errorf("later it is %s", st.gate.Value.Version)
	}
}
