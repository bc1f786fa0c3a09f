package logfile

import (
	"errors"
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

// floods is a copy's destination beside a program that writes faster than it is copied.
type floods struct {
	log    *os.File
	copied int64
}

func (f *floods) Write(p []byte) (int, error) {
	f.copied += int64(len(p))
	if f.copied > 1<<20 {
		return 0, errors.New("the copy has no end")
	}
	_, err := f.log.Write(make([]byte, 2*len(p)))
	return len(p), err
}

// A log that grows while it is copied costs a bounded copy.
func TestRotateOfGrowingLogEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	program, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	if _, err := program.Write(make([]byte, 64<<10)); err != nil {
		t.Fatal(err)
	}
	log, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	to := &floods{log: program}
	if err := copyFrom(to, log, 1, 100<<10); err != nil || to.copied != 100<<10 {
		t.Errorf("%d bytes were copied, %v; want 100 KiB", to.copied, err)
	}
}

// A program can make its log as long as it likes without writing anything.
func TestRotateOfSparseLog(t *testing.T) {
	const limit = 64 << 10
	for name, tt := range map[string]struct {
		before, after string // what is written, before the log is made long and after
		want          string
	}{
		"nothing but a hole": {want: ""},
		"first lines":        {before: "first\n", want: "first\n"},
		"last lines":         {after: "last\n", want: "last\n"},
		"both":               {before: "first\n", after: "last\n", want: "first\n" + "last\n"},
	} {
		path := filepath.Join(t.TempDir(), "log")
		log, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		_, err = log.WriteString(tt.before)
		err = errors.Join(err, log.Truncate(1<<40))
		if tt.after != "" {
			_, wErr := log.WriteString(tt.after)
			err = errors.Join(err, wErr)
		}
		if err = errors.Join(err, log.Close()); err != nil {
			t.Fatal(err)
		}
		if err := Rotate(path, limit, 1); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got, err := os.ReadFile(path + ".1")
		if err != nil || len(got) > maxRotated*limit || strings.ReplaceAll(string(got), "\x00", "") != tt.want {
			t.Errorf("%s: %d bytes were copied, %v: %q; want %q, and not the hole", name, len(got), err, strings.Trim(string(got), "\x00"), tt.want)
		}
		if info, err := os.Stat(path); err != nil || info.Size() != 0 {
			t.Errorf("%s: the log is not cut: %v, %v", name, info, err)
		}
	}
}
