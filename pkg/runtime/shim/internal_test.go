package shim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/runtime"
)

func TestParseStat(t *testing.T) {
	const tail = " S 2 3 4 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 9 0 12345 0 0"
	for _, name := range []string{"sh", "a b", "(x) R 1", ") S 9 9 9", ""} {
		got, err := parseStat([]byte("77 (" + name + ")" + tail + "\n"))
		want := stat{pid: 77, ppid: 2, pgid: 3, sid: 4, state: 'S', threads: 9, start: 12345}
		if err != nil || got != want {
			t.Errorf("name %q: %+v, %v; want %+v", name, got, err, want)
		}
	}
	for _, bad := range []string{"", "77", "77 (sh)", "77 (sh) S 2", "x (sh)" + tail, strings.Replace("77 (sh)"+tail, "12345", "-", 1)} {
		if got, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q was read as %+v", bad, got)
		}
	}
}

func TestScannerSeesItself(t *testing.T) {
	var sc scanner
	table, err := sc.scan()
	if err != nil {
		t.Fatal(err)
	}
	self, err := readStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range table {
		if st.pid == self.pid && st.start == self.start && st.ppid == os.Getppid() && !st.dead() {
			return
		}
	}
	t.Errorf("this process is not among %d", len(table))
}

// A change after a quiet time is told soon, those of a busy time together.
func TestGap(t *testing.T) {
	var s supervisor
	now := time.Now()
	for i, step := range []struct{ after, want time.Duration }{
		{0, coalesce}, {busy, busy}, {2 * busy, busy}, {2*busy + 1, coalesce}, {1, busy},
	} {
		now = now.Add(step.after)
		if got := s.gap(now); got != step.want {
			t.Errorf("change %d waits %s, want %s", i, got, step.want)
		}
	}
}

func TestSameSpec(t *testing.T) {
	a := runtime.Spec{ID: "p", Command: []string{"/x"}, Env: nil}
	b := runtime.Spec{ID: "p", Command: []string{"/x"}, Env: []string{}}
	if !sameSpec(a, b) {
		t.Error("an empty list differs from a missing one")
	}
	for _, change := range []func(*runtime.Spec){
		func(s *runtime.Spec) { s.Revision++ }, func(s *runtime.Spec) { s.Command = []string{"/y"} },
		func(s *runtime.Spec) { s.Env = []string{"A=1"} }, func(s *runtime.Spec) { s.Pod.Index++ },
		func(s *runtime.Spec) { s.Restart.Policy = runtime.Never }, func(s *runtime.Spec) { s.Isolation = &runtime.Isolation{} },
	} {
		c := a
		change(&c)
		if sameSpec(a, c) {
			t.Errorf("%+v equals %+v", a, c)
		}
	}
}

func TestRecords(t *testing.T) {
	r := records{t.TempDir()}
	rec := record{Spec: runtime.Spec{ID: "a.b", Command: []string{"/x"}, Dir: "/", LogPath: "/l"}, Desired: wantRun, PID: 7}
	if err := r.save(rec); err != nil {
		t.Fatal(err)
	}
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(r.dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a.b.json.tmp", "{") // a crash between write and rename
	write("half.json", "{")
	write("other.json", `{"spec":{"id":"x"},"desired":"run"}`)
	write("future.json", `{"spec":{"id":"future"},"desired":"pause"}`)
	good, bad, err := r.load()
	if err != nil {
		t.Fatal(err)
	}
	if len(good) != 1 || good["a.b"].PID != 7 {
		t.Errorf("read %+v, want the one that was saved", good)
	}
	for _, id := range []string{"half", "other", "future"} {
		if bad[id] == nil {
			t.Errorf("%s.json was not reported", id)
		}
	}
	if _, err := os.Stat(filepath.Join(r.dir, "a.b.json.tmp")); !os.IsNotExist(err) {
		t.Errorf("the unfinished file: %v", err)
	}
	for range 2 {
		if err := r.remove("a.b"); err != nil {
			t.Error(err)
		}
	}
}

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
		if err := rotate(path, 4, keep); err != nil {
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
	if err := rotate(link, 1, 1); err == nil {
		t.Error("a symbolic link was followed")
	}
	if err := rotate(pipe, 1, 1); err != nil {
		t.Error(err)
	}
	if got, _ := os.ReadFile(victim); string(got) != "precious" {
		t.Errorf("the link's target holds %q", got)
	}
}
