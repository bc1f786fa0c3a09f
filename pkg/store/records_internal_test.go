package store

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// A record under a key to which it does not belong was copied by hand. It is a CorruptError.
func TestACopyUnderAnotherKeyIsCorrupt(t *testing.T) {
	t.Parallel()
	k := keysBelow(t, "x/")
	st := New(nil, k)
	one := 1
	id := pod.Identity{RCID: "rc", Role: "main", Index: 1}
	placement := pod.Placement{
		Identity: id, Node: "n1", PodID: "p", Digest: hexOf("d"),
		RunState: pod.Running, Revision: 1,
	}
	controller := rc.RC{ID: "rc", ManifestDigest: "d", ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &one}}}
	other := pod.Identity{RCID: "rc", Role: "main", Index: 2}
	foreign := pod.Identity{RCID: "rc2", Role: "main", Index: 1}
	for name, tt := range map[string]struct {
		read   func(key string) error
		home   string
		copies []string
	}{
		"controller": {reading(&st.RCs, controller), k.RCs.Key("rc"), []string{k.RCs.Key("rc2")}},
		"status": {
			reading(&st.Statuses, rc.Status{RCID: "rc"}), k.Statuses.Key("rc"),
			[]string{k.Statuses.Key("rc2")},
		},
		"placement": {
			reading(&st.Pods, placement), k.Pods.Key(id.String()),
			[]string{k.Pods.Key(other.String()), k.Pods.Key(foreign.String())},
		},
		"reality": {
			reading(&st.Realities, pod.Reality{Identity: id, Node: "n1", State: pod.StateReady}),
			k.Realities.Key("n1", id.String()),
			[]string{
				k.Realities.Key("n2", id.String()),
				k.Realities.Key("n1", other.String()),
			},
		},
		"intent": {
			reading(&st.Intents, pod.Intent{Identity: id, State: pod.Stopped, Revision: 1}),
			k.Intents.Key("n1", id.String()),
			[]string{
				k.Intents.Key("n1", other.String()),
				k.Intents.Key("n1", foreign.String()),
			},
		},
		"node":      {reading(&st.Nodes, node.Node{Name: "n1"}), k.Nodes.Key("n1"), []string{k.Nodes.Key("n10")}},
		"operators": {reading(&st.NodeOps, node.Ops{Name: "n1"}), k.NodeOps.Key("n1"), []string{k.NodeOps.Key("n10")}},
		"request": {
			reading(&st.Requests, Request{ID: "u", RCID: "rc", Kind: RepairReservation, Node: "n"}),
			k.Requests.Key("rc", "u"),
			[]string{k.Requests.Key("rc2", "u"), k.Requests.Key("rc", "v")},
		},
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

func reading[T any](of *Records[T], record T) func(string) error {
	return func(key string) error {
		_, err := of.decode(consul.Pair{Key: key, Value: asJSON(record), ModifyIndex: 1})
		return err
	}
}

func keysBelow(t testing.TB, prefix string) *Keys {
	t.Helper()
	keys, err := NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// field.Copy knows all types in records.
func TestRecordsCanBeCopied(t *testing.T) {
	t.Parallel()
	seen := map[reflect.Type]bool{reflect.TypeFor[time.Time](): true}
	var walk func(is reflect.Type, path string)
	walk = func(is reflect.Type, path string) {
		if seen[is] {
			return
		}
		seen[is] = true
		switch is.Kind() {
		case reflect.Pointer, reflect.Slice:
			walk(is.Elem(), path+"[]")
		case reflect.Map:
			if k := is.Elem().Kind(); k != reflect.String && k != reflect.Int && k != reflect.Bool &&
				k != reflect.Int64 {
				t.Errorf("%s: a map to %s", path, is.Elem())
			}
		case reflect.Struct:
			for f := range is.Fields() {
				if !f.IsExported() {
					t.Errorf("%s.%s is not exported", path, f.Name)
				}
				walk(f.Type, path+"."+f.Name)
			}
		case reflect.Interface, reflect.Func, reflect.Chan, reflect.UnsafePointer, reflect.Array:
			t.Errorf("%s is a %s", path, is)
		default:
		}
	}
	for _, v := range []any{
		pod.Placement{},
		pod.Reality{},
		pod.Intent{},
		rc.RC{},
		rc.Status{},
		rollout.Record{},
		Schema{},
		Breaker{},
		RolloutTrouble{},
		node.Node{},
		node.Ops{},
	} {
		walk(reflect.TypeOf(v), fmt.Sprintf("%T", v))
	}
}
