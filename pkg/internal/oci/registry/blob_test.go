package registry_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/imagetest"
	"github.com/rcfarm/rcfarm/pkg/internal/archive"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/reference"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/registry"
	"github.com/rcfarm/rcfarm/pkg/internal/patience"
)

// quick is a configuration with short pauses. The registry of the test has no TLS.
func quick(reg *imagetest.Registry) registry.Config {
	return registry.Config{
		Hosts:   map[string]registry.Host{reg.Host: {PlainHTTP: true}},
		Retries: 3, RetryWait: time.Millisecond, MaxRetryWait: 20 * time.Millisecond,
	}
}

func mustParse(t *testing.T, text string) reference.Ref {
	t.Helper()
	ref, err := reference.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func open(t *testing.T, cfg registry.Config, text string) *registry.Repository {
	t.Helper()
	repo, err := registry.New(cfg).Open(mustParse(t, text))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(repo.Close)
	return repo
}

// target is the file of a download.
type target struct {
	*os.File
	room    archive.Room
	arrived atomic.Int64
}

func newTarget(t *testing.T, content []byte) *target {
	t.Helper()
	path := filepath.Join(t.TempDir(), "blob")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &target{File: f, room: archive.Room{Dir: filepath.Dir(path)}}
}

func (f *target) download(ctx context.Context, repo *registry.Repository, blob []byte) error {
	want := registry.Blob{Digest: imagetest.Digest(blob), Size: int64(len(blob))}
	return repo.Blob(ctx, want, f.File, &f.room, f.arrived.Store)
}

func (f *target) wantContent(t *testing.T, want []byte) {
	t.Helper()
	got, err := os.ReadFile(f.Name())
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file has %d bytes, want the %d of the blob (%v)", len(got), len(want), err)
	}
	if f.arrived.Load() != int64(len(want)) {
		t.Errorf("progress says %d bytes, want %d", f.arrived.Load(), len(want))
	}
}

var blob = imagetest.Noise(1, 300_000)

func TestBlob(t *testing.T) {
	reg := imagetest.New(t)
	reg.Put("team/web", "", blob)
	reg.Put("team/web", "", nil)
	repo := open(t, quick(reg), reg.Host+"/team/web:1")
	f := newTarget(t, nil)
	if err := f.download(t.Context(), repo, blob); err != nil {
		t.Fatal(err)
	}
	f.wantContent(t, blob)
	reg.Requests()
	if err := f.download(t.Context(), repo, blob); err != nil {
		t.Fatal(err)
	}
	empty := newTarget(t, nil)
	if err := empty.download(t.Context(), repo, nil); err != nil {
		t.Fatal(err)
	}
	if got := reg.Requests(); len(got) != 0 {
		t.Errorf("a complete file caused %q", got)
	}
}

// A download goes on where an earlier one ended: in the same call, and in a later process.
func TestBrokenDownloadsGoOn(t *testing.T) {
	reg := imagetest.New(t)
	reg.Put("web", "", blob)
	reg.Cut(func(served int) bool { return served >= 64<<10 }) // every connection
	repo := open(t, quick(reg), reg.Host+"/web:1")
	f := newTarget(t, blob[:1000])
	if err := f.download(t.Context(), repo, blob); err != nil {
		t.Fatal(err)
	}
	f.wantContent(t, blob)
	requests := reg.Requests()
	if len(requests) < 5 || !strings.HasSuffix(requests[0], "bytes=1000-299999") {
		t.Errorf("requests: %q", requests)
	}
	if served := reg.Served(); served > 300_000 {
		t.Errorf("%d bytes were sent for 299,000", served)
	}
}

// A connection that brings almost nothing uses up a try.
func TestHopelessDownloadsEnd(t *testing.T) {
	reg := imagetest.New(t)
	reg.Put("web", "", blob)
	reg.Cut(func(int) bool { return true }) // after 16 KiB
	repo := open(t, quick(reg), reg.Host+"/web:1")
	f := newTarget(t, nil)
	if err := f.download(t.Context(), repo, blob); err == nil || !strings.Contains(err.Error(), "of 300000 bytes") {
		t.Fatal(err)
	}
	if got := len(reg.Requests()); got != 4 {
		t.Errorf("%d requests, want 4", got)
	}
	reg.Cut(nil)
	if err := f.download(t.Context(), repo, blob); err != nil {
		t.Fatal(err)
	}
	f.wantContent(t, blob)
	if got := reg.Requests(); len(got) != 1 || !strings.HasSuffix(got[0], "bytes=65536-299999") {
		t.Errorf("the next call sent %q", got)
	}
}

// A registry that sends the whole blob in answer to Range may do so a few times.
func TestServersWithoutRange(t *testing.T) {
	reg := imagetest.New(t)
	reg.Put("web", "", blob)
	reg.IgnoreRange()
	var broken atomic.Int32
	reg.Cut(func(served int) bool { return served >= 128<<10 && broken.Add(1) <= 3 })
	cfg := quick(reg)
	cfg.Restarts = 3
	repo := open(t, cfg, reg.Host+"/web:1")
	f := newTarget(t, nil)
	if err := f.download(t.Context(), repo, blob); err != nil {
		t.Fatal(err)
	}
	f.wantContent(t, blob)

	reg.Cut(func(served int) bool { return served >= 128<<10 })
	reg.Requests()
	g := newTarget(t, nil)
	if err := g.download(t.Context(), repo, blob); !errors.Is(err, registry.ErrRestarts) {
		t.Fatal(err)
	}
	if got := len(reg.Requests()); got != 5 {
		t.Errorf("%d requests, want the first and 4 that were answered from the start", got)
	}
}

// What a crash of the machine left in the file is not trusted.
func TestGarbageIsReplaced(t *testing.T) {
	reg := imagetest.New(t)
	reg.Put("web", "", blob)
	repo := open(t, quick(reg), reg.Host+"/web:1")
	for name, content := range map[string][]byte{
		"zeros": make([]byte, 5000), "too long": make([]byte, 400_000), "whole and wrong": make([]byte, len(blob)),
	} {
		f := newTarget(t, content)
		if err := f.download(t.Context(), repo, blob); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		f.wantContent(t, blob)
	}
}

func TestBlobRefuses(t *testing.T) {
	other := bytes.Repeat([]byte("x"), len(blob))
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	tests := []struct {
		name   string
		answer http.HandlerFunc // nil: the registry's own
		served []byte
		want   error
	}{
		{"other content", nil, other, registry.ErrDigest},
		{"longer content", nil, append(bytes.Clone(blob), 'x'), registry.ErrDigest},
		{"missing", status(http.StatusNotFound), nil, registry.ErrNotFound},
		{"forbidden", status(http.StatusForbidden), nil, registry.ErrDenied},
		{"another range", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 7-9/300000")
			w.WriteHeader(http.StatusPartialContent)
		}, nil, registry.ErrAnswer},
		{"redirect without TLS", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://storage.invalid/blob?secret=1", http.StatusTemporaryRedirect)
		}, nil, registry.ErrAnswer},
		{"redirects for ever", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.String(), http.StatusTemporaryRedirect)
		}, nil, registry.ErrAnswer},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reg := imagetest.New(t)
			digest := reg.Put("web", "", blob)
			if tt.served != nil {
				reg.Replace("web", digest, tt.served)
			}
			if tt.answer != nil {
				reg.Before(func(w http.ResponseWriter, r *http.Request) bool { tt.answer(w, r); return true })
			}
			f := newTarget(t, blob[:100])
			err := f.download(t.Context(), open(t, quick(reg), reg.Host+"/web:1"), blob)
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the error shows the query: %v", err)
			}
		})
	}
}

// A silent server is left after StallTimeout, and a later connection brings the rest.
func TestStalledDownloadsGoOn(t *testing.T) {
	reg := imagetest.New(t)
	reg.Put("web", "", blob)
	cfg := quick(reg)
	cfg.StallTimeout = 100 * time.Millisecond
	var stalls atomic.Int32
	most := int32(1)
	reg.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if stalls.Add(1) > most {
			return false
		}
		w.Header().Set("Content-Length", "300000")
		_, _ = w.Write(blob[:1])
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return true
	})
	f := newTarget(t, nil)
	repo := open(t, cfg, reg.Host+"/web:1")
	if err := f.download(t.Context(), repo, blob); err != nil {
		t.Fatal(err)
	}
	f.wantContent(t, blob)
	most = 1000
	stalls.Store(0)
	reg.IgnoreRange()
	if err := newTarget(t, nil).download(t.Context(), repo, blob); !errors.Is(err, patience.ErrSlow) &&
		!errors.Is(err, registry.ErrRestarts) {
		t.Error(err)
	}
}

// The disk's reserve stays free.
func TestDownloadsLeaveTheReserve(t *testing.T) {
	reg := imagetest.New(t)
	reg.Put("web", "", blob)
	f := newTarget(t, nil)
	f.room.Reserve = 1 << 60
	repo := open(t, quick(reg), reg.Host+"/web:1")
	if err := f.download(t.Context(), repo, blob); !errors.Is(err, archive.ErrNoSpace) {
		t.Error(err)
	}
	if got := len(reg.Requests()); got != 1 {
		t.Errorf("%d requests, want 1", got)
	}
}

func TestCancelledDownloadsEnd(t *testing.T) {
	reg := imagetest.New(t)
	reg.Put("web", "", blob)
	ctx, cancel := context.WithCancel(t.Context())
	reg.Cut(func(int) bool { cancel(); return true })
	cfg := quick(reg)
	cfg.RetryWait, cfg.MaxRetryWait = time.Hour, time.Hour
	repo := open(t, cfg, reg.Host+"/web:1")
	if err := newTarget(t, nil).download(ctx, repo, blob); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
