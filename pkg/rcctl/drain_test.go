package rcctl

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// A node is drained when nothing is left on it but pods that run once and have ended: these stay. Whatever may run, or
// may run again elsewhere, is waited for.
func TestAnEndedPodIsNotLeftOnADrainedNode(t *testing.T) {
	s, _ := testConn(t)
	put := func(key string, value any) {
		t.Helper()
		data, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		putRecord(t, s, key, string(data))
	}
	stored := func(policies ...manifest.RestartPolicy) (digest string) {
		t.Helper()
		m := manifest.Manifest{Version: 1, ID: "job"}
		for i, policy := range policies {
			m.Launchables = append(m.Launchables, manifest.Launchable{
				Name: fmt.Sprintf("p%d", i), Artifact: manifest.Artifact{Kind: manifest.ArtifactExec, Path: "/bin/true"}, Restart: &manifest.Restart{Policy: policy},
			})
		}
		canonical, err := m.Canonical()
		if err != nil {
			t.Fatal(err)
		}
		digest = manifest.Digest(canonical)
		putRecord(t, s, s.Keys().Manifests.Key(digest), fmt.Sprintf(`{"manifest":%s}`, canonical))
		return digest
	}
	never, sometimes := stored(manifest.RestartNever), stored(manifest.RestartNever, manifest.RestartOnFailure)
	missing := strings.Repeat("ab", 32)
	put(s.Keys().NodeOps.Key("n1"), node.Ops{Name: "n1", Drain: &node.Drain{Since: time.Now().UTC()}})
	for i, c := range []struct {
		name, digest string
		told         pod.RunState
		says         *pod.Reality
		left         bool
	}{
		{"it has ended", never, pod.Running, &pod.Reality{State: pod.StateEnded, Digest: never}, false},
		{"it has failed", never, pod.Running, &pod.Reality{State: pod.StateFailed, AllEnded: true, Digest: never}, false},
		{"it has failed in part", never, pod.Running, &pod.Reality{State: pod.StateFailed, Digest: never}, true},
		{"it runs", never, pod.Running, &pod.Reality{State: pod.StateReady, Available: true, Digest: never}, true},
		{"it starts", never, pod.Running, &pod.Reality{State: pod.StateStarting, AllEnded: true, Digest: never}, true},
		{"it is to stop", never, pod.Stopped, &pod.Reality{State: pod.StateEnded, Digest: never}, true},
		{"another version ended", never, pod.Running, &pod.Reality{State: pod.StateEnded, Digest: sometimes}, true},
		{"it would be restarted", sometimes, pod.Running, &pod.Reality{State: pod.StateEnded, Digest: sometimes}, true},
		{"its manifest is missing", missing, pod.Running, &pod.Reality{State: pod.StateEnded, Digest: missing}, true},
		{"it says nothing", never, pod.Running, nil, true},
	} {
		id := pod.Identity{RCID: "rc", Role: "main", Index: i}
		intent, reality := s.Keys().Intents.Key("n1", id.String()), s.Keys().Realities.Key("n1", id.String())
		put(intent, pod.Intent{Identity: id, PodID: "job", Digest: c.digest, State: c.told, Revision: 5})
		if c.says != nil {
			c.says.Identity, c.says.Node, c.says.Revision, c.says.Since = id, "n1", 5, time.Now().UTC()
			put(reality, c.says)
		}
		left, err := leftOn(t.Context(), s, "n1")
		line, done := textOf(left), len(left) == 0
		want := "0 pods left: "
		if c.left {
			want = fmt.Sprintf("1 pod left: job-main-%d", i)
		}
		if err != nil || done == c.left || line != want {
			t.Errorf("%s: %q, done %v, %v; want %q", c.name, line, done, err, want)
		}
		removeRecord(t, s, intent)
	}
}
