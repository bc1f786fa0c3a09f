package registry

import (
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// maxRedirects is how many redirects one request follows.
const maxRedirects = 10

// pace decides which requests are sent again, and when. It implements retry.Policy. The policies of oras-go do not try
// refused connections again, and do not read Retry-After with a date or in an answer 503.
type pace struct {
	retries       int
	wait, maxWait time.Duration
}

// Retry returns the pause before the next try. Negative: there is none.
func (p pace) Retry(attempt int, resp *http.Response, err error) (time.Duration, error) {
	const never = -1
	if attempt >= p.retries {
		return never, nil
	}
	if err != nil {
		if _, distrusted := errors.AsType[*tls.CertificateVerificationError](err); distrusted {
			return never, nil
		}
		return p.after(attempt), nil // if the context has ended, the transport returns
	}
	switch code := resp.StatusCode; {
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable:
		return min(p.maxWait, max(p.after(attempt), retryAfter(resp.Header.Get("Retry-After")))), nil
	case code == http.StatusRequestTimeout,
		code >= http.StatusInternalServerError && code != http.StatusNotImplemented:
		return p.after(attempt), nil
	}
	return never, nil
}

// after returns a pause that doubles with each attempt. A random part keeps nodes apart that failed at the same time.
func (p pace) after(attempt int) time.Duration {
	pause := p.maxWait
	if attempt < 20 {
		pause = min(p.maxWait, p.wait<<attempt)
	}
	return pause - rand.N(pause/4+1)
}

// retryAfter parses the value of Retry-After: seconds or a date. Other values are zero.
func retryAfter(value string) time.Duration {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if date, err := http.ParseTime(value); err == nil {
		return time.Until(date)
	}
	return 0
}

// checkRedirect refuses a redirect to http, unless the configuration allows it for that host.
func (c Config) checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return fmt.Errorf("%w: more than %d redirects", ErrAnswer, maxRedirects)
	}
	if req.URL.Scheme != "https" && !(req.URL.Scheme == "http" && c.Hosts[req.URL.Host].PlainHTTP) {
		return fmt.Errorf("%w: redirect to %.20s://%.255s; allowed: https, or a registry that the node reads without TLS",
			ErrAnswer, req.URL.Scheme, req.URL.Host)
	}
	return nil
}
