package rc_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

// A record without a skew has the form that farms of older versions read and write.
func TestSpreadAsJSON(t *testing.T) {
	for want, s := range map[string]rc.Spread{
		`"rack"`: {Label: "rack"},
		`{"label":"rack","skew":2,"when":"require"}`: {Label: "rack", Skew: 2, When: rc.Require},
		`{"label":"rack","when":"prefer"}`:           {Label: "rack", When: rc.Prefer},
	} {
		data, err := json.Marshal(s)
		if err != nil || string(data) != want {
			t.Errorf("%+v: %s, %v; want %s", s, data, err, want)
		}
		var back rc.Spread
		if err := json.Unmarshal(data, &back); err != nil || back != s {
			t.Errorf("%s: %+v, %v", data, back, err)
		}
	}
	r := rc.RC{}
	if data, err := json.Marshal(r); err != nil || string(data) == "" || json.Unmarshal(data, &r) != nil ||
		!r.Spread.IsZero() {
		t.Errorf("%s, %v", data, err)
	}
	for s, held := range map[rc.Spread]int{
		{Label: "a"}: 0, {Label: "a", Skew: 3}: 0, {Label: "a", When: rc.Require}: 1,
		{Label: "a", Skew: 3, When: rc.Require}: 3,
	} {
		if s.Held() != held {
			t.Errorf("%+v holds %d", s, s.Held())
		}
	}
}

// A group's placement preferences replace the controller's preferences field by field. For a group's own spread, only
// its own pods are counted. A document and its record have the same preferences.
func TestPreferencesOfGroups(t *testing.T) {
	spec := grouped(t, `[{"role":"plain","count":1},
		{"role":"spread","count":1,"spread":{"label":"zone","skew":2,"when":"require"}},
		{"role":"near","count":1,"affinity":[{"selector":"disk=ssd","weight":7}]},
		{"role":"packed","count":1,"placing":"pack"},{"role":"even","count":1,"placing":"spread"}]`)
	spec.Spread, spec.Affinity, spec.Placing = rc.Spread{Label: "rack"}, []rc.Preference{{
		Selector: "gpu",
		Weight:   1,
	}}, rc.PlacePack
	var r rc.RC
	spec.Apply(&r, rc.Digests{Base: "d"})
	all := rc.Preferences{Spread: spec.Spread, Affinity: spec.Affinity, Placing: rc.PlacePack}
	near := rc.Preferences{
		Spread: spec.Spread, Affinity: []rc.Preference{{Selector: "disk=ssd", Weight: 7}},
		Placing: rc.PlacePack,
	}
	zone := rc.Preferences{
		Spread: rc.Spread{Label: "zone", Skew: 2, When: rc.Require}, Affinity: spec.Affinity,
		Placing: rc.PlacePack, Alone: "spread",
	}
	even := all
	even.Placing = ""
	for role, want := range map[string]rc.Preferences{
		"plain": all, "gone": all, "": all, "spread": zone, "near": near,
		"packed": all, "even": even,
	} {
		if diff := cmp.Diff(want, r.PreferencesOf(role)); diff != "" {
			t.Errorf("%s: %s", role, diff)
		}
		if own := role != "plain" && role != "gone" && role != ""; r.HasPreferences(role) != own {
			t.Errorf("%s: %t", role, r.HasPreferences(role))
		}
	}
	if w := r.PreferencesOf("spread"); !w.Count("spread") || w.Count("near") {
		t.Error("a spread of its own counts other roles")
	}
	if w := r.PreferencesOf("near"); !w.Count("spread") || !w.Count("near") {
		t.Error("the controller's does not count all roles")
	}
	if !r.AnyPreferences() {
		t.Error("no group has preferences")
	}
	if diff := cmp.Diff(spec.ReplicaGroups, rc.SpecOf(&r, spec.Pod).ReplicaGroups); diff != "" {
		t.Error(diff)
	}
	one := rc.RC{ReplicaGroups: []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: new(int)}}}
	if s := rc.SpecOf(&one, nil); s.Replicas == nil || one.AnyPreferences() {
		t.Errorf("%+v", s)
	}
	one.ReplicaGroups[0].Placing = rc.PlaceSpread
	if s := rc.SpecOf(&one, nil); s.Replicas != nil || len(s.ReplicaGroups) != 1 {
		t.Errorf("%+v", s)
	}
	if counts := r.WithCounts(rc.Counts(r.ReplicaGroups)); cmp.Diff(r.ReplicaGroups, counts) != "" {
		t.Errorf("%+v", counts)
	}
}

func TestMistakesInPreferencesOfGroups(t *testing.T) {
	for groups, want := range map[string]string{
		`"spread":"not a key"`:                           `replica_groups[1].spread: "not a key" is not valid; allowed: the key of a node label`,
		`"spread":{"skew":2}`:                            `replica_groups[1].spread.label: "" is not valid`,
		`"spread":{"label":"rack","skew":-1}`:            `replica_groups[1].spread.skew: -1 is not valid; allowed: a whole number from 1 to 10000; 0 means 1`,
		`"spread":{"label":"rack","when":"must"}`:        `replica_groups[1].spread.when: "must" is not valid; allowed: prefer or require`,
		`"placing":"best"`:                               `replica_groups[1].placing: "best" is not valid; allowed: spread or pack`,
		`"affinity":[{"selector":"a=b","weight":1},{}]`:  `replica_groups[1].affinity[1].selector`,
		`"affinity":[{"selector":"a=b","weight":101}]`:   `replica_groups[1].affinity[0].weight: 101 is not valid; allowed: a whole number from 1 to 100`,
		`"affinity":[{"selector":"a in (","weight":1}]`:  `replica_groups[1].affinity[0].selector: "a in (" is not valid; allowed: a Kubernetes label selector`,
		`"spread":{"label":"rack","whenever":"require"}`: `whenever`,
		`"spread":["rack"]`:                              `the key of a node label, or a map with the fields label, skew, when`,
	} {
		_, err := rc.DecodeSpec([]byte(`{"name":"db","replica_groups":[{"role":"a","count":1},{"role":"b","count":1,` +
			groups + `}],"pod":{"version":1,"id":"db","launchables":[` +
			`{"name":"server","artifact":{"kind":"exec","path":"/bin/db"}}]}}`))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", groups, err, want)
		}
	}
}
