package artifact_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/internal/disktest"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/preparer/artifact"
)

const mib = 1 << 20

// big returns a small archive that unpacks to a mebibyte.
func big(t *testing.T, salt string) []byte {
	t.Helper()
	return archive(t, launch(), file("salt", 0o644, salt), file("zeros", 0o644, strings.Repeat("\x00", mib)))
}

// wantSpace fails unless err is a *SpaceError about this work, with plausible numbers.
func wantSpace(t *testing.T, err error, what string, needed int64) {
	t.Helper()
	var space *artifact.SpaceError
	if !errors.As(err, &space) || !errors.Is(err, artifact.ErrNoSpace) {
		t.Fatalf("got %v, want that space is lacking", err)
	}
	if space.What != what || space.Needed < needed || space.Needed+space.Reserve <= space.Available {
		t.Errorf("got %+v, want %s of at least %d bytes", space, what, needed)
	}
	for _, number := range []int64{space.Needed, space.Reserve, space.Available} {
		if !strings.Contains(err.Error(), strconv.FormatInt(number, 10)) {
			t.Errorf("error %q does not say %d", err, number)
		}
	}
}

func TestFullDisk(t *testing.T) {
	disktest.Run(t, 4*mib, func(t *testing.T, disk string) {
		dir := filepath.Join(disk, "artifacts")
		s, _ := newStore(t, artifact.Config{Dir: dir, ReserveBytes: 64 << 10})
		kept := fileArtifact(t, big(t, "kept"))
		if _, err := s.Ensure(t.Context(), kept); err != nil {
			t.Fatal(err)
		}
		filler := disktest.Fill(t, disk)
		wanted := fileArtifact(t, big(t, "wanted"))
		for range 2 { // each call tries again
			_, err := s.Ensure(t.Context(), wanted)
			wantSpace(t, err, "fetching", 1)
		}
		wantEntries(t, dir, kept.SHA256, kept.SHA256+".json")
		// There is space for the file, but not for the tree.
		if err := os.Truncate(filler, 3*mib-512<<10); err != nil {
			t.Fatal(err)
		}
		_, err := s.Ensure(t.Context(), wanted)
		wantSpace(t, err, "unpacking", mib)
		if strings.Contains(err.Error(), "entry") {
			t.Errorf("%v: want that it is seen before the first entry is written", err)
		}
		wantEntries(t, dir, kept.SHA256, kept.SHA256+".json")

		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Ensure(t.Context(), wanted); err != nil {
			t.Fatalf("with room again: %v", err)
		}
	})
}

// A disk that becomes full during a fetch gives ErrNoSpace too, for example because the size was not announced.
func TestDiskFillsMeanwhile(t *testing.T) {
	disktest.Run(t, 4*mib, func(t *testing.T, disk string) {
		data := archive(t, launch(), file("noise", 0o644, noise(64<<10)))
		var filler string
		var requests atomic.Int64
		url, client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			requests.Add(1)
			_, _ = w.Write(data[:10])
			w.(http.Flusher).Flush() // so that the size is not announced
			filler = disktest.Fill(t, disk)
			_, _ = w.Write(data[10:])
		})
		s, dir := newStore(t,
			artifact.Config{Dir: filepath.Join(disk, "artifacts"), HTTPClient: client, ReserveBytes: -1})
		a := manifest.Artifact{Kind: "tar", URL: url, SHA256: digestOf(data)}
		_, err := s.Ensure(t.Context(), a)
		wantError(t, err, artifact.ErrNoSpace, "artifact "+url+": ")
		if n := requests.Load(); n != 1 {
			t.Errorf("%d requests; another one fills the disk as well", n)
		}
		wantEntries(t, dir)
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
	})
}

// The reserve stays free, even if the file's size was not announced.
func TestFetchStopsBeforeTheReserve(t *testing.T) {
	disktest.Run(t, 4*mib, func(t *testing.T, disk string) {
		url, client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			for range 10 {
				_, _ = w.Write(make([]byte, mib))
				w.(http.Flusher).Flush()
			}
		})
		s, dir := newStore(t,
			artifact.Config{Dir: filepath.Join(disk, "artifacts"), HTTPClient: client, ReserveBytes: mib})
		_, err := s.Ensure(t.Context(), manifest.Artifact{Kind: "tar", URL: url, SHA256: strings.Repeat("0", 64)})
		wantSpace(t, err, "fetching", 1)
		wantEntries(t, dir)
	})
}

func TestReserveIsLeft(t *testing.T) {
	var st unix.Statfs_t
	dir := tempDir(t)
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	s, _ := newStore(t,
		artifact.Config{Dir: filepath.Join(dir, "artifacts"), ReserveBytes: int64(st.Blocks) * st.Bsize})
	_, err := s.Ensure(t.Context(), fileArtifact(t, goodArchive(t)))
	wantSpace(t, err, "fetching", 1)
}

// The size in an archive is a hint. If it is wrong, unpacking stops before the reserve is used.
func TestUnpackStopsBeforeTheReserve(t *testing.T) {
	disktest.Run(t, 4*mib, func(t *testing.T, disk string) {
		// The end of a gzip file has the size of its last member.
		tarred := tarball(t, launch(), file("zeros", 0o644, strings.Repeat("\x00", 5*mib)))
		data := append(compress(t, tarred[:len(tarred)-1024]), compress(t, tarred[len(tarred)-1024:])...)
		s, dir := newStore(t, artifact.Config{Dir: filepath.Join(disk, "artifacts"), ReserveBytes: 64 << 10})
		_, err := s.Ensure(t.Context(), fileArtifact(t, data))
		wantSpace(t, err, "unpacking", 5*mib)
		wantError(t, err, artifact.ErrNoSpace, `entry "zeros"`)
		wantEntries(t, dir)
	})
}

// If the disk was full, Prune removes unused artifacts.
func TestPruneFreesSpace(t *testing.T) {
	disktest.Run(t, 4*mib, func(t *testing.T, disk string) {
		s, dir := newStore(t, artifact.Config{Dir: filepath.Join(disk, "artifacts"), ReserveBytes: -1})
		var all []manifest.Artifact
		for _, salt := range []string{"a", "b", "c"} {
			a := fileArtifact(t, big(t, salt))
			all = append(all, a)
			if _, err := s.Ensure(t.Context(), a); err != nil {
				t.Fatal(err)
			}
			age(t, dir, a, -len(all))
		}
		wanted := fileArtifact(t, big(t, "d"))
		_, err := s.Ensure(t.Context(), wanted)
		wantSpace(t, err, "unpacking", mib)
		removed, _, err := s.Prune(live(all[2])) // in use is the artifact whose last use was longest ago
		if err != nil || len(removed) != 1 || removed[0] != all[1].SHA256 {
			t.Fatalf("removed %v, %v; want the one of %s", removed, err, all[1].SHA256)
		}
		if _, err := s.Ensure(t.Context(), wanted); err != nil {
			t.Errorf("after pruning: %v", err)
		}
		removed, _, err = s.Prune(live(all[2]))
		if err != nil || len(removed) != 0 {
			t.Errorf("removed %v, %v although nothing is lacking any more", removed, err)
		}
	})
}
