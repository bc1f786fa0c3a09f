package farm

import (
	"context"
	"math"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A node may report revisions up to the revision of its placement, or of the stop of a former copy, even if these
// revisions are very high.
func TestImpossibleReportsAreIgnored(t *testing.T) {
	t.Parallel()
	id := pod.Identity{RCID: "web", Role: "main"}
	for name, tt := range map[string]struct {
		placed, stop, reported int64
		want                   bool
	}{
		"as ever":                      {1_700_000_000_000, 0, 1_700_000_000_000, true},
		"ahead":                        {1_700_000_000_000, 0, pod.MaxReported, true},
		"of no clock":                  {1_700_000_000_000, 0, pod.MaxReported + 1, false},
		"the highest":                  {1_700_000_000_000, 0, math.MaxInt64, false},
		"that of the placement":        {pod.MaxReported + 5, 0, pod.MaxReported + 5, true},
		"beyond that":                  {pod.MaxReported + 5, 0, pod.MaxReported + 6, false},
		"a placement at the end":       {pod.MaxRevision, 0, pod.MaxRevision, true},
		"that of a former copy's stop": {1_700_000_000_000, pod.MaxReported + 7, pod.MaxReported + 7, true},
	} {
		at := func(node string) store.At { return store.At{Node: node, Identity: id} }
		copies := map[store.At]store.Report{}
		for _, node := range []string{"n1", "n2"} {
			copies[at(node)] = store.Report{
				Index:   1,
				Reality: &pod.Reality{Identity: id, Node: node, Revision: tt.reported},
			}
		}
		own := reports{copies: copies}.podsOf([]store.Rec[pod.Placement]{{Index: 3, Value: pod.Placement{
			Identity: id, Node: "n1", Revision: tt.placed, Ghosts: []pod.Ghost{{Node: "n2", Revision: tt.stop}},
		}}})
		s := &reconcile.Snapshot{
			Pods: own.pods, Errors: own.doubts,
			Orphans: []reconcile.Orphan{
				{Node: "n3", Orphan: pod.Orphan{Identity: id, Revision: tt.reported}},
				{Node: "n3", Orphan: pod.Orphan{Revision: 1}},
			},
		}
		dropImplausible(s)
		if tt.placed == pod.MaxRevision { // another error reports that
			s.Errors = s.Errors[1:]
		}
		reality, former, orphan := s.Pods[0].Reality != nil, s.Pods[0].Ghosts["n2"] != nil, len(s.Orphans) == 2
		if reality != tt.want || former != tt.want || orphan != tt.want ||
			len(s.Errors) != map[bool]int{true: 0, false: 3}[tt.want] {
			t.Errorf("%s: believed: %t, %t, %t; want %t; %q", name, reality, former, orphan, tt.want, s.Errors)
		}
	}
}

// Reports that one pass of a look has read are not read again, except the reports of copies that were placed since.
func TestReportsAreReadOnce(t *testing.T) {
	t.Parallel()
	placed := func(index int, node string, former ...string) store.Rec[pod.Placement] {
		p := pod.Placement{
			Identity: pod.Identity{RCID: "u-1", Role: "main", Index: index}, Node: node,
			RunState: pod.Running,
		}
		for _, name := range former {
			p.Ghosts = append(p.Ghosts, pod.Ghost{Node: name})
		}
		return store.Rec[pod.Placement]{Index: 5, Value: p}
	}
	reads := &countingReads{}
	v := &view{Unit: store.Unit{ID: "u", Heads: map[string]*store.Head{
		"u-1": {Placements: []store.Rec[pod.Placement]{placed(0, "n1"), placed(1, "n2", "n1", "n2", "n3")}},
		"u-2": {},
	}}}
	read := func(want int) {
		t.Helper()
		before := reads.copies
		got, d, err := v.readReports(t.Context(), reads, store.Wanted{}, "u-1", "u-2", "u-3")
		if n := reads.copies - before; err != nil || n != want || d.Intents == nil {
			t.Fatalf("%d copies were read, want %d: %+v, %v", n, want, d, err)
		}
		v.add("u-1", traces{reports: got})
	}
	read(4)
	read(0)
	if got := v.reports.pods["u-1"].pods; len(got) != 2 || got[0].Reality == nil || got[1].Reality.Node != "n2" ||
		len(got[1].Ghosts) != 2 || got[1].Index != 5 {
		t.Errorf("%+v", got)
	}
	if got, made := v.reports.pods["u-2"]; !made || len(got.pods) != 0 {
		t.Errorf("%+v", got)
	}
	p := placed(2, "n1").Value
	before := v.reports
	v.add("u-1", traces{reports: v.reports, landed: []*batch{{Batch: store.Batch{
		Part: store.Part{Pods: []store.PodWrite{{Identity: p.Identity, Placement: &p, Landed: 6}}},
	}}}})
	read(1)
	if got := v.reports.pods["u-1"].pods; len(got) != 3 || got[2].Reality == nil || got[2].Index != 6 ||
		got[0].Reality == nil {
		t.Errorf("%+v", got)
	}
	if reads.n != 2 {
		t.Errorf("%d reads", reads.n)
	}
	if len(before.pods["u-1"].pods) != 2 || len(before.copies) != 4 {
		t.Errorf("the reports of a pass have changed: %+v", before)
	}
}

// countingReads has a report of each copy.
type countingReads struct {
	Reads
	n, copies int
}

func (c *countingReads) ReadDetails(_ context.Context, w store.Wanted, _ store.Level) (store.Details, error) {
	c.n++
	c.copies += len(w.Realities)
	d := store.Details{Reports: map[store.At]store.Report{}, Intents: map[store.At]pod.Intent{}}
	for _, at := range w.Realities {
		d.Reports[at] = store.Report{Index: 1, Reality: &pod.Reality{Identity: at.Identity, Node: at.Node}}
	}
	return d, nil
}
