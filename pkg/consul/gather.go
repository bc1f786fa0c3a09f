package consul

import (
	"context"
	"slices"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/internal/contain"
)

// gatherer carries out calls of many callers in groups. If fewer than `most` groups are under way, a call is carried
// out at once and alone. Otherwise it waits, and is carried out together with other waiting calls.
type gatherer[T any] struct {
	most  int                                  // groups under way at once
	joins func(group []T, next T) bool         // whether next fits into the group; nil: never
	run   func(ctx context.Context, group []T) // carries a group out and leaves the results in its items

	mu      sync.Mutex
	running int
	waiting []*call[T]
}

type call[T any] struct {
	item  T
	group *group[T]      // its group; nil while it waits
	turn  chan *group[T] // one value: the group that the caller must carry out, or nil if another caller has done it
}

type group[T any] struct {
	calls  []*call[T]
	left   int                // callers that have given up
	cancel context.CancelFunc // set when the group is under way
}

// do returns when this or another caller has carried the item out. If the context ends before the item is under way, do
// returns its cause. A group is cancelled when all its callers have given up.
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

// withdraw removes a waiting call. If it is under way, its caller is counted as one that has given up.
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

// leave counts a caller that has given up. g.mu must be held.
func (g *gatherer[T]) leave(gr *group[T]) {
	gr.left++
	if gr.left >= len(gr.calls) && gr.cancel != nil {
		gr.cancel()
	}
}

// lead carries a group out and gives the turn to the next one. left: this caller has given up and is counted. lead then
// still works for the other callers.
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
		defer contain.Fatal() // after a panic, the other callers of the group would wait for ever
		g.run(all, items)
	}()
	for _, c := range gr.calls[1:] {
		c.turn <- nil
	}
	g.next()
}

// next gives the turn to a group of the calls that have waited longest.
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
