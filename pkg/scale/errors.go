package scale

import "errors"

// What may become of a request; the node's API has a status for each, and 500 for what is none of them.
var (
	// ErrInvalid: a field of the request, or of its manifest, is wrong (400).
	ErrInvalid = errors.New("the request is not valid")
	// ErrUnknownService: the node does not know the service, and the request has no spec (404).
	ErrUnknownService = errors.New("unknown service")
	// ErrConflict: the request is older than the last one, its name is taken, or the node has no room (409).
	ErrConflict = errors.New("refused")
	// ErrUnavailable: the node cannot say now (503).
	ErrUnavailable = errors.New("not now")
)
