package durable_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/disktest"
	"github.com/rcfarm/rcfarm/pkg/durable"
)

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

func content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Two records that change often are in three files, whatever they are called at the time.
func TestRecordsTakeTurns(t *testing.T) {
	t.Parallel()
	r := &durable.Records{Dir: t.TempDir()}
	seen := map[uint64]bool{}
	for i := range 50 {
		name, want := fmt.Sprintf("r%d", i%2), strings.Repeat("x", 1000*(i%3))+fmt.Sprint(i)
		if err := r.WriteFile(name, []byte(want)); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(r.Dir, name)
		if got := content(t, path); got != want {
			t.Fatalf("write %d: %d bytes, want %d", i, len(got), len(want))
		}
		seen[inode(t, path)] = true
	}
	if len(seen) != 3 {
		t.Errorf("%d files were made, want 3", len(seen))
	}
	// What was replaced is not to be read by whoever gets the disk.
	if spares := r.Spares(); len(spares) != 1 || content(t, spares[0]) != "" || !strings.HasSuffix(spares[0], durable.TempSuffix) {
		t.Errorf("spare files %q", spares)
	}
	if info, err := os.Stat(filepath.Join(r.Dir, "r0")); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v; want only the owner to read it", info, err)
	}
}

// A crash at any moment leaves the old content or the new at the path: here it comes around the exchange.
func TestRecordsCrash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "r")
	r := &durable.Records{Dir: dir}
	if err := r.WriteFile("r", []byte("old")); err != nil {
		t.Fatal(err)
	}
	r.SetExchange(func(spare, target string) error {
		if got := content(t, target); got != "old" {
			t.Errorf("before the exchange the record is %q", got)
		}
		if got := content(t, spare); got != "new" {
			t.Errorf("before the exchange the spare file is %q", got)
		}
		return errors.New("crash")
	})
	if err := r.WriteFile("r", []byte("new")); err == nil || content(t, path) != "old" {
		t.Errorf("%v, and the record is %q", err, content(t, path))
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*"+durable.TempSuffix)); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	// A spare file of an earlier run is in nobody's way.
	for n := range 3 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf(".spare-%d%s", n, durable.TempSuffix)), []byte("half of a longer one"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := (&durable.Records{Dir: dir}).WriteFile("r", []byte("new")); err != nil || content(t, path) != "new" {
		t.Errorf("%v, and the record is %q", err, content(t, path))
	}
}

// Where files cannot be exchanged they are replaced.
func TestRecordsWithoutExchange(t *testing.T) {
	t.Parallel()
	for _, no := range []error{unix.EINVAL, unix.ENOSYS} {
		r := &durable.Records{Dir: t.TempDir()}
		r.SetExchange(func(a, b string) error { return &os.LinkError{Op: "exchange", Old: a, New: b, Err: no} })
		for i := range 3 {
			if err := r.WriteFile("r", fmt.Append(nil, i)); err != nil || content(t, filepath.Join(r.Dir, "r")) != fmt.Sprint(i) {
				t.Errorf("%v: write %d: %v", no, i, err)
			}
		}
		if entries, err := os.ReadDir(r.Dir); err != nil || len(entries) != 1 {
			t.Errorf("%v: %v, %v; want the record alone", no, entries, err)
		}
	}
}

func TestRecordsSideBySide(t *testing.T) {
	t.Parallel()
	const writers = 2 * durable.MaxSpares
	r := &durable.Records{Dir: t.TempDir()}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			name := fmt.Sprint(w)
			for i := range 20 {
				want := fmt.Sprintf("%d of %d", i, w)
				if err := r.WriteFile(name, []byte(want)); err != nil {
					t.Error(err)
					return
				}
				if got, err := os.ReadFile(filepath.Join(r.Dir, name)); err != nil || string(got) != want {
					t.Errorf("%q, %v; want %q", got, err, want)
				}
			}
		})
	}
	wg.Wait()
	spares := r.Spares()
	if len(spares) == 0 || len(spares) > durable.MaxSpares || len(slices.Compact(slices.Sorted(slices.Values(spares)))) != len(spares) {
		t.Errorf("spare files %q", spares)
	}
	if entries, err := os.ReadDir(r.Dir); err != nil || len(entries) != writers+len(spares) {
		t.Errorf("%d files, %v; want %d", len(entries), err, writers+len(spares))
	}
}

func TestRecordsErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := (&durable.Records{Dir: filepath.Join(dir, "missing")}).WriteFile("r", nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a record in a missing directory: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := (&durable.Records{Dir: dir}).WriteFile("d", nil); err == nil {
		t.Error("a directory was replaced by a file")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// On a full disk the reserve takes over, and nothing of the record is lost without it.
func TestRecordsOnFullDisk(t *testing.T) {
	disktest.Run(t, 8<<20, func(t *testing.T, disk string) {
		r := &durable.Records{Dir: filepath.Join(disk, "records"), Reserve: &durable.Reserve{Dir: filepath.Join(disk, "reserve")}}
		if err := os.Mkdir(r.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if n, err := r.Reserve.Fill(); n != reserved || err != nil {
			t.Fatalf("%d bytes set aside, %v", n, err)
		}
		path := filepath.Join(r.Dir, "r")
		for _, first := range []string{"old", "older"} { // the second leaves a spare file
			if err := r.WriteFile("r", []byte(first)); err != nil {
				t.Fatal(err)
			}
		}
		disktest.Fill(t, disk)
		for i := range 5 {
			want := strings.Repeat(fmt.Sprint(i), 5000)
			if err := r.WriteFile("r", []byte(want)); err != nil || content(t, path) != want {
				t.Fatalf("write %d: %v", i, err)
			}
		}
		if err := os.RemoveAll(r.Reserve.Dir); err != nil {
			t.Fatal(err)
		}
		disktest.Fill(t, disk)
		before := content(t, path)
		if err := r.WriteFile("r", []byte("more")); !durable.Full(err) || content(t, path) != before {
			t.Fatalf("written to nowhere: %v", err)
		}
	})
}
