package preparer

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/preparer/machine"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// portLook is what the node knows of ports that something else on the machine holds.
type portLook struct {
	inUse   func(pods map[int]bool) ([]int, error) // nil: nobody looks
	pods    *pods
	limiter *loop.LogLimiter

	mu     sync.Mutex
	steady machine.Steady
	said   []int // as the node's record says it
}

// look looks once, and reports whether what the record should say has changed.
func (l *portLook) look() (changed bool) {
	const key = "ports in use"
	if l.inUse == nil {
		return false
	}
	pods := l.pods.ports()
	found, err := l.inUse(pods)
	if l.limiter.Saw(key, "the ports that are in use on this machine cannot be read; the node's record says what was found before", err) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.steady.Look(found, pods)
	changed = !slices.Equal(next, l.said)
	l.said = next
	return changed
}

// inUseNow returns what was found.
func (l *portLook) inUseNow() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.said
}

// lookRest is how many times as long as a look took nobody looks: with many connections the kernel has much to list.
const lookRest = 200

// watch looks until ctx ends.
func (l *portLook) watch(ctx context.Context, every time.Duration) {
	for took := time.Duration(0); wait.Pause(ctx, max(every, lookRest*took)) == nil; {
		began := time.Now()
		if l.look() {
			l.pods.record.Raise()
		}
		took = time.Since(began)
	}
}

// ports returns the numbers that pods of the node have, or may have.
func (t *pods) ports() map[int]bool {
	all := map[int]bool{}
	t.do(func() {
		for _, e := range t.all {
			rec := e.accepted()
			if rec.StoppedAt != nil {
				continue
			}
			of := []map[string]int{rec.Intent.Ports, e.rec.Intent.Ports} // what is accepted, and what was before
			for _, in := range rec.live() {
				of = append(of, in.Ports)
			}
			for _, ports := range of {
				for _, port := range ports {
					all[port] = true
				}
			}
		}
	})
	return all
}
