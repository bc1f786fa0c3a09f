package placement

import (
	"cmp"
	"iter"
	"math"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// Spread is an order of nodes in which the groups take turns: those with fewer pods come first, until they have caught up.
// Like a Walk it is found while it is asked for.
type Spread struct {
	groups []spreadGroup
	pods   map[string]int
	size   int
}

type spreadGroup struct {
	value string
	// Its nodes in their order: all of the first, then all of the second.
	first, rest Walk
}

// lastResort is the level of the first node without the label.
const lastResort = math.MaxInt / 2

// NewSpread returns the order for a controller with some pods in each group, by the label's value, and on each node. The
// numbers of pods in groups may change later; then so does the order. Groups with equally many pods, and nodes of one group, are
// tried in the order of a Walk; where there are nodes with pods of the controller, those with few come first.
func NewSpread(groups []scheduler.Group, pods, perNode map[string]int, seed uint64) *Spread {
	s := &Spread{groups: make([]spreadGroup, 0, len(groups)), pods: pods}
	begin, step := stride(len(groups), seed)
	for i := range groups {
		g := &groups[nth(begin, step, i, len(groups))]
		s.size += len(g.First) + len(g.Rest)
		part := spreadGroup{value: g.Value, first: NewWalk(g.First, seed), rest: NewWalk(g.Rest, seed)}
		if has := func(name string) bool { return perNode[name] != 0 }; len(perNode) != 0 && (slices.ContainsFunc(g.First, has) || slices.ContainsFunc(g.Rest, has)) {
			names := slices.AppendSeq(slices.Collect(part.first.All()), part.rest.All())
			slices.SortStableFunc(names, func(a, b string) int { return perNode[a] - perNode[b] })
			part.first, part.rest = InOrder(names), Walk{}
		}
		s.groups = append(s.groups, part)
	}
	return s
}

// Sort brings the nodes of each group into an order; those that compare equal stay as they were.
func (s *Spread) Sort(compare func(a, b string) int) {
	for i := range s.groups {
		g := &s.groups[i]
		names := slices.AppendSeq(slices.Collect(g.first.All()), g.rest.All())
		slices.SortStableFunc(names, compare)
		g.first, g.rest = InOrder(names), Walk{}
	}
}

// Len returns how many nodes there are.
func (s *Spread) Len() int { return s.size }

// Usable yields the nodes that are usable, in their order, each with its level: how many pods its group would have before one
// went there, if each of the nodes before it got one. Levels never go down. Nodes that are better come before the others of
// their group and, for as far as that makes no level higher, of other groups.
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

// turns are what is left of a group.
type turns struct {
	group *spreadGroup
	level int // of the first
	// How many nodes have been looked at for a better one, and for another.
	good, poor int
}

// next returns the next node that fits, after those that were seen.
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
