package looks

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Work handles ids from the queue until it is shut down.
func Work(queue workqueue.TypedInterface[string], handle func(id string)) {
	for {
		id, shutdown := queue.Get()
		if shutdown {
			return
		}
		handle(id)
		queue.Done(id)
	}
}

// Grace lets the preferred farm claim units before others do. The zero value has no units. It is safe for concurrent
// use.
type Grace struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// Left returns the rest of the grace time. The grace time begins when the unit is first seen without an owner. If it
// has passed, the result is negative.
func (g *Grace) Left(id string, grace time.Duration) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	since, seen := g.since[id]
	if !seen {
		if g.since == nil {
			g.since = map[string]time.Time{}
		}
		since = time.Now()
		g.since[id] = since
	}
	return grace - time.Since(since)
}

// Forget forgets a unit, so that its grace time starts again.
func (g *Grace) Forget(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.since, id)
}
