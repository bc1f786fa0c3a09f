package shim

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/durable"
	"github.com/rcfarm/rcfarm/pkg/runtime"
)

func TestRecords(t *testing.T) {
	r := records{&durable.Records{Dir: t.TempDir()}}
	rec := record{Spec: runtime.Spec{ID: "a.b", Command: []string{"/x"}, Dir: "/", LogPath: "/l"}, Desired: wantRun, PID: 7}
	if err := r.save(rec); err != nil {
		t.Fatal(err)
	}
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(r.files.Dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a.b.json.tmp", "{") // crashes before the content was put into place
	write(".spare-9.tmp", "{")
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
	for _, name := range []string{"a.b.json.tmp", ".spare-9.tmp"} {
		if _, err := os.Stat(filepath.Join(r.files.Dir, name)); !os.IsNotExist(err) {
			t.Errorf("the unfinished file %s: %v", name, err)
		}
	}
	for range 2 {
		if err := r.remove("a.b"); err != nil {
			t.Error(err)
		}
	}
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

// What a client makes of its earlier answer, whichever that is, and of what has changed since is what it would be told in full.
func TestChangesOverABase(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &supervisor{instance: newInstance(), procs: map[string]*process{}, wake: make(chan struct{})}
		answer := func(base uint64) snapshot {
			snap, changed := s.watch(context.Background(), 0, base)
			if !changed {
				t.Fatal("a watch from zero was not answered")
			}
			return snap
		}
		id := rapid.StringMatching("[a-e]")
		answers := []snapshot{{}, {Cursor: s.instance + 1<<33, Processes: []runtime.Status{{Spec: runtime.Spec{ID: "of another supervisor"}}}}}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				full := answer(0)
				base := rapid.SampledFrom(answers).Draw(t, "base")
				if diff := cmp.Diff(full, answer(base.Cursor).over(base)); diff != "" {
					t.Errorf("over %+v:\n%s", base, diff)
				}
				answers = append(answers, full)
			},
			"change": func(t *rapid.T) {
				id := id.Draw(t, "id")
				p := s.slot(id)
				p.install(record{Spec: runtime.Spec{ID: id}, Desired: wantRun, PID: rapid.IntRange(1, 1<<20).Draw(t, "pid")}, runtime.Running, "")
				if snap := answer(s.instance | uint64(s.version-1)); snap.Base != 0 && len(snap.Processes) != 1 {
					t.Errorf("a change of one process was told as %+v", snap)
				}
			},
			"slot":   func(t *rapid.T) { s.slot(id.Draw(t, "id")) },
			"remove": func(t *rapid.T) { s.forget(id.Draw(t, "id")) },
		})
	})
}

// A supervisor that knows no base answers with everything.
func TestFullAnswerOverABase(t *testing.T) {
	var full snapshot
	if err := json.Unmarshal([]byte(`{"processes":[{"spec":{"id":"b"}}],"cursor":9}`), &full); err != nil {
		t.Fatal(err)
	}
	base := snapshot{Cursor: 8, Processes: []runtime.Status{{Spec: runtime.Spec{ID: "a"}}}}
	if diff := cmp.Diff(full, full.over(base)); diff != "" {
		t.Errorf("%s", diff)
	}
}
