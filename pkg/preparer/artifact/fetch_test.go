package artifact_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/preparer/artifact"
)

func TestFetchHTTPS(t *testing.T) {
	data := goodArchive(t)
	tests := []struct {
		name     string
		handler  func(try int64, w http.ResponseWriter, r *http.Request)
		requests int64
		is       error // nil: succeeds
		want     []string
	}{
		{"at once", func(_ int64, w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) }, 1, nil, nil},
		{"busy, then served", func(try int64, w http.ResponseWriter, _ *http.Request) {
			if try < 3 {
				w.Header().Set("Retry-After", "0")
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			_, _ = w.Write(data)
		}, 3, nil, nil},
		{"connection breaks, then served", func(try int64, w http.ResponseWriter, _ *http.Request) {
			if try == 1 {
				truncate(w, data)
			}
			_, _ = w.Write(data)
		}, 2, nil, nil},
		{
			"always truncated", func(_ int64, w http.ResponseWriter, _ *http.Request) { truncate(w, data) }, 3, errAny,
			[]string{"unexpected EOF", "3 tries"},
		},
		{
			"always busy",
			func(_ int64, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
			3, errAny,
			[]string{"502", "3 tries"},
		},
		{
			"not there", func(_ int64, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
			1,
			errAny,
			[]string{"404 Not Found"},
		},
		{"announces too much", func(_ int64, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000000")
		}, 1, artifact.ErrTooLarge, []string{"file of 1000000 bytes", "allowed: at most 65536 bytes"}},
		{"sends too much unannounced", func(_ int64, w http.ResponseWriter, _ *http.Request) {
			for range 100 {
				_, _ = w.Write(make([]byte, 4096))
				w.(http.Flusher).Flush()
			}
		}, 1, artifact.ErrTooLarge, []string{"more than 65536 bytes"}},
		{
			"another file", func(_ int64, w http.ResponseWriter, _ *http.Request) {
				_,
					_ = w.Write([]byte("other"))
			}, 1,
			artifact.ErrDigest,
			[]string{"expected " + digestOf(data), "got " + digestOf([]byte("other"))},
		},
		{"to plain http", func(_ int64, w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/x", http.StatusFound)
		}, 1, errAny, []string{"redirect to http://127.0.0.1:1/x", "allowed: https"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var requests atomic.Int64
			url, client := serve(t, func(w http.ResponseWriter, r *http.Request) { tt.handler(requests.Add(1), w, r) })
			s, dir := newStore(t, artifact.Config{HTTPClient: client, Retries: 2, MaxBytes: 65536})
			_, err := s.Ensure(t.Context(), manifest.Artifact{Kind: "tar", URL: url, SHA256: digestOf(data)})
			if n := requests.Load(); n != tt.requests {
				t.Errorf("%d requests, want %d", n, tt.requests)
			}
			if tt.is == nil {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			wantEmpty(t, dir)
			if tt.is == errAny { //nolint:errorlint // a marker of this table, never wrapped
				if err == nil {
					t.Fatal("no error")
				}
				wantError(t, err, err, append(tt.want, "artifact "+url+": ")...)
				return
			}
			wantError(t, err, tt.is, append(tt.want, "artifact "+url+": ")...)
		})
	}
}

func refused(err error) bool {
	var r interface{ Refused() bool }
	return errors.As(err, &r) && r.Refused()
}

// An error is a refusal only if another try cannot succeed.
func TestRefused(t *testing.T) {
	for status, want := range map[int]bool{
		// with StatusOK the server sends an empty file, of another digest
		http.StatusNotFound: true, http.StatusGone: true, http.StatusBadGateway: false, http.StatusForbidden: false,
		http.StatusOK: true,
	} {
		url, client := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		s, _ := newStore(t, artifact.Config{HTTPClient: client, Retries: 1})
		a := manifest.Artifact{Kind: "tar", URL: url, SHA256: strings.Repeat("0", 64)}
		for range 2 { // the second error is remembered, or comes from another request
			if _, err := s.Ensure(t.Context(), a); err == nil || refused(err) != want {
				t.Errorf("status %d: refused: %v: %v", status, refused(err), err)
			}
		}
	}
	s, dir := newStore(t, artifact.Config{})
	if _, err := s.Ensure(t.Context(), manifest.Artifact{
		Kind: "tar", URL: "file://" + dir + "/none",
		SHA256: strings.Repeat("0", 64),
	}); !refused(err) {
		t.Errorf("a file that is not there was not refused: %v", err)
	}
}

func TestFetchTimeout(t *testing.T) {
	url, client := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	s, dir := newStore(t, artifact.Config{HTTPClient: client, FetchTimeout: 50 * time.Millisecond})
	_, err := s.Ensure(t.Context(), manifest.Artifact{Kind: "tar", URL: url, SHA256: strings.Repeat("0", 64)})
	if err == nil || !strings.Contains(err.Error(), "fetch took longer than 50ms") {
		t.Errorf("got %v, want the timeout", err)
	}
	wantEmpty(t, dir)
}

// A cancelled fetch is no refusal, although net/http can report it as the end of the body.
func TestFetchTimeoutInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &http.Client{Transport: breaksOff{}}
		s, dir := newStore(t, artifact.Config{HTTPClient: client, FetchTimeout: time.Minute, StallTimeout: time.Hour})
		_, err := s.Ensure(t.Context(),
			manifest.Artifact{Kind: "tar", URL: "https://server/a", SHA256: strings.Repeat("0", 64)})
		wantError(t, err, context.DeadlineExceeded, "fetch took longer than 1m0s")
		wantEmpty(t, dir)
	})
}

// breaksOff ends a cancelled body with io.EOF, as a real transport sometimes does.
type breaksOff struct{}

func (breaksOff) RoundTrip(req *http.Request) (*http.Response, error) {
	resp := httptest.NewRecorder().Result()
	resp.Body = io.NopCloser(endsWith{req.Context()})
	resp.ContentLength = -1
	return resp, nil
}

type endsWith struct{ ctx context.Context }

func (e endsWith) Read([]byte) (int, error) {
	<-e.ctx.Done()
	return 0, io.EOF
}

func TestFetchDistrustsUnknownCertificate(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	srv.Config.ErrorLog = quiet(t)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	s, dir := newStore(t, artifact.Config{})
	_, err := s.Ensure(t.Context(), manifest.Artifact{Kind: "tar", URL: srv.URL, SHA256: strings.Repeat("0", 64)})
	if err == nil || !strings.Contains(err.Error(), "after 1 tries") || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("got %v, want one try and a word about the certificate", err)
	}
	wantEmpty(t, dir)
}

// truncate announces the whole body, and closes the connection after half.
func truncate(w http.ResponseWriter, data []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = w.Write(data[:len(data)/2])
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// Only a fetch waits for a slot, not an artifact that exists or a refusal that is remembered.
func TestOnlyFetchesTakeSlots(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	url, client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		close(asked)
		select {
		case <-release:
		case <-r.Context().Done():
		}
		_, _ = w.Write(goodArchive(t))
	})
	s, _ := newStore(t, artifact.Config{HTTPClient: client, Fetches: 1, FinalWait: time.Hour, MaxFinalWait: time.Hour})
	there := fileArtifact(t, archive(t, file("there", 0o644, "x")))
	if _, err := s.Ensure(t.Context(), there); err != nil {
		t.Fatal(err)
	}
	refused := fileArtifact(t, []byte("no archive"))
	if _, err := s.Ensure(t.Context(), refused); !errors.Is(err, artifact.ErrArchive) {
		t.Fatal(err)
	}
	slow := make(chan error, 1)
	go func() {
		_, err := s.Ensure(t.Context(), manifest.Artifact{Kind: "tar", URL: url, SHA256: digestOf(goodArchive(t))})
		slow <- err
	}()
	<-asked

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := s.Ensure(ctx, there); err != nil {
		t.Errorf("one that is there: %v", err)
	}
	if _, err := s.Ensure(ctx, refused); !errors.Is(err, artifact.ErrArchive) {
		t.Errorf("one that was refused: %v", err)
	}
	other := fileArtifact(t, archive(t, file("other", 0o644, "x")))
	left, leave := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer leave()
	if _, err := s.Ensure(left, other); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second fetch beside the only one allowed: %v", err)
	}
	close(release)
	if err := <-slow; err != nil {
		t.Error(err)
	}
	if _, err := s.Ensure(ctx, other); err != nil {
		t.Errorf("the second fetch after the first: %v", err)
	}
}
