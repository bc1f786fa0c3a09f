package farm

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// gateStore is a store with a gate, in which some nodes live.
type gateStore struct {
	Gatekeeper // its methods panic, because it is nil

	counts []string // living nodes that emulate no version
	asked  int
	first  string // the version to which the gate may be raised at once
	gate   store.Rec[store.Gate]
	fails  map[string]error // by method
	reads  int
	raises []string
}

func (g *gateStore) FirstRaise(context.Context, store.Rec[store.Gate]) (string, error) {
	return g.first, g.fails["FirstRaise"]
}

func (g *gateStore) ReadGate(context.Context) (store.Rec[store.Gate], error) {
	g.reads++
	return g.gate, g.fails["ReadGate"]
}

func (g *gateStore) Writers(context.Context) ([]feature.Writer, error) {
	g.asked++
	living := []feature.Writer{{Kind: "farm", Name: "f1", Emulates: feature.Known.Newest()}}
	for _, name := range g.counts {
		living = append(living, feature.Writer{Kind: "node", Name: name})
	}
	return living, g.fails["Writers"]
}

func (g *gateStore) RaiseGate(_ context.Context, _ store.Rec[store.Gate], to string) error {
	g.raises = append(g.raises, to)
	if err := g.fails["RaiseGate"]; err != nil {
		return err
	}
	g.gate.Value.Version, g.gate.Index = to, g.gate.Index+1
	return nil
}

// gateWorld is a leader of a cluster with three nodes of its own version, and one older node.
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
	d := &gateDuty{leaderReporter: newLeaderReporter(&core{
		cfg: cfg, log: obs.Discard(), cache: w,
		kit: &kit{nodeSync: &nodeSync{}},
	}), as: st}
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

// A node that is cut off holds the gate back while the store takes it for living, even if its machine is lost. After
// that the gate is raised.
func TestANodeThatIsCutOffHoldsTheGate(t *testing.T) {
	t.Parallel()
	d, st, look := gateWorld(t, &node.View{Node: node.Node{Name: "old"}, FreeIndex: 9, MachineLost: true})
	d.cache.machinesLost = map[string]lostMachine{"old": {index: 9}}
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
		t.Errorf("the gate is %s after the node was emptied", st.gate.Value.Version)
	}
}

// The gate is not raised while most nodes are gone, or while some have not reported.
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

// A node that came back and died again holds the gate back until the leader has asked the store again.
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

// The leader has a finding while the gate is held back. The leader has the oldest version, so it may not know which
// features wait. The finding ends when the gate is raised.
func TestAHeldGateIsReported(t *testing.T) {
	t.Parallel()
	d, st, look := gateWorld(t, &node.View{Node: node.Node{Name: "old", Version: "0.1.0"}, Alive: true})
	st.counts = []string{"old"}
	look(0)
	findings, _ := d.unreadable.all()
	if text := findings[gateKey]; !strings.Contains(text,
		"the features of version "+feature.Known.Newest()+" wait, because the version gate is 0.0.0") ||
		!strings.Contains(text, "node old") {
		t.Fatalf("%q", text)
	}
	d.cache.records[0]["old"] = &node.View{
		Node:  node.Node{Name: "old", EmulationVersion: feature.Known.Newest()},
		Alive: true,
	}
	d.cache.publish()
	st.counts = nil
	look(0)
	look(d.cfg.StableAfter)
	look(0)
	if findings, _ := d.unreadable.all(); st.gate.Value.Version != feature.Known.Newest() || len(findings) != 0 {
		t.Fatalf("at %s: %v", st.gate.Value.Version, findings)
	}
	d.cache.as.farms = append(d.cache.as.farms, store.Member{ID: "f2", EmulationVersion: "99.0.0"})
	look(0)
	findings, _ = d.unreadable.all()
	if text := findings[gateKey]; !strings.Contains(text, "the features of version 99.0.0 wait") ||
		!strings.Contains(text, "farm f1") {
		t.Errorf("%q", text)
	}
}

// The leader alerts to a held gate after an hour. The alert names the farms and nodes that hold it back then. A shorter
// upgrade causes no alert.
func TestAHeldGateIsAlertedAfterAnHour(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC()
	held := func(who string) findings {
		return findings{texts: map[string]string{gateKey: who}, complete: true}
	}
	some := held("some")
	some.complete = false
	next, tells, active, again := trackRecords(nil, held("all nodes"), now, nil)
	if got := next[gateKey]; len(got) != 1 || got[0].Type != rc.GateHeld || len(tells)+len(active) != 0 ||
		again != time.Hour {
		t.Fatalf("%+v, %+v, %v, %s", next, tells, active, again)
	}
	next, tells, _, again = trackRecords(next, some, now.Add(59*time.Minute), nil)
	if len(tells) != 0 || again != time.Minute {
		t.Fatalf("%+v, %s", tells, again)
	}
	next, tells, _, _ = trackRecords(next, held("node n7"), now.Add(time.Hour), nil)
	if len(tells) != 1 || tells[0].Reason != "node n7" || !tells[0].Since.Equal(now) {
		t.Fatalf("%+v", tells)
	}
	notified := map[string]bool{tells[0].ID(): true}
	next, tells, _, _ = trackRecords(next, findings{}, now.Add(2*time.Hour), notified)
	if len(tells) != 0 || len(next) != 1 {
		t.Fatalf("over, for a leader that has not searched: %+v", tells)
	}
	if _, tells, _, _ = trackRecords(next, findings{complete: true}, now.Add(2*time.Hour), nil); len(tells) != 1 ||
		!tells[0].Resolved {
		t.Fatalf("%+v", tells)
	}
	if next, tells, _, _ = trackRecords(map[string][]rc.Incident{gateKey: {{Type: rc.GateHeld, Since: now, Key: "k"}}},
		findings{complete: true}, now.Add(10*time.Minute), nil); len(tells)+len(next) != 0 {
		t.Errorf("an upgrade that took ten minutes: %+v", tells)
	}
}

// A gate that an operator has just made is raised at the first look, and not at later looks.
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

// allNew is a cluster in which no node is older.
func allNew(t *testing.T) (*gateDuty, *gateStore, func(after time.Duration)) {
	t.Helper()
	return gateWorld(t, &node.View{Node: node.Node{Name: "old", EmulationVersion: feature.Known.Newest()}, Alive: true})
}

// A missing gate is made at once, with the oldest version, even if all nodes are newer. Then it is raised like any
// other.
func TestAMissingGateIsMade(t *testing.T) {
	t.Parallel()
	d, st, look := allNew(t)
	st.gate = store.Rec[store.Gate]{Value: store.Gate{Version: feature.Oldest}}
	look(0)
	if !slices.Equal(st.raises, []string{feature.Oldest}) {
		t.Fatalf("raised to %v", st.raises)
	}
	look(d.cfg.StableAfter - 1)
	if len(st.raises) != 1 {
		t.Errorf("raised to %v before all members have been stable for long enough", st.raises)
	}
	look(1)
	if !slices.Equal(st.raises, []string{feature.Oldest, feature.Known.Newest()}) {
		t.Errorf("raised to %v", st.raises)
	}
	look(time.Hour)
	if len(st.raises) != 2 {
		t.Errorf("raised again: %v", st.raises)
	}
}

// The store is asked again before the gate is raised, because there may be a node that the farm has not seen.
func TestTheStoreIsAskedAgainBeforeARaise(t *testing.T) {
	t.Parallel()
	d, st, look := allNew(t)
	st.counts = []string{"new"}
	look(0)
	look(d.cfg.StableAfter)
	if len(st.raises) != 0 || st.asked != 1 || d.gone != nil {
		t.Fatalf("raised to %v, asked %d times", st.raises, st.asked)
	}
	st.counts = nil
	look(time.Second)
	if !slices.Equal(st.raises, []string{feature.Known.Newest()}) {
		t.Errorf("raised to %v", st.raises)
	}
}

// A gate that another leader has raised in the meantime is not changed, and is read again.
func TestAGateThatAnotherHasRaised(t *testing.T) {
	t.Parallel()
	d, st, look := allNew(t)
	look(0)
	st.gate.Value.Version, st.gate.Index = "99.0.0", 8
	look(d.cfg.StableAfter)
	look(0)
	if len(st.raises) != 0 || d.gate.Value.Version != "99.0.0" {
		t.Errorf("raised to %v, known as %s", st.raises, d.gate.Value.Version)
	}
}

// While there is nothing to raise, the gate is read once in a sweep.
func TestTheGateIsReadOnceInASweep(t *testing.T) {
	t.Parallel()
	d, st, look := allNew(t)
	st.gate.Value.Version = feature.Known.Newest()
	for range 10 {
		look(d.cfg.SweepEvery / 5)
	}
	if st.reads != 2 || st.asked != 0 || len(st.raises) != 0 {
		t.Errorf("read %d times, asked %d times, raised to %v", st.reads, st.asked, st.raises)
	}
}

// After any failure the look returns an error and the gate is not raised. The next look tries again.
func TestALookAtTheGateFails(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"ReadGate", "FirstRaise", "Writers", "RaiseGate"} {
		d, st, _ := allNew(t)
		errAway := errors.New("away")
		st.fails = map[string]error{method: errAway}
		now := time.Unix(1e9, 0)
		_ = d.look(t.Context(), now)
		if err := d.look(t.Context(), now.Add(d.cfg.StableAfter)); !errors.Is(err, errAway) {
			t.Errorf("%s: %v", method, err)
		}
		if st.gate.Value.Version != feature.Oldest {
			t.Errorf("%s: the gate is %s", method, st.gate.Value.Version)
		}
		st.fails = nil
		for _, after := range []time.Duration{2, 3} {
			if err := d.look(t.Context(), now.Add(after*d.cfg.StableAfter)); err != nil {
				t.Errorf("%s: %v", method, err)
			}
		}
		if st.gate.Value.Version != feature.Known.Newest() {
			t.Errorf("%s: the gate is %s in the end", method, st.gate.Value.Version)
		}
	}
}
