package place

import (
	"maps"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// usageAge is how long a noted usage is valid. No event reports that other farms give capacity back.
const usageAge = time.Minute

// usage remembers the reservations of nodes that could not take pods, and what this farm has written there since. It is
// only a hint about which nodes to try last: the reservation decides whether a pod fits.
type usage struct {
	mu     sync.Mutex
	seen   map[string]seenUsage
	pruned time.Time
}

type seenUsage struct {
	used scheduler.Usage
	at   time.Time
}

func (u *usage) saw(reservations map[string]store.Rec[node.Reservation], now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.seen == nil {
		u.seen = map[string]seenUsage{}
	}
	for name := range reservations {
		u.seen[name] = seenUsage{scheduler.UsageOf(&node.View{}, reservations[name].Value), now}
	}
}

// wrote notes what a batch has written. If it failed, the usage is not known any more.
func (u *usage) wrote(writes []store.ReservationWrite, landed bool, now time.Time) {
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

// tight reports whether most nodes could not take pods a short time ago. Then a pass should know a pod's needs before
// it takes nodes.
func (u *usage) tight(nodes int, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Sub(u.pruned) > usageAge/4 {
		u.pruned = now
		maps.DeleteFunc(u.seen, func(_ string, s seenUsage) bool { return now.Sub(s.at) > usageAge })
	}
	return 2*len(u.seen) > nodes
}

// full returns a function that reports whether a node is known to be too full; nil: nothing is known.
func (u *usage) full(nodes map[string]*node.View, want node.Claim, dynamic int, now time.Time) func(name string) bool {
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
