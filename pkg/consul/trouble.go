package consul

import (
	"errors"
	"net/http"
	"strings"

	"github.com/hashicorp/consul/api"
)

// AwayError means that a request to Consul's agent got no answer.
type AwayError struct {
	Address string // of the agent
	err     error
}

// Error is the connection's error.
func (a *AwayError) Error() string { return a.err.Error() }

// Unwrap returns the connection's error.
func (a *AwayError) Unwrap() error { return a.err }

// Timeout reports whether the time ran out. url.Error calls it.
func (a *AwayError) Timeout() bool {
	slow, is := errors.AsType[interface {
		error
		Timeout() bool
	}](a.err)
	return is && slow.Timeout()
}

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

// NoLeader reports whether an agent answered that Consul's cluster has no leader.
func NoLeader(err error) bool {
	status, is := errors.AsType[api.StatusError](err)
	return is && status.Code == http.StatusInternalServerError && strings.Contains(status.Body, "No cluster leader")
}

// TokenTrouble is why Consul refuses a token.
type TokenTrouble int

// The values of TokenTrouble.
const (
	TokenFine    TokenTrouble = iota // the token is not the reason for the error
	TokenMissing                     // the request had no token
	TokenUnknown                     // deleted, expired, or of another cluster
	TokenLacks                       // the token lacks a right
)

// TokenTrouble returns what err means about the client's token, and for people, where the token comes from. A test
// checks Consul's text against the real server.
func (c *Client) TokenTrouble(err error) (what TokenTrouble, from string) {
	from, _ = c.TokenSource()
	// For a transaction, the API client returns only this text, no status.
	unknown := err != nil && strings.Contains(err.Error(), "ACL not found")
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
