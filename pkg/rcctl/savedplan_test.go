package rcctl

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Only its owner can read a saved file, with any umask, and even if the file existed with another mode. It is written
// to exactly this path: not through a link, and not into a device.
func TestWritePrivate(t *testing.T) { // not parallel: it changes the umask of the process
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	mode := func(name string) os.FileMode {
		info, err := os.Lstat(in(name))
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode()
	}
	if err := os.WriteFile(in("open"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(in("open"), 0o666); err != nil { // somebody was careless
		t.Fatal(err)
	}
	old, err := os.Open(in("open"))
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	for _, umask := range []int{0, 0o077, 0o777} {
		before := syscall.Umask(umask)
		for _, name := range []string{"new", "open"} {
			if err := writePrivate(in(name), []byte("secret")); err != nil {
				t.Error(err)
			}
			if got := mode(name); got != 0o600 {
				t.Errorf("%s with umask %o has mode %s", name, umask, got)
			}
			if data, err := os.ReadFile(in(name)); string(data) != "secret" {
				t.Errorf("%s: %q, %v", name, data, err)
			}
		}
		syscall.Umask(before)
	}
	was := make([]byte, 9)
	if n, _ := old.Read(was); string(was[:n]) != "old" {
		t.Errorf("who had opened the former file reads %q", was[:n])
	}

	if err := os.Symlink(in("elsewhere"), in("link")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(in("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", ".", "pipe"} {
		err := writePrivate(in(name), []byte("secret"))
		if err == nil || !strings.Contains(err.Error(), "it exists and is not a regular file; allowed: a new file") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := writePrivate(in("nowhere/x"), nil); err == nil {
		t.Error("it was saved in a directory that is not there")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 4 { // new, open, link and pipe
		t.Errorf("%v are left, %v", left, err)
	}
}
