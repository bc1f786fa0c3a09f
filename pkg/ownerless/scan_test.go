package ownerless_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/ownerless"
)

const all = ^ownerless.Facts(0)

// A record is of the first kind that fits, and a sort of records that was not read whole cannot be lacking.
func TestScan(t *testing.T) {
	t.Parallel()
	rec := func(of ownerless.Facts, node, about string) ownerless.Record {
		return ownerless.Record{Of: of, Node: node, About: about}
	}
	const pod = "web/main.0"
	for name, tt := range map[string]struct {
		whole ownerless.Facts
		known []ownerless.Record
		r     ownerless.Record
		want  ownerless.Name
	}{
		"a controller without a farm": {
			all, nil, rec(ownerless.Controller, "", "web"),
			ownerless.Unclaimed,
		},
		"one that a farm owns": {
			all,
			[]ownerless.Record{rec(ownerless.Farm, "", "web")},
			rec(ownerless.Controller, "", "web"), "",
		},
		"a placement without a controller": {all, nil, rec(ownerless.Placement, "n1", pod), ownerless.Stray},
		"a placement of a controller": {
			all,
			[]ownerless.Record{rec(ownerless.Controller, "", "web")},
			rec(ownerless.Placement, "n1", pod), "",
		},
		"an intent of which nothing tells": {
			all, nil, rec(ownerless.Intent, "n1", pod),
			ownerless.OrphanedIntent,
		},
		"one of a controller": {
			all,
			[]ownerless.Record{rec(ownerless.Controller, "", "web")},
			rec(ownerless.Intent, "n1", pod), ownerless.Unplaced,
		},
		"one of a pod placed elsewhere": {
			ownerless.Controller | ownerless.Placement,
			[]ownerless.Record{rec(ownerless.Placement, "n2", pod)},
			rec(ownerless.Intent, "n1", pod), "",
		},
		"one without a share": {
			ownerless.Share, nil,
			rec(ownerless.Intent, "n1", pod), ownerless.NoShare,
		},
		"one with a share elsewhere": {
			ownerless.Share,
			[]ownerless.Record{rec(ownerless.Share, "n2", pod)},
			rec(ownerless.Intent, "n1", pod), ownerless.NoShare,
		},
		"one with a share": {
			ownerless.Share,
			[]ownerless.Record{rec(ownerless.Share, "n1", pod)},
			rec(ownerless.Intent, "n1", pod), "",
		},
		"a report of which nothing tells": {
			all, nil, rec(ownerless.Report, "n1", pod),
			ownerless.OrphanedReport,
		},
		"a report of a controller": {
			all,
			[]ownerless.Record{rec(ownerless.Controller, "", "web")},
			rec(ownerless.Report, "n1", pod), "",
		},
		"a pod that runs without a controller": {all, nil, rec(ownerless.Orphan, "n1", pod), ownerless.Running},
		"one with a controller": {
			all,
			[]ownerless.Record{rec(ownerless.Controller, "", "web")},
			rec(ownerless.Orphan, "n1", pod), ownerless.Adoptable,
		},
		"a share without a name":              {all, nil, rec(ownerless.Share, "n1", "/.0"), ownerless.Nameless},
		"one where not all orphans are known": {all &^ ownerless.Orphan, nil, rec(ownerless.Share, "n1", ""), ""},
		"a share of an orphaned intent": {
			all,
			[]ownerless.Record{rec(ownerless.Intent, "n1", pod)},
			rec(ownerless.Share, "n1", pod), ownerless.SharesEnd,
		},
		"a share of no copy": {
			all,
			[]ownerless.Record{rec(ownerless.Placement, "n2", pod)},
			rec(ownerless.Share, "n1", pod), ownerless.Leak,
		},
		"a share of what runs": {
			all &^ ownerless.Intent,
			[]ownerless.Record{rec(ownerless.Orphan, "n1", pod)},
			rec(ownerless.Share, "n1", pod), "",
		},
		"a share while not all orphans are known": {
			all &^ ownerless.Orphan &^ ownerless.Intent, nil,
			rec(ownerless.Share, "n1", pod), "",
		},
		"a share without an intent":     {ownerless.Intent, nil, rec(ownerless.Share, "n1", pod), ownerless.Suspect},
		"a share of the node's own pod": {all, nil, rec(ownerless.Share, "n1", "local-web/main.0"), ""},
		"drops of a unit that is gone":  {all, nil, rec(ownerless.Drops, "", "web"), ownerless.StrayDrops},
		"a node that nobody holds":      {all, nil, rec(ownerless.Node, "n1", ""), ownerless.GoneNode},
	} {
		known := ownerless.Known{}
		for _, r := range tt.known {
			known.Note(r)
		}
		var got ownerless.Name
		for _, f := range ownerless.Scan(tt.whole, known, []ownerless.Record{tt.r}) {
			got = f.Kind.Name
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// The alert about a controller has the number of records, their nodes, and what helps.
func TestAlerts(t *testing.T) {
	t.Parallel()
	known := ownerless.Known{}
	known.Note(ownerless.Record{Of: ownerless.Controller, About: "there"})
	records := []ownerless.Record{
		{Of: ownerless.Intent, Node: "n2", About: "gone/main.0", Key: "b"},
		{Of: ownerless.Report, Node: "n1", About: "gone/main.1", Key: "a"},
		{Of: ownerless.Intent, Node: "n1", About: "there/main.0", Key: "d"},
		{Of: ownerless.Intent, Node: "n1", About: "there/main.1", Key: "c"},
		{Of: ownerless.Placement, Node: "n3", About: "lost/main.0"},
		{Of: ownerless.Intent, Node: "n3", About: "zero/main.0"},
	}
	got := ownerless.Alerts(ownerless.Scan(ownerless.Controller|ownerless.Placement, known, records), 3)
	want := map[string]string{
		"orphaned/gone": "the controller gone has neither a record nor placements, but 1 intent and 1 report, on " +
			"n1, n2; they are left as they are: write the record back, or stop and remove them with rcctl node sweep " +
			"NODE",
		"orphaned/there": "the controller there has no placement for 2 intents, such as c: the nodes carry them out, " +
			"and no farm counts those pods; remove such a key, and the owner adopts the pod",
		"orphaned/zero": "the controller zero has neither a record nor placements, but 1 intent and 0 reports, on " +
			"n3; they are left as they are: write the record back, or stop and remove them with rcctl node sweep NODE",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Each kind has a description and a cure, and no row is hidden behind an earlier one.
func TestKinds(t *testing.T) {
	t.Parallel()
	seen := map[ownerless.Name]bool{}
	for i, k := range ownerless.Kinds {
		if seen[k.Name] || k.What == "" || k.Cure == "" || k.Lacks|k.Has == 0 || k.Lacks&k.Has != 0 {
			t.Errorf("%+v", k)
		}
		if (k.Text == "") != (k.Key == "") || k.Text != "" && k.Alert == "" ||
			strings.Contains(k.Text, "{records}") != (k.Noun != "") {
			t.Errorf("%s: the text does not go with the rest of the row", k.Name)
		}
		seen[k.Name] = true
		for _, before := range ownerless.Kinds[:i] {
			if before.Of == k.Of && before.Lacks&^k.Lacks == 0 && before.Has&^k.Has == 0 {
				t.Errorf("%s is never found: whatever fits it is %s", k.Name, before.Name)
			}
		}
	}
}
