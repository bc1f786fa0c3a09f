package preparer

import (
	"context"
	"errors"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
)

var errNewEpoch = errors.New("the cluster has a new nonce, or the node's lock was taken anew")

// epochs divide the time of one session: intents are read anew with each, because what was read before says nothing of a cluster with
// another nonce, nor of what others did before the node's lock was taken.
type epochs struct {
	known loop.Signal // raised when the nonce is known, or that it cannot be

	mu    sync.Mutex
	nonce string
	tried bool // the nonce was read, or could not be
	end   context.CancelCauseFunc
}

// set notes the cluster's nonce. A new one begins a new epoch.
func (x *epochs) set(nonce string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.end != nil && x.nonce != nonce {
		x.end(errNewEpoch)
	}
	x.nonce, x.tried = nonce, true
	x.known.Raise()
}

// miss notes that the nonce cannot be read. Intents can do without.
func (x *epochs) miss() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tried = true
	x.known.Raise()
}

// renew begins a new epoch with the same nonce.
func (x *epochs) renew() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.end != nil {
		x.end(errNewEpoch)
	}
}

// begin returns a context that ends with the epoch, and its nonce.
func (x *epochs) begin(ctx context.Context) (context.Context, string, error) {
	for {
		x.mu.Lock()
		if x.tried {
			defer x.mu.Unlock()
			epoch, end := context.WithCancelCause(ctx)
			x.end = end
			return epoch, x.nonce, nil
		}
		x.mu.Unlock()
		select {
		case <-x.known:
		case <-ctx.Done():
			return nil, "", context.Cause(ctx)
		}
	}
}

// over releases what belongs to the present epoch.
func (x *epochs) over() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.end(nil)
}
