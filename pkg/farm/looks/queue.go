package looks

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Work handles what comes from a queue until that is shut down. The queue never gives one id to two workers.
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

// Grace is how long things that lack an owner have been seen so, by id: the farm that is preferred has a while to claim each. The zero
// value knows of none.
type Grace struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// Left returns what is left of a while since something was seen first.
func (g *Grace) Left(id string, while time.Duration) time.Duration {
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
	return while - time.Since(since)
}

// Forget has the while begin anew when something is seen next.
func (g *Grace) Forget(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.since, id)
}
