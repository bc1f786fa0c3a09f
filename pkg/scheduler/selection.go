package scheduler

import (
	"cmp"
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/node"
)

// selector is what nodes are chosen by. Each node is the share of one farm, which tries it first: farms that place at the same
// time rarely meet then.
type selector struct {
	excludes func(*node.View) Reason    // "": the node may take pods
	mine     func(nodeName string) bool // the node is the share of this farm
	spread   string                     // key of the label over whose values pods are spread; empty: over none
}

// Group is the nodes with one value of the label that a controller is spread over.
type Group struct {
	Value string // empty: those without the label, which are the last resort
	// Nodes that are tried first, and the others.
	First, Rest []string
}

// Selection is what a selector gave for the nodes of one version. Nothing in it is ever changed: passes walk it while nodes
// come and go.
type Selection struct {
	Groups []Group // by value, names sorted; where pods are not spread one group without a value
	Others Reasons // counts the nodes that are excluded
}

// NodeChange is a node as it was and as it is: nil for one that was not there, or is not any more.
type NodeChange struct {
	Name    string
	Was, Is *node.View
}

// all looks at every node.
func (s *selector) all(nodes map[string]*node.View) Selection {
	changes := make([]NodeChange, 0, len(nodes))
	for name, v := range nodes {
		changes = append(changes, NodeChange{Name: name, Is: v})
	}
	return s.after(Selection{}, changes)
}

// after returns what follows from changes that came one after the other. It looks at no other node.
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

// edit returns the edits of the list that a node belongs to.
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

// groupEdit is what becomes of one group.
type groupEdit struct{ first, rest listEdit }

// regrouped returns the groups after edits, by their values.
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

// listEdit is which names come into a list and which go. One that does both, in whatever order, stays as it was.
type listEdit struct{ in, out map[string]bool }

func (e *listEdit) insert(name string) { e.note(&e.in, e.out, name) }

func (e *listEdit) remove(name string) { e.note(&e.out, e.in, name) }

func (e *listEdit) note(to *map[string]bool, opposite map[string]bool, name string) {
	if opposite[name] {
		delete(opposite, name)
		return
	}
	if *to == nil {
		*to = map[string]bool{}
	}
	(*to)[name] = true
}

func (e *listEdit) none() bool { return len(e.in)+len(e.out) == 0 }

// apply returns a sorted list of names after the edits: the same one if there are none.
func (e *listEdit) apply(names []string) []string {
	if e.none() {
		return names
	}
	in := slices.Sorted(maps.Keys(e.in))
	next := make([]string, 0, len(names)+len(in))
	for _, name := range names {
		for len(in) > 0 && in[0] < name {
			next, in = append(next, in[0]), in[1:]
		}
		if !e.out[name] {
			next = append(next, name)
		}
	}
	return append(next, in...)
}
