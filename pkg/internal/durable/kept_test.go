package durable_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/internal/disktest"
	"github.com/rcfarm/rcfarm/pkg/internal/durable"
)

// holds fails the test unless a file has the content, with spaces after it.
func holds(t *testing.T, path string, want []byte) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(bytes.TrimRight(got, " "), want) {
		t.Fatalf("%s holds %.40q, %d bytes, %v; want %.40q", path, got, len(got), err, want)
	}
}

// more fills the free space of the disk, in addition to what earlier calls have filled.
func more(t *testing.T, disk string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(disk, "more"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 64 << 10; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
}

// An existing file can be replaced a thousand times on a disk that another program keeps full. Longer content and new
// files do not fit. In these cases the old content is kept, and no other file is left behind.
func TestReplaceFileOnAFullDisk(t *testing.T) {
	disktest.Run(t, 8<<20, func(t *testing.T, disk string) {
		dir := filepath.Join(disk, "records")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "a")
		if err := durable.ReplaceFile(path, []byte("first")); err != nil {
			t.Fatal(err)
		}
		var last []byte
		for i := range 1000 {
			more(t, disk)
			last = bytes.Repeat([]byte{byte('a' + i%26)}, 1+i*4) // up to 4 KiB more than the first
			if err := durable.ReplaceFile(path, last); err != nil {
				t.Fatalf("%d bytes in round %d: %v", len(last), i, err)
			}
			holds(t, path, last)
		}
		if err := durable.WriteFile(filepath.Join(dir, "b"), []byte("new")); !durable.Full(err) {
			t.Fatalf("the disk is not full: %v", err)
		}
		if err := durable.ReplaceFile(filepath.Join(dir, "b"), []byte("new")); !durable.Full(err) {
			t.Errorf("a new file: %v", err)
		}
		if err := durable.ReplaceFile(path, make([]byte, 100_000)); !durable.Full(err) {
			t.Errorf("longer content: %v", err)
		}
		holds(t, path, last)
		left, err := os.ReadDir(dir)
		if err != nil || len(left) != 2 {
			t.Errorf("left: %v, %v; want a file and its spare", left, err)
		}
		if err := durable.ReplaceFile(path, []byte("short again")); err != nil {
			t.Error(err)
		}
		holds(t, path, []byte("short again"))
	})
}

// When longer content was written twice, it has reserved space too.
func TestReplaceFileGrows(t *testing.T) {
	disktest.Run(t, 8<<20, func(t *testing.T, disk string) {
		path := filepath.Join(disk, "a")
		long := bytes.Repeat([]byte("x"), 50_000)
		for _, content := range [][]byte{[]byte("first"), long, long} {
			if err := durable.ReplaceFile(path, content); err != nil {
				t.Fatal(err)
			}
			holds(t, path, content)
		}
		for i := range 10 {
			more(t, disk)
			long[0] = byte('a' + i)
			if err := durable.ReplaceFile(path, long); err != nil {
				t.Fatal(err)
			}
			holds(t, path, long)
		}
	})
}

// If a write was killed or did not fit, what it left in the spare file is not a part of later content. Shorter content
// still fits.
func TestReplaceFileAfterLongerContent(t *testing.T) {
	disktest.Run(t, 8<<20, func(t *testing.T, disk string) {
		killed, refused := filepath.Join(disk, "killed"), filepath.Join(disk, "refused")
		for _, path := range []string{killed, refused} {
			if err := durable.ReplaceFile(path, []byte("first")); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(killed+durable.SpareSuffix, bytes.Repeat([]byte("y"), 50_000), 0o600); err != nil {
			t.Fatal(err)
		}
		more(t, disk)
		info, err := os.Stat(filepath.Join(disk, "more"))
		if err == nil {
			err = os.Truncate(filepath.Join(disk, "more"), info.Size()-8<<10)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := durable.ReplaceFile(refused, bytes.Repeat([]byte("x"), 60_000)); !durable.Full(err) {
			t.Fatalf("longer content: %v", err)
		}
		for i := range 3 {
			for _, path := range []string{killed, refused} {
				more(t, disk)
				content := fmt.Append(nil, "short ", i)
				if err := durable.ReplaceFile(path, content); err != nil {
					t.Errorf("%s, time %d: %v", path, i, err)
				}
				holds(t, path, content)
			}
		}
	})
}

// A record that has grown once can be written on a full disk, although the file and its spare file have different
// sizes.
func TestReplaceFileThatHasGrownOnce(t *testing.T) {
	disktest.Run(t, 8<<20, func(t *testing.T, disk string) {
		path := filepath.Join(disk, "a")
		for _, content := range []string{"first", string(bytes.Repeat([]byte("x"), 9000))} {
			if err := durable.ReplaceFile(path, []byte(content)); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 4 {
			more(t, disk)
			content := fmt.Append(nil, "stop ", i)
			if err := durable.ReplaceFile(path, content); err != nil {
				t.Fatal(err)
			}
			holds(t, path, content)
		}
	})
}

// If a backup has a link to a file, the file's old content is not overwritten. If the spare file is missing or is a
// symbolic link, it is made again. A directory is not replaced.
func TestReplaceFileBesideOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, backup, foreign := filepath.Join(dir, "a"), filepath.Join(dir, "backup"), filepath.Join(dir, "foreign")
	if err := errors.Join(durable.ReplaceFile(path, []byte("old")), os.Link(path, backup), os.Chmod(path, 0o644),
		os.WriteFile(foreign, []byte("foreign"), 0o600)); err != nil {
		t.Fatal(err)
	}
	spoil := []func() error{
		func() error { return nil },
		func() error { return os.Remove(path + durable.SpareSuffix) },
		func() error {
			return errors.Join(os.Remove(path+durable.SpareSuffix), os.Symlink(foreign, path+durable.SpareSuffix))
		},
		func() error { return errors.Join(os.Remove(path), os.Symlink(foreign, path)) },
		func() error { return nil },
		func() error { return os.Remove(path) },
	}
	for i, before := range spoil {
		if err := before(); err != nil {
			t.Fatal(err)
		}
		content := fmt.Append(nil, "content ", i)
		if err := durable.ReplaceFile(path, content); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		holds(t, path, content)
		if info, err := os.Lstat(path); err != nil || info.Mode() != 0o600 {
			t.Errorf("%d: mode %v, %v; want only the owner to read it", i, info.Mode(), err)
		}
	}
	holds(t, backup, []byte("old"))
	holds(t, foreign, []byte("foreign"))

	sub := filepath.Join(dir, "sub")
	if err := os.MkdirAll(filepath.Join(sub, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := durable.ReplaceFile(sub, []byte("new")); err == nil {
		t.Error("a directory was replaced")
	}
	if _, err := os.Lstat(filepath.Join(sub, "x")); err != nil {
		t.Error(err)
	}
	if err := durable.ReplaceFile(filepath.Join(dir, "missing", "f"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file in a missing directory: %v", err)
	}
}
