package scheduler

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/node"
)

// counted is a selector that counts the calls of Matches.
type counted struct {
	labels.Selector
	asked *int
}

func (c counted) Matches(l labels.Labels) bool { *c.asked++; return c.Selector.Matches(l) }

// selectorOf returns a selector for nodes with an SSD. About half of the nodes belong to this farm. asked counts the
// calls of Matches.
func selectorOf(spread string) (s selector, asked *int) {
	asked = new(int)
	sel := counted{labels.SelectorFromSet(labels.Set{"disk": "ssd"}), asked}
	return selector{
		excludes: (&Rule{Selector: sel, Epoch: "now"}).Excludes,
		mine: func(name string) bool {
			h := fnv.New32a()
			_, _ = h.Write([]byte(name))
			return h.Sum32()%2 == 0
		},
		spread: spread,
	}, asked
}

func names(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprint(prefix, i)
	}
	return out
}

func sameSelection(a, b Selection) bool {
	return maps.Equal(a.Others, b.Others) && slices.EqualFunc(a.Groups, b.Groups, func(a, b Group) bool {
		return a.Value == b.Value && slices.Equal(a.First, b.First) && slices.Equal(a.Rest, b.Rest)
	})
}

// A selection that is computed from changes equals a selection that is computed from all nodes, also for an older
// version. Earlier selections do not change.
func TestSelectionFollowsChanges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s, _ := selectorOf(rapid.SampledFrom([]string{"", "rack"}).Draw(t, "spread"))
		var h History
		versions := []map[string]*node.View{{}}
		made := []Selection{s.all(nil)}
		for version := range uint64(rapid.IntRange(1, 12).Draw(t, "versions")) {
			before := versions[version]
			after := maps.Clone(before)
			var changes []NodeChange
			for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom(names("n", 8)), rapid.ID).Draw(t, "changed") {
				v := &node.View{
					Alive: rapid.IntRange(0, 3).Draw(t, "alive") > 0,
					Node: node.Node{Name: name, Epoch: "now", Labels: map[string]string{
						"disk": rapid.SampledFrom([]string{"ssd", "ssd", "hdd"}).Draw(t, "disk"),
						"rack": rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "rack"),
					}},
				}
				if after[name] = v; rapid.IntRange(0, 3).Draw(t, "leaves") == 0 {
					delete(after, name)
				}
				if before[name] != nil || after[name] != nil {
					changes = append(changes, NodeChange{name, before[name], after[name]})
				}
			}
			h.Add(version+1, changes)
			versions, made = append(versions, after), append(made, s.all(after))
		}
		from, to := rapid.IntRange(0, len(made)-1).Draw(t, "from"), rapid.IntRange(0, len(made)-1).Draw(t, "to")
		changes, ok := h.Between(uint64(from), uint64(to))
		if !ok {
			t.Fatalf("it is not known what is between %d and %d of %d", from, to, len(h.steps))
		}
		if got := s.after(made[from], changes); !sameSelection(got, made[to]) {
			t.Fatalf("from %d to %d:\n%+v\nwant\n%+v", from, to, got, made[to])
		}
		for version, nodes := range versions {
			if !sameSelection(made[version], s.all(nodes)) {
				t.Fatalf("the Selection of version %d was changed: %+v", version, made[version])
			}
		}
	})
}

// If one of many nodes changes, a selector looks only at this node.
func TestSelectionLooksAtWhatChanged(t *testing.T) {
	t.Parallel()
	const many = 1000
	s, asked := selectorOf("")
	nodes := map[string]*node.View{}
	for i := range many {
		name := fmt.Sprint("n", i)
		nodes[name] = &node.View{
			Alive: true,
			Node:  node.Node{Name: name, Epoch: "now", Labels: map[string]string{"disk": "ssd"}},
		}
	}
	before := s.all(nodes)
	if *asked != many {
		t.Errorf("asked about %d of %d nodes", *asked, many)
	}
	was := nodes["n7"]
	is := *was
	is.Alive = false
	*asked = 0
	after := s.after(before, []NodeChange{{"n7", was, &is}})
	if *asked > 2 {
		t.Errorf("asked %d times about one node", *asked)
	}
	if after.Others[NotAlive] != 1 || len(after.Groups[0].First)+len(after.Groups[0].Rest) != many-1 {
		t.Errorf("others %v, and %d nodes", after.Others, len(after.Groups[0].First)+len(after.Groups[0].Rest))
	}
}

// Only the latest changes are kept.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	var h History
	h.Add(1, make([]NodeChange, maxHistory+1))
	if _, ok := h.Between(0, 1); ok {
		t.Error("more was kept than there is room for")
	}
	for version := range uint64(3 * maxHistory) {
		h.Add(version+2, make([]NodeChange, 2))
	}
	last := uint64(3*maxHistory + 1)
	if changes, ok := h.Between(last-maxHistory/2, last); !ok || len(changes) != maxHistory {
		t.Errorf("%d changes are known, %v; want %d", len(changes), ok, maxHistory)
	}
	if _, ok := h.Between(last-maxHistory/2-1, last); ok || h.size > maxHistory {
		t.Errorf("%d changes are kept", h.size)
	}
	if _, ok := h.Between(last, last+1); ok {
		t.Error("the future is known")
	}
}

// Select returns the selection for the version of the nodes that a pass knows, even if this version is old. It keeps
// the selection of the newest version.
func TestSelectByVersion(t *testing.T) {
	t.Parallel()
	var h History
	versions := []map[string]*node.View{nil}
	b := &ByLabel{Between: h.Between}
	publish := func(alive bool) (nodes map[string]*node.View, version uint64) {
		before := versions[len(versions)-1]
		nodes = map[string]*node.View{
			"n1": {Alive: true, Node: node.Node{Name: "n1"}},
			"n2": {Alive: alive, Node: node.Node{Name: "n2"}},
		}
		version = uint64(len(versions))
		h.Add(version, []NodeChange{{"n1", before["n1"], nodes["n1"]}, {"n2", before["n2"], nodes["n2"]}})
		versions = append(versions, nodes)
		return nodes, version
	}
	is := func(nodes map[string]*node.View, version uint64, want ...string) {
		t.Helper()
		for range 2 {
			e, err := b.Select(Query{Nodes: nodes, Version: version})
			if err != nil || len(e.Groups) != 1 ||
				!slices.Equal(slices.Concat(e.Groups[0].First, e.Groups[0].Rest), want) {
				t.Errorf("version %d: %+v, %v; want %v", version, e, err, want)
			}
		}
	}
	first, v1 := publish(true)
	is(first, v1, "n1", "n2")
	second, v2 := publish(false)
	is(second, v2, "n1")
	is(first, v1, "n1", "n2")
	third, v3 := publish(true)
	is(second, v2, "n1")
	is(third, v3, "n1", "n2")
	is(second, 0, "n1")
	if r := b.found[criteria{}]; r.version != v3 {
		t.Errorf("version %d is kept, want %d", r.version, v3)
	}
	if _, err := b.Select(Query{Selector: "!!", Nodes: third, Version: v3}); err == nil {
		t.Error("a selector that cannot be parsed selects")
	}
	b.Prefer(func(name string) bool { return name == "n2" })
	if e, err := b.Select(Query{Nodes: third, Version: v3}); err != nil ||
		!slices.Equal(e.Groups[0].First, []string{"n2"}) || !b.First("n2") || b.First("n1") {
		t.Errorf("n2 is not tried first: %+v, %v", e, err)
	}
	if e, err := b.Select(Query{Epoch: "next", Nodes: third, Version: v3}); err != nil ||
		len(e.Groups) != 0 || e.Others[NotSynced] != 2 {
		t.Errorf("nodes that have not seen the epoch: %+v, %v", e, err)
	}
	b.Between = nil
	if e, err := b.Select(Query{Epoch: "next", Nodes: first, Version: v1}); err != nil || e.Others[NotSynced] != 2 {
		t.Errorf("without a history: %+v, %v", e, err)
	}
}

// A selector looks at all nodes once. After that it looks only at changed nodes.
func TestSelectGoesByChanges(t *testing.T) {
	t.Parallel()
	b := &ByLabel{Between: func(uint64, uint64) ([]NodeChange, bool) { return nil, true }}
	for _, q := range []Query{
		{Nodes: map[string]*node.View{"n1": {Alive: true, Node: node.Node{Name: "n1"}}}, Version: 1},
		{Nodes: nil, Version: 2}, // nothing has changed, so no node is looked at
	} {
		if got, err := b.Select(q); err != nil || len(got.Groups) != 1 ||
			!slices.Equal(got.Groups[0].Rest, []string{"n1"}) {
			t.Errorf("version %d: %+v, %v", q.Version, got, err)
		}
	}
}

// Only a bounded number of selectors is remembered.
func TestSelectForgets(t *testing.T) {
	t.Parallel()
	var b ByLabel
	for i := range maxRemembered {
		if _, err := b.Select(Query{Selector: fmt.Sprint("rack=", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if len(b.found) != maxRemembered {
		t.Errorf("%d selectors are remembered, want %d", len(b.found), maxRemembered)
	}
	if _, err := b.Select(Query{Selector: "rack=another"}); err != nil || len(b.found) != 1 {
		t.Errorf("%d selectors are remembered, want the last one alone; %v", len(b.found), err)
	}
}
