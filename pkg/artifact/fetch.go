package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// maxRedirects is how often a server may send a fetch elsewhere.
const maxRedirects = 10

var hexDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// source is where an artifact comes from: exactly one of the two is set.
type source struct {
	file string // absolute path
	url  string // https
}

// parse checks the reference again although a validated manifest cannot be wrong: the digest becomes a path.
func parse(a manifest.Artifact) (source, error) {
	invalid := func(field, value, allowed string) (source, error) {
		return source{}, fmt.Errorf("artifact %s: %w: %s: %q is not valid; allowed: %s", a.URL, ErrInvalid, field, value, allowed)
	}
	if a.Kind != manifest.ArtifactTar {
		return invalid("kind", a.Kind, manifest.ArtifactTar)
	}
	if !hexDigest.MatchString(a.SHA256) {
		return invalid("sha256", a.SHA256, "64 lower-case hex digits (the output of sha256sum)")
	}
	u, err := url.Parse(a.URL)
	switch {
	case err != nil:
	case u.Scheme == "file" && u.Host == "" && filepath.IsAbs(u.Path):
		return source{file: u.Path}, nil
	case u.Scheme == "https" && u.Host != "" && u.User == nil:
		return source{url: a.URL}, nil
	}
	return invalid("url", a.URL, "file:///absolute/path or https://host/path")
}

func newClient(cfg Config) *retryablehttp.Client {
	client := retryablehttp.NewClient()
	client.Logger = nil // what happened stands in the error that comes back
	client.RetryMax = cfg.Retries
	client.RetryWaitMin = cfg.RetryWait
	client.RetryWaitMax = maxRetryWait
	client.CheckRetry = checkRetry
	client.Backoff = pause
	client.ErrorHandler = giveUp
	base := client.HTTPClient
	if cfg.HTTPClient != nil {
		base = cfg.HTTPClient
	}
	own := *base // the caller's client keeps its own rules
	own.CheckRedirect = checkRedirect
	transport := own.Transport
	if transport == nil {
		transport = http.DefaultTransport
	}
	own.Transport = progress{base: transport, every: cfg.StallTimeout}
	client.HTTPClient = &own
	return client
}

// checkRedirect keeps a fetch on https. The digest would catch a changed file, but not what a request gives away.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	}
	if req.URL.Scheme != "https" {
		return fmt.Errorf("redirect to %.1024s: %w; allowed: https", req.URL.Redacted(), errFinal)
	}
	return nil
}

// errFinal marks an answer that a further try would get again.
var errFinal = errors.New("refused")

func checkRetry(ctx context.Context, resp *http.Response, err error) (bool, error) {
	if errors.Is(err, ErrTooLarge) || errors.Is(err, errFinal) || errors.Is(err, ErrNoSpace) || isFull(err) {
		return false, err
	}
	return retryablehttp.ErrorPropagatedRetryPolicy(ctx, resp, err)
}

// pause is the library's rule, which alone would let a server's Retry-After hold a fetch for as long as it likes.
func pause(least, most time.Duration, attempt int, resp *http.Response) time.Duration {
	return min(retryablehttp.DefaultBackoff(least, most, attempt, resp), most)
}

func giveUp(resp *http.Response, err error, tries int) (*http.Response, error) {
	if resp != nil {
		_ = resp.Body.Close()
		if err == nil {
			err = fmt.Errorf("server answered %s", resp.Status)
		}
	}
	return nil, fmt.Errorf("gave up after %d tries: %w", tries, err)
}

// fetch writes the artifact into the file and returns an error unless its digest is the expected one.
func (s *Store) fetch(ctx context.Context, src source, into *os.File, want string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.FetchTimeout,
		fmt.Errorf("fetch took longer than %s: %w", s.cfg.FetchTimeout, context.DeadlineExceeded))
	defer cancel()
	var got string
	var size int64
	var err error
	if src.file != "" {
		got, size, err = s.copyFile(ctx, src.file, into)
	} else {
		got, size, err = s.download(ctx, src.url, into)
	}
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("sha256 of the %d bytes fetched: expected %s, got %s: %w", size, want, got, ErrDigest)
	}
	return nil
}

func (s *Store) copyFile(ctx context.Context, path string, into *os.File) (digest string, size int64, err error) {
	// O_NONBLOCK: opening a named pipe would wait for a writer, for ever.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "", 0, gone{fmt.Errorf("fetch: %w", err)}
	}
	if err != nil {
		return "", 0, fmt.Errorf("fetch: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", 0, fmt.Errorf("fetch: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", 0, fmt.Errorf("%w: %s is a %s; allowed: a regular file", ErrInvalid, path, typeOf(info.Mode()))
	}
	return s.receive(ctx, f, info.Size(), into)
}

// download retries the request and the transfer alike: a connection that breaks in the middle is a normal event.
func (s *Store) download(ctx context.Context, url string, into *os.File) (digest string, size int64, err error) {
	req, err := retryablehttp.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", 0, fmt.Errorf("fetch: %w", err)
	}
	// The file is hashed as the server holds it; a transparently unpacked body would have another digest.
	req.Header.Set("Accept-Encoding", "identity")
	req.SetResponseHandler(func(resp *http.Response) error {
		defer func() { _ = resp.Body.Close() }()
		switch resp.StatusCode {
		case http.StatusOK:
		case http.StatusNotFound, http.StatusGone:
			return gone{fmt.Errorf("server answered %s: %w", resp.Status, errFinal)}
		default:
			return fmt.Errorf("server answered %s: %w", resp.Status, errFinal)
		}
		digest, size, err = s.receive(ctx, resp.Body, resp.ContentLength, into)
		return err
	})
	if _, err := s.client.Do(req); err != nil { //nolint:bodyclose // closed by the response handler
		if ctx.Err() != nil {
			err = ended(ctx)
		}
		return "", 0, fmt.Errorf("fetch: %w", err)
	}
	if s.cfg.HTTPClient == nil {
		s.client.HTTPClient.CloseIdleConnections() // the next fetch may be days away
	}
	return digest, size, nil
}

// receive replaces the file's content with what the reader gives, up to the allowed size. The announced size is
// negative when it is not known.
func (s *Store) receive(ctx context.Context, r io.Reader, announced int64, into *os.File) (digest string, size int64, err error) {
	if announced > s.cfg.MaxBytes {
		return "", 0, fmt.Errorf("file of %d bytes: %w; allowed: at most %d bytes", announced, ErrTooLarge, s.cfg.MaxBytes)
	}
	room := s.room()
	if err := room.check(max(announced, 0), "fetching"); err != nil {
		return "", 0, err
	}
	if _, err := into.Seek(0, io.SeekStart); err != nil {
		return "", 0, fmt.Errorf("rewind the temporary file: %w", err)
	}
	if err := into.Truncate(0); err != nil {
		return "", 0, fmt.Errorf("empty the temporary file: %w", err)
	}
	hash := sha256.New()
	limited := io.LimitReader(contextReader{ctx, r}, s.cfg.MaxBytes+1)
	size, err = io.Copy(io.MultiWriter(roomWriter{into, room}, hash), limited)
	if err != nil {
		return "", 0, fmt.Errorf("after %d bytes: %w", size, err)
	}
	if size > s.cfg.MaxBytes {
		return "", 0, fmt.Errorf("file of more than %d bytes: %w; allowed: at most %d bytes", s.cfg.MaxBytes, ErrTooLarge, s.cfg.MaxBytes)
	}
	return hex.EncodeToString(hash.Sum(nil)), size, nil
}

// contextReader ends a copy when the context ends. It lives for one call, which is why it may hold a context.
type contextReader struct {
	ctx context.Context //nolint:containedctx // see above
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, ended(c.ctx)
	}
	return c.r.Read(p)
}

// ended returns why the context ended, as an error that matches ctx.Err() whatever the cause is.
func ended(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, ctx.Err()) {
		return cause
	}
	return fmt.Errorf("%w: %w", ctx.Err(), cause)
}
