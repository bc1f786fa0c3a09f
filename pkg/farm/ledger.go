package farm

import (
	"context"
	"slices"
	"sync"
	"time"
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
type pool struct{ share, rest []string }

func (p *pool) empty() bool { return len(p.share)+len(p.rest) == 0 }

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
	n, enough := max(minCandidates, candidatesPerPod*pods), min(pods, max(minCandidates, len(from.share)/enoughPart))
	var timeout <-chan time.Time
	for {
		l.mu.Lock()
		most := n
		if n < len(from.share) {
			most = min(n, max(enough, (len(from.share)-len(l.busy))/freePart))
		}
		free := l.free(from.share, most)
		if wait && len(free) < enough && len(free) < len(from.share) {
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
		return l.takeNow(from, free, n, enough)
	}
}

// free returns up to n of the nodes that nobody has. The caller holds the mutex.
func (l *ledger) free(names []string, n int) []string {
	var free []string
	for _, name := range names {
		if len(free) == n {
			break
		}
		if l.busy[name] == 0 {
			free = append(free, name)
		}
	}
	return free
}

// takeNow takes the free ones, a few of the rest, and if that is not enough those that others have. The caller holds the
// mutex.
func (l *ledger) takeNow(from *pool, free []string, n, enough int) (some, foreign []string) {
	if len(from.share) == 0 {
		foreign = l.free(from.rest, n)
	} else {
		foreign = l.free(from.rest, n/restEvery)
	}
	some = append(free, foreign...)
	if len(some) < enough {
		shared := without(from.share, free)
		some = append(some, shared[:min(len(shared), enough-len(some))]...)
	}
	if len(some) < enough {
		shared := without(from.rest, foreign)
		shared = shared[:min(len(shared), enough-len(some))]
		some, foreign = append(some, shared...), append(slices.Clone(foreign), shared...)
	}
	from.share, from.rest = without(from.share, some), without(from.rest, foreign)
	if l.busy == nil {
		l.busy = map[string]int{}
	}
	for _, name := range some {
		l.busy[name]++
	}
	return some, foreign
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
