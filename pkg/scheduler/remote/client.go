package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// Config has a scheduler's address and how to authenticate.
type Config struct {
	URL string // http or https; the farm appends the names of methods
	// CAFile has PEM certificates, one of which signed the https server's. Empty: the machine's certificates.
	CAFile    string
	TokenFile string // has the token that each question bears; read for each question; empty: no token
}

const (
	maxConns = 32
	// booklessFor is how long the client does not ask for books again after the answer that there are none.
	booklessFor = time.Minute
)

// Client is a scheduler in another process. It implements scheduler.Books, and returns scheduler.ErrNoBooks if that one
// keeps no books. Each call is one try.
type Client struct {
	base      *url.URL
	tokenFile string
	http      *http.Client
	bookless  atomic.Int64 // until then (Unix, nanoseconds) the scheduler is taken to keep no books
}

// Check returns mistakes. They name the flags of a farm.
func (c Config) Check() field.Errors {
	var errs field.Errors
	u, err := url.Parse(c.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil ||
		u.RawQuery != "" || u.Fragment != "" {
		errs.Add("scheduler-url", c.URL,
			`a URL such as "https://scheduler.example:7470/", without a user, a password or a query`)
		return errs
	}
	if c.CAFile != "" && u.Scheme != "https" {
		errs.Add("scheduler-ca", c.CAFile, "a file of certificates, for a URL with https")
	}
	if c.TokenFile != "" && u.Scheme != "https" && !loopback(u.Hostname()) {
		errs.Add("scheduler-token-file", c.TokenFile,
			"a file, for a URL with https or of this machine: everybody on the way could read the token")
	}
	return errs
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// New sends no request yet, because the scheduler may not run.
func New(cfg Config) (*Client, error) {
	if err := cfg.Check().Err(); err != nil {
		return nil, err
	}
	base, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, err
	}
	security := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.CAFile != "" {
		data, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("certificates of the scheduler: %w", err)
		}
		security.RootCAs = x509.NewCertPool()
		if !security.RootCAs.AppendCertsFromPEM(data) {
			return nil, &field.Error{
				Field: "scheduler-ca", Value: cfg.CAFile,
				Allowed: "a file with at least one certificate in PEM",
			}
		}
	}
	return &Client{
		base: base, tokenFile: cfg.TokenFile,
		http: &http.Client{
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport: &http.Transport{ // it does not use proxies from the environment
				TLSClientConfig: security, MaxConnsPerHost: maxConns,
				MaxIdleConnsPerHost: maxConns, IdleConnTimeout: time.Minute,
				DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
			},
		},
	}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// EligibleNodes implements scheduler.Scheduler.
func (c *Client) EligibleNodes(ctx context.Context, v *scheduler.View) ([]string, scheduler.Reasons, error) {
	a, err := c.ask(ctx, eligiblePath, questionOf(v))
	return a.Nodes, a.Refused, err
}

// AllocatedNodes implements scheduler.Books.
func (c *Client) AllocatedNodes(ctx context.Context, o scheduler.Owner) ([]scheduler.Allocation, error) {
	if time.Now().UnixNano() < c.bookless.Load() {
		return nil, scheduler.ErrNoBooks
	}
	a, err := c.ask(ctx, allocatedPath, question{Version: Version, Owner: &o})
	if errors.Is(err, scheduler.ErrNoBooks) {
		c.bookless.Store(time.Now().Add(booklessFor).UnixNano())
	}
	return a.Allocations, err
}

// AllocateNodes implements scheduler.Scheduler.
func (c *Client) AllocateNodes(ctx context.Context, o scheduler.Owner, v *scheduler.View,
	wants []scheduler.Want,
) ([]scheduler.Allocation, error) {
	q := questionOf(v)
	q.Owner, q.Wants = &o, wants
	a, err := c.ask(ctx, allocatePath, q)
	return a.Allocations, err
}

// DeallocateNodes implements scheduler.Scheduler.
func (c *Client) DeallocateNodes(ctx context.Context, o scheduler.Owner, allocations []scheduler.Allocation) error {
	_, err := c.ask(ctx, deallocatePath, question{Version: Version, Owner: &o, Allocations: allocations})
	return err
}

func (c *Client) ask(ctx context.Context, path string, q question) (answer, error) {
	body, err := json.Marshal(q)
	switch {
	case err != nil:
		return answer{}, fmt.Errorf("encode the question: %w", err)
	case len(body) > MaxQuestion:
		return answer{}, fmt.Errorf("the question has %d bytes, with %d nodes; allowed: %d",
			len(body), len(q.Nodes), MaxQuestion)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base.JoinPath(path).String(), bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	if err := c.authorize(req); err != nil {
		return answer{}, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, MaxAnswer+1))
	switch {
	case resp.StatusCode == http.StatusNotImplemented && path != eligiblePath:
		return answer{}, scheduler.ErrNoBooks
	case resp.StatusCode != http.StatusOK:
		return answer{}, fmt.Errorf("%s answered %s", req.URL, refusal(resp.Status, data))
	case err != nil:
		return answer{}, fmt.Errorf("read the answer of %s: %w", req.URL, err)
	case len(data) > MaxAnswer:
		return answer{}, fmt.Errorf("%s: the answer has more than %d bytes, which are allowed", req.URL, MaxAnswer)
	}
	a, err := parseAnswer(data)
	if err != nil {
		return answer{}, fmt.Errorf("%s: %w", req.URL, err)
	}
	return a, nil
}

// refusal describes a status and the answer's text on one line.
func refusal(status string, text []byte) string {
	words := strings.Join(strings.FieldsFunc(string(text),
		func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
	status = strings.Join(strings.FieldsFunc(status, func(r rune) bool { return !unicode.IsPrint(r) }), " ")
	if status = field.Cut(status, maxText); words != "" {
		status += ": " + field.Cut(words, maxText)
	}
	return status
}

func (c *Client) authorize(req *http.Request) error {
	if c.tokenFile == "" {
		return nil
	}
	token, err := field.ReadWord(c.tokenFile)
	if err != nil {
		return fmt.Errorf("token for the scheduler: %w", err)
	}
	req.Header.Set("Authorization", bearer+token)
	return nil
}

const bearer = "Bearer "
