package artifact_test

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/preparer/artifact"
)

// memory is a transport without a network, so that synctest's time runs.
type memory struct{ handler http.HandlerFunc }

func (m memory) RoundTrip(req *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	m.handler(w, req)
	return w.Result(), req.Context().Err()
}

func pass(d time.Duration) { <-time.After(d) }

// A refused artifact is fetched again only after a pause, which grows.
func TestRefusedIsRemembered(t *testing.T) {
	good := goodArchive(t)
	synctest.Test(t, func(t *testing.T) {
		served := good[:len(good)-1]
		var requests atomic.Int64
		client := &http.Client{Transport: memory{func(w http.ResponseWriter, _ *http.Request) {
			requests.Add(1)
			_, _ = w.Write(served)
		}}}
		s, _ := newStore(t,
			artifact.Config{HTTPClient: client, FinalWait: time.Minute, MaxFinalWait: 3 * time.Minute, Retries: -1})
		a := manifest.Artifact{Kind: "tar", URL: "https://server/a.tar.gz", SHA256: digestOf(good)}
		began := time.Now()
		for i, pause := range []time.Duration{time.Minute, 2 * time.Minute, 3 * time.Minute, 3 * time.Minute} {
			_, first := s.Ensure(t.Context(), a)
			wantError(t, first, artifact.ErrDigest,
				"not fetched again before "+time.Now().Add(pause).UTC().Format(time.RFC3339))
			pass(pause - time.Nanosecond)
			_, again := s.Ensure(t.Context(), a)
			if again == nil || again.Error() != first.Error() {
				t.Errorf("within the pause: %v, want the same as before: %v", again, first)
			}
			if n := requests.Load(); n != int64(i)+1 {
				t.Errorf("%d requests after %s, want %d", n, time.Since(began), i+1)
			}
			pass(time.Nanosecond)
		}
		// Another URL is fetched at once.
		served = good
		elsewhere := a
		elsewhere.URL = "https://other/a.tar.gz"
		if _, err := s.Ensure(t.Context(), elsewhere); err != nil {
			t.Errorf("from elsewhere: %v", err)
		}
	})
}

// After an error that is not final, each call tries again.
func TestOtherTroubleIsNotRemembered(t *testing.T) {
	data := goodArchive(t)
	var requests atomic.Int64
	url, client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) < 3 {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write(data)
	})
	s, _ := newStore(t, artifact.Config{HTTPClient: client})
	a := manifest.Artifact{Kind: "tar", URL: url, SHA256: digestOf(data)}
	for range 2 {
		if _, err := s.Ensure(t.Context(), a); err == nil || !strings.Contains(err.Error(), "404") {
			t.Errorf("got %v, want 404", err)
		}
	}
	if _, err := s.Ensure(t.Context(), a); err != nil {
		t.Error(err)
	}
}

// A replaced local file is tried at once.
func TestReplacedFileIsTriedAtOnce(t *testing.T) {
	good := goodArchive(t)
	a := fileArtifact(t, good[:len(good)-1])
	a.SHA256 = digestOf(good)
	s, _ := newStore(t, artifact.Config{FinalWait: time.Hour})
	for range 2 {
		_, err := s.Ensure(t.Context(), a)
		wantError(t, err, artifact.ErrDigest, "not fetched again before")
	}
	if err := os.WriteFile(strings.TrimPrefix(a.URL, "file://"), good, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Ensure(t.Context(), a); err != nil {
		t.Errorf("after the file was replaced: %v", err)
	}
}

func TestSlowServer(t *testing.T) {
	const stall = 200 * time.Millisecond
	tests := []struct {
		name    string
		handler http.HandlerFunc
	}{
		{"never answers", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
		{"stops in the middle", func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(make([]byte, 1000))
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}},
		{"drips", func(w http.ResponseWriter, r *http.Request) {
			tick := time.NewTicker(stall / 10)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					_, _ = w.Write([]byte("x"))
					w.(http.Flusher).Flush()
				case <-r.Context().Done():
					return
				}
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			url, client := serve(t, tt.handler)
			s, dir := newStore(t, artifact.Config{HTTPClient: client, StallTimeout: stall, Retries: 1})
			_, err := s.Ensure(t.Context(), manifest.Artifact{Kind: "tar", URL: url, SHA256: strings.Repeat("0", 64)})
			wantError(t, err, artifact.ErrSlow, "bytes in 200ms; allowed: at least 65536", "gave up after 2 tries")
			wantEmpty(t, dir)
		})
	}
}

// A stall of the server costs only one try.
func TestSlowOnce(t *testing.T) {
	data := goodArchive(t)
	synctest.Test(t, func(t *testing.T) {
		var requests atomic.Int64
		client := &http.Client{Transport: memory{func(w http.ResponseWriter, r *http.Request) {
			if requests.Add(1) == 1 {
				<-r.Context().Done()
			}
			_, _ = w.Write(data)
		}}}
		s, _ := newStore(t, artifact.Config{HTTPClient: client, Retries: 1})
		if _, err := s.Ensure(t.Context(),
			manifest.Artifact{Kind: "tar", URL: "https://server/a", SHA256: digestOf(data)}); err != nil ||
			requests.Load() != 2 {
			t.Errorf("got %v after %d requests", err, requests.Load())
		}
	})
}

// A transfer may exceed the stall timeout as long as data arrives. The node's own time does not count.
func TestSteadyServerMayTakeLong(t *testing.T) {
	data := archive(t, launch(), file("noise", 0o644, noise(mib)))
	synctest.Test(t, func(t *testing.T) {
		client := &http.Client{Transport: steady{data}}
		s, _ := newStore(t, artifact.Config{HTTPClient: client, StallTimeout: 10 * time.Second, Retries: -1})
		began := time.Now()
		if _, err := s.Ensure(t.Context(),
			manifest.Artifact{Kind: "tar", URL: "https://server/a", SHA256: digestOf(data)}); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took < time.Minute {
			t.Errorf("it took %s, which shows nothing", took)
		}
	})
}

type steady struct{ data []byte }

func (s steady) RoundTrip(*http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	resp := w.Result()
	resp.Body = &steadyBody{Reader: bytes.NewReader(s.data)}
	resp.ContentLength = int64(len(s.data))
	return resp, nil
}

type steadyBody struct{ *bytes.Reader }

func (s *steadyBody) Close() error { return nil }

func (s *steadyBody) WriteTo(interface{ Write([]byte) (int, error) }) {} // so that io.Copy reads

func (s *steadyBody) Read(p []byte) (int, error) {
	pass(time.Second)
	return s.Reader.Read(p[:min(len(p), 16<<10)])
}

func TestUnreachableServers(t *testing.T) {
	gone := httptest.NewTLSServer(http.NotFoundHandler())
	gone.Close()
	resets, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := resets.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	t.Cleanup(func() { resets.Close(); <-done })
	loop, loopClient := serve(t,
		func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) })
	tests := []struct {
		name, url string
		client    *http.Client
		want      []string
	}{
		{"nobody listens", gone.URL + "/a", nil, []string{"connection refused", "gave up after 2 tries"}},
		{"hangs up", "https://" + resets.Addr().String() + "/a", nil, []string{"gave up after 2 tries"}},
		{
			"no such name", "https://no-such-host.invalid/a", nil,
			[]string{"no-such-host.invalid", "gave up after 2 tries"},
		},
		{"redirects in a circle", loop, loopClient, []string{"stopped after 10 redirects"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, dir := newStore(t, artifact.Config{HTTPClient: tt.client, Retries: 1})
			_, err := s.Ensure(t.Context(),
				manifest.Artifact{Kind: "tar", URL: tt.url, SHA256: strings.Repeat("0", 64)})
			wantError(t, err, err, append(tt.want, "artifact "+tt.url+": fetch: ")...)
			if err == nil {
				t.Error("no error")
			}
			wantEmpty(t, dir)
		})
	}
}

// A redirect to another https address is followed.
func TestRedirectIsFollowed(t *testing.T) {
	data := goodArchive(t)
	url, client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/there" {
			http.Redirect(w, r, "/there", http.StatusFound)
			return
		}
		_, _ = w.Write(data)
	})
	s, _ := newStore(t, artifact.Config{HTTPClient: client})
	if _, err := s.Ensure(t.Context(), manifest.Artifact{Kind: "tar", URL: url, SHA256: digestOf(data)}); err != nil {
		t.Error(err)
	}
}

// noise does not compress.
func noise(n int) string {
	out := make([]byte, n)
	state := uint32(1)
	for i := range out {
		state = state*1664525 + 1013904223
		out[i] = byte(state >> 24)
	}
	return string(out)
}
