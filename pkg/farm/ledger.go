package farm

import "sync"

// ledger is which nodes' reservations passes of this farm have read and may be about to write. Two controllers that place at
// once keep out of each other's way: a batch that meets another one on a node is refused whole.
type ledger struct {
	mu   sync.Mutex
	busy map[string]int // passes by node
}

// take returns n of the nodes in their order, those that no other pass has first, and the rest. Those taken must be given
// back after the writes.
func (l *ledger) take(order []string, n int) (some, rest []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy == nil {
		l.busy = map[string]int{}
	}
	var busy []string
	at := 0
	for ; at < len(order) && len(some) < n; at++ {
		if l.busy[order[at]] > 0 {
			busy = append(busy, order[at])
		} else {
			some = append(some, order[at])
		}
	}
	more := min(n-len(some), len(busy))
	some = append(some, busy[:more]...)
	for _, name := range some {
		l.busy[name]++
	}
	return some, append(busy[more:], order[at:]...)
}

func (l *ledger) giveBack(nodes []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range nodes {
		if l.busy[name]--; l.busy[name] <= 0 {
			delete(l.busy, name)
		}
	}
}
