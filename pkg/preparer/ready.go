package preparer

import (
	"context"
	"errors"
)

var errNotReady = errors.New("the node's disk and its supervisor have not both been read yet")

// Ready returns nil when the preparer supervises the node's pods, whether Consul answers or not, and the node's name is not
// known to be another host's.
func (p *Preparer) Ready() error {
	if !p.allKnown() {
		return errNotReady
	}
	return p.name.Refusal()
}

// allKnown reports whether every running pod is known.
func (p *Preparer) allKnown() bool {
	select {
	case <-p.ready:
		return true
	default:
		return false
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
