package farm

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/placement"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// counted is a selector that counts how often it is asked.
type counted struct {
	labels.Selector
	asked *int
}

func (c counted) Matches(l labels.Labels) bool { *c.asked++; return c.Selector.Matches(l) }

// selectorOf returns a selector for nodes on disks, half of which are this farm's share.
func selectorOf(spread string) (s selector, asked *int) {
	asked = new(int)
	sel := counted{labels.SelectorFromSet(labels.Set{"disk": "ssd"}), asked}
	return selector{
		excludes: (&scheduler.Rule{Selector: sel, Nonce: "now"}).Excludes,
		mine: func(name string) bool {
			h := fnv.New32a()
			_, _ = h.Write([]byte(name))
			return h.Sum32()%2 == 0
		},
		spread: spread,
	}, asked
}

func sameSelection(a, b selection) bool {
	return maps.Equal(a.others, b.others) && slices.EqualFunc(a.groups, b.groups, func(a, b placement.Group) bool {
		return a.Value == b.Value && slices.Equal(a.First, b.First) && slices.Equal(a.Rest, b.Rest)
	})
}

// What is kept up to date by changes is what looking at all nodes gives, also backwards in time, and selections that passes still
// walk stay as they were.
func TestSelectionFollowsChanges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s, _ := selectorOf(rapid.SampledFrom([]string{"", "rack"}).Draw(t, "spread"))
		var h history
		versions := []map[string]*node.View{{}}
		made := []selection{s.all(nil)}
		for version := range uint64(rapid.IntRange(1, 12).Draw(t, "versions")) {
			before := versions[version]
			after := maps.Clone(before)
			var changes []nodeChange
			for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom(names("n", 8)), rapid.ID).Draw(t, "changed") {
				v := &node.View{Alive: rapid.IntRange(0, 3).Draw(t, "alive") > 0, Node: node.Node{Name: name, Nonce: "now", Labels: map[string]string{
					"disk": rapid.SampledFrom([]string{"ssd", "ssd", "hdd"}).Draw(t, "disk"), "rack": rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "rack"),
				}}}
				if after[name] = v; rapid.IntRange(0, 3).Draw(t, "leaves") == 0 {
					delete(after, name)
				}
				if before[name] != nil || after[name] != nil {
					changes = append(changes, nodeChange{name, before[name], after[name]})
				}
			}
			h.add(version+1, changes)
			versions, made = append(versions, after), append(made, s.all(after))
		}
		from, to := rapid.IntRange(0, len(made)-1).Draw(t, "from"), rapid.IntRange(0, len(made)-1).Draw(t, "to")
		changes, ok := h.between(uint64(from), uint64(to))
		if !ok {
			t.Fatalf("it is not known what is between %d and %d of %d", from, to, len(h.steps))
		}
		if got := s.after(made[from], changes); !sameSelection(got, made[to]) {
			t.Fatalf("from %d to %d:\n%+v\nwant\n%+v", from, to, got, made[to])
		}
		for version, nodes := range versions {
			if !sameSelection(made[version], s.all(nodes)) {
				t.Fatalf("the selection of version %d was changed: %+v", version, made[version])
			}
		}
	})
}

// When one of many nodes changes each selector is asked about that one only.
func TestSelectionLooksAtWhatChanged(t *testing.T) {
	t.Parallel()
	const many = 1000
	s, asked := selectorOf("")
	nodes := map[string]*node.View{}
	for i := range many {
		name := fmt.Sprint("n", i)
		nodes[name] = &node.View{Alive: true, Node: node.Node{Name: name, Nonce: "now", Labels: map[string]string{"disk": "ssd"}}}
	}
	before := s.all(nodes)
	if *asked != many {
		t.Errorf("asked about %d of %d nodes", *asked, many)
	}
	was := nodes["n7"]
	is := *was
	is.Alive = false
	*asked = 0
	after := s.after(before, []nodeChange{{"n7", was, &is}})
	if *asked > 2 {
		t.Errorf("asked %d times about one node", *asked)
	}
	if after.others[scheduler.NotAlive] != 1 || len(after.groups[0].First)+len(after.groups[0].Rest) != many-1 {
		t.Errorf("others %v, and %d nodes", after.others, len(after.groups[0].First)+len(after.groups[0].Rest))
	}
}

// Only the latest changes are kept.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	var h history
	h.add(1, make([]nodeChange, maxHistory+1))
	if _, ok := h.between(0, 1); ok {
		t.Error("more was kept than there is room for")
	}
	for version := range uint64(3 * maxHistory) {
		h.add(version+2, make([]nodeChange, 2))
	}
	last := uint64(3*maxHistory + 1)
	if changes, ok := h.between(last-maxHistory/2, last); !ok || len(changes) != maxHistory {
		t.Errorf("%d changes are known, %v; want %d", len(changes), ok, maxHistory)
	}
	if _, ok := h.between(last-maxHistory/2-1, last); ok || h.size > maxHistory {
		t.Errorf("%d changes are kept", h.size)
	}
	if _, ok := h.between(last, last+1); ok {
		t.Error("the future is known")
	}
}

// The scheduler gives each pass what fits the nodes that the pass knows, also one that is late, and keeps the newest.
func TestSelectedByVersion(t *testing.T) {
	t.Parallel()
	f := &Farm{cfg: Config{ID: "f1"}}
	f.world = newWorld(f)
	w, s := f.world, &selecting{farm: f}
	publish := func(alive bool) (nodes map[string]*node.View, version uint64) {
		w.records[0] = map[string]*node.View{"n1": {Alive: true, Node: node.Node{Name: "n1"}}, "n2": {Alive: alive, Node: node.Node{Name: "n2"}}}
		w.publish()
		return w.nodesAt()
	}
	is := func(nodes map[string]*node.View, version uint64, want ...string) {
		t.Helper()
		for range 2 {
			_, e, err := s.selected(nodes, version, asked{})
			if err != nil || len(e.groups) != 1 || !slices.Equal(slices.Concat(e.groups[0].First, e.groups[0].Rest), want) {
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
	if r := s.found[asked{}]; r.version != v3 {
		t.Errorf("version %d is kept, want %d", r.version, v3)
	}
	if _, _, err := s.selected(third, v3, asked{selector: "!!"}); err == nil {
		t.Error("a selector that cannot be parsed selects")
	}
}
