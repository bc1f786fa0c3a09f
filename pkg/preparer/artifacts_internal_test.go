package preparer

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/runtime"
)

func TestNeededArtifacts(t *testing.T) {
	t.Parallel()
	p := &Preparer{pods: map[pod.Identity]*entry{}}
	add := func(index int, digest string, state pod.RunState, kind string, status runtime.Status) {
		m := manifest.Manifest{Version: 1, ID: "x", Launchables: []manifest.Launchable{{Name: "main", Artifact: manifest.Artifact{Kind: kind, SHA256: digest}}}}
		data, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		id := pod.Identity{RCID: "rc", Role: "main", Index: index}
		p.pods[id] = &entry{
			id: id, procs: []runtime.Status{status},
			rec: Record{Intent: pod.Intent{Identity: id, State: state}, Installed: &Installed{Manifest: data}},
		}
	}
	add(0, "runs", pod.Running, manifest.ArtifactTar, runtime.Status{Phase: runtime.Running, Message: "started again"})
	add(1, "crashes", pod.Running, manifest.ArtifactTar, runtime.Status{Phase: runtime.Backoff})
	add(2, "cannot start", pod.Running, manifest.ArtifactTar, runtime.Status{Phase: runtime.Backoff, Message: "exec: no such file"})
	add(3, "stops", pod.Stopped, manifest.ArtifactTar, runtime.Status{Phase: runtime.Backoff, Message: "exec: no such file"})
	add(4, "program of the node", pod.Running, manifest.ArtifactExec, runtime.Status{Phase: runtime.Backoff, Message: "exec: no such file"})
	p.pods[pod.Identity{Index: 5}] = &entry{} // not installed yet
	for all, want := range map[bool][]string{true: {"cannot start", "crashes", "runs"}, false: {"cannot start"}} {
		if got := slices.Sorted(maps.Keys(p.neededArtifacts(all))); !slices.Equal(got, want) {
			t.Errorf("needed (all: %t): %q, want %q", all, got, want)
		}
	}
}
