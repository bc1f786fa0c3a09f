package artifact_test

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/preparer/artifact"
)

func live(in ...manifest.Artifact) func() (map[string]bool, bool) {
	digests := map[string]bool{}
	for _, a := range in {
		digests[a.SHA256] = true
	}
	return func() (map[string]bool, bool) { return digests, true }
}

// age sets an artifact's last use to so many hours from now.
func age(t *testing.T, dir string, a manifest.Artifact, hours int) {
	t.Helper()
	at := time.Now().Add(time.Duration(hours) * time.Hour)
	if err := os.Chtimes(filepath.Join(dir, a.SHA256+".json"), at, at); err != nil {
		t.Fatal(err)
	}
}

func wantEntries(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the store holds %v, want %v", got, want)
	}
}

// cache returns a store with n artifacts, the first used longest ago.
func cache(t *testing.T, n int, limit int64) (*artifact.Store, string, []manifest.Artifact) {
	t.Helper()
	s, dir := newStore(t, artifact.Config{CacheBytes: limit})
	var all []manifest.Artifact
	for i := range n {
		a := fileArtifact(t, big(t, string(rune('a'+i))))
		if _, err := s.Ensure(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		age(t, dir, a, i-n)
		all = append(all, a)
	}
	return s, dir, all
}

func names(in ...manifest.Artifact) []string {
	var out []string
	for _, a := range in {
		out = append(out, a.SHA256, a.SHA256+".json")
	}
	return out
}

func TestPruneRemovesTheLeastRecentlyUsed(t *testing.T) {
	s, dir, all := cache(t, 5, 2*mib+mib/2)
	removed, left, err := s.Prune(live(all[0]))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{all[1].SHA256, all[2].SHA256, all[3].SHA256}; !slices.Equal(removed, want) {
		t.Errorf("removed %v, want %v", removed, want)
	}
	if left < 2*mib || left > 2*mib+mib/2 {
		t.Errorf("%d bytes are left, want those of two artifacts", left)
	}
	wantEntries(t, dir, names(all[0], all[4])...)
	if _, err := s.Ensure(t.Context(), all[1]); err != nil {
		t.Errorf("an artifact that was removed cannot be had again: %v", err)
	}
}

func TestPruneKeepsWhatIsUsed(t *testing.T) {
	s, dir, all := cache(t, 3, 1)
	removed, left, err := s.Prune(func() (map[string]bool, bool) { return nil, false })
	if err != nil || len(removed) != 0 || left < 3*mib {
		t.Errorf("not knowing what is used removed %v, %v; left %d", removed, err, left)
	}
	if removed, _, err = s.Prune(live(all...)); err != nil || len(removed) != 0 {
		t.Errorf("removed %v, %v; all are in use", removed, err)
	}
	wantEntries(t, dir, names(all...)...)
}

// Ensure, and a Prune that finds the artifact in use, count as use. The order survives a restart.
func TestPruneOrderSurvivesRestart(t *testing.T) {
	_, dir, all := cache(t, 4, 0) // all[0] was used longest ago
	s, err := artifact.New(artifact.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Ensure(t.Context(), all[1]); err != nil {
		t.Fatal(err)
	}
	if removed, _, err := s.Prune(live(all[0])); err != nil || len(removed) > 0 {
		t.Fatal(removed, err)
	}
	s, err = artifact.New(artifact.Config{Dir: dir, CacheBytes: 2*mib + mib/2})
	if err != nil {
		t.Fatal(err)
	}
	removed, _, err := s.Prune(live())
	if want := []string{all[2].SHA256, all[3].SHA256}; err != nil || !slices.Equal(removed, want) {
		t.Errorf("removed %v, %v; want %v", removed, err, want)
	}
}

func TestEnsureNotesUse(t *testing.T) {
	_, dir, all := cache(t, 2, 0)
	s, err := artifact.New(artifact.Config{Dir: dir, CacheBytes: mib + mib/2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Ensure(t.Context(), all[0]); err != nil {
		t.Fatal(err)
	}
	if removed, _, err := s.Prune(live()); err != nil || !slices.Equal(removed, []string{all[1].SHA256}) {
		t.Errorf("removed %v, %v; want the one that was not asked for", removed, err)
	}
}

// Prune spares an artifact for which a caller waits. A removed artifact is fetched again.
func TestPruneSparesWorkUnderWay(t *testing.T) {
	data := goodArchive(t)
	begun, release := make(chan struct{}), make(chan struct{})
	var requests atomic.Int64
	url, client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) == 1 {
			close(begun)
			<-release
		}
		_, _ = w.Write(data)
	})
	s, dir := newStore(t, artifact.Config{HTTPClient: client, CacheBytes: 1})
	a := manifest.Artifact{Kind: "tar", URL: url, SHA256: digestOf(data)}
	got := make(chan error, 1)
	go func() { _, err := s.Ensure(t.Context(), a); got <- err }()
	<-begun
	if removed, _, err := s.Prune(live()); err != nil || len(removed) > 0 {
		t.Errorf("removed %v, %v", removed, err)
	}
	close(release)
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if removed, _, err := s.Prune(live()); err != nil || len(removed) != 1 {
		t.Fatalf("removed %v, %v", removed, err)
	}
	wantEntries(t, dir)
	if _, err := s.Ensure(t.Context(), a); err != nil || requests.Load() != 2 {
		t.Errorf("got %v after %d requests", err, requests.Load())
	}
}

// Prune keeps an artifact that is being renewed, even if it was never used.
func TestPruneSparesWhatIsRenewed(t *testing.T) {
	data := goodArchive(t)
	var requests atomic.Int64
	begun, release := make(chan struct{}), make(chan struct{})
	url, client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) == 2 {
			close(begun)
			<-release
		}
		_, _ = w.Write(data)
	})
	s, _ := newStore(t, artifact.Config{HTTPClient: client, CacheBytes: 1})
	a := manifest.Artifact{Kind: "tar", URL: url, SHA256: digestOf(data)}
	if _, err := s.Ensure(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() { got <- s.Renew(t.Context(), a) }()
	<-begun
	if removed, _, err := s.Prune(live()); err != nil || len(removed) > 0 {
		t.Errorf("removed %v, %v", removed, err)
	}
	close(release)
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// Until the new tree is complete, the old tree stays.
func TestRenewKeepsWhatItCannotReplace(t *testing.T) {
	s, dir := newStore(t, artifact.Config{})
	a := fileArtifact(t, goodArchive(t))
	tree, err := s.Ensure(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	program, other := filepath.Join(tree, "bin/launch"), filepath.Join(tree, "added")
	if err := errors.Join(os.Chmod(tree, 0o755), os.WriteFile(other, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	source := strings.TrimPrefix(a.URL, "file://")
	if err := os.Rename(source, source+".away"); err != nil {
		t.Fatal(err)
	}
	wantError(t, s.Renew(t.Context(), a), fs.ErrNotExist, source)
	if _, err := os.Stat(program); err != nil {
		t.Error(err)
	}
	wantEntries(t, dir, names(a)...)
	open, err := os.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := os.Rename(source+".away", source); err != nil {
		t.Fatal(err)
	}
	if err := s.Renew(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	old, err := open.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if now, err := os.Stat(program); err != nil || os.SameFile(old, now) {
		t.Errorf("the program was not replaced: %v", err)
	}
	if _, err := os.Stat(other); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something of the old tree is there: %v", err)
	}
	wantEntries(t, dir, names(a)...)
}

func TestNewRemovesListingsWithoutTree(t *testing.T) {
	s, dir, all := cache(t, 2, 0)
	_ = s
	if err := os.WriteFile(filepath.Join(dir, all[0].SHA256+".json.tmp"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, strings.Repeat("f", 64)+".json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	newStore(t, artifact.Config{Dir: dir})
	wantEntries(t, dir, names(all...)...)
}
