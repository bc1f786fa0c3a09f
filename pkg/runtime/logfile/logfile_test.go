package logfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRotate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	fill := func(content string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(content); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	want := func(name, content string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != content {
			t.Errorf("%s holds %q, %v; want %q", name, got, err, content)
		}
	}
	turn := func(keep int) {
		t.Helper()
		if err := Rotate(path, 4, keep); err != nil {
			t.Fatal(err)
		}
	}
	turn(2) // no log yet
	fill("four")
	turn(2)
	want("log", "four")
	fill("5")
	turn(2)
	want("log", "")
	want("log.1", "four5")
	fill("second")
	turn(2)
	fill("dropped-" + strings.Repeat("x", 16)) // more than four times the limit: the newest 16 bytes stay
	turn(2)
	want("log.1", strings.Repeat("x", 16))
	want("log.2", "second")
	fill("dropped-dropped-cut\nwhole line\n") // the newest 16 bytes begin within a line: whole lines stay
	turn(1)
	want("log.1", "whole line\n")
	fill("not kept")
	turn(0)
	want("log", "")
	if entries, _ := os.ReadDir(dir); len(entries) != 3 {
		t.Errorf("files %v, want the log and two rotated ones", entries)
	}
}

// A program may put anything where its log was.
func TestRotateTouchesOnlyFiles(t *testing.T) {
	dir := t.TempDir()
	victim, link, pipe := filepath.Join(dir, "victim"), filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, link); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Rotate(link, 1, 1); err == nil {
		t.Error("a symbolic link was followed")
	}
	if err := Rotate(pipe, 1, 1); err != nil {
		t.Error(err)
	}
	if got, _ := os.ReadFile(victim); string(got) != "precious" {
		t.Errorf("the link's target holds %q", got)
	}
}
