package store

import (
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// placed is a placement with all that it can refer to.
func placed(i int) *pod.Placement {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &pod.Placement{
		Identity: pod.Identity{RCID: "01jfw2q4m3z8k5v7c9b1n6x0ta", Role: "main", Index: i}, Node: "node-17", PodID: "01jfw2q4m3z8k5v7c9b1n6x0tb",
		Digest: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", RunState: pod.Running, Revision: 1795421473400, ChangedAt: at, LostSince: &at,
		Labels: map[string]string{"team": "shop", "service": "web"}, Ports: map[string]int{"http": 8080}, Ghosts: []pod.Ghost{{Node: "n2", Ports: map[string]int{"http": 80}}},
		Avoid: []pod.Avoided{{Node: "n3"}},
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

func pairOf(keys *Keys, p *pod.Placement, index uint64) consul.Pair {
	return consul.Pair{Key: keys.Pods.Key(p.Identity.String()), Value: asJSON(p), ModifyIndex: index}
}

// Whoever reads a record may change what it got; nobody else sees that.
func TestARecalledRecordIsNobodyElses(t *testing.T) {
	t.Parallel()
	st := New(nil, keysBelow(t, "p/"))
	p := pairOf(st.keys, placed(1), 7)
	want, err := st.Pods.decode(p)
	if err != nil {
		t.Fatal(err)
	}
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for range 50 {
				got, err := st.Pods.recall(p)
				if err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("%v\n%+v, decoded\n%+v", err, got, want)
				}
				v := &got.Value
				v.Labels["team"], v.Ports["http"], v.Ghosts[0].Ports["http"], *v.LostSince = "other", 1, 1, time.Time{}
				v.Ghosts[0].Revision, v.Avoid[0].Reason, v.Ghosts = 5, "full", append(v.Ghosts[:0], pod.Ghost{Node: "n9"})
			}
		})
	}
	readers.Wait()
}

// A store that went back in time has other records at the same indices, and the same at others.
func TestTheBytesTellWhetherARecordIsKnown(t *testing.T) {
	t.Parallel()
	st := New(nil, keysBelow(t, "p/"))
	one, other := placed(1), placed(1)
	other.Node = "node-18"
	for _, p := range []consul.Pair{pairOf(st.keys, one, 7), pairOf(st.keys, other, 7), pairOf(st.keys, one, 9), pairOf(st.keys, one, 7)} {
		got, err := st.Pods.recall(p)
		want, _ := st.Pods.decode(p)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v\n%+v, decoded\n%+v", err, got, want)
		}
	}
	bad := consul.Pair{Key: st.keys.Pods.Key(one.Identity.String()), Value: []byte("{"), ModifyIndex: 7}
	copied := consul.Pair{Key: st.keys.Pods.Key(placed(2).Identity.String()), Value: asJSON(one), ModifyIndex: 7}
	for range 2 {
		for _, p := range []consul.Pair{bad, copied, {Key: bad.Key}} {
			if got, err := st.Pods.recall(p); err == nil {
				t.Errorf("%s is read: %+v", p.Key, got)
			}
		}
	}
}

// It holds no more than it may, however much is read, and goes on remembering.
func TestTheMemoIsBounded(t *testing.T) {
	t.Parallel()
	st := New(nil, keysBelow(t, "p/"))
	var last consul.Pair
	for i := range 5 * memoBytes / len(asJSON(placed(0))) {
		last = pairOf(st.keys, placed(i), 1)
		if _, err := st.Pods.recall(last); err != nil {
			t.Fatal(err)
		}
	}
	size := 0
	for key, d := range st.memo.known {
		size += len(key) + len(d.from)
	}
	if size > memoBytes || size == 0 || st.memo.known[last.Key].value == nil {
		t.Errorf("it holds %d bytes", size)
	}
}

// All that is recalled can be copied: records hold nothing but what field.Copy knows.
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
			if k := is.Elem().Kind(); k != reflect.String && k != reflect.Int && k != reflect.Bool && k != reflect.Int64 {
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

// BenchmarkRecall reads a record that has not changed.
func BenchmarkRecall(b *testing.B) {
	st := New(nil, keysBelow(b, "p/"))
	p := pairOf(st.keys, placed(1), 7)
	r := pod.Reality{Identity: placed(1).Identity, Node: "n1", Digest: placed(1).Digest, Revision: 1795421473400, State: pod.StateReady, Available: true, Since: time.Now()}
	pr := consul.Pair{Key: st.keys.Realities.Key(r.Node, r.Identity.String()), Value: asJSON(r), ModifyIndex: 7}
	for name, read := range map[string]func() error{
		"placement/decoded":  func() error { _, err := st.Pods.decode(p); return err },
		"placement/recalled": func() error { _, err := st.Pods.recall(p); return err },
		"reality/decoded":    func() error { _, err := st.Realities.decode(pr); return err },
		"reality/recalled":   func() error { _, err := st.Realities.recall(pr); return err },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := read(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
