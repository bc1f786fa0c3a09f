package image

import (
	"context"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/internal/patience"
)

// locks has one lock for each key. A waiting caller goes on when its context ends.
type locks struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

// acquire takes the lock of a key. The caller calls release.
func (l *locks) acquire(ctx context.Context, key string) (release func(), err error) {
	for {
		l.mu.Lock()
		held, ok := l.held[key]
		if !ok {
			mine := make(chan struct{})
			l.held[key] = mine
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				delete(l.held, key)
				l.mu.Unlock()
				close(mine)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
			return nil, patience.Ended(ctx)
		}
	}
}
