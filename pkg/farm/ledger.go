package farm

import (
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/placement"
)

// ledger is which nodes' reservations passes of this farm have read and may be about to write. Two controllers that place at
// once keep out of each other's way: a batch that meets another one on a node is refused whole.
type ledger struct {
	mu    sync.Mutex
	busy  map[string]int // passes by node
	freed chan struct{}  // closed when nodes are given back; nil while nobody waits for that
}

// pool is what a pass may take nodes from, in the order of preference: the farm's own share of the nodes, and the rest, which
// other farms try first.
type pool struct{ share, rest preference }

func (p *pool) empty() bool { return p.share.left()+p.rest.left() == 0 }

// preference is nodes in the order in which they are tried, without those that the pass has taken already.
type preference struct {
	order  placement.Walk
	spread *placement.Spread // instead, where pods are spread over a label
	taken  map[string]bool
}

func (p *preference) left() int {
	if p.spread != nil {
		return p.spread.Len() - len(p.taken)
	}
	return p.order.Len() - len(p.taken)
}

func anyNode(string) bool { return true }

func (p *preference) all() iter.Seq[string] { return p.those(anyNode) }

// those yields the nodes that fit.
func (p *preference) those(fit func(name string) bool) iter.Seq[string] {
	if p.spread != nil {
		return p.spreading(fit, anyNode)
	}
	return func(yield func(string) bool) {
		for name := range p.order.All() {
			if !p.taken[name] && fit(name) && !yield(name) {
				return
			}
		}
	}
}

// spreading yields the nodes that fit, where pods are spread: better ones first where that spreads no worse.
func (p *preference) spreading(fit, better func(name string) bool) iter.Seq[string] {
	return func(yield func(string) bool) {
		for name := range p.spread.Usable(func(name string) bool { return !p.taken[name] && fit(name) }, better) {
			if !yield(name) {
				return
			}
		}
	}
}

// take takes nodes out.
func (p *preference) take(names []string) {
	if p.taken == nil {
		p.taken = make(map[string]bool, len(names))
	}
	for _, name := range names {
		p.taken[name] = true
	}
}

// How a pass takes nodes.
const (
	// restEvery is how many nodes of the own share come with one of the rest, so that those are found where other farms
	// have placed far less.
	restEvery = 6
	// A pass takes no more than this part of the free nodes, unless it needs more: others want some, too.
	freePart = 4
	// enoughPart is the part of its share that a pass waits for at the most. One with more pods begins with what is free.
	enoughPart = 8
	// nodesWait is how long a pass waits for nodes that others have. Then it takes those and may be refused.
	nodesWait = 500 * time.Millisecond
)

// take takes nodes for some pods out of the pool, those that no other pass has first. A pass that has none yet waits for a
// while until there are enough. Those taken must be given back after the writes. It returns the nodes, and those of them that
// are of the rest.
func (l *ledger) take(ctx context.Context, from *pool, pods int, wait bool) (some, foreign []string) {
	n, enough := max(minCandidates, candidatesPerPod*pods), min(pods, max(minCandidates, from.share.left()/enoughPart))
	var timeout <-chan time.Time
	for {
		l.mu.Lock()
		most := n
		if n < from.share.left() {
			most = min(n, max(enough, (from.share.left()-len(l.busy))/freePart))
		}
		free := l.free(&from.share, most)
		best := l.best(&from.share, min(enough, minCandidates))
		if wait && (len(free) < enough && len(free) < from.share.left() || slices.ContainsFunc(best, l.isBusy)) {
			if l.freed == nil {
				l.freed = make(chan struct{})
			}
			freed := l.freed
			l.mu.Unlock()
			if timeout == nil {
				timer := time.NewTimer(nodesWait)
				defer timer.Stop()
				timeout = timer.C
			}
			select {
			case <-freed:
			case <-timeout:
				wait = false
			case <-ctx.Done():
				wait = false
			}
			continue
		}
		defer l.mu.Unlock()
		return l.takeNow(from, append(best, without(free, best)...), n, enough)
	}
}

// free returns up to n of the nodes that nobody has. The caller holds the mutex.
func (l *ledger) free(from *preference, n int) []string {
	return first(n, from.those(l.isFree))
}

func (l *ledger) isFree(name string) bool { return l.busy[name] == 0 }

func (l *ledger) isBusy(name string) bool { return l.busy[name] > 0 }

// best returns the nodes over which some pods are spread best, busy ones among them only where free ones would not do as well;
// none where pods are not spread. A pass with many pods asks for some only: were it to wait until none of many groups lacks a
// free node, it would wait for most of the other passes. The caller holds the mutex.
func (l *ledger) best(from *preference, pods int) []string {
	if from.spread == nil {
		return nil
	}
	return first(pods, from.spreading(anyNode, l.isFree))
}

// first returns the first n names.
func first(n int, names iter.Seq[string]) []string {
	var some []string
	if n <= 0 {
		return nil
	}
	for name := range names {
		if some = append(some, name); len(some) == n {
			break
		}
	}
	return some
}

// takeNow takes the own ones given, a few of the rest, and if that is not enough those that others have. The caller holds the
// mutex.
func (l *ledger) takeNow(from *pool, own []string, n, enough int) (some, foreign []string) {
	if from.share.left() == 0 {
		foreign = l.free(&from.rest, n)
	} else {
		foreign = l.free(&from.rest, n/restEvery)
	}
	from.share.take(own)
	from.rest.take(foreign)
	// Those that are left and free were not wanted; what comes now is shared.
	shared := first(enough-len(own)-len(foreign), from.share.all())
	others := first(enough-len(own)-len(foreign)-len(shared), from.rest.all())
	from.share.take(shared)
	from.rest.take(others)
	some = slices.Concat(own, foreign, shared, others)
	foreign = append(foreign, others...)
	l.note(some)
	return some, foreign
}

// hold takes nodes that were chosen in another way, whoever has them.
func (l *ledger) hold(nodes []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(nodes)
}

// note counts a pass for each node. The caller holds the mutex.
func (l *ledger) note(nodes []string) {
	if l.busy == nil {
		l.busy = map[string]int{}
	}
	for _, name := range nodes {
		l.busy[name]++
	}
}

func (l *ledger) giveBack(nodes []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range nodes {
		if l.busy[name]--; l.busy[name] <= 0 {
			delete(l.busy, name)
		}
	}
	if len(nodes) > 0 && l.freed != nil {
		close(l.freed)
		l.freed = nil
	}
}
