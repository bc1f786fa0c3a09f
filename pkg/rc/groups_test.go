package rc_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func grouped(t *testing.T, groups string) *rc.Spec {
	t.Helper()
	spec, err := rc.DecodeSpec(
		[]byte(`{"name":"db","replica_groups":` + groups + `,"pod":{"version":1,"id":"db","launchables":[` +
			`{"name":"server","artifact":{"kind":"exec","path":"/bin/db"},"env":{"LOG":"info","MODE":"none"},"resources":{"cpu":100}},` +
			`{"name":"sidecar","artifact":{"kind":"exec","path":"/bin/side"}}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// A group's manifest has its env in each launchable, and its command and resources in the first one. The controller's
// own manifest does not change, and groups without differences have it.
func TestManifestsOfGroups(t *testing.T) {
	t.Parallel()
	spec := grouped(t, `[{"role":"primary","count":1,"env":{"MODE":"primary"},"resources":{"cpu":200}},{"role":"read","count":4,"env":{"MODE":"read"}},
		{"role":"plain","count":1},{"role":"empty","count":1,"env":{}},{"role":"alike","count":1,"resources":{"cpu":100}}]`)
	before, err := spec.Pod.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	digests, canonical, err := rc.Manifests(spec.Pod, spec.ReplicaGroups)
	if err != nil {
		t.Fatal(err)
	}
	if after, _ := spec.Pod.Canonical(); string(after) != string(before) || digests.Base != manifest.Digest(before) {
		t.Errorf("the pod became %s", after)
	}
	if len(digests.Groups) != 2 || len(canonical) != 3 || len(digests.All()) != 3 || digests.All()[0] != digests.Base {
		t.Fatalf("%+v, %d manifests", digests, len(canonical))
	}
	for _, role := range []string{"plain", "empty", "alike", "other"} {
		if digests.Of(role) != digests.Base {
			t.Errorf("%s has %s", role, digests.Of(role))
		}
	}
	var primary manifest.Manifest
	if err := json.Unmarshal(canonical[digests.Of("primary")], &primary); err != nil {
		t.Fatal(err)
	}
	want := []manifest.Launchable{spec.Pod.Launchables[0], spec.Pod.Launchables[1]}
	want[0].Env, want[1].Env = map[string]string{"LOG": "info", "MODE": "primary"}, map[string]string{"MODE": "primary"}
	want[0].Resources.CPU = 200
	if diff := cmp.Diff(want, primary.Launchables); diff != "" {
		t.Error(diff)
	}
	var r rc.RC
	spec.Apply(&r, digests)
	if r.ManifestOf("read") != digests.Groups["read"] || r.ManifestOf("plain") != digests.Base {
		t.Errorf("%+v", r.Digests())
	}
	if again := rc.SpecOf(&r, spec.Pod); !cmp.Equal(again.ReplicaGroups, spec.ReplicaGroups) {
		t.Error(cmp.Diff(again.ReplicaGroups, spec.ReplicaGroups))
	}
}

// A change of counts takes only counts from the given groups.
func TestCountsOfGroups(t *testing.T) {
	t.Parallel()
	var r rc.RC
	spec := grouped(t, `[{"role":"a","count":1,"env":{"X":"1"},"resources":{"cpu":5}},{"role":"b","count":2}]`)
	spec.Apply(&r, rc.Digests{Base: "d"})
	three, zero := 3, 0
	got := r.WithCounts([]rc.ReplicaGroup{
		{Role: "b", Count: &three, Env: map[string]string{"Y": "2"}},
		{Role: "a", Count: &zero},
		{Role: "c", Count: &three},
	})
	want := []rc.ReplicaGroup{
		{Role: "b", Count: &three},
		{
			Role: "a", Count: &zero, Env: map[string]string{"X": "1"},
			Resources: &manifest.Resources{CPU: 5},
		},
		{Role: "c", Count: &three},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if counts := rc.Counts(r.ReplicaGroups); counts[0].Env != nil || counts[0].Resources != nil ||
		*counts[1].Count != 2 || r.CountOf("b") != 2 || r.CountOf("x") != 0 {
		t.Errorf("%+v", counts)
	}
	if roles := []string{got[0].Role, got[1].Role, got[2].Role}; !slices.Equal(roles, []string{"b", "a", "c"}) {
		t.Error(roles)
	}
}
