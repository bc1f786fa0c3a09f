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
	"github.com/rcfarm/rcfarm/pkg/internal/patience"
	"github.com/rcfarm/rcfarm/pkg/internal/regular"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

const maxRedirects = 10

// source is where an artifact comes from. One of the fields is set.
type source struct {
	file string // absolute path
	url  string // https
}

// parse validates the reference again, because the digest becomes a path.
func parse(a manifest.Artifact) (source, error) {
	errs := a.Validate()
	if !a.IsFetched() {
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

func newClient(cfg Config) *http.Client {
	own := http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}
	if cfg.HTTPClient != nil {
		own = *cfg.HTTPClient // a copy, so that the caller's client keeps its rules
	}
	own.CheckRedirect = checkRedirect
	return &own
}

// checkRedirect allows https. The digest would detect a changed file, but without TLS others could read the request.
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
	// errFinal means that another try of this fetch would get the same answer.
	errFinal = errors.New("refused")
)

func again(err error) bool {
	_, distrusted := errors.AsType[*tls.CertificateVerificationError](err)
	never := slices.ContainsFunc([]error{ErrTooLarge, ErrNoSpace, errFinal, errRedirects},
		func(is error) bool { return errors.Is(err, is) })
	return !never && !durable.Full(err) && !distrusted
}

// fetch writes the artifact into the file. If its digest is not want, it returns ErrDigest.
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
		return fmt.Errorf("sha256 of the %d bytes fetched: expected %s, got %s: %w", got.size, want,
			got.digest, ErrDigest)
	}
	return nil
}

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

// download tries again if the request or the transfer fails.
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
		return received{}, fmt.Errorf("fetch: %w", patience.Ended(ctx))
	case err != nil:
		return received{}, fmt.Errorf("fetch: gave up after %d tries: %w", tries, err)
	}
	if s.cfg.HTTPClient == nil {
		s.client.CloseIdleConnections() // the next fetch may be days away
	}
	return got, nil
}

func (s *Store) request(ctx context.Context, url string, into *os.File) (received, error) {
	patient, from := patience.New(ctx, s.cfg.StallTimeout)
	defer from.Stop()
	req, err := http.NewRequestWithContext(patient, http.MethodGet, url, nil)
	if err != nil {
		return received{}, err
	}
	// The digest is of the file on the server. A body that net/http has unpacked would have another digest.
	req.Header.Set("Accept-Encoding", "identity")
	from.Await()
	resp, err := s.client.Do(req)
	from.Got(patience.MinProgress) // an answer is progress
	if err != nil {
		return received{}, from.OrCause(err)
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

// busy returns an error that delays the next try by Retry-After (seconds or a date), at most maxRetryWait.
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

type busyError struct {
	error
	after error
}

func (b busyError) Unwrap() []error { return []error{b.error, b.after} }

// receive replaces the content of into by the content of r. announced is the expected size; negative: not known. It
// returns ErrTooLarge after MaxBytes.
func (s *Store) receive(ctx context.Context, r io.Reader, announced int64, into *os.File) (received, error) {
	if announced > s.cfg.MaxBytes {
		return received{}, fmt.Errorf("file of %d bytes: %w; allowed: at most %d bytes", announced,
			ErrTooLarge, s.cfg.MaxBytes)
	}
	room := s.room()
	if err := room.Check(max(announced, 0), "fetching"); err != nil {
		return received{}, err
	}
	if _, err := into.Seek(0, io.SeekStart); err != nil {
		return received{}, fmt.Errorf("rewind the temporary file: %w", err)
	}
	if err := into.Truncate(0); err != nil {
		return received{}, fmt.Errorf("empty the temporary file: %w", err)
	}
	hash := sha256.New()
	limited := io.LimitReader(patience.WithContext(ctx, r), s.cfg.MaxBytes+1)
	size, err := io.Copy(io.MultiWriter(room.Writer(into, "fetching"), hash), limited)
	if err != nil {
		return received{}, fmt.Errorf("after %d bytes: %w", size, err)
	}
	if size > s.cfg.MaxBytes {
		return received{}, fmt.Errorf("file of more than %d bytes: %w; allowed: at most %d bytes", s.cfg.MaxBytes,
			ErrTooLarge, s.cfg.MaxBytes)
	}
	return received{hex.EncodeToString(hash.Sum(nil)), size}, nil
}
