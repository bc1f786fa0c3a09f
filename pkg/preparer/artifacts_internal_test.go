package preparer

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/runtime"
)

func TestNeededArtifacts(t *testing.T) {
	t.Parallel()
	p := &Preparer{kit: kit{pods: newPods(quiet(t))}}
	add := func(index int, digest string, state pod.RunState, kind string, status runtime.Status) {
		m := manifest.Manifest{Version: 1, ID: "x", Launchables: []manifest.Launchable{{Name: "main", Artifact: manifest.Artifact{Kind: kind, SHA256: digest}}}}
		if a := &m.Launchables[0].Artifact; kind == manifest.ArtifactExec {
			a.SHA256, a.Path = "", digest
		}
		data, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		id := pod.Identity{RCID: "rc", Role: "main", Index: index}
		p.pods.all[id] = &entry{
			id: id, procs: []runtime.Status{status},
			rec: Record{Intent: pod.Intent{Identity: id, State: state}, Installed: &install.Installed{Manifest: data}},
		}
	}
	add(0, "runs", pod.Running, manifest.ArtifactTar, runtime.Status{Phase: runtime.Running, Message: "started again"})
	add(1, "crashes", pod.Running, manifest.ArtifactTar, runtime.Status{Phase: runtime.Backoff})
	add(2, "cannot start", pod.Running, manifest.ArtifactTar, runtime.Status{Phase: runtime.Backoff, Message: "exec: no such file"})
	add(3, "stops", pod.Stopped, manifest.ArtifactTar, runtime.Status{Phase: runtime.Backoff, Message: "exec: no such file"})
	add(4, "/bin/program", pod.Running, manifest.ArtifactExec, runtime.Status{Phase: runtime.Backoff, Message: "exec: no such file"})
	p.pods.all[pod.Identity{Index: 5}] = &entry{} // not installed yet
	for all, want := range map[bool][]string{true: {"/bin/program", "cannot start", "crashes", "runs"}, false: {"/bin/program", "cannot start"}} {
		if got := slices.Sorted(maps.Keys(p.neededArtifacts(all))); !slices.Equal(got, want) {
			t.Errorf("needed (all: %t): %q, want %q", all, got, want)
		}
	}
}

// However often a look at a few finds one broken, the look at all comes.
func TestNextCheck(t *testing.T) {
	t.Parallel()
	const every = 24 * time.Hour
	begin := time.Now()
	due := nextCheck(begin, begin, every, false)
	if wait := due.Sub(begin); wait < every*7/8 || wait > every*9/8 {
		t.Errorf("all is whole: the next look comes after %s", wait)
	}
	now := begin
	for range 10 { // minutes in which a process cannot be started
		if now = now.Add(time.Minute); !now.Before(due) {
			break
		}
		due = nextCheck(now, due, every, true)
	}
	if now.Before(due) {
		t.Errorf("one is broken for %s, and all are looked at %s later only", now.Sub(begin), due.Sub(now))
	}
	if again := nextCheck(now, due, every, true).Sub(now); again < every/256*7/8 || again > every/256*9/8+1 {
		t.Errorf("a look at all found one broken; the next comes after %s", again)
	}
}
