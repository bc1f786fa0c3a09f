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

// Sentinel errors for errors.Is.
var (
	ErrNotFound = errors.New("not found")
	// ErrFiltered means that the token may not read all that was asked for. The result is never an empty answer. Consul
	// does not report to a client without a token that it hid something. So if the default policy is deny, the lists of
	// such a client always end with ErrFiltered, even if the anonymous token or the agent's default token may read
	// them.
	ErrFiltered = errors.New("not all of it can be read (results filtered by ACLs)")
	// ErrRefused means that a transaction was definitely not carried out.
	ErrRefused = errors.New("transaction refused")
	// ErrUnknown means that a transaction may have been carried out, or may still be.
	ErrUnknown = errors.New("transaction outcome unknown")
	// ErrUnsent means that a transaction has not left this process. It also matches ErrUnknown.
	ErrUnsent = errors.New("transaction not sent")
	// ErrLost means that this process lost a session or a lock, or cannot prove that it has it.
	ErrLost = errors.New("the session or the lock is lost")
	// ErrTooLarge means that a transaction exceeds Consul's limits and was not sent.
	ErrTooLarge = errors.New("transaction too large")
)

// Defaults of Config.
const (
	DefaultMaxConns    = 60 - LivenessConns // together with LivenessConns: 60 (P8)
	DefaultCallTimeout = 5 * time.Second
)

// LivenessConns is how many connections serve only the session's liveness: one for the blocking query, and one for
// heartbeats. Heartbeats must not wait for other calls.
const LivenessConns = 2

// Config describes how to reach Consul. If Address, Token and TokenFile are empty, Consul's environment variables and
// defaults apply.
type Config struct {
	Address     string        // host:port, URL or unix socket
	Token       string        // ACL token; if Consul's default policy is deny, lists need a token (see ErrFiltered)
	TokenFile   string        // file with the token, read again when it changes; overrides Token
	MaxConns    int           // TCP connections to the agent besides LivenessConns (P8); zero: DefaultMaxConns
	CallTimeout time.Duration // of one call that does not block; zero: DefaultCallTimeout
	// OnTokenFile, if set, is called when the file cannot be read any more. The client still uses the earlier token.
	OnTokenFile func(error)
}

// Client talks to the local Consul agent. It is safe for concurrent use.
type Client struct {
	Locks    *Locks
	Services *Services
	Catalog  *Catalog
	ACL      *ACL

	api     *api.Client
	live    *api.Client // only for the liveness of the session
	timeout time.Duration
	pools   []*http.Transport
	source  *tokenSource
	web     *http.Client // sends the requests of api
	base    string       // URL of the agent
	past    past
	guards  guards
}

// New opens no connection yet.
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
		c.api, err = c.dialer(cfg, cfg.MaxConns) // last, because it sets web
	}
	return c, err
}

// sourceOf chooses the source of the token, in the order of Consul's own programs: configuration before environment,
// file before fixed token.
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

// TokenSource describes for people where the token comes from, and how to replace it.
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

// dialer returns an API client with its own connections.
func (c *Client) dialer(cfg Config, conns int) (*api.Client, error) {
	conf := api.DefaultConfig()
	if cfg.Address != "" {
		conf.Address = cfg.Address
	}
	conf.Token = "set by bearer" // else NewClient would read the token file, which may not exist yet
	conf.Transport.MaxIdleConnsPerHost = conns
	conf.Transport.MaxIdleConns = conns
	// Compression costs more than it saves on one machine.
	conf.Transport.DisableCompression = true
	if socket, ok := strings.CutPrefix(conf.Address, "unix://"); ok {
		// The API client's own transport has no bound on connections.
		conf.Address = "consul.sock" // only the host name in requests
		conf.Transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}
	}
	bound(conf.Transport, conns)
	inner, err := api.NewHttpClient(conf.Transport, conf.TLSConfig)
	if err != nil {
		return nil, fmt.Errorf("consul client for %s: %w", conf.Address, err)
	}
	conf.HttpClient = &http.Client{Transport: taps{&bearer{
		source: c.source,
		next:   &reach{address: conf.Address, next: inner.Transport},
	}}}
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
	Session     string // the session that holds the key as a lock; empty: none
	LockIndex   uint64 // how often a session has taken the key as a lock
	Flags       uint64
}

func pairOf(p *api.KVPair) Pair {
	return Pair{
		Key: p.Key, Value: p.Value, ModifyIndex: p.ModifyIndex, CreateIndex: p.CreateIndex, Session: p.Session,
		LockIndex: p.LockIndex, Flags: p.Flags,
	}
}

// Consistency is how current a read must be.
type Consistency int

const (
	// Default is answered by the leader. Around an election the answer may be old.
	Default Consistency = iota
	// Consistent makes the leader prove its leadership first. The first read after a claim uses it.
	Consistent
	// Stale is answered by any server, even without a leader, and may be old. No decision may depend on it.
	Stale
)

func (c Consistency) options(ctx context.Context) *api.QueryOptions {
	opts := &api.QueryOptions{RequireConsistent: c == Consistent, AllowStale: c == Stale}
	return opts.WithContext(ctx)
}

func (c *Client) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.timeout)
}

// hidden reports whether the token may have hidden a part of an answer; see ErrFiltered.
func (c *Client) hidden(meta *api.QueryMeta) bool {
	return meta.ResultsFilteredByACLs || c.source.none() && meta.DefaultACLPolicy == "deny"
}

func readError(err error) error {
	if answered(err, http.StatusForbidden) {
		return fmt.Errorf("%w: %w", ErrFiltered, err)
	}
	return err
}

func (c *Client) unread(err error, meta *api.QueryMeta) error {
	if err == nil && c.hidden(meta) {
		return ErrFiltered
	}
	return readError(err)
}

func answered(err error, code int) bool {
	status, is := errors.AsType[api.StatusError](err)
	return is && status.Code == code
}

// Get returns ErrNotFound if the key is missing, and ErrFiltered if the token may not read it.
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

// List reads every key below a prefix. It returns ErrFiltered if the token may not read all of them.
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

// Keys lists the keys below a prefix without values.
func (c *Client) Keys(ctx context.Context, prefix string) ([]string, error) {
	keys, _, err := c.keysAt(ctx, prefix, "")
	return keys, err
}

// Children lists the keys and folders directly below a prefix that ends in a slash. Folders end with a slash. The
// errors are those that List returns.
func (c *Client) Children(ctx context.Context, prefix string) ([]string, error) {
	keys, _, err := c.keysAt(ctx, prefix, "/")
	return keys, err
}

// PrefixIndex returns an index that changes when anything below a prefix with a slash at its end changes. It can also
// change without that. It can return to an old value, because Consul forgets deletions after 15 minutes. So a caller
// must read the keys more often than that.
func (c *Client) PrefixIndex(ctx context.Context, prefix string) (uint64, error) {
	// Without the slash, the answer has only the folder's name.
	_, index, err := c.keysAt(ctx, strings.TrimSuffix(prefix, "/"), "/")
	return index, err
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
