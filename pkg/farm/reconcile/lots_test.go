package reconcile_test

import (
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Pods share a lot if they have the same manifest and the same placement preferences. A group with preferences of its
// own has its own lot, and so has a group with its own manifest.
func TestPodsWithTheSameManifestAndPreferencesShareALot(t *testing.T) {
	t.Parallel()
	s := snapshotOf(2)
	s.RC.ReplicaGroups = append(s.RC.ReplicaGroups,
		rc.ReplicaGroup{Role: "other", Count: count(2)},
		rc.ReplicaGroup{Role: "packed", Count: count(2), Placing: rc.PlacePack},
		rc.ReplicaGroup{Role: "spread", Count: count(1), Spread: rc.Spread{Label: "zone"}},
		rc.ReplicaGroup{Role: "special", Count: count(1)})
	s.RC.GroupManifests = map[string]string{"special": "m2"}
	var ids []pod.Identity
	for _, g := range s.RC.ReplicaGroups {
		for i := range *g.Count {
			ids = append(ids, pod.Identity{RCID: "rc", Role: g.Role, Index: i})
		}
	}
	type lot struct {
		role, digest string
		pods         int
	}
	var got []lot
	for _, l := range new(reconcile.Compute(s)).Lots(ids) {
		got = append(got, lot{l.Role, l.Digest, len(l.Pods)})
	}
	want := []lot{{"", "m1", 4}, {"packed", "m1", 2}, {"spread", "m1", 1}, {"", "m2", 1}}
	if !slices.Equal(got, want) {
		t.Errorf("lots %v, want %v", got, want)
	}
}
