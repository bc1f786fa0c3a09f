package preparer

import (
	"context"
	"errors"
)

var errNotReady = errors.New("the node's disk and its supervisor have not both been read yet")

// Ready returns nil when the preparer supervises the node's pods, whether Consul answers or not, and the node's name is not
// known to be another host's.
func (p *Preparer) Ready() error {
	select {
	case <-p.ready:
		return p.name.Refusal()
	default:
		return errNotReady
	}
}

// awaitReady waits until every running pod is known. It returns false when ctx ends first.
func (p *Preparer) awaitReady(ctx context.Context) bool {
	select {
	case <-p.ready:
		return true
	case <-ctx.Done():
		return false
	}
}
