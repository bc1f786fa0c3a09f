package preparer

import "errors"

var errNotReady = errors.New("the node's disk and its supervisor have not both been read yet")

// Ready returns nil when the preparer supervises the node's pods, whether Consul answers or not.
func (p *Preparer) Ready() error {
	select {
	case <-p.ready:
		return nil
	default:
		return errNotReady
	}
}
