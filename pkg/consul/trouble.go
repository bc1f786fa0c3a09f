package consul

import (
	"errors"
	"net/http"
	"strings"

	"github.com/hashicorp/consul/api"
)

// AwayError is a request to Consul's agent without an answer. Its text is that of what went wrong with the connection.
type AwayError struct {
	Address string // of the agent
	err     error
}

// Error implements error.
func (e *AwayError) Error() string { return e.err.Error() }

// Unwrap returns what went wrong with the connection.
func (e *AwayError) Unwrap() error { return e.err }

// Timeout reports whether it was the time that ran out, as url.Error asks.
func (e *AwayError) Timeout() bool {
	slow, is := errors.AsType[interface {
		error
		Timeout() bool
	}](e.err)
	return is && slow.Timeout()
}

// reach says of requests without an answer that they were for Consul.
type reach struct {
	address string
	next    http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (r *reach) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.next.RoundTrip(req)
	if err != nil {
		return nil, &AwayError{Address: r.address, err: err}
	}
	return resp, nil
}

// NoLeader reports whether an agent answered, and no server leads.
func NoLeader(err error) bool {
	status, is := errors.AsType[api.StatusError](err)
	return is && status.Code == http.StatusInternalServerError && strings.Contains(status.Body, "No cluster leader")
}

// TokenTrouble says why Consul refuses the token of a request.
type TokenTrouble int

// The kinds of it.
const (
	TokenFine    TokenTrouble = iota // it was not refused for its token
	TokenMissing                     // there was none
	TokenUnknown                     // Consul does not know it: it was deleted, has expired, or is another cluster's
	TokenLacks                       // it lacks a right
)

// TokenTrouble says what an error of this client's says about its token, and for people where the token comes from.
// Consul's words for a token that it does not know are held by a test against the real server.
func (c *Client) TokenTrouble(err error) (what TokenTrouble, from string) {
	from, _ = c.TokenSource()
	unknown := err != nil && strings.Contains(err.Error(), "ACL not found") // of transactions the client says it in words alone
	switch {
	case !unknown && !TokenRefused(err):
		return TokenFine, from
	case c.source.none():
		return TokenMissing, from
	case unknown:
		return TokenUnknown, from
	default:
		return TokenLacks, from
	}
}
