package pod_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Batches are packed by these bounds, so that they must never be less than what is written.
func TestBytesAreUpperBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String()
		number := rapid.Int64()
		ports := rapid.MapOfN(text, rapid.Int(), 0, 3)
		when := rapid.Custom(func(t *rapid.T) time.Time {
			zone := time.FixedZone("", rapid.IntRange(-20*3600, 20*3600).Draw(t, "zone")/60*60)
			return time.Unix(rapid.Int64Range(0, 1<<37).Draw(t, "seconds"), rapid.Int64Range(0, 999999999).Draw(t, "nanoseconds")).In(zone)
		})
		moment := rapid.Ptr(when, true)
		p := pod.Placement{
			Identity: pod.Identity{RCID: text.Draw(t, "rc"), Role: text.Draw(t, "role"), Index: rapid.Int().Draw(t, "index")},
			Node:     text.Draw(t, "node"), PodID: text.Draw(t, "pod"), Labels: rapid.MapOfN(text, text, 0, 3).Draw(t, "labels"), Digest: text.Draw(t, "digest"),
			Ports: ports.Draw(t, "ports"), RunState: pod.RunState(text.Draw(t, "state")), Revision: number.Draw(t, "revision"), Switching: rapid.Bool().Draw(t, "switching"),
			Standby:       rapid.Bool().Draw(t, "standby"),
			MayRun:        rapid.SliceOfN(text, 0, 3).Draw(t, "may run"),
			Epoch:         text.Draw(t, "epoch"),
			StoppingSince: moment.Draw(t, "stopping"), LostSince: moment.Draw(t, "lost"), UnmanagedSince: moment.Draw(t, "unmanaged"),
			DeadIndex:           rapid.Uint64().Draw(t, "death"),
			AdoptedAtGeneration: number.Draw(t, "generation"), ChangedAt: when.Draw(t, "changed"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "ghosts") {
			p.Ghosts = append(p.Ghosts, pod.Ghost{
				Node: text.Draw(t, "ghost"), Revision: number.Draw(t, "stop"), LeftBecauseLost: rapid.Bool().Draw(t, "lost"), MachineLost: rapid.Bool().Draw(t, "gone"), DeadIndex: rapid.Uint64().Draw(t, "ghost death"), Since: when.Draw(t, "since"), Ports: ports.Draw(t, "ports"),
			})
		}
		atMost(t, p, p.Bytes())
		in := p.Intent()
		atMost(t, in, in.Bytes())
		if rapid.Bool().Draw(t, "usual") {
			p = pod.Placement{
				Identity: p.Identity, Node: p.Node, PodID: p.PodID, Labels: p.Labels, Digest: p.Digest, Ports: p.Ports, RunState: p.RunState,
				Revision: p.Revision, Standby: p.Standby, ChangedAt: p.ChangedAt,
			}
		}
		sameJSON(t, &p, p.AppendJSON(nil))
		sameJSON(t, &in, in.AppendJSON(nil))
		p.Labels, in.Labels, in.Ports = nil, nil, nil
		sameJSON(t, &p, p.AppendJSON(nil))
		sameJSON(t, &in, in.AppendJSON(nil))
	})
	usual := pod.Placement{
		Identity: pod.Identity{RCID: "01k9z8y7x6w5v4t3s2r1q0p9n8", Role: "main"}, Node: "node-17", PodID: "web", RunState: pod.Running, Revision: 1700000000000,
		Labels: map[string]string{pod.RCIDLabel: "01k9z8y7x6w5v4t3s2r1q0p9n8", pod.PodIDLabel: "web"}, Digest: string(make([]byte, 0, 64)), ChangedAt: time.Now(),
	}
	if data, err := json.Marshal(usual); err != nil || 3*len(data) < usual.Bytes() {
		t.Errorf("%d bytes, said %d, %v: batches would be small", len(data), usual.Bytes(), err)
	}
}

func atMost(t *rapid.T, record any, bound int) {
	t.Helper()
	data, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > bound {
		t.Fatalf("%d bytes, said %d: %s", len(data), bound, data)
	}
}

// sameJSON demands that what a record appends is what encoding/json writes.
func sameJSON(t *rapid.T, record any, got []byte) {
	t.Helper()
	want, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Fatalf("appends %s, encoding/json writes %s", got, want)
	}
}

// Whatever field of a record is set, it is appended: also one that is added later.
func TestEveryFieldIsAppended(t *testing.T) {
	t.Parallel()
	for i := range reflect.TypeFor[pod.Placement]().NumField() {
		p := pod.Placement{}
		setSome(reflect.ValueOf(&p).Elem().Field(i))
		if want, err := json.Marshal(&p); err != nil || string(p.AppendJSON(nil)) != string(want) {
			t.Errorf("appends %s, encoding/json writes %s, %v", p.AppendJSON(nil), want, err)
		}
	}
	for i := range reflect.TypeFor[pod.Intent]().NumField() {
		in := pod.Intent{}
		setSome(reflect.ValueOf(&in).Elem().Field(i))
		if want, err := json.Marshal(&in); err != nil || string(in.AppendJSON(nil)) != string(want) {
			t.Errorf("appends %s, encoding/json writes %s, %v", in.AppendJSON(nil), want, err)
		}
	}
}

// setSome gives a field a value that is not zero.
func setSome(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("some")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint64:
		v.SetUint(7)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		setSome(key)
		setSome(value)
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for _, field := range v.Fields() {
			if field.CanSet() {
				setSome(field)
			}
		}
	default:
		panic("a kind that is not known: " + v.Kind().String())
	}
}
