package scheduler

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/node"
)

// ByLabel is the scheduler that farms have of their own: a node may take the pods of a controller if the controller's selector selects it,
// and it is alive and open. It keeps no books. It remembers what each selector gave for the nodes as they were, and looks only at the nodes that have
// changed since: controllers share few selectors, and there are thousands of both. The zero ByLabel is ready, and remembers only
// what is asked twice for one version.
type ByLabel struct {
	NoBooks
	// Between returns how the nodes of one version became those of another, which may be the older one; false where that is not
	// known. Nil: it never is.
	Between func(from, to uint64) ([]NodeChange, bool)

	mu    sync.Mutex
	first func(name string) bool
	epoch string // what found is about
	found map[criteria]*remembered
}

// criteria are what controllers may have in common.
type criteria struct{ selector, spread string }

// remembered is a selector with what it gave last.
type remembered struct {
	selector
	selection Selection
	version   uint64 // of the nodes; zero: there is no selection yet
}

// Query asks which nodes a controller may use.
type Query struct {
	Selector, Spread string
	Epoch            string // of the cluster
	Nodes            map[string]*node.View
	Version          uint64 // of the nodes; zero: not known
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

// Prefer says which nodes are tried first from now on; nil: none is.
func (b *ByLabel) Prefer(first func(nodeName string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.first, b.found = first, nil
}

// First reports whether a node is one of those that are tried first.
func (b *ByLabel) First(nodeName string) bool {
	b.mu.Lock()
	first := b.first
	b.mu.Unlock()
	return first != nil && first(nodeName)
}

// Select returns which nodes a controller may use, as groups with those first that are tried first. The error is that of the selector.
func (b *ByLabel) Select(q Query) (Selection, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.found == nil || b.epoch != q.Epoch || len(b.found) >= maxRemembered {
		b.epoch, b.found = q.Epoch, map[criteria]*remembered{}
	}
	by := criteria{q.Selector, q.Spread}
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

// since returns what a selector gives for the nodes of a version, from what it gave for those of another, if it is known what has
// changed in between. The caller holds the mutex.
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

// selectorFor makes a selector for the epoch and the preference of now. The caller holds the mutex.
func (b *ByLabel) selectorFor(by criteria) (selector, error) {
	sel, err := labels.Parse(by.selector)
	if err != nil {
		return selector{}, fmt.Errorf("parse selector %q: %w", by.selector, err)
	}
	first := b.first
	if first == nil {
		first = func(string) bool { return false }
	}
	rule := Rule{Selector: sel, Epoch: b.epoch}
	return selector{excludes: rule.Excludes, mine: first, spread: by.spread}, nil
}
