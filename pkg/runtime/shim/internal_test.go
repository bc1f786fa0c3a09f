package shim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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
