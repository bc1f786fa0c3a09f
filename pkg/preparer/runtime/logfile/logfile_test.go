package logfile

import (
	"bytes"
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
	turn := func(limit int64, keep int) {
		t.Helper()
		if err := Rotate(path, limit, keep); err != nil {
			t.Fatal(err)
		}
	}
	holds := func(want string) {
		t.Helper()
		if got := live(t, path); got != want {
			t.Errorf("the log holds %q, want %q", got, want)
		}
	}
	turn(4, 2) // no log yet
	fill("four")
	turn(4, 2)
	holds("four")
	fill("5")
	turn(4, 2)
	holds("")
	want("log.1", "four5")
	fill("second")
	turn(4, 2)
	fill("1\n2\n3\n4\nunfinished") // more than twice the limit: several files; the oldest text is dropped
	turn(6, 2)
	want("log.2", "4\n")
	want("log.1", "unfinished")
	holds("")
	fill("a\nb\nc\nd")
	turn(4, 2)
	want("log.1", "a\nb\nc\n") // whole lines
	want("log.2", "unfinished")
	holds("d")
	fill("not kept")
	turn(4, 0)
	holds("")
	if entries, _ := os.ReadDir(dir); len(entries) != 3 {
		t.Errorf("files %v, want the log and two rotated ones", entries)
	}
}

// live returns the text that is in no copy.
func live(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	var from int64
	if err == nil {
		_, from, err = Pending(path)
	}
	var parts []Part
	if err == nil && from <= info.Size() {
		parts, err = Parts(f, from, info.Size())
	}
	var text bytes.Buffer
	if err == nil {
		_, err = copyParts(&text, f, parts)
	}
	if err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// A program can put any kind of file at its log's path, but Rotate changes only normal files.
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

// A program can make its log very long without writing text.
func TestRotateOfSparseLog(t *testing.T) {
	const limit = 64 << 10
	for name, tt := range map[string]struct {
		before, after string // text written before and after the log is made long
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
		if got := strings.ReplaceAll(live(t, path), "\x00", ""); got != tt.want {
			t.Errorf("%s: the log holds %d bytes, %q", name, len(got), strings.Trim(got, "\x00"))
		}
		if log, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0); err != nil {
			t.Fatal(err)
		}
		more := strings.Repeat("more\n", limit/5+1)
		if _, err = log.WriteString(more); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(log.Close(), Rotate(path, limit, 1)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got, err := os.ReadFile(path + ".1")
		if err != nil || strings.ReplaceAll(string(got), "\x00", "") != tt.want+more || len(got) > 3*limit {
			t.Errorf("%s: %d bytes were copied, %v; want %d, and not the hole", name, len(got), err, len(tt.want+more))
		}
		if left := live(t, path); left != "" {
			t.Errorf("%s: %q is left in the log", name, left)
		}
	}
}
