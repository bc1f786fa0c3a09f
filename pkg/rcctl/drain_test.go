package rcctl

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// A node is drained even if some pods are left on it, if these run once and have ended, because a drain does not move
// them. The command waits for all other pods.
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
				Name: fmt.Sprintf("p%d",
					i), Artifact: manifest.Artifact{Kind: manifest.ArtifactExec, Path: "/bin/true"},
				Restart: &manifest.Restart{Policy: policy},
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
		{
			"it has failed", never, pod.Running,
			&pod.Reality{State: pod.StateFailed, AllEnded: true, Digest: never}, false,
		},
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

// The command names the pods that leave the data of their volumes behind, and the pods that stay with their data. It
// does not name pods without volumes, pods that stop, or pods without a controller.
func TestADrainNamesVolumes(t *testing.T) {
	s, _ := testConn(t)
	put := func(key string, value any) {
		t.Helper()
		data, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		putRecord(t, s, key, string(data))
	}
	one := 1
	place := func(name string, strategy rc.Strategy, mode rc.Mode, state pod.RunState, volumes ...string) {
		t.Helper()
		m := manifest.Manifest{Version: 1, ID: name, Launchables: []manifest.Launchable{{
			Name: "p", Artifact: manifest.Artifact{Kind: manifest.ArtifactExec, Path: "/bin/true"},
		}}}
		for _, v := range volumes {
			m.Volumes = append(m.Volumes, manifest.Volume{Name: v})
		}
		canonical, err := m.Canonical()
		if err != nil {
			t.Fatal(err)
		}
		digest := manifest.Digest(canonical)
		putRecord(t, s, s.Keys().Manifests.Key(digest), fmt.Sprintf(`{"manifest":%s}`, canonical))
		r := rc.RC{
			ID: name, Name: name, ManifestDigest: digest, Strategy: strategy, Mode: mode, Generation: 1,
			ChangedBy: "t", Disabled: name == "disabled",
		}
		if mode == "" {
			r.ReplicaGroups = []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &one}}
		}
		if name != "orphan" {
			put(s.Keys().RCs.Key(name), r)
		}
		id := pod.Identity{RCID: name, Role: "main"}
		put(s.Keys().Intents.Key("n1", id.String()),
			pod.Intent{Identity: id, PodID: name, Digest: digest, State: state, Revision: 5})
	}
	place("stateless", rc.Dynamic, "", pod.Running)
	place("db", rc.Static, "", pod.Running, "data", "wal")
	place("cache", rc.Dynamic, "", pod.Running, "blobs")
	place("agent", rc.Dynamic, rc.EachNode, pod.Running, "spool")
	place("disabled", rc.Dynamic, "", pod.Running, "data")
	place("stopping", rc.Dynamic, "", pod.Stopped, "data")
	place("orphan", rc.Dynamic, "", pod.Running, "data")
	held, err := volumesOn(t.Context(), s, "n1")
	if err != nil {
		t.Fatal(err)
	}
	moves := "these pods move and leave the data of their volumes on n1: cache-main-0 (blobs); to keep them there: " +
		"rcctl node undrain n1"
	stays := "these pods remain on n1 with the data of their volumes: db-main-0 (data, wal); to start them elsewhere " +
		"without it: rcctl node drain n1 --deadline 0s --force"
	forced := "at the deadline these pods start elsewhere, and the data of their volumes remains on n1: db-main-0 " +
		"(data, wal); to keep them there: rcctl node undrain n1"
	if diff := cmp.Diff([]string{moves, stays}, held.warnings("n1", false)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{moves, forced}, held.warnings("n1", true)); diff != "" {
		t.Error(diff)
	}
	if held, err = volumesOn(t.Context(), s, "n2"); err != nil || held.warnings("n2", true) != nil {
		t.Errorf("an empty node: %v, %v", held, err)
	}
}
