package scheduler

import (
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/node"
)

// Tally counts the pods of a controller by the value of a label, where the skew between the groups is required (ADR 24). A nil Tally requires nothing.
type Tally struct {
	label string
	skew  int
	pods  map[string]int // by each value that nodes have which may take pods
}

// NewTally returns a tally of no pods for some groups, those of nodes that may take pods; nil where no skew is required.
func NewTally(label string, skew int, groups []string) *Tally {
	if skew == 0 {
		return nil
	}
	t := &Tally{label: label, skew: skew, pods: map[string]int{}}
	for _, value := range groups {
		if value != "" {
			t.pods[value] = 0
		}
	}
	return t
}

// GroupsOf returns the values that some nodes have of a label, each as often as there are nodes.
func GroupsOf(nodes map[string]*node.View, names []string, label string) []string {
	groups := make([]string, len(names))
	for i, name := range names {
		groups[i] = GroupOf(nodes[name], label)
	}
	return groups
}

// Add counts pods of a group. Those of one that no node has which may take pods count for nothing: it is no group.
func (t *Tally) Add(group string, pods int) {
	if t == nil {
		return
	}
	if _, is := t.pods[group]; is {
		t.pods[group] += pods
	}
}

// Refuses reports whether one more pod would be too many for a node's group, or the node has none.
func (t *Tally) Refuses(v *node.View) bool {
	if t == nil {
		return false
	}
	mine, is := t.pods[GroupOf(v, t.label)]
	if !is {
		return true
	}
	least := mine
	for _, n := range t.pods {
		least = min(least, n)
	}
	return mine+1-least > t.skew
}

// Clone returns a tally that can be changed without touching the original.
func (t *Tally) Clone() *Tally {
	if t == nil {
		return nil
	}
	next := *t
	next.pods = maps.Clone(t.pods)
	return &next
}

// Preferences say which nodes come first. The zero value prefers none.
type Preferences []preference

type preference struct {
	selector labels.Selector
	weight   int
}

// Prefer adds nodes that a selector matches. The error is that of the selector.
func (p *Preferences) Prefer(selector string, weight int) error {
	sel, err := labels.Parse(selector)
	if err != nil {
		return fmt.Errorf("parse selector %q: %w", selector, err)
	}
	*p = append(*p, preference{sel, weight})
	return nil
}

// Score returns the sum of the weights of what matches a node: nodes with a higher one come first.
func (p Preferences) Score(v *node.View) int {
	n := 0
	for _, one := range p {
		if v.Matches(one.selector) {
			n += one.weight
		}
	}
	return n
}
