package farm

import (
	"cmp"
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/placement"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// selector is what nodes are chosen by. Each node is the share of one farm, which tries it first: farms that place at the same
// time rarely meet then.
type selector struct {
	excludes func(*node.View) scheduler.Reason // "": the node may take pods
	mine     func(nodeName string) bool        // the node is the share of this farm
	spread   string                            // key of the label over whose values pods are spread; empty: over none
}

// selection is what a selector gave for the nodes of one version. Nothing in it is ever changed: passes walk it while nodes
// come and go.
type selection struct {
	groups []placement.Group // by value, names sorted; where pods are not spread one group without a value
	others scheduler.Reasons // counts the nodes that are excluded
}

// nodeChange is a node as it was and as it is: nil for one that was not there, or is not any more.
type nodeChange struct {
	name    string
	was, is *node.View
}

// all looks at every node.
func (s *selector) all(nodes map[string]*node.View) selection {
	changes := make([]nodeChange, 0, len(nodes))
	for name, v := range nodes {
		changes = append(changes, nodeChange{name: name, is: v})
	}
	return s.after(selection{}, changes)
}

// after returns what follows from changes that came one after the other. It looks at no other node.
func (s *selector) after(before selection, changes []nodeChange) selection {
	next := selection{others: scheduler.Reasons{}}
	maps.Copy(next.others, before.others)
	edits := map[string]*groupEdit{}
	for _, ch := range changes {
		if ch.was != nil {
			if reason := s.excludes(ch.was); reason == "" {
				s.edit(edits, ch.name, ch.was).remove(ch.name)
			} else if next.others[reason]--; next.others[reason] == 0 {
				delete(next.others, reason)
			}
		}
		if ch.is != nil {
			if reason := s.excludes(ch.is); reason == "" {
				s.edit(edits, ch.name, ch.is).insert(ch.name)
			} else {
				next.others[reason]++
			}
		}
	}
	next.groups = regrouped(before.groups, edits)
	return next
}

// edit returns the edits of the list that a node belongs to.
func (s *selector) edit(edits map[string]*groupEdit, name string, v *node.View) *listEdit {
	value := placement.GroupOf(v, s.spread)
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
func regrouped(groups []placement.Group, edits map[string]*groupEdit) []placement.Group {
	maps.DeleteFunc(edits, func(_ string, e *groupEdit) bool { return e.first.none() && e.rest.none() })
	if len(edits) == 0 {
		return groups
	}
	byValue := map[string]placement.Group{}
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
	return slices.SortedFunc(maps.Values(byValue), func(a, b placement.Group) int { return cmp.Compare(a.Value, b.Value) })
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

// history is how the views of the nodes became what they are: the changes that made each of the last versions.
type history struct {
	steps []historyStep
	size  int // changes in all
}

type historyStep struct {
	version uint64
	changes []nodeChange
}

// maxHistory is how many changes are kept. Where there were more, looking at all nodes costs hardly more.
const maxHistory = 2000

// add notes what made a version, the one after the last.
func (h *history) add(version uint64, changes []nodeChange) {
	h.steps, h.size = append(h.steps, historyStep{version, changes}), h.size+len(changes)
	for h.size > maxHistory {
		h.size -= len(h.steps[0].changes)
		h.steps = h.steps[1:]
	}
}

// between returns the changes that lead from one version to another, which may be the older one; ok is false where that is not
// known any more.
func (h *history) between(from, to uint64) (changes []nodeChange, ok bool) {
	if from == to {
		return nil, true
	}
	first, last := min(from, to)+1, max(from, to)
	if len(h.steps) == 0 || h.steps[0].version > first || h.steps[len(h.steps)-1].version < last {
		return nil, false
	}
	at := first - h.steps[0].version
	for _, step := range h.steps[at : at+last-first+1] {
		changes = append(changes, step.changes...)
	}
	if to < from {
		slices.Reverse(changes)
		for i := range changes {
			changes[i].was, changes[i].is = changes[i].is, changes[i].was
		}
	}
	return changes, true
}
