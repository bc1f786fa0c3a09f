package node_test

import (
	"encoding/json"
	"math"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Batches are packed by Bytes, so that it must never be less than what is written. It is not much more either, or batches
// would be small.
func TestReservationBytesIsAnUpperBound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := node.Reservation{Ineligible: rapid.Bool().Draw(t, "closed"), Labels: drawVersions(t), Claims: map[string]node.Claim{}}
		for range rapid.IntRange(0, 5).Draw(t, "holders") {
			id := pod.Identity{
				RCID: rapid.String().Draw(t, "rc"), Role: rapid.String().Draw(t, "role"),
				Index: rapid.SampledFrom([]int{0, math.MaxInt, math.MinInt}).Draw(t, "index"),
			}
			r.Claims[id.String()] = node.Claim{
				Pod: id, Ports: rapid.SliceOf(rapid.Int()).Draw(t, "ports"), CPU: rapid.Int64().Draw(t, "cpu"), Memory: math.MinInt64,
			}
		}
		data, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.AppendJSON(nil); string(got) != string(data) {
			t.Fatalf("appends %s, encoding/json writes %s", got, data)
		}
		if len(data) > r.Bytes() {
			t.Fatalf("%d bytes, said %d: %s", len(data), r.Bytes(), data)
		}
	})
	id := pod.Identity{RCID: "01k9z8y7x6w5v4t3s2r1q0p9n8", Role: "main", Index: 12}
	r := node.Reservation{Claims: map[string]node.Claim{id.String(): node.NewClaim(id, map[string]int{"http": 8080}, 500, 1<<30)}}
	data, err := json.Marshal(r)
	if err != nil || 2*len(data) < r.Bytes() {
		t.Errorf("%d bytes, said %d, %v", len(data), r.Bytes(), err)
	}
}

// A node matches by its labels with the operators' on top, as its copied labels would, and without copying them.
func TestMatches(t *testing.T) {
	t.Parallel()
	selectors := []string{"", "a=1", "a!=1", "a in (1,2)", "a notin (1,2)", "a", "!a", "a=1,b", "a>1", "b!=2,!c"}
	draw := rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.SampledFrom([]string{"", "1", "2", "3"}), 0, 3)
	rapid.Check(t, func(t *rapid.T) {
		v := &node.View{Node: node.Node{Labels: draw.Draw(t, "own")}, Ops: node.Ops{Labels: draw.Draw(t, "operators'")}}
		sel, err := labels.Parse(rapid.SampledFrom(selectors).Draw(t, "selector"))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := v.Matches(sel), sel.Matches(labels.Set(v.AllLabels())); got != want {
			t.Fatalf("%v and %v match %q: %v, want %v", v.Labels, v.Ops.Labels, sel, got, want)
		}
	})
}

// Whatever field of a reservation is set, it is appended: also one that is added later.
func TestEveryFieldIsAppended(t *testing.T) {
	t.Parallel()
	h := node.Claim{Pod: pod.Identity{RCID: "a", Role: "main", Index: 1}, Ports: []int{1, 2}, CPU: 3, Memory: 4}
	all := []node.Reservation{
		{},
		{Ineligible: true},
		{Labels: node.LabelVersions{Own: "x"}},
		{Labels: node.LabelVersions{Operators: "y"}},
		{Labels: node.LabelVersions{Own: "x", Operators: "y"}},
		{Claims: map[string]node.Claim{"a/main.1": h, "b": {CPU: 1}, "c": {Memory: 1}, "d": {}}},
	}
	for _, r := range all {
		if want, err := json.Marshal(r); err != nil || string(r.AppendJSON(nil)) != string(want) {
			t.Errorf("appends %s, encoding/json writes %s, %v", r.AppendJSON(nil), want, err)
		}
	}
	fields := reflect.TypeFor[node.Reservation]().NumField() + reflect.TypeFor[node.LabelVersions]().NumField() + reflect.TypeFor[node.Claim]().NumField()
	if fields != 3+2+4 {
		t.Errorf("a reservation and its parts have %d fields: append the new ones, and set them here", fields)
	}
}
