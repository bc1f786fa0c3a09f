package scheduler

import (
	"context"
	"iter"
	"slices"
	"sync"
	"time"
)

// Ledger is which nodes' reservations passes of one farm have read and may be about to write. The zero Ledger is empty. Two controllers that place at
// once keep out of each other's way: a batch that meets another one on a node is refused whole.
type Ledger struct {
	mu    sync.Mutex
	busy  map[string]int // passes by node
	freed chan struct{}  // closed when nodes are given back; nil while nobody waits for that
}

// Pool is what a pass may take nodes from, in the order of preference: the nodes that the farm prefers, and the rest, which
// other farms try first.
type Pool struct{ Preferred, Rest Preference }

// Empty reports whether there is nothing to take.
func (p *Pool) Empty() bool { return p.Preferred.Left()+p.Rest.Left() == 0 }

// Preference is nodes in the order in which they are tried, without those that the pass has taken already. The zero Preference has none.
type Preference struct {
	Order Order
	Turns Turns // instead, where pods are spread over a label
	// Skip tells which nodes are not tried for now, such as those that are known to be full; nil: none.
	Skip  func(name string) bool
	taken map[string]bool
}

// Order is names in the order in which they are tried.
type Order interface {
	Len() int
	All() iter.Seq[string]
}

// Turns is an order in which groups of names take turns.
type Turns interface {
	Len() int
	// Usable yields the names that are usable, each with a level that never goes down. Better ones come before the others for as far as
	// that makes no level higher.
	Usable(usable, better func(name string) bool) iter.Seq2[string, int]
}

// Left returns how many nodes are left, those included that are not tried for now.
func (p *Preference) Left() int {
	if p.Turns != nil {
		return p.Turns.Len() - len(p.taken)
	}
	if p.Order == nil {
		return 0
	}
	return p.Order.Len() - len(p.taken)
}

func anyNode(string) bool { return true }

// All yields the nodes that are left.
func (p *Preference) All() iter.Seq[string] { return p.those(anyNode) }

// those yields the nodes that fit.
func (p *Preference) those(fit func(name string) bool) iter.Seq[string] {
	if p.Turns != nil {
		return p.spreading(fit, anyNode)
	}
	return func(yield func(string) bool) {
		if p.Order == nil {
			return
		}
		for name := range p.Order.All() {
			if p.tried(name) && fit(name) && !yield(name) {
				return
			}
		}
	}
}

// spreading yields the nodes that fit, where pods are spread: better ones first where that spreads no worse.
func (p *Preference) spreading(fit, better func(name string) bool) iter.Seq[string] {
	return func(yield func(string) bool) {
		for name := range p.Turns.Usable(func(name string) bool { return p.tried(name) && fit(name) }, better) {
			if !yield(name) {
				return
			}
		}
	}
}

// tried reports whether a node is tried now.
func (p *Preference) tried(name string) bool {
	return !p.taken[name] && (p.Skip == nil || !p.Skip(name))
}

// upTo returns how many nodes there are to be tried now, or the number given if they are more.
func (p *Preference) upTo(n int) int {
	if p.Skip == nil {
		return min(n, p.Left())
	}
	return len(first(n, p.All()))
}

// Take takes nodes out.
func (p *Preference) Take(names []string) {
	if p.taken == nil {
		p.taken = make(map[string]bool, len(names))
	}
	for _, name := range names {
		p.taken[name] = true
	}
}

// How a pass takes nodes.
const (
	// MinCandidates is how many nodes a pass looks at in the least, so that a few full ones do not hide a free one.
	MinCandidates = 12
	// perPod is how many nodes' reservations are read for each pod to be placed.
	perPod = 3
	// restEvery is how many nodes of the preferred come with one of the rest, so that those are found where other farms
	// have placed far less.
	restEvery = 6
	// A pass takes no more than this part of the free nodes, unless it needs more: others want some, too.
	freePart = 4
	// enoughPart is the part of the preferred ones that a pass waits for at the most. One with more pods begins with what is free.
	enoughPart = 8
	// nodesWait is how long a pass waits for nodes that others have. Then it takes those and may be refused.
	nodesWait = 500 * time.Millisecond
)

// Take takes nodes for some pods out of the pool, those that no other pass has first. A pass that has none yet waits for a
// while until there are enough. Those taken must be given back after the writes. It returns the nodes, and those of them that
// are of the rest.
func (l *Ledger) Take(ctx context.Context, from *Pool, pods int, wait bool) (some, fallback []string) {
	n, enough := max(MinCandidates, perPod*pods), min(pods, max(MinCandidates, from.Preferred.Left()/enoughPart))
	var timeout <-chan time.Time
	for {
		some, fallback, freed := l.tryTake(from, n, enough, wait)
		if freed == nil {
			return some, fallback
		}
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
	}
}

// tryTake takes nodes now, or returns what is closed when some are given back, if the pass may wait and should.
func (l *Ledger) tryTake(from *Pool, n, enough int, wait bool) (some, fallback []string, freed chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	most := n
	if n < from.Preferred.Left() {
		most = min(n, max(enough, (from.Preferred.Left()-len(l.busy))/freePart))
	}
	free := l.free(&from.Preferred, most)
	best := l.best(&from.Preferred, min(enough, MinCandidates))
	if wait && (len(free) < enough && len(free) < from.Preferred.upTo(enough) || slices.ContainsFunc(best, l.isBusy)) {
		if l.freed == nil {
			l.freed = make(chan struct{})
		}
		return nil, nil, l.freed
	}
	some, fallback = l.takeNow(from, append(best, besides(free, best)...), n, enough)
	return some, fallback, nil
}

// free returns up to n of the nodes that nobody has. The caller holds the mutex.
func (l *Ledger) free(from *Preference, n int) []string {
	return first(n, from.those(l.isFree))
}

func (l *Ledger) isFree(name string) bool { return l.busy[name] == 0 }

func (l *Ledger) isBusy(name string) bool { return l.busy[name] > 0 }

// best returns the nodes over which some pods are spread best, busy ones among them only where free ones would not do as well;
// none where pods are not spread. A pass with many pods asks for some only: were it to wait until none of many groups lacks a
// free node, it would wait for most of the other passes. The caller holds the mutex.
func (l *Ledger) best(from *Preference, pods int) []string {
	if from.Turns == nil {
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

// besides returns those of all names that are not among some.
func besides(all, some []string) []string {
	if len(some) == 0 {
		return all
	}
	not := make(map[string]bool, len(some))
	for _, name := range some {
		not[name] = true
	}
	return slices.DeleteFunc(all, func(name string) bool { return not[name] })
}

// takeNow takes the own ones given, a few of the rest, and if that is not enough those that others have. The caller holds the
// mutex.
func (l *Ledger) takeNow(from *Pool, own []string, n, enough int) (some, fallback []string) {
	if from.Preferred.Left() == 0 {
		fallback = l.free(&from.Rest, n)
	} else {
		fallback = l.free(&from.Rest, n/restEvery)
	}
	from.Preferred.Take(own)
	from.Rest.Take(fallback)
	// Those that are left and free were not wanted; what comes now is shared.
	shared := first(enough-len(own)-len(fallback), from.Preferred.All())
	others := first(enough-len(own)-len(fallback)-len(shared), from.Rest.All())
	from.Preferred.Take(shared)
	from.Rest.Take(others)
	some = slices.Concat(own, fallback, shared, others)
	fallback = append(fallback, others...)
	l.note(some)
	return some, fallback
}

// Reserve takes nodes that were chosen in another way, whoever has them.
func (l *Ledger) Reserve(nodes []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(nodes)
}

// note counts a pass for each node. The caller holds the mutex.
func (l *Ledger) note(nodes []string) {
	if l.busy == nil {
		l.busy = map[string]int{}
	}
	for _, name := range nodes {
		l.busy[name]++
	}
}

// GiveBack lets other passes have nodes.
func (l *Ledger) GiveBack(nodes []string) {
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
