package artifact

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/internal/regular"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// maxRedirects is how often a server may send a fetch elsewhere.
const maxRedirects = 10

// source is where an artifact comes from: exactly one of the two is set.
type source struct {
	file string // absolute path
	url  string // https
}

// parse checks the reference again although a validated manifest cannot be wrong: the digest becomes a path.
func parse(a manifest.Artifact) (source, error) {
	errs := a.Validate()
	if a.Kind == manifest.ArtifactExec {
		errs.Add("kind", a.Kind, manifest.ArtifactTar)
	}
	if err := errs.Err(); err != nil {
		return source{}, fmt.Errorf("artifact %s: %w: %w", a.URL, ErrInvalid, err)
	}
	if u, err := url.Parse(a.URL); err == nil && u.Scheme == "file" {
		return source{file: u.Path}, nil
	}
	return source{url: a.URL}, nil
}

// newClient returns the caller's client, or one of ours, with rules of our own for redirects.
func newClient(cfg Config) *http.Client {
	own := http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}
	if cfg.HTTPClient != nil {
		own = *cfg.HTTPClient // which keeps its rules
	}
	own.CheckRedirect = checkRedirect
	return &own
}

// checkRedirect keeps a fetch on https. The digest would catch a changed file, but not what a request gives away.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return errRedirects
	}
	if req.URL.Scheme != "https" {
		return fmt.Errorf("redirect to %.1024s: %w; allowed: https", req.URL.Redacted(), errFinal)
	}
	return nil
}

var (
	errRedirects = fmt.Errorf("stopped after %d redirects", maxRedirects)
	// errFinal marks an answer that a further try would get again.
	errFinal = errors.New("refused")
)

// again reports whether a further try may do better.
func again(err error) bool {
	_, distrusted := errors.AsType[*tls.CertificateVerificationError](err)
	never := slices.ContainsFunc([]error{ErrTooLarge, ErrNoSpace, errFinal, errRedirects}, func(is error) bool { return errors.Is(err, is) })
	return !never && !durable.Full(err) && !distrusted
}

// fetch writes the artifact into the file and returns an error unless its digest is the expected one.
func (s *Store) fetch(ctx context.Context, src source, into *os.File, want string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.FetchTimeout,
		fmt.Errorf("fetch took longer than %s: %w", s.cfg.FetchTimeout, context.DeadlineExceeded))
	defer cancel()
	var got received
	var err error
	if src.file != "" {
		got, err = s.copyFile(ctx, src.file, into)
	} else {
		got, err = s.download(ctx, src.url, into)
	}
	if err != nil {
		return err
	}
	if got.digest != want {
		return fmt.Errorf("sha256 of the %d bytes fetched: expected %s, got %s: %w", got.size, want, got.digest, ErrDigest)
	}
	return nil
}

// received is what a fetch brought.
type received struct {
	digest string
	size   int64
}

func (s *Store) copyFile(ctx context.Context, path string, into *os.File) (received, error) {
	f, info, err := regular.Open(path, os.O_RDONLY)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return received{}, gone{fmt.Errorf("fetch: %w", err)}
	case errors.Is(err, regular.ErrOther):
		return received{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	case err != nil:
		return received{}, fmt.Errorf("fetch: %w", err)
	}
	defer func() { _ = f.Close() }()
	return s.receive(ctx, f, info.Size(), into)
}

// download retries the request and the transfer alike: a connection that breaks in the middle is a normal event.
func (s *Store) download(ctx context.Context, url string, into *os.File) (received, error) {
	pace := &backoff.ExponentialBackOff{InitialInterval: s.cfg.RetryWait, Multiplier: 2, MaxInterval: maxRetryWait}
	tries := 0
	got, err := backoff.Retry(ctx, func() (received, error) {
		tries++
		got, err := s.request(ctx, url, into)
		if err != nil && !again(err) {
			err = backoff.Permanent(err)
		}
		return got, err
	}, backoff.WithBackOff(pace), backoff.WithMaxTries(uint(s.cfg.Retries)+1), backoff.WithMaxElapsedTime(0))
	switch {
	case err != nil && ctx.Err() != nil:
		return received{}, fmt.Errorf("fetch: %w", ended(ctx))
	case err != nil:
		return received{}, fmt.Errorf("fetch: gave up after %d tries: %w", tries, err)
	}
	if s.cfg.HTTPClient == nil {
		s.client.CloseIdleConnections() // the next fetch may be days away
	}
	return got, nil
}

// request makes one request, and takes in what it brings.
func (s *Store) request(ctx context.Context, url string, into *os.File) (received, error) {
	patient, from := newPatience(ctx, s.cfg.StallTimeout)
	defer from.stop()
	req, err := http.NewRequestWithContext(patient, http.MethodGet, url, nil)
	if err != nil {
		return received{}, err
	}
	// The file is hashed as the server holds it; a transparently unpacked body would have another digest.
	req.Header.Set("Accept-Encoding", "identity")
	from.await()
	resp, err := s.client.Do(req)
	from.got(minProgress) // it has answered
	if err != nil {
		return received{}, from.orCause(err)
	}
	defer func() { _ = resp.Body.Close() }()
	err = fmt.Errorf("server answered %s", resp.Status)
	switch code := resp.StatusCode; {
	case code == http.StatusOK:
		from.Reader = resp.Body
		return s.receive(ctx, from, resp.ContentLength, into)
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable:
		return received{}, busy(err, resp.Header.Get("Retry-After"))
	case code >= http.StatusInternalServerError && code != http.StatusNotImplemented:
		return received{}, err
	case code == http.StatusNotFound, code == http.StatusGone:
		return received{}, gone{fmt.Errorf("%w: %w", err, errFinal)}
	}
	return received{}, fmt.Errorf("%w: %w", err, errFinal)
}

// busy has the next try wait as the server asks, in seconds or by a date, but not for as long as it likes.
func busy(err error, after string) error {
	seconds, parseErr := strconv.ParseUint(after, 10, 31)
	if date, dateErr := http.ParseTime(after); dateErr == nil {
		seconds, parseErr = uint64(max(0, time.Until(date).Seconds())), nil
	}
	if parseErr != nil {
		return err
	}
	return busyError{err, backoff.RetryAfter(min(int(seconds), int(maxRetryWait.Seconds())))}
}

// busyError is an error that says, besides, when to try again.
type busyError struct {
	error
	after error
}

func (b busyError) Unwrap() []error { return []error{b.error, b.after} }

// receive replaces the file's content with what the reader gives, up to the allowed size. The announced size is
// negative when it is not known.
func (s *Store) receive(ctx context.Context, r io.Reader, announced int64, into *os.File) (received, error) {
	if announced > s.cfg.MaxBytes {
		return received{}, fmt.Errorf("file of %d bytes: %w; allowed: at most %d bytes", announced, ErrTooLarge, s.cfg.MaxBytes)
	}
	room := s.room()
	if err := room.check(max(announced, 0), "fetching"); err != nil {
		return received{}, err
	}
	if _, err := into.Seek(0, io.SeekStart); err != nil {
		return received{}, fmt.Errorf("rewind the temporary file: %w", err)
	}
	if err := into.Truncate(0); err != nil {
		return received{}, fmt.Errorf("empty the temporary file: %w", err)
	}
	hash := sha256.New()
	limited := io.LimitReader(contextReader{ctx, r}, s.cfg.MaxBytes+1)
	size, err := io.Copy(io.MultiWriter(roomWriter{into, room}, hash), limited)
	if err != nil {
		return received{}, fmt.Errorf("after %d bytes: %w", size, err)
	}
	if size > s.cfg.MaxBytes {
		return received{}, fmt.Errorf("file of more than %d bytes: %w; allowed: at most %d bytes", s.cfg.MaxBytes, ErrTooLarge, s.cfg.MaxBytes)
	}
	return received{hex.EncodeToString(hash.Sum(nil)), size}, nil
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
