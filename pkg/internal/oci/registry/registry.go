// Package registry reads images from registries: digests of tags, manifests, and blobs. A download of a blob goes on
// where an earlier one ended, even if another process made it.
//
// Tokens, credentials and the errors of registries are oras-go's work. This package adds what a node needs beside it:
// blobs by Range, limits for all that a registry sends, and waits that a registry cannot make longer than allowed.
package registry

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/rcfarm/rcfarm/pkg/internal/archive"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/reference"
)

// Config has what New needs. If a duration or number is zero, withDefaults sets its default.
type Config struct {
	DockerConfig string          // path of a config.json; it may name credential helpers. Empty: none
	Hosts        map[string]Host // settings of registries, by the registry of a reference

	MaxManifestBytes int64         // of a manifest or an index
	Retries          int           // further tries of one request; negative for none
	RetryWait        time.Duration // pause before the second try; it doubles after each try
	MaxRetryWait     time.Duration // longest pause, even if Retry-After asks for a longer one
	Restarts         int           // how often a server may send a whole blob in answer to Range; negative for never
	StallTimeout     time.Duration // in each such time a server must send 64 KiB of a blob, or the rest
	UserAgent        string
}

// Host has the settings of one registry.
type Host struct {
	PlainHTTP bool   // without TLS
	CAFile    string // certificates of authorities in PEM, accepted beside the system's
	TokenFile string // has a password if User is set, and a bearer token otherwise. It comes before DockerConfig
	User      string
}

func (c Config) withDefaults() Config {
	c.MaxManifestBytes = cmp.Or(c.MaxManifestBytes, 4<<20)
	c.Retries = max(0, cmp.Or(c.Retries, 6))
	c.RetryWait = cmp.Or(c.RetryWait, 500*time.Millisecond)
	c.MaxRetryWait = cmp.Or(c.MaxRetryWait, time.Minute)
	c.Restarts = max(0, cmp.Or(c.Restarts, 3))
	c.StallTimeout = cmp.Or(c.StallTimeout, 30*time.Second)
	c.UserAgent = cmp.Or(c.UserAgent, "rcfarm")
	return c
}

// Client reads from registries. It is safe for concurrent use.
type Client struct {
	cfg Config

	mu      sync.Mutex
	clients map[string]*http.Client // by registry
}

// New returns a client. It reads no file yet.
func New(cfg Config) *Client {
	return &Client{cfg: cfg.withDefaults(), clients: map[string]*http.Client{}}
}

// Repository is one repository of a registry, as one pull sees it. Open has read the credentials.
type Repository struct {
	cfg   Config
	plain bool // without TLS
	ref   reference.Ref
	http  *http.Client
	auth  *auth.Client
	oras  *remote.Repository
}

// Open prepares requests about the repository of an image. It reads files of the configuration, and sends nothing.
func (c *Client) Open(ref reference.Ref) (*Repository, error) {
	repo, err := remote.NewRepository(ref.Name())
	if err != nil {
		return nil, fmt.Errorf("image %s: %w: %w", ref, reference.ErrInvalid, err)
	}
	client, err := c.client(ref.Registry)
	if err != nil {
		return nil, fmt.Errorf("registry %s: %w", ref.Registry, err)
	}
	credential, err := c.cfg.credential(ref.Registry)
	if err != nil {
		return nil, fmt.Errorf("registry %s: %w", ref.Registry, err)
	}
	authorized := &auth.Client{
		Client: client, Cache: auth.NewCache(), Credential: credential,
		Header: http.Header{"User-Agent": {c.cfg.UserAgent}},
	}
	repo.Client, repo.PlainHTTP = authorized, c.cfg.Hosts[ref.Registry].PlainHTTP
	repo.MaxMetadataBytes, repo.SkipReferrersGC = c.cfg.MaxManifestBytes, true
	return &Repository{
		cfg: c.cfg, plain: repo.PlainHTTP, ref: ref, http: client, auth: authorized, oras: repo,
	}, nil
}

// Close closes connections that nothing uses, because the next pull may be days away.
func (r *Repository) Close() { r.http.CloseIdleConnections() }

// Resolve asks for the digest of the reference's tag, with a HEAD request. Without a tag it returns the reference's
// digest, and sends nothing. Errors to test for: the package's
// and the context's.
func (r *Repository) Resolve(ctx context.Context) (digest string, err error) {
	if r.ref.Tag == "" {
		return r.ref.Digest, nil
	}
	desc, err := r.oras.Resolve(ctx, r.ref.Tag)
	if err != nil {
		return "", fmt.Errorf("resolve %s: %w", r.ref, explain(err))
	}
	if !reference.IsDigest(desc.Digest.String()) {
		return "", fmt.Errorf("resolve %s: %w: the digest %.100q; allowed: sha256", r.ref, ErrAnswer, desc.Digest)
	}
	return desc.Digest.String(), nil
}

// Manifest reads a manifest or an index, and checks its digest. Errors to test for: the package's,
// archive.ErrTooLarge, and the context's.
func (r *Repository) Manifest(ctx context.Context, digest string) (data []byte, err error) {
	steps := pace{r.cfg.Retries, r.cfg.RetryWait, r.cfg.MaxRetryWait}
	for attempt := 0; ; attempt++ {
		if data, err = r.manifest(ctx, digest); err == nil {
			return data, nil
		}
		_, sent := errors.AsType[*url.Error](err) // several times already
		pause, _ := steps.Retry(attempt, nil, err)
		if sent || pause < 0 || !again(err) {
			return nil, fmt.Errorf("read manifest %s of %s: %w", digest, r.ref.Name(), explain(err))
		}
		if err := wait(ctx, pause); err != nil {
			return nil, err
		}
	}
}

func (r *Repository) manifest(ctx context.Context, digest string) ([]byte, error) {
	_, body, err := r.oras.Manifests().FetchReference(ctx, digest)
	if errors.Is(err, errdef.ErrSizeExceedsLimit) {
		return nil, fmt.Errorf("%w: %w", archive.ErrTooLarge, err)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	data, err := io.ReadAll(io.LimitReader(body, r.cfg.MaxManifestBytes+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > r.cfg.MaxManifestBytes {
		return nil, fmt.Errorf("%w; allowed: at most %d bytes", archive.ErrTooLarge, r.cfg.MaxManifestBytes)
	}
	return data, checkDigest(data, digest)
}

// checkDigest returns an ErrDigest if data has another digest.
func checkDigest(data []byte, want string) error {
	sum := sha256.Sum256(data)
	if got := hex.EncodeToString(sum[:]); got != reference.Hex(want) {
		return fmt.Errorf("%w: expected %s, got sha256:%s", ErrDigest, want, got)
	}
	return nil
}

// client returns the HTTP client of a registry. Token servers and storage that the registry names use it too.
func (c *Client) client(registry string) (*http.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if client, ok := c.clients[registry]; ok {
		return client, nil
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true // digests are of the bytes as sent
	transport.ResponseHeaderTimeout = c.cfg.StallTimeout
	transport.DialContext = (&net.Dialer{Timeout: c.cfg.StallTimeout, KeepAlive: c.cfg.StallTimeout}).DialContext
	if file := c.cfg.Hosts[registry].CAFile; file != "" {
		pool, err := authorities(file)
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	client := &http.Client{
		Transport: &retry.Transport{
			Base:   transport,
			Policy: func() retry.Policy { return pace{c.cfg.Retries, c.cfg.RetryWait, c.cfg.MaxRetryWait} },
		},
		CheckRedirect: c.cfg.checkRedirect,
	}
	c.clients[registry] = client
	return client, nil
}

func authorities(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read certificates: %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("read the system's certificates: %w", err)
	}
	if !pool.AppendCertsFromPEM(bytes.TrimSpace(pem)) {
		return nil, fmt.Errorf("certificates of %s: none found; allowed: PEM", file)
	}
	return pool, nil
}
