package scheduler

import (
	"context"
	"iter"
	"slices"
	"sync"
	"time"
)

// Ledger gives different nodes to passes of a farm that run at the same time. If two passes write to the same node's
// reservation, Consul refuses the whole second batch. The zero Ledger is empty.
type Ledger struct {
	mu    sync.Mutex
	busy  map[string]int // number of passes by node
	freed chan struct{}  // closed when nodes are given back; nil if no pass waits
}

// Pool has the nodes that a pass may take: first those that this farm prefers, then the rest.
type Pool struct{ Preferred, Rest Preference }

// Empty reports whether the pool has no node left.
func (p *Pool) Empty() bool { return p.Preferred.Left()+p.Rest.Left() == 0 }

// Preference has nodes in the order in which they are tried, without those that the pass has taken. Zero: no nodes.
type Preference struct {
	Order Order
	Turns Turns // used in place of Order if pods are spread over a label
	// Skip reports whether a node is not tried now, for example because it is full. It may be nil.
	Skip  func(name string) bool
	taken map[string]bool
}

// Order has names in the order in which they are tried.
type Order interface {
	Len() int
	All() iter.Seq[string]
}

// Turns is an order in which groups of names take turns.
type Turns interface {
	Len() int
	// Usable yields the usable names with their levels, which never decrease. Names that are better come earlier, if
	// this makes no level higher.
	Usable(usable, better func(name string) bool) iter.Seq2[string, int]
}

// Left returns how many nodes are left, also those that are not tried now.
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

// spreading yields the nodes that fit. Better ones come earlier, if the pods are then spread as well as before.
func (p *Preference) spreading(fit, better func(name string) bool) iter.Seq[string] {
	return func(yield func(string) bool) {
		for name := range p.Turns.Usable(func(name string) bool { return p.tried(name) && fit(name) }, better) {
			if !yield(name) {
				return
			}
		}
	}
}

func (p *Preference) tried(name string) bool {
	return !p.taken[name] && (p.Skip == nil || !p.Skip(name))
}

func (p *Preference) upTo(n int) int {
	if p.Skip == nil {
		return min(n, p.Left())
	}
	return len(first(n, p.All()))
}

// Take removes nodes from the preference.
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
	// MinCandidates is how many nodes a pass looks at in any case. Fewer nodes could all be full although others are
	// not.
	MinCandidates = 12
	// perPod is how many nodes' reservations are read for each pod.
	perPod = 3
	// restEvery is how many preferred nodes a pass takes for each node of the rest. Without the rest, it would not find
	// nodes on which other farms have placed far fewer pods.
	restEvery = 6
	// freePart limits a pass to one in freePart of the free nodes, unless it needs more. Other passes want some, too.
	freePart = 4
	// enoughPart limits a pass to wait for at most one in enoughPart of the preferred nodes.
	enoughPart = 8
	// nodesWait is how long a pass waits for nodes that other passes have. Then it takes them, although Consul may
	// refuse its batch.
	nodesWait = 500 * time.Millisecond
)

// Take takes nodes for some pods, first nodes that no other pass has. With wait, it waits for at most nodesWait until
// enough nodes are free. The caller must give the nodes back after its writes. fallback has the nodes of the rest.
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

// tryTake takes nodes now. With wait, if too few are free, it takes none, and returns a channel that is closed when
// nodes are given back.
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

// free returns up to n nodes that no pass has. l.mu must be held.
func (l *Ledger) free(from *Preference, n int) []string {
	return first(n, from.those(l.isFree))
}

func (l *Ledger) isFree(name string) bool { return l.busy[name] == 0 }

func (l *Ledger) isBusy(name string) bool { return l.busy[name] > 0 }

// best returns the nodes over which some pods are spread best; none if pods are not spread. It returns a busy node only
// if free nodes would be worse. Ask it for few nodes: a pass that waited for a free node in each of many groups would
// wait for most other passes. l.mu must be held.
func (l *Ledger) best(from *Preference, pods int) []string {
	if from.Turns == nil {
		return nil
	}
	return first(pods, from.spreading(anyNode, l.isFree))
}

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

// takeNow takes own and a few nodes of the rest, then nodes that other passes have. l.mu must be held.
func (l *Ledger) takeNow(from *Pool, own []string, n, enough int) (some, fallback []string) {
	if from.Preferred.Left() == 0 {
		fallback = l.free(&from.Rest, n)
	} else {
		fallback = l.free(&from.Rest, n/restEvery)
	}
	from.Preferred.Take(own)
	from.Rest.Take(fallback)
	// The free nodes that are left do not fit. Take nodes that other passes have.
	shared := first(enough-len(own)-len(fallback), from.Preferred.All())
	others := first(enough-len(own)-len(fallback)-len(shared), from.Rest.All())
	from.Preferred.Take(shared)
	from.Rest.Take(others)
	some = slices.Concat(own, fallback, shared, others)
	fallback = append(fallback, others...)
	l.note(some)
	return some, fallback
}

// Reserve takes nodes that the caller chose, even if other passes have them.
func (l *Ledger) Reserve(nodes []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(nodes)
}

// note counts one more pass for each node. l.mu must be held.
func (l *Ledger) note(nodes []string) {
	if l.busy == nil {
		l.busy = map[string]int{}
	}
	for _, name := range nodes {
		l.busy[name]++
	}
}

// GiveBack lets other passes take nodes.
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
