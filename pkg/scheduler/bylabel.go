package scheduler

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/node"
)

// ByLabel is the farms' built-in scheduler. It keeps no books. Thousands of controllers share few selectors. So ByLabel
// remembers the result of each selector, and later looks only at changed nodes. The zero ByLabel can be used. Without
// Between, it uses a remembered result only for the same version of the nodes.
type ByLabel struct {
	NoBooks
	// Between returns the changes from one version of the nodes to another, which may be older. The result is false if
	// they are not known. Between may be nil.
	Between func(from, to uint64) ([]NodeChange, bool)

	mu    sync.Mutex
	first func(name string) bool
	epoch string // the epoch for which found is valid
	found map[criteria]*remembered
}

// criteria are what many controllers share.
type criteria struct {
	selector, spread string
	containers       bool
}

type remembered struct {
	selector
	selection Selection
	version   uint64 // version of the nodes; zero: there is no selection yet
}

// Query is a question to ByLabel: which nodes may a controller use?
type Query struct {
	Selector, Spread string
	Containers       bool   // see Rule
	Epoch            string // of the cluster
	Nodes            map[string]*node.View
	Version          uint64 // of the nodes; zero: unknown
}

// maxRemembered is how many selectors are remembered.
const maxRemembered = 1000

// EligibleNodes implements Scheduler: the eligible nodes by name.
func (b *ByLabel) EligibleNodes(_ context.Context, v *View) ([]string, Reasons, error) {
	eligible, excluded := v.Eligible()
	names := make([]string, len(eligible))
	for i, n := range eligible {
		names[i] = n.Name()
	}
	return names, excluded, nil
}

// Prefer sets which nodes are tried first from now on; nil: none.
func (b *ByLabel) Prefer(first func(nodeName string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.first, b.found = first, nil
}

// First reports whether a node is tried first.
func (b *ByLabel) First(nodeName string) bool {
	b.mu.Lock()
	first := b.first
	b.mu.Unlock()
	return first != nil && first(nodeName)
}

// Select returns the nodes that a controller may use, in groups. It fails if the selector is not valid.
func (b *ByLabel) Select(q Query) (Selection, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.found == nil || b.epoch != q.Epoch || len(b.found) >= maxRemembered {
		b.epoch, b.found = q.Epoch, map[criteria]*remembered{}
	}
	by := criteria{q.Selector, q.Spread, q.Containers}
	r := b.found[by]
	if r == nil {
		made, err := b.selectorFor(by)
		if err != nil {
			return Selection{}, err
		}
		r = &remembered{selector: made}
		b.found[by] = r
	}
	now, known := b.since(r, q.Version)
	if !known {
		now = r.all(q.Nodes)
	}
	if q.Version > r.version {
		r.selection, r.version = now, q.Version
	}
	return now, nil
}

// since computes a selector's result from the remembered one, if the changes since are known. b.mu must be held.
func (b *ByLabel) since(r *remembered, version uint64) (now Selection, known bool) {
	switch {
	case version == 0 || r.version == 0:
		return Selection{}, false
	case version == r.version:
		return r.selection, true
	case b.Between == nil:
		return Selection{}, false
	}
	changes, known := b.Between(r.version, version)
	if !known || len(changes) == 0 {
		return r.selection, known
	}
	return r.after(r.selection, changes), true
}

// selectorFor makes a selector for the present epoch and preference. b.mu must be held.
func (b *ByLabel) selectorFor(by criteria) (selector, error) {
	sel, err := labels.Parse(by.selector)
	if err != nil {
		return selector{}, fmt.Errorf("parse selector %q: %w", by.selector, err)
	}
	first := b.first
	if first == nil {
		first = func(string) bool { return false }
	}
	rule := Rule{Selector: sel, Epoch: b.epoch, Containers: by.containers}
	return selector{excludes: rule.Excludes, mine: first, spread: by.spread}, nil
}
