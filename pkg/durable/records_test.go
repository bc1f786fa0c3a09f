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

	"github.com/google/go-cmp/cmp"
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

// files returns what is in a directory, and what it holds.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range entries {
		got[e.Name()] = content(t, filepath.Join(dir, e.Name()))
	}
	return got
}

// Around the exchange and after it both contents are whole: a crash at any moment leaves the old or the new at the path. What a
// crash leaves is in nobody's way.
func TestRecordsCrash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := &durable.Records{Dir: dir}
	if err := r.WriteFile("r", []byte("old")); err != nil {
		t.Fatal(err)
	}
	var moments []map[string]string
	r.SetExchange(func(spare, target string) error {
		moments = append(moments, files(t, dir))
		return unix.Renameat2(unix.AT_FDCWD, spare, unix.AT_FDCWD, target, unix.RENAME_EXCHANGE)
	})
	r.SetSync(func(string) error {
		moments = append(moments, files(t, dir))
		return nil
	})
	if err := r.WriteFile("r", []byte("new")); err != nil {
		t.Fatal(err)
	}
	moments = append(moments, files(t, dir))
	want := []map[string]string{{"r": "old", ".spare-2.tmp": "new"}, {"r": "new", ".spare-2.tmp": "old"}, {"r": "new", ".spare-2.tmp": ""}}
	if diff := cmp.Diff(want, moments); diff != "" {
		t.Error(diff)
	}
	for i, moment := range moments {
		dir := t.TempDir()
		for name, text := range moment {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text+", and longer"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		again := &durable.Records{Dir: dir}
		for _, text := range []string{"a", "b", "c"} {
			if err := again.WriteFile("r", []byte(text)); err != nil || content(t, filepath.Join(dir, "r")) != text {
				t.Errorf("after a crash at moment %d: %v, and the record is %q", i, err, content(t, filepath.Join(dir, "r")))
			}
		}
	}
}

// While it is not known to be durable that a record was replaced its old content stays whole; then it goes.
func TestRecordsUnsynced(t *testing.T) {
	t.Parallel()
	r := &durable.Records{Dir: t.TempDir()}
	if err := r.WriteFile("r", []byte("0")); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken disk")
	r.SetSync(func(string) error { return broken })
	for _, text := range []string{"1", "2"} {
		if err := r.WriteFile("r", []byte(text)); !errors.Is(err, broken) {
			t.Errorf("%v, want the disk's error", err)
		}
	}
	want := map[string]string{"r": "2", ".spare-2.tmp": "0", ".spare-3.tmp": "1"}
	if diff := cmp.Diff(want, files(t, r.Dir)); diff != "" {
		t.Error(diff)
	}
	r.SetSync(nil)
	if err := r.WriteFile("r", []byte("3")); err != nil {
		t.Fatal(err)
	}
	want = map[string]string{"r": "3", ".spare-2.tmp": "", ".spare-3.tmp": "", ".spare-4.tmp": ""}
	if diff := cmp.Diff(want, files(t, r.Dir)); diff != "" {
		t.Error(diff)
	}
}

// Where files cannot be exchanged they are replaced, whatever the reason.
func TestRecordsWithoutExchange(t *testing.T) {
	t.Parallel()
	for _, no := range []error{unix.EINVAL, unix.ENOSYS, unix.EPERM, unix.EOPNOTSUPP} {
		r := &durable.Records{Dir: t.TempDir()}
		r.SetExchange(func(string, string) error { return no })
		for i := range 3 {
			if err := r.WriteFile("r", fmt.Append(nil, i)); err != nil || content(t, filepath.Join(r.Dir, "r")) != fmt.Sprint(i) {
				t.Errorf("%v: write %d: %v", no, i, err)
			}
		}
		if diff := cmp.Diff(map[string]string{"r": "2"}, files(t, r.Dir)); diff != "" {
			t.Errorf("%v:\n%s", no, diff)
		}
	}
}

// A record that is somebody's backup, too, or that others may read, is not written again.
func TestRecordsOfOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, backup := filepath.Join(dir, "r"), filepath.Join(t.TempDir(), "backup")
	r := &durable.Records{Dir: dir}
	if err := r.WriteFile("r", []byte("old")); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(path, backup); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteFile("r", []byte("new")); err != nil || content(t, path) != "new" || content(t, backup) != "old" {
		t.Errorf("%v, the record is %q, its backup %q", err, content(t, path), content(t, backup))
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteFile("r", []byte("newer")); err != nil || len(r.Spares()) != 0 {
		t.Errorf("%v, spare files %q; want none that others may read", err, r.Spares())
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v; want only the owner to read it", info, err)
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
