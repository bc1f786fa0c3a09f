package shim

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// A tree is removed although it is deeper than the longest path, and full of links. What its links name stays.
func TestWipe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	kept := filepath.Join(dir, "kept")
	if err := errors.Join(os.Mkdir(kept, 0o755), os.WriteFile(filepath.Join(kept, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	top := filepath.Join(dir, "top")
	if err := os.Mkdir(top, 0o755); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Open(top, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for level := range 5_000 {
		err := errors.Join(unix.Symlinkat(kept, at, "link"), unix.Mkfifoat(at, "pipe", 0o600),
			unix.Mkdirat(at, "flat", 0o755), unix.Mkdirat(at, "deep", 0o755))
		if level%100 == 0 {
			for i := range 20 {
				err = errors.Join(err, unix.Mkdirat(at, "flat/"+strconv.Itoa(i), 0o755))
			}
		}
		next, openErr := unix.Openat(at, "deep", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err = errors.Join(err, openErr, unix.Close(at)); err != nil {
			t.Fatal(err)
		}
		at = next
	}
	_ = unix.Close(at)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := wipe(ended, top); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	for range 2 { // the second time there is nothing to remove
		if err := wipe(t.Context(), top); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(top); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(kept, "file")); err != nil {
		t.Error(err)
	}
}
