package consul

import (
	"context"
	"slices"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/internal/contain"
)

// gatherer carries out calls of many callers in groups: each at once while few groups are under way, and otherwise together
// with those that wait too. A lone call waits for nothing; under load one request does the work of many.
type gatherer[T any] struct {
	most  int                                  // groups under way at once
	joins func(group []T, next T) bool         // whether one more fits into a group; nil: never
	run   func(ctx context.Context, group []T) // carries a group out and leaves the results in its items

	mu      sync.Mutex
	running int
	waiting []*call[T]
}

// call is one caller's item.
type call[T any] struct {
	item  T
	group *group[T]      // that it belongs to; nil while it waits
	turn  chan *group[T] // one value: the group that the caller must carry out, or nil when another has done it
}

// group is what is carried out together.
type group[T any] struct {
	calls  []*call[T]
	left   int                // callers that do not want it any more
	cancel context.CancelFunc // once it is under way
}

// do returns once the item was carried out, by this caller or by another one. It returns the context's cause if it was not.
// A group is given up when none of its callers wants it any more.
func (g *gatherer[T]) do(ctx context.Context, item T) error {
	me := &call[T]{item: item, turn: make(chan *group[T], 1)}
	g.mu.Lock()
	if g.running < g.most {
		g.running++
		me.group = &group[T]{calls: []*call[T]{me}}
		me.turn <- me.group
	} else {
		g.waiting = append(g.waiting, me)
	}
	g.mu.Unlock()
	var mine *group[T]
	left := false
	select {
	case mine = <-me.turn:
	case <-ctx.Done():
		if g.withdraw(me) {
			return context.Cause(ctx)
		}
		left = true
		mine = <-me.turn
	}
	if mine != nil {
		g.lead(ctx, mine, left)
	}
	return nil
}

// withdraw takes back a call that waits. One that does not wait any more only says that it is not wanted.
func (g *gatherer[T]) withdraw(c *call[T]) (taken bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.group == nil {
		g.waiting = slices.DeleteFunc(g.waiting, func(other *call[T]) bool { return other == c })
		return true
	}
	g.leave(c.group)
	return false
}

// leave counts a caller that does not want the group any more. The caller holds the mutex.
func (g *gatherer[T]) leave(gr *group[T]) {
	gr.left++
	if gr.left >= len(gr.calls) && gr.cancel != nil {
		gr.cancel()
	}
}

// lead carries a group out and gives the turn to the next one. A leader that has left, and is counted so, does it for the others.
func (g *gatherer[T]) lead(ctx context.Context, gr *group[T], left bool) {
	all, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	g.mu.Lock()
	gr.cancel = cancel
	if gr.left >= len(gr.calls) {
		cancel()
	}
	g.mu.Unlock()
	if !left {
		stop := context.AfterFunc(ctx, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.leave(gr)
		})
		defer stop()
	}
	items := make([]T, len(gr.calls))
	for i, c := range gr.calls {
		items[i] = c.item
	}
	func() {
		defer contain.Fatal() // the other callers wait for it
		g.run(all, items)
	}()
	for _, c := range gr.calls[1:] {
		c.turn <- nil
	}
	g.next()
}

// next gives the turn to those that wait longest.
func (g *gatherer[T]) next() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 {
		g.running--
		return
	}
	gr := &group[T]{}
	var items []T
	for _, c := range g.waiting {
		if len(items) > 0 && (g.joins == nil || !g.joins(items, c.item)) {
			break
		}
		items = append(items, c.item)
		c.group = gr
		gr.calls = append(gr.calls, c)
	}
	g.waiting = slices.Delete(g.waiting, 0, len(items))
	gr.calls[0].turn <- gr
}
