package artifact_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/preparer/artifact"
)

func TestMain(m *testing.M) { os.Exit(consultest.NoLeaks(m.Run())) }

// tempDir is t.TempDir whose directories become writable at the end, because only root can remove read-only trees.
func tempDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() {
		err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return err
			}
			return os.Chmod(p, 0o700)
		})
		if err != nil {
			t.Error(err)
		}
	})
	return dir
}

func newStore(t *testing.T, cfg artifact.Config) (*artifact.Store, string) {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = filepath.Join(tempDir(t), "artifacts")
	}
	if cfg.RetryWait == 0 {
		cfg.RetryWait = time.Millisecond
	}
	s, err := artifact.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s, cfg.Dir
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func fileArtifact(t *testing.T, data []byte) manifest.Artifact {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.tar.gz")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return manifest.Artifact{Kind: manifest.ArtifactTar, URL: "file://" + path, SHA256: digestOf(data)}
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("left in the store: %s", e.Name())
	}
}

func TestEnsureUnpacksReadOnly(t *testing.T) {
	s, dir := newStore(t, artifact.Config{})
	a := fileArtifact(t, archive(t,
		dirEntry("./"), dirEntry("bin/"), file("bin/launch", 0o755, "#!/bin/sh\n"),
		file("etc/deep/conf", 0o666, "x=1"), symlink("current", "etc/deep"), symlink("dangling", "nowhere"),
		hardlink("bin/other", "bin/launch"), file("etc/deep/conf", 0o640, "x=2"),
	))
	got, err := s.Ensure(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, a.SHA256); got != want {
		t.Errorf("dir %s, want %s", got, want)
	}
	for path, want := range map[string]fs.FileMode{
		"": fs.ModeDir | 0o555, "bin": fs.ModeDir | 0o555, "etc": fs.ModeDir | 0o555, "etc/deep": fs.ModeDir | 0o555,
		"bin/launch": 0o555, "bin/other": 0o555, "etc/deep/conf": 0o444,
	} {
		info, err := os.Lstat(filepath.Join(got, path))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("mode of %q is %s, want %s", path, info.Mode(), want)
		}
	}
	content, err := os.ReadFile(filepath.Join(got, "current/conf"))
	if err != nil || string(content) != "x=2" {
		t.Errorf("content through the link %q, %v; want the later entry's", content, err)
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 2 {
		t.Errorf("the store holds %v, want only the result and its listing", entries)
	}
}

func TestEnsureIsCached(t *testing.T) {
	s, _ := newStore(t, artifact.Config{})
	a := fileArtifact(t, goodArchive(t))
	first, err := s.Ensure(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(strings.TrimPrefix(a.URL, "file://")); err != nil {
		t.Fatal(err)
	}
	second, err := s.Ensure(t.Context(), a)
	if err != nil || second != first {
		t.Fatalf("second Ensure: %s, %v; want %s from the cache", second, err, first)
	}
}

func TestEnsureDoesTheWorkOnce(t *testing.T) {
	data := goodArchive(t)
	var requests atomic.Int64
	release := make(chan struct{})
	url, client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		<-release
		_, _ = w.Write(data)
	})
	s, _ := newStore(t, artifact.Config{HTTPClient: client})
	a := manifest.Artifact{Kind: manifest.ArtifactTar, URL: url, SHA256: digestOf(data)}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := s.Ensure(t.Context(), a); err != nil {
				t.Error(err)
			}
		})
	}
	close(release)
	wg.Wait()
	if n := requests.Load(); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

// A caller that gives up fails no other caller that waits for the same digest.
func TestEnsureWaiterTakesOverFromCancelledCaller(t *testing.T) {
	data := goodArchive(t)
	var requests atomic.Int64
	begun := make(chan struct{})
	url, client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 1 {
			close(begun)
			<-r.Context().Done()
			return
		}
		_, _ = w.Write(data)
	})
	s, dir := newStore(t, artifact.Config{HTTPClient: client})
	a := manifest.Artifact{Kind: manifest.ArtifactTar, URL: url, SHA256: digestOf(data)}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the pod was withdrawn")
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := s.Ensure(ctx, a); !errors.Is(err, context.Canceled) || !errors.Is(err, cause) {
			t.Errorf("cancelled caller got %v, want the cancellation and its cause", err)
		}
	})
	<-begun
	wg.Go(func() {
		if got, err := s.Ensure(t.Context(), a); err != nil || got != filepath.Join(dir, a.SHA256) {
			t.Errorf("waiter got %q, %v", got, err)
		}
	})
	cancel(cause)
	wg.Wait()
}

// If one server lacks the file, callers that fetch it from another server do not fail.
func TestEnsureTriesItsOwnServer(t *testing.T) {
	data := goodArchive(t)
	begun, release := make(chan struct{}), make(chan struct{})
	bad, client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		close(begun)
		<-release
		w.WriteHeader(http.StatusNotFound)
	})
	s, _ := newStore(t, artifact.Config{HTTPClient: client})
	good := fileArtifact(t, data)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := s.Ensure(t.Context(), manifest.Artifact{Kind: "tar", URL: bad, SHA256: good.SHA256}); err == nil {
			t.Error("no error")
		}
	})
	<-begun
	ctx, waits := newWaiting(t.Context())
	wg.Go(func() {
		if _, err := s.Ensure(ctx, good); err != nil {
			t.Error(err)
		}
	})
	<-waits
	close(release)
	wg.Wait()
}

// newWaiting's channel closes when a caller begins to wait for the end of the context.
func newWaiting(ctx context.Context) (context.Context, <-chan struct{}) {
	w := &waiting{Context: ctx, begun: make(chan struct{})}
	return w, w.begun
}

type waiting struct {
	context.Context
	begun chan struct{}
	once  sync.Once
}

func (w *waiting) Done() <-chan struct{} {
	w.once.Do(func() { close(w.begun) })
	return w.Context.Done()
}

func TestNewRemovesLeftovers(t *testing.T) {
	dir := t.TempDir()
	tree := filepath.Join(dir, "tmp-tree-1")
	if err := os.MkdirAll(filepath.Join(tree, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "outside")
	for _, path := range []string{filepath.Join(tree, "bin/launch"), filepath.Join(dir, "tmp-fetch-1"), outside} {
		if err := os.WriteFile(path, []byte("x"), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(tree, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(tree, "bin"), 0o555); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(dir, strings.Repeat("a", 64))
	if err := os.Mkdir(kept, 0o555); err != nil {
		t.Fatal(err)
	}
	newStore(t, artifact.Config{Dir: dir})
	entries, _ := os.ReadDir(dir)
	if len(entries) != 1 || entries[0].Name() != filepath.Base(kept) {
		t.Errorf("the store holds %v, want only the finished artifact", entries)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("a file outside of the store: %v", err)
	}
}

func TestNewRefusesRelativeDir(t *testing.T) {
	if _, err := artifact.New(artifact.Config{Dir: "artifacts"}); err == nil ||
		!strings.Contains(err.Error(), `"artifacts"`) {
		t.Errorf("got %v, want an error that names the directory", err)
	}
}

func TestEnsureRefusesBadReferences(t *testing.T) {
	good := manifest.Artifact{Kind: "tar", URL: "file:///a", SHA256: strings.Repeat("0", 64)}
	tests := []struct {
		name   string
		change func(*manifest.Artifact)
		want   string
	}{
		{"kind", func(a *manifest.Artifact) { a.Kind = "oci" }, `kind: "oci" is not valid; allowed: tar`},
		{
			"digest is a path", func(a *manifest.Artifact) { a.SHA256 = "../x" },
			`sha256: "../x" is not valid; allowed: 64`,
		},
		{
			"http", func(a *manifest.Artifact) { a.URL = "http://h/p" },
			`url: "http://h/p" is not valid; allowed: file:///`,
		},
		{"relative file", func(a *manifest.Artifact) { a.URL = "file:a" }, `url: "file:a" is not valid`},
		{"password", func(a *manifest.Artifact) { a.URL = "https://u:p@h/p" }, `is not valid`},
	}
	s, dir := newStore(t, artifact.Config{})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := good
			tt.change(&a)
			_, err := s.Ensure(t.Context(), a)
			wantError(t, err, artifact.ErrInvalid, tt.want)
			wantEmpty(t, dir)
		})
	}
}

func TestEnsureFile(t *testing.T) {
	s, dir := newStore(t, artifact.Config{MaxBytes: 4096})
	t.Run("wrong digest", func(t *testing.T) {
		a := fileArtifact(t, goodArchive(t))
		got := a.SHA256
		a.SHA256 = strings.Repeat("0", 64)
		_, err := s.Ensure(t.Context(), a)
		wantError(t, err, artifact.ErrDigest, fmt.Sprintf("artifact %s: sha256 of the ", a.URL),
			"expected "+a.SHA256+", got "+got)
	})
	t.Run("too large", func(t *testing.T) {
		_, err := s.Ensure(t.Context(), fileArtifact(t, make([]byte, 4097)))
		wantError(t, err, artifact.ErrTooLarge, "file of 4097 bytes", "allowed: at most 4096 bytes")
	})
	t.Run("missing", func(t *testing.T) {
		a := fileArtifact(t, nil)
		a.URL += ".not"
		_, err := s.Ensure(t.Context(), a)
		wantError(t, err, fs.ErrNotExist, a.URL)
	})
	t.Run("named pipe", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "pipe")
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := s.Ensure(t.Context(),
			manifest.Artifact{Kind: "tar", URL: "file://" + path, SHA256: strings.Repeat("0", 64)})
		wantError(t, err, artifact.ErrInvalid, path, "is a named pipe", "allowed: a regular file")
	})
	wantEmpty(t, dir)
}

// serve returns the URL of an https server, and a client that trusts it.
func serve(t *testing.T, handler http.HandlerFunc) (url string, client *http.Client) {
	t.Helper()
	srv := httptest.NewTLSServer(handler)
	t.Cleanup(srv.Close)
	return srv.URL + "/a.tar.gz", srv.Client()
}

func wantError(t *testing.T, err, is error, texts ...string) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Fatalf("got error %v, want %v", err, is)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q does not say %q", err, text)
		}
	}
}
