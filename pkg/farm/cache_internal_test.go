package farm

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
)

// emptyCache returns a cache that has seen nothing and whose events go nowhere.
func emptyCache() *cache {
	cfg := Config{}
	cfg.setDefaults()
	return newCache(&cfg, nil, func(event) {})
}

// A view is made again only if the node's record, the operators' record, or the state of the machine changes. Each of
// these changes also changes the version.
func TestPublishedViews(t *testing.T) {
	t.Parallel()
	w := emptyCache()
	record := func(name string) *node.View {
		v := &node.View{Node: node.Node{Name: name, ConsulNode: "on-" + name}, Alive: name != "dead"}
		if !v.Alive {
			v.FreeIndex = 7
		}
		return v
	}
	step := func(what string, want ...string) {
		t.Helper()
		before, version := w.nodesAt()
		changed, _ := w.publish()
		after, next := w.nodesAt()
		if got := slices.Sorted(maps.Keys(changed)); !slices.Equal(got, want) {
			t.Errorf("%s: changed %v, want %v", what, got, want)
		}
		if moved := next != version; moved != (len(want) > 0) {
			t.Errorf("%s: version %d, then %d", what, version, next)
		}
		for name, v := range after {
			if same := before[name] == v; same == slices.Contains(want, name) {
				t.Errorf("%s: view of %s is the same: %v", what, name, same)
			}
		}
	}
	w.records[0] = map[string]*node.View{"a": record("a"), "dead": record("dead")}
	w.records[1] = map[string]*node.View{"b": record("b")}
	step("first", "a", "b", "dead")
	step("nothing new")
	w.records[0] = map[string]*node.View{"a": record("a"), "dead": record("dead")}
	step("the same again")
	w.ops, w.sources = map[string]node.Ops{"b": {Name: "b", Unschedulable: true}}, nil
	step("operators", "b")
	w.machinesLost, w.sources = map[string]lostMachine{"dead": {index: 7}, "a": {index: 7}}, nil
	step("machines", "dead")
	w.machinesLost, w.sources = map[string]lostMachine{"dead": {index: 6}}, nil
	step("an earlier death of the same", "dead")
	w.records[1] = nil
	step("gone", "b")
}

// The time at which a machine was lost does not change while the machine is lost. It starts again after another death
// of the node.
func TestLostSince(t *testing.T) {
	t.Parallel()
	w := emptyCache()
	look := func(index uint64) time.Time {
		w.change(func() {
			w.records[0] = map[string]*node.View{"a": {Node: node.Node{Name: "a", ConsulNode: "m"}, FreeIndex: index}}
		})
		w.failedSeen(map[string]uint64{"a": index}, map[string]bool{"m": true}, nil)
		views, _ := w.nodesAt()
		if !views["a"].MachineLost || views["a"].LostSeen.IsZero() {
			t.Fatalf("%+v", views["a"])
		}
		return views["a"].LostSeen
	}
	first := look(7)
	if again := look(7); again != first {
		t.Errorf("lost since %s, then since %s", first, again)
	}
	if other := look(8); !other.After(first) {
		t.Errorf("another death: lost since %s, as before", other)
	}
	view := func(failed, living map[string]bool) *node.View {
		w.failedSeen(map[string]uint64{"a": 8}, failed, living)
		views, _ := w.nodesAt()
		return views["a"]
	}
	m := map[string]bool{"m": true}
	lost := view(m, nil)
	lives := view(nil, m)
	if lost.AgentLives || !lives.AgentLives || lives.MachineLost || lives.DeadSeen != lost.DeadSeen {
		t.Errorf("lost: %+v, and its agent lives: %+v", lost, lives)
	}
	unknown := view(nil, nil)
	if unknown.AgentLives || unknown.MachineLost || !unknown.DeadSeen.After(lives.DeadSeen) {
		t.Errorf("the agent is unknown: %+v", unknown)
	}
	view(nil, m)
	if again := view(m, nil); again.AgentLives || !again.LostSeen.After(lost.LostSeen) {
		t.Errorf("its agent has failed again: %+v", again)
	}
}
