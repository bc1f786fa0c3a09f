package scheduler

import (
	"cmp"
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/node"
)

// selector chooses nodes and puts them in groups. Each node belongs to one farm, which tries it first, so farms that
// schedule at the same time seldom choose the same node.
type selector struct {
	excludes func(*node.View) Reason    // "": the node may take pods
	mine     func(nodeName string) bool // reports whether the node belongs to this farm
	spread   string                     // key of the label; pods are spread over its values; empty: not spread
}

// Group has the nodes with one value of the label over which pods are spread.
type Group struct {
	Value string // empty: nodes without the label, which are used last
	// The nodes that are tried first, and the others.
	First, Rest []string
}

// Selection is a selector's result for one version of the nodes. It is never changed, because passes may read it.
type Selection struct {
	Groups []Group // sorted by value; without spreading, one group with an empty value
	Others Reasons // numbers of the excluded nodes, by reason
}

// NodeChange has a node before and after a change; nil: it did not exist.
type NodeChange struct {
	Name    string
	Was, Is *node.View
}

func (s *selector) all(nodes map[string]*node.View) Selection {
	changes := make([]NodeChange, 0, len(nodes))
	for name, v := range nodes {
		changes = append(changes, NodeChange{Name: name, Is: v})
	}
	return s.after(Selection{}, changes)
}

// after returns the selection after changes, in their order. It looks only at the changed nodes.
func (s *selector) after(before Selection, changes []NodeChange) Selection {
	next := Selection{Others: Reasons{}}
	maps.Copy(next.Others, before.Others)
	edits := map[string]*groupEdit{}
	for _, ch := range changes {
		if ch.Was != nil {
			if reason := s.excludes(ch.Was); reason == "" {
				s.edit(edits, ch.Name, ch.Was).remove(ch.Name)
			} else if next.Others[reason]--; next.Others[reason] == 0 {
				delete(next.Others, reason)
			}
		}
		if ch.Is != nil {
			if reason := s.excludes(ch.Is); reason == "" {
				s.edit(edits, ch.Name, ch.Is).insert(ch.Name)
			} else {
				next.Others[reason]++
			}
		}
	}
	next.Groups = regrouped(before.Groups, edits)
	return next
}

func (s *selector) edit(edits map[string]*groupEdit, name string, v *node.View) *listEdit {
	value := GroupOf(v, s.spread)
	if edits[value] == nil {
		edits[value] = &groupEdit{}
	}
	if s.mine(name) {
		return &edits[value].first
	}
	return &edits[value].rest
}

type groupEdit struct{ first, rest listEdit }

// regrouped returns the groups after the edits, sorted by value.
func regrouped(groups []Group, edits map[string]*groupEdit) []Group {
	maps.DeleteFunc(edits, func(_ string, e *groupEdit) bool { return e.first.none() && e.rest.none() })
	if len(edits) == 0 {
		return groups
	}
	byValue := map[string]Group{}
	for _, g := range groups {
		byValue[g.Value] = g
	}
	for value, e := range edits {
		g := byValue[value]
		g.Value, g.First, g.Rest = value, e.first.apply(g.First), e.rest.apply(g.Rest)
		byValue[value] = g
		if len(g.First)+len(g.Rest) == 0 {
			delete(byValue, value)
		}
	}
	return slices.SortedFunc(maps.Values(byValue), func(a, b Group) int { return cmp.Compare(a.Value, b.Value) })
}

// listEdit has the names to add and to remove. A name in both cancels out.
type listEdit struct{ in, out map[string]bool }

func (l *listEdit) insert(name string) { l.note(&l.in, l.out, name) }

func (l *listEdit) remove(name string) { l.note(&l.out, l.in, name) }

func (l *listEdit) note(to *map[string]bool, opposite map[string]bool, name string) {
	if opposite[name] {
		delete(opposite, name)
		return
	}
	if *to == nil {
		*to = map[string]bool{}
	}
	(*to)[name] = true
}

func (l *listEdit) none() bool { return len(l.in)+len(l.out) == 0 }

func (l *listEdit) apply(names []string) []string {
	if l.none() {
		return names
	}
	in := slices.Sorted(maps.Keys(l.in))
	next := make([]string, 0, len(names)+len(in))
	for _, name := range names {
		for len(in) > 0 && in[0] < name {
			next, in = append(next, in[0]), in[1:]
		}
		if !l.out[name] {
			next = append(next, name)
		}
	}
	return append(next, in...)
}
