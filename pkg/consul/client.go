// Package consul is everything that rcfarm asks of Consul: reads, watches, transactions with three outcomes,
// incarnations, sessions and fenced locks. It is the only package that imports Consul's API client.
//
// Each fact about Consul that the code relies on has a test against a real server in facts_*_test.go.
package consul

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// Sentinels that callers test for with errors.Is.
var (
	ErrNotFound = errors.New("not found")
	// ErrFiltered means that the token may not read what was asked for. It is never an empty answer. Consul does not tell
	// clients without a token that it hid something from them, so that their lists are ErrFiltered wherever the default
	// policy is deny, also when the anonymous token or the agent's default token may read everything.
	ErrFiltered = errors.New("not all of it can be read (results filtered by ACLs)")
	// ErrRefused means that a transaction was definitely not carried out.
	ErrRefused = errors.New("transaction refused")
	// ErrUnknown means that a transaction may have been carried out, or may still be.
	ErrUnknown = errors.New("transaction outcome unknown")
	// ErrUnsent means that a transaction has not left this process. An error that matches it matches ErrUnknown too: whoever
	// treats both alike is right, and only those who tell people what was written need the difference.
	ErrUnsent = errors.New("transaction not sent")
	// ErrLost means that a session or a lock is not ours any more, or cannot be proved to be.
	ErrLost = errors.New("session lost")
	// ErrTooLarge means that a transaction exceeds what Consul takes; it was not sent.
	ErrTooLarge = errors.New("transaction too large")
)

// Defaults of Config.
const (
	DefaultMaxConns    = 60 - LivenessConns // P8: 60 in all
	DefaultCallTimeout = 5 * time.Second
)

// LivenessConns is how many connections a client has for the liveness of its session alone: one for the query that waits,
// one for heartbeats. Calls that queue for the others would else keep a session from being renewed.
const LivenessConns = 2

// Config says how to reach Consul. Empty fields follow Consul's own environment variables and defaults.
type Config struct {
	Address     string        // host:port, URL or unix socket
	Token       string        // ACL token; lists need one where Consul's default policy is deny (see ErrFiltered)
	TokenFile   string        // file with the token, read again when it changes; it goes before Token
	MaxConns    int           // TCP connections to the agent besides LivenessConns (P8); DefaultMaxConns when zero
	CallTimeout time.Duration // of one call that does not block; DefaultCallTimeout when zero
	// OnTokenFile is told when the file cannot be read any more, and an earlier token is used. It may be nil.
	OnTokenFile func(error)
}

// Client talks to the local Consul agent. It is safe for concurrent use.
type Client struct {
	Locks    *Locks
	Services *Services
	Catalog  *Catalog
	ACL      *ACL

	api     *api.Client
	live    *api.Client // for the liveness of the session
	timeout time.Duration
	pools   []*http.Transport
	source  *tokenSource
	web     *http.Client // what api sends its requests with
	base    string       // URL of the agent
	past    past
	guards  guards
}

// New returns a client. It does not connect yet.
func New(cfg Config) (*Client, error) {
	if cfg.MaxConns == 0 {
		cfg.MaxConns = DefaultMaxConns
	}
	if cfg.CallTimeout == 0 {
		cfg.CallTimeout = DefaultCallTimeout
	}
	c := &Client{timeout: cfg.CallTimeout, source: sourceOf(cfg)}
	c.Locks, c.Services, c.Catalog, c.ACL = &Locks{c}, &Services{c: c}, &Catalog{c}, &ACL{c}
	var err error
	if c.live, err = c.dialer(cfg, LivenessConns); err == nil {
		c.api, err = c.dialer(cfg, cfg.MaxConns) // last, because web is that of api
	}
	return c, err
}

// sourceOf chooses as Consul's own programs do: what was said to this one, then the environment; a file before a word.
func sourceOf(cfg Config) *tokenSource {
	own := api.DefaultConfig()
	switch {
	case cfg.TokenFile != "":
		return &tokenSource{file: cfg.TokenFile, onFileError: cfg.OnTokenFile}
	case cfg.Token != "":
		return &tokenSource{token: cfg.Token}
	case own.TokenFile != "":
		return &tokenSource{file: own.TokenFile, onFileError: cfg.OnTokenFile}
	default:
		return &tokenSource{token: own.Token}
	}
}

// TokenSource says for people where the token comes from, and how soon another one there is used.
func (c *Client) TokenSource() (from, again string) {
	switch {
	case c.source.file != "":
		return "the token in the file " + c.source.file, "put a valid one there, which is used within a second"
	case c.source.none():
		return "requests without a token", "name a file with one by --token-file, and start the daemon again"
	default:
		return "the token in CONSUL_HTTP_TOKEN", "set a valid one, and start the daemon again"
	}
}

// dialer returns an API client with a pool of connections of its own.
func (c *Client) dialer(cfg Config, conns int) (*api.Client, error) {
	conf := api.DefaultConfig()
	if cfg.Address != "" {
		conf.Address = cfg.Address
	}
	conf.Token = "set by bearer" // with one NewClient does not read a file, which may not be there yet
	conf.Transport.MaxConnsPerHost = conns
	conf.Transport.MaxIdleConnsPerHost = conns
	conf.Transport.MaxIdleConns = conns
	conf.Transport.DisableCompression = true // the agent is on this machine: it would cost both sides more than it saves
	if socket, ok := strings.CutPrefix(conf.Address, "unix://"); ok {
		// The API client would put its own transport in the place of ours, without the bound on connections.
		conf.Address = "consul.sock" // only names the host in requests
		conf.Transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}
	}
	inner, err := api.NewHttpClient(conf.Transport, conf.TLSConfig)
	if err != nil {
		return nil, fmt.Errorf("consul client for %s: %w", conf.Address, err)
	}
	conf.HttpClient = &http.Client{Transport: taps{&bearer{source: c.source, next: &reach{address: conf.Address, next: inner.Transport}}}}
	client, err := api.NewClient(conf)
	if err != nil {
		return nil, fmt.Errorf("consul client for %s: %w", conf.Address, err)
	}
	c.web, c.base = conf.HttpClient, conf.Scheme+"://"+conf.Address+conf.PathPrefix
	c.pools = append(c.pools, conf.Transport)
	return client, nil
}

// Close drops idle connections.
func (c *Client) Close() {
	for _, pool := range c.pools {
		pool.CloseIdleConnections()
	}
}

// Pair is one key as read.
type Pair struct {
	Key         string
	Value       []byte
	ModifyIndex uint64
	CreateIndex uint64 // of the first write since the key was last missing
	Session     string // that holds the key as a lock; empty when none
	LockIndex   uint64 // how many sessions have held it so far
	Flags       uint64
}

func pairOf(p *api.KVPair) Pair {
	return Pair{Key: p.Key, Value: p.Value, ModifyIndex: p.ModifyIndex, CreateIndex: p.CreateIndex, Session: p.Session, LockIndex: p.LockIndex, Flags: p.Flags}
}

// Consistency chooses what a read may miss.
type Consistency int

const (
	// Default is answered by the leader; for a moment around an election it may be behind.
	Default Consistency = iota
	// Consistent makes the leader prove its leadership first. The first read after a claim uses it.
	Consistent
	// Stale is answered by any server, also without a leader, and may be old. Nothing is decided by it.
	Stale
)

func (c Consistency) options(ctx context.Context) *api.QueryOptions {
	opts := &api.QueryOptions{RequireConsistent: c == Consistent, AllowStale: c == Stale}
	return opts.WithContext(ctx)
}

// call bounds one call that does not block.
func (c *Client) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.timeout)
}

// hidden reports whether an answer may lack what the token may not read.
func (c *Client) hidden(meta *api.QueryMeta) bool {
	return meta.ResultsFilteredByACLs || c.source.none() && meta.DefaultACLPolicy == "deny"
}

// readError gives Consul's 403 the name that callers test for.
func readError(err error) error {
	if answered(err, http.StatusForbidden) {
		return fmt.Errorf("%w: %w", ErrFiltered, err)
	}
	return err
}

// unread is why an answer is of no use: there is none, or it may lack something.
func (c *Client) unread(err error, meta *api.QueryMeta) error {
	if err == nil && c.hidden(meta) {
		return ErrFiltered
	}
	return readError(err)
}

// answered reports whether an error is an answer of Consul's with a status.
func answered(err error, code int) bool {
	status, is := errors.AsType[api.StatusError](err)
	return is && status.Code == code
}

// Get reads one key. It returns ErrNotFound when the key is missing, and ErrFiltered when the token may not read it.
func (c *Client) Get(ctx context.Context, key string, consistency Consistency) (Pair, error) {
	ctx, cancel := c.call(ctx)
	defer cancel()
	pair, _, err := c.api.KV().Get(key, consistency.options(ctx))
	if err != nil {
		return Pair{}, fmt.Errorf("read key %s: %w", key, readError(err))
	}
	if pair == nil {
		return Pair{}, fmt.Errorf("read key %s: %w", key, ErrNotFound)
	}
	return pairOf(pair), nil
}

// List reads every key below a prefix. A prefix without keys is an empty answer; ErrFiltered says that the token hides
// something.
func (c *Client) List(ctx context.Context, prefix string, consistency Consistency) ([]Pair, error) {
	ctx, cancel := c.call(ctx)
	defer cancel()
	pairs, _, err := c.list(prefix, consistency.options(ctx)) //nolint:contextcheck // the options bear it
	return pairs, err
}

func (c *Client) list(prefix string, opts *api.QueryOptions) ([]Pair, uint64, error) {
	ctx, t := tapped(opts.Context())
	found, meta, err := c.api.KV().List(prefix, opts.WithContext(ctx))
	if t.took {
		found = t.pairs
	}
	if err := c.unread(err, meta); err != nil {
		return nil, 0, fmt.Errorf("list %s: %w", prefix, err)
	}
	pairs := make([]Pair, len(found))
	for i, p := range found {
		pairs[i] = pairOf(p)
	}
	return pairs, meta.LastIndex, nil
}

// Keys lists the names of the keys below a prefix, without their values.
func (c *Client) Keys(ctx context.Context, prefix string) ([]string, error) {
	return c.keys(ctx, prefix, "")
}

// Children lists what is directly below a prefix that ends in a slash: keys, and each folder once, with a slash at its end.
// Its errors are those of List.
func (c *Client) Children(ctx context.Context, prefix string) ([]string, error) {
	return c.keys(ctx, prefix, "/")
}

// PrefixIndex returns an index that is another one after any change below a prefix that ends in a slash, for one small answer. It may move
// without a change, and it may be what it was once before, because Consul forgets deletions after 15 minutes: one who relies on it reads
// anew more often than that. Its errors are those of List.
func (c *Client) PrefixIndex(ctx context.Context, prefix string) (uint64, error) {
	_, index, err := c.keysAt(ctx, strings.TrimSuffix(prefix, "/"), "/") // the folder alone
	return index, err
}

func (c *Client) keys(ctx context.Context, prefix, separator string) ([]string, error) {
	keys, _, err := c.keysAt(ctx, prefix, separator)
	return keys, err
}

func (c *Client) keysAt(ctx context.Context, prefix, separator string) (keys []string, index uint64, err error) {
	ctx, cancel := c.call(ctx)
	defer cancel()
	keys, meta, err := c.api.KV().Keys(prefix, separator, Default.options(ctx))
	if err := c.unread(err, meta); err != nil {
		return nil, 0, fmt.Errorf("list keys of %s: %w", prefix, err)
	}
	return keys, meta.LastIndex, nil
}
