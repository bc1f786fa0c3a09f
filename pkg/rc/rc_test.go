package rc_test

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func ptr[T any](v T) *T { return &v }

func record() rc.RC {
	return rc.RC{
		ID: "01k3z8q4x5v9f2n7b6m1c0d8ea", Name: "web", Labels: map[string]string{"team": "a"},
		ManifestDigest: strings.Repeat("a", 64), NodeSelector: "rack in (a,b)",
		PodLabels:     map[string]string{"app": "web"},
		ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: ptr(3)}, {Role: "spare", Count: ptr(0)}},
		MaxPerNode:    2, Spread: rc.Spread{Label: "example.org/rack"}, MinAvailable: ptr(0), MaxSurge: ptr(2),
		NodeLoss: rc.NodeLoss{
			Action: "keep", After: ptr(field.Duration(30 * time.Second)),
			UnmanagedAfter: ptr(field.Duration(0)),
		},
		Strategy: rc.Static, Disabled: true, DeletedAt: ptr(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
		Generation: 7, ChangedBy: "ann@host", AllowMassStop: 7,
		Service: &rc.Service{Name: "web", Revision: 2, Min: 3, Max: 4, Standby: true},
		InPlace: &rc.InPlace{From: "b", Limit: 1},
	}
}

const golden = `{
  "id": "01k3z8q4x5v9f2n7b6m1c0d8ea",
  "name": "web",
  "labels": {
    "team": "a"
  },
  "manifest": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
  "node_selector": "rack in (a,b)",
  "pod_labels": {
    "app": "web"
  },
  "replica_groups": [
    {
      "role": "main",
      "count": 3
    },
    {
      "role": "spare",
      "count": 0
    }
  ],
  "max_per_node": 2,
  "spread": "example.org/rack",
  "min_available": 0,
  "max_surge": 2,
  "node_loss": {
    "action": "keep",
    "after": "30s",
    "unmanaged_after": "0s"
  },
  "strategy": "static",
  "disabled": true,
  "deleted_at": "2026-01-02T03:04:05Z",
  "generation": 7,
  "changed_by": "ann@host",
  "allow_mass_stop": 7,
  "service": {
    "name": "web",
    "revision": 2,
    "min": 3,
    "max": 4,
    "standby": true
  },
  "in_place": {
    "from": "b",
    "limit": 1
  }
}`

// Other versions read these records. If this test must change, the format has changed.
func TestRecordFormat(t *testing.T) {
	got, err := json.MarshalIndent(record(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(golden, string(got)); diff != "" {
		t.Error(diff)
	}
	var back rc.RC
	if err := json.Unmarshal([]byte(golden), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(record(), back); diff != "" {
		t.Error(diff)
	}
	least := `{"id":"x","name":"web","manifest":"d","node_selector":"","replica_groups":[{"role":"main","count":0}],"strategy":"dynamic","generation":1,"changed_by":"a"}`
	small := rc.RC{
		ID: "x", Name: "web", ManifestDigest: "d",
		ReplicaGroups: []rc.ReplicaGroup{{
			Role:  "main",
			Count: ptr(0),
		}}, Strategy: rc.Dynamic, Generation: 1, ChangedBy: "a",
	}
	if got, err := json.Marshal(small); err != nil || string(got) != least {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name, text, want string
	}{
		{"good", golden, ""},
		{
			"written by a newer version",
			`{"id":"a","manifest":"d","replica_groups":[{"role":"m","count":1,"more":1}],"new":{}}`, "",
		},
		{"no id", `{"manifest":"d","replica_groups":[{"role":"m","count":1}]}`, "no id"},
		{"no manifest", `{"id":"a","replica_groups":[{"role":"m","count":1}]}`, "names no manifest"},
		{"no groups", `{"id":"a","manifest":"d"}`, "no replica group"},
		{"no count", `{"id":"a","manifest":"d","replica_groups":[{"role":"m"}]}`, `no count for role "m"`},
		{
			"null count", `{"id":"a","manifest":"d","replica_groups":[{"role":"m","count":null}]}`,
			`no count for role "m"`,
		},
		{
			"negative count", `{"id":"a","manifest":"d","replica_groups":[{"role":"m","count":-1}]}`,
			`count -1 for role "m"`,
		},
		{"no role", `{"id":"a","manifest":"d","replica_groups":[{"count":1}]}`, `empty or repeated role ""`},
		{
			"role twice", `{"id":"a","manifest":"d","replica_groups":[{"role":"m","count":1},{"role":"m","count":1}]}`,
			`empty or repeated role "m"`,
		},
		{
			"selector", `{"id":"a","manifest":"d","node_selector":"a in","replica_groups":[{"role":"m","count":1}]}`,
			`parse selector "a in"`,
		},
		{"empty object", `{}`, "no id"},
		{
			"count beyond the document's", `{"id":"a","manifest":"d","replica_groups":[{"role":"m","count":4000000}]}`,
			"replica_groups[0].count: 4000000 is not valid; allowed: a whole number from 0 to 10000",
		},
		{
			"counts together",
			`{"id":"a","manifest":"d","replica_groups":[{"role":"m","count":10000},{"role":"n","count":1}]}`,
			"10001 replicas in all",
		},
		{
			"max_surge",
			`{"id":"a","manifest":"d","max_surge":9223372036854775807,"replica_groups":[{"role":"m","count":1}]}`,
			"max_surge: 9223372036854775807",
		},
		{
			"max_surge below zero",
			`{"id":"a","manifest":"d","max_surge":-1,"replica_groups":[{"role":"m","count":1}]}`,
			"max_surge: -1",
		},
		{
			"min_available",
			`{"id":"a","manifest":"d","min_available":10001,"replica_groups":[{"role":"m","count":1}]}`,
			"min_available: 10001",
		},
		{
			"max_per_node", `{"id":"a","manifest":"d","max_per_node":-1,"replica_groups":[{"role":"m","count":1}]}`,
			"max_per_node: -1",
		},
		{
			"skew",
			`{"id":"a","manifest":"d","spread":{"label":"r","skew":10001},"replica_groups":[{"role":"m","count":1}]}`,
			"spread.skew: 10001",
		},
		{
			"skew of a group",
			`{"id":"a","manifest":"d","replica_groups":[{"role":"m","count":1,"spread":{"label":"r","skew":-1}}]}`,
			"replica_groups[0].spread.skew: -1",
		},
		{
			"weight",
			`{"id":"a","manifest":"d","affinity":[{"selector":"a","weight":101}],"replica_groups":[{"role":"m","count":1}]}`, "affinity[0].weight: 101",
		},
		{
			"deadline",
			`{"id":"a","manifest":"d","progress_deadline":"2000000h","replica_groups":[{"role":"m","count":1}]}`,
			"progress_deadline: 2000000h0m0s",
		},
		{
			"wait for a lost node",
			`{"id":"a","manifest":"d","node_loss":{"after":"2000000h"},"replica_groups":[{"role":"m","count":1}]}`,
			"node_loss.after",
		},
		{
			"generation",
			`{"id":"a","manifest":"d","generation":9223372036854775807,"replica_groups":[{"role":"m","count":1}]}`,
			"generation: 9223372036854775807",
		},
		{
			"bound of a service",
			`{"id":"a","manifest":"d","service":{"max":9223372036854775807},"replica_groups":[{"role":"m","count":1}]}`,
			"service.max",
		},
		{
			"minimum of a service",
			`{"id":"a","manifest":"d","service":{"min":-1},"replica_groups":[{"role":"m","count":1}]}`, "service.min",
		},
		{
			"limit", `{"id":"a","manifest":"d","in_place":{"limit":-1},"replica_groups":[{"role":"m","count":1}]}`,
			"in_place.limit",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var r rc.RC
			if err := json.Unmarshal([]byte(tt.text), &r); err != nil {
				t.Fatal(err)
			}
			err := r.Check()
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// A number that a document may not have is also refused in a record, because all readers compute with it.
func TestARecordHasTheBoundsOfItsDocument(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := func(name string) int {
			return rapid.OneOf(rapid.IntRange(-2, 2), rapid.IntRange(rc.MaxReplicas-1, rc.MaxReplicas+1),
				rapid.Just(math.MaxInt), rapid.Just(math.MinInt)).Draw(t, name)
		}
		doc := rc.Spec{
			Name: "web", MaxPerNode: some("max_per_node"), MinAvailable: ptr(some("min_available")),
			MaxSurge: ptr(some("max_surge")),
			ReplicaGroups: []rc.ReplicaGroup{
				{Role: "a", Count: ptr(some("count"))},
				{Role: "b", Count: ptr(some("other count"))},
			},
			Spread: rc.Spread{
				Label: "rack",
				Skew:  some("skew"),
			}, Affinity: []rc.Preference{{Selector: "a=b", Weight: some("weight")}},
			NodeLoss: rc.NodeLoss{After: ptr(
				field.Duration(rapid.Int64().Draw(t, "after")))}, Pod: &manifest.Manifest{},
		}
		bad := slices.DeleteFunc(doc.Validate(), func(e *field.Error) bool { return strings.HasPrefix(e.Field, "pod") })
		var r rc.RC
		doc.Apply(&r, rc.Digests{Base: "d"})
		r.ID = "x"
		if err := r.Check(); (err != nil) != (len(bad) > 0) {
			t.Fatalf("the document: %v; its record: %v", bad, err)
		}
	})
}

func TestNumbers(t *testing.T) {
	for _, tt := range []struct {
		counts    []int
		minimum   *int
		desired   int
		available int
	}{
		{[]int{3}, nil, 3, 2},
		{[]int{3, 2}, nil, 5, 4},
		{[]int{1}, nil, 1, 0},
		{[]int{0}, nil, 0, 0},
		{[]int{3}, ptr(0), 3, 0},
		{[]int{3}, ptr(3), 3, 3},
		{[]int{2}, ptr(3), 2, 2}, // scaled below the minimum that its document names
		{[]int{0}, ptr(3), 0, 0},
	} {
		r := rc.RC{MinAvailable: tt.minimum}
		for _, n := range tt.counts {
			r.ReplicaGroups = append(r.ReplicaGroups, rc.ReplicaGroup{Count: ptr(n)})
		}
		if r.Desired() != tt.desired || r.MinimumAvailable() != tt.available {
			t.Errorf("%+v: desired %d, minimum %d", tt, r.Desired(), r.MinimumAvailable())
		}
	}
	if r := (rc.RC{}); r.Surge() != rc.DefaultMaxSurge {
		t.Error("default surge")
	}
	if r := (rc.RC{MaxSurge: ptr(0)}); r.Surge() != 0 {
		t.Error("a surge of zero is zero")
	}
}

func TestSelector(t *testing.T) {
	for text, want := range map[string]bool{
		"": true, "rack=a": true, "rack in (a,b), disk": false, "rack!=a": false,
		"!gpu": true,
	} {
		sel, err := rc.ParseSelector(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := sel.Matches(labels.Set{"rack": "a"}); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestPodLabelSet(t *testing.T) {
	r := rc.RC{ID: "i", PodLabels: map[string]string{"a": "rc", "b": "rc", "pod_id": "mine"}}
	own := map[string]string{"b": "own", "d": "own", "pod_id": "mine"}
	got := r.PodLabelSet("web", map[string]string{"a": "manifest", "c": "manifest"}, own)
	want := map[string]string{
		"a": "rc", "b": "own", "c": "manifest", "d": "own", "pod_id": "web",
		"replication_controller_id": "i",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestSetCondition(t *testing.T) {
	t1, t2, t3 := time.Unix(1, 0), time.Unix(2, 0), time.Unix(3, 0)
	conds := rc.SetCondition(nil, rc.Blocked, false, "never was", t1)
	if conds != nil {
		t.Errorf("a condition that never was true is listed: %v", conds)
	}
	conds = rc.SetCondition(conds, rc.Converged, false, "0 of 1", t1)
	conds = rc.SetCondition(conds, rc.Blocked, true, "b", t1)
	conds = rc.SetCondition(conds, rc.Converged, false, "still", t2)
	conds = rc.SetCondition(conds, rc.Blocked, false, "", t3)
	want := []rc.Condition{{Type: rc.Converged, Reason: "still", Since: t1}, {Type: rc.Blocked, Since: t3}}
	if diff := cmp.Diff(want, conds); diff != "" {
		t.Error(diff)
	}
	st := rc.Status{Conditions: conds}
	if st.Is(rc.Blocked) || st.Is(rc.Converged) || st.Is(rc.Holding) {
		t.Error("nothing is true")
	}
}
