package store

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// The number of drops is never negative, for any content of the nodes' counters.
func TestDropsNeverOverflow(t *testing.T) {
	t.Parallel()
	values := []string{
		"-9223372036854775808", "-1", "0", "1", "9007199254740992", "9007199254740993",
		"9223372036854775806", "9223372036854775807", "x", "",
	}
	at := func(a, b string) Drops {
		return Drops{Index: 1, Created: 1, Counts: map[string]DropCount{
			"n1": dropCountOf(consul.Pair{Value: []byte(a)}), "n2": dropCountOf(consul.Pair{Value: []byte(b)}),
		}}
	}
	for _, was := range values {
		for _, a := range values {
			for _, b := range values {
				before, now := at(was, was), at(a, b)
				now.Index = 2
				if drops, known := now.Since(before); drops < 0 || !known && drops != 0 {
					t.Errorf("%q, %q since %q: %d drops", a, b, was, drops)
				}
			}
		}
	}
	if c := dropCountOf(consul.Pair{Value: []byte("9223372036854775807")}); c.Drops >= 0 {
		t.Errorf("a counter that no node has counted is read as %d", c.Drops)
	}
}

// Each kind's Check reports what is wrong with a record, and accepts valid ones.
func TestRecordsAreChecked(t *testing.T) {
	t.Parallel()
	keys, err := NewKeys(DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	st := New(nil, keys)
	for _, c := range []struct{ kind, text, want string }{
		{
			"request",
			`{"id":"a","rc_id":"web","kind":"forget-pod","node":"n1","pod":{"rc_id":"web","role":"main","index":0}}`,
			"",
		},
		{"request", `{"id":"a","rc_id":"web","kind":"of a newer version","node":"n1"}`, ""},
		{"request", `{"rc_id":"web","kind":"forget-pod","node":"n1"}`, "id:"},
		{"request", `{"id":"a","rc_id":"web","kind":"forget-pod","node":"../x"}`, "node:"},
		{"request", `{"id":"a","rc_id":"web","node":"n1"}`, "kind: missing"},
		{
			"request",
			`{"id":"a","rc_id":"web","kind":"forget-pod","node":"n1","pod":{"rc_id":"web","role":"main","index":-1}}`,
			"pod:",
		},
		{
			"request",
			`{"id":"a","rc_id":"web","kind":"forget-pod","node":"n1","pod":{"rc_id":"other","role":"main","index":1}}`,
			"pod:",
		},
		{"member", `{"id":"f1"}`, ""},
		{"member", `{"id":""}`, "id: missing"},
		{"member", `{"id":"a/b"}`, "id:"},
		{"heard", `{"every_seconds":20}`, ""},
		{"heard", `{"every_seconds":1e300}`, "every_seconds"},
		{"heard", `{"every_seconds":-1}`, "every_seconds"},
		{"heard", `{"every_seconds":1,"untold":{"count":-1}}`, "untold"},
		{"gone", `{"nodes":{"n1":{"index":1,"seen_ms":5}}}`, ""},
		{"gone", `{"nodes":{"n1":{"index":1,"seen_ms":9223372036854775807}}}`, "seen_ms"},
		{"gone", `{"nodes":{"n1":{"index":1,"seen_ms":-1}}}`, "seen_ms"},
		{"status", `{"rc_id":"a","desired":1}`, ""},
		{"status", `{"rc_id":"a","desired":-1}`, "desired: -1"},
		{"status", `{"rc_id":"a","ghosts":9223372036854775807}`, "ghosts"},
		{"entry", `{"service":"web","revision":9223372036854775807,"spec":{"pod":{}}}`, "revision"},
		{
			"entry", `{"service":"web","revision":1,"spec":{"pod":{},"update":{"max_surge":9223372036854775807}}}`,
			"9223372036854775807",
		},
		{
			"entry", `{"service":"web","revision":1,"spec":{"pod":{},"replica_groups":[{"role":"a","count":4000000}]}}`,
			"spec.replica_groups[0].count: 4000000",
		},
		{
			"deployed",
			`{"id":"01m82rq476dk3dzcatmcv2vmc4","service":"web","revision":1,"rc":"a","spec":{"replicas":4000000,"pod":{}}}`, "4000000",
		},
	} {
		err := map[string]func([]byte) error{
			"request": checks(&st.Requests), "member": checks(&st.Farms), "heard": checks(&st.Heard), "gone": checks(
				&st.Gone), "status": checks(&st.Statuses),
			"entry": checks(&st.Entries), "deployed": checks(&st.Deployed),
		}[c.kind]([]byte(c.text))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %q", c.kind, c.text, err, c.want)
		}
	}
}

// checks decodes records of a kind, without comparing them with their keys.
func checks[T any](r *Records[T]) func([]byte) error {
	return func(data []byte) error {
		_, err := (&Records[T]{Kind: r.Kind, db: r.db}).decode(consul.Pair{Key: r.Key("x"), Value: data})
		return err
	}
}

// Each kind with a number has a Check, because programs compute with numbers that others wrote.
func TestKindsWithNumbersHaveACheck(t *testing.T) {
	t.Parallel()
	// Their own packages or readers check these types.
	elsewhere := []string{
		"node.Node", "node.OrphanPage", "node.Reservation", "pod.Reality", "pod.Intent", "node.Ops",
		"ballot.Record", "ballot.Holder", "ballot.Round", "manifest.Manifest", "store.lockValue",
	}
	for _, typ := range recordTypes(t) {
		if slices.Contains(elsewhere, typ.String()) || reflect.PointerTo(typ).Implements(reflect.TypeFor[checker]()) {
			continue
		}
		if path := numberIn(typ, map[reflect.Type]bool{}); path != "" {
			t.Errorf("%s has the number %s, and no Check", typ, path)
		}
	}
}

// numberIn returns the path of a number in a type, or "".
func numberIn(typ reflect.Type, seen map[reflect.Type]bool) string {
	if seen[typ] || typ == reflect.TypeFor[time.Time]() || typ == reflect.TypeFor[json.RawMessage]() {
		return ""
	}
	seen[typ] = true
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return numberIn(typ.Elem(), seen)
	case reflect.Struct:
		for f := range typ.Fields() {
			if path := numberIn(f.Type, seen); path != "" {
				return f.Name + "." + path
			}
		}
		return ""
	case reflect.Int, reflect.Int64, reflect.Uint64, reflect.Float64:
		return typ.Kind().String()
	default:
		return ""
	}
}

// A request to label a pod has a pod and labels, each within bounds.
func TestCheckOfARequestToLabel(t *testing.T) {
	t.Parallel()
	many := map[string]string{}
	for i := range 100_000 {
		many[fmt.Sprint("k", i)] = "v"
	}
	for name, tt := range map[string]struct {
		change func(*Request)
		want   string // empty: the record is valid
	}{
		"sets":    {func(*Request) {}, ""},
		"removes": {func(r *Request) { r.Labels, r.Remove = nil, []string{"x"} }, ""},
		"no pod":  {func(r *Request) { r.Pod = pod.Identity{} }, "pod: missing"},
		"nothing": {func(r *Request) { r.Labels = nil }, "labels: missing"},
		"too many": {
			func(r *Request) { r.Labels = many },
			"labels: 100000 entries is not valid; allowed: 0 to 64 entries",
		},
		"no label":    {func(r *Request) { r.Labels["y"] = "a\nb" }, "labels.y:"},
		"no key":      {func(r *Request) { r.Remove = []string{"a b"} }, "remove.a b:"},
		"rcfarm's":    {func(r *Request) { r.Labels[pod.RCIDLabel] = "other" }, "labels.replication_controller_id:"},
		"another pod": {func(r *Request) { r.Pod.RCID = "other" }, "pod:"},
	} {
		r := Request{
			ID: "u", RCID: "rc", Kind: LabelPod, Node: "n", Pod: pod.Identity{RCID: "rc", Role: "main"},
			Labels: map[string]string{"x": "1"},
		}
		tt.change(&r)
		if err := r.Check(); tt.want == "" && err != nil || tt.want != "" &&
			(err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}
