package store

import (
	"errors"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// A record under another key than its own is a copy that somebody made by hand: it is reported, not acted on.
func TestACopyUnderAnotherKeyIsCorrupt(t *testing.T) {
	t.Parallel()
	k, err := NewKeys("x/")
	if err != nil {
		t.Fatal(err)
	}
	one := 1
	id := pod.Identity{RCID: "rc", Role: "main", Index: 1}
	placement := pod.Placement{Identity: id, Node: "n1", Digest: "d", RunState: pod.Running, Revision: 1}
	controller := rc.RC{ID: "rc", ManifestDigest: "d", ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &one}}}
	other := pod.Identity{RCID: "rc", Role: "main", Index: 2}
	foreign := pod.Identity{RCID: "rc2", Role: "main", Index: 1}
	for name, tt := range map[string]struct {
		read   func(key string) error
		home   string
		copies []string
	}{
		"controller": {reading(k, controller), k.RC("rc"), []string{k.RC("rc2")}},
		"status":     {reading(k, rc.Status{RCID: "rc"}), k.Status("rc"), []string{k.Status("rc2")}},
		"placement":  {reading(k, placement), k.Pod(id), []string{k.Pod(other), k.Pod(foreign)}},
		"reality":    {reading(k, pod.Reality{Identity: id, Node: "n1"}), k.Reality("n1", id), []string{k.Reality("n2", id), k.Reality("n1", other)}},
		"intent":     {reading(k, pod.Intent{Identity: id}), k.Intent("n1", id), []string{k.Intent("n1", other), k.Intent("n1", foreign)}},
		"node":       {reading(k, node.Node{Name: "n1"}), k.Node("n1"), []string{k.Node("n10")}},
		"operators":  {reading(k, node.Ops{Name: "n1"}), k.NodeOps("n1"), []string{k.NodeOps("n10")}},
		"request":    {reading(k, Request{ID: "u", RCID: "rc"}), k.Request("rc", "u"), []string{k.Request("rc2", "u"), k.Request("rc", "v")}},
	} {
		if err := tt.read(tt.home); err != nil {
			t.Errorf("%s under its own key: %v", name, err)
		}
		for _, key := range tt.copies {
			var corrupt *CorruptError
			if err := tt.read(key); !errors.As(err, &corrupt) || corrupt.Key != key {
				t.Errorf("%s under %s: %v", name, key, err)
			}
		}
	}
}

// reading returns a function that reads a record under a key.
func reading[T any](k Keys, record T) func(string) error {
	return func(key string) error {
		_, err := decode[T](k, consul.Pair{Key: key, Value: encode(record), ModifyIndex: 1})
		return err
	}
}
