package scheduler

import (
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/node"
)

// Tally counts a controller's pods by label value, for a required skew (ADR 24). A nil Tally requires none.
type Tally struct {
	label string
	skew  int
	pods  map[string]int // by the label values of nodes that may take pods
}

// NewTally returns an empty tally for groups; nil if no skew is required.
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

// GroupsOf returns each node's value of a label.
func GroupsOf(nodes map[string]*node.View, names []string, label string) []string {
	groups := make([]string, len(names))
	for i, name := range names {
		groups[i] = GroupOf(nodes[name], label)
	}
	return groups
}

// Add counts pods of a group. The skew ignores groups without nodes that may take pods.
func (t *Tally) Add(group string, pods int) {
	if t == nil {
		return
	}
	if _, is := t.pods[group]; is {
		t.pods[group] += pods
	}
}

// Refuses reports whether one more pod would exceed the skew in the node's group, or the node has no group.
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

// Clone returns an independent copy.
func (t *Tally) Clone() *Tally {
	if t == nil {
		return nil
	}
	next := *t
	next.pods = maps.Clone(t.pods)
	return &next
}

// Preferences gives scores to nodes; zero: all zero.
type Preferences []preference

type preference struct {
	selector labels.Selector
	weight   int
}

// Prefer adds a weight for nodes that a selector matches. It fails if the selector is not valid.
func (p *Preferences) Prefer(selector string, weight int) error {
	sel, err := labels.Parse(selector)
	if err != nil {
		return fmt.Errorf("parse selector %q: %w", selector, err)
	}
	*p = append(*p, preference{sel, weight})
	return nil
}

// Score returns the sum of the weights that match. Higher scores come first.
func (p Preferences) Score(v *node.View) int {
	n := 0
	for _, one := range p {
		if v.Matches(one.selector) {
			n += one.weight
		}
	}
	return n
}
