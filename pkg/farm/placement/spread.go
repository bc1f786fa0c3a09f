package placement

import (
	"cmp"
	"iter"
	"math"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// Spread is an order of nodes. The nodes with the same value of the spread label are one group, and the groups take
// turns. A group with fewer pods comes first until it has as many as the others.
type Spread struct {
	groups []spreadGroup
	pods   map[string]int
	size   int
}

type spreadGroup struct {
	value string
	// The nodes in order: all of first, then all of rest.
	first, rest Walk
}

// lastResort is the level of nodes without the label.
const lastResort = math.MaxInt / 2

// NewSpread returns the order for a controller. pods is how many of its pods each group has (by the label's value), and
// perNode how many each node has. The caller may change pods later, which changes the order. In a group, nodes with
// fewer pods of the controller come first.
func NewSpread(groups []scheduler.Group, pods, perNode map[string]int, seed uint64) *Spread {
	s := &Spread{groups: make([]spreadGroup, 0, len(groups)), pods: pods}
	begin, step := stride(len(groups), seed)
	for i := range groups {
		g := &groups[nth(begin, step, i, len(groups))]
		s.size += len(g.First) + len(g.Rest)
		part := spreadGroup{value: g.Value, first: NewWalk(g.First, seed), rest: NewWalk(g.Rest, seed)}
		has := func(name string) bool { return perNode[name] != 0 }
		if len(perNode) != 0 && (slices.ContainsFunc(g.First, has) || slices.ContainsFunc(g.Rest, has)) {
			names := slices.AppendSeq(slices.Collect(part.first.All()), part.rest.All())
			slices.SortStableFunc(names, func(a, b string) int { return perNode[a] - perNode[b] })
			part.first, part.rest = InOrder(names), Walk{}
		}
		s.groups = append(s.groups, part)
	}
	return s
}

// Sort sorts the nodes of each group. Nodes that compare equal keep their order.
func (s *Spread) Sort(compare func(a, b string) int) {
	for i := range s.groups {
		g := &s.groups[i]
		names := slices.AppendSeq(slices.Collect(g.first.All()), g.rest.All())
		slices.SortStableFunc(names, compare)
		g.first, g.rest = InOrder(names), Walk{}
	}
}

// Len returns the number of nodes.
func (s *Spread) Len() int { return s.size }

// Usable yields the usable nodes in order, each with its level: how many pods its group has if every node before it
// gets one pod. Levels never go down. Nodes for which better is true come first in their group, and first at their
// level.
func (s *Spread) Usable(usable, better func(name string) bool) iter.Seq2[string, int] {
	good := func(name string) bool { return usable(name) && better(name) }
	poor := func(name string) bool { return usable(name) && !better(name) }
	return func(yield func(string, int) bool) {
		waiting := make([]turns, len(s.groups))
		for i := range s.groups {
			waiting[i] = turns{group: &s.groups[i], level: s.pods[s.groups[i].value]}
			if s.groups[i].value == "" {
				waiting[i].level = lastResort
			}
		}
		slices.SortStableFunc(waiting, func(a, b turns) int { return cmp.Compare(a.level, b.level) })
		var taking []turns // all at the same level
		for level := 0; len(taking)+len(waiting) > 0; level++ {
			if len(taking) == 0 {
				level = waiting[0].level
			}
			for len(waiting) > 0 && waiting[0].level == level {
				taking, waiting = append(taking, waiting[0]), waiting[1:]
			}
			var left, poorer []turns
			for _, t := range taking {
				name, ok := t.next(&t.good, good)
				if !ok {
					poorer = append(poorer, t)
					continue
				}
				if !yield(name, level) {
					return
				}
				left = append(left, t)
			}
			for _, t := range poorer {
				name, ok := t.next(&t.poor, poor)
				if !ok {
					continue
				}
				if !yield(name, level) {
					return
				}
				left = append(left, t)
			}
			taking = left
		}
	}
}

type turns struct {
	group *spreadGroup
	level int // at the start
	// How many nodes of the group were examined in search of a better node (good), and of another one (poor).
	good, poor int
}

// next returns the next node that fits, after those already seen.
func (t *turns) next(seen *int, fits func(name string) bool) (string, bool) {
	g := t.group
	for *seen < g.first.Len()+g.rest.Len() {
		from, i := g.first, *seen
		if i >= from.Len() {
			from, i = g.rest, i-from.Len()
		}
		*seen++
		if name := from.nth(i); fits(name) {
			return name, true
		}
	}
	return "", false
}
