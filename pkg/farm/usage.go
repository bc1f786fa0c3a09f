package farm

import (
	"maps"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// usageAge is how long it is believed what was taken on a node. Other farms give room back, and nothing tells of it.
const usageAge = time.Minute

// usageView is what this farm saw last of what is taken on nodes where it looked in vain, and wrote since. It is a hint, which nodes are to be tried last: what is in the
// reservation decides. Where the first nodes that a pass takes have room, nothing is noted. See ADR 25.
type usageView struct {
	mu   sync.Mutex
	seen map[string]seenUsage
	// pruned is when what was too old was forgotten.
	pruned time.Time
}

type seenUsage struct {
	used scheduler.Usage
	at   time.Time
}

// saw notes reservations as they were read.
func (u *usageView) saw(reservations map[string]store.Rec[node.Reservation], now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.seen == nil {
		u.seen = map[string]seenUsage{}
	}
	for name := range reservations {
		u.seen[name] = seenUsage{scheduler.UsageOf(&node.View{}, reservations[name].Value), now}
	}
}

// wrote notes what became of reservations that a batch was to write: as they are now, or nobody knows how.
func (u *usageView) wrote(writes []store.ReservationWrite, landed bool, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range writes {
		if _, noted := u.seen[writes[i].Node]; !noted {
			continue
		}
		delete(u.seen, writes[i].Node)
		if landed {
			u.seen[writes[i].Node] = seenUsage{scheduler.UsageOf(&node.View{}, writes[i].Value), now}
		}
	}
}

// tight reports whether most nodes were looked at in vain not long ago: then it is better to know what a pod needs before nodes are taken for it.
func (u *usageView) tight(nodes int, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Sub(u.pruned) > usageAge/4 {
		u.pruned = now
		maps.DeleteFunc(u.seen, func(_ string, s seenUsage) bool { return now.Sub(s.at) > usageAge })
	}
	return 2*len(u.seen) > nodes
}

// full returns what tells which nodes have no room for a pod, as far as is known; nil: nothing is.
func (u *usageView) full(nodes map[string]*node.View, want node.Claim, dynamic int, now time.Time) func(name string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.seen) == 0 {
		return nil
	}
	return func(name string) bool {
		u.mu.Lock()
		s, noted := u.seen[name]
		u.mu.Unlock()
		v := nodes[name]
		return noted && v != nil && now.Sub(s.at) <= usageAge && s.used.Refuses(v, want, dynamic) != ""
	}
}
