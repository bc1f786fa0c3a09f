package shim

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/runtime"
)

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
