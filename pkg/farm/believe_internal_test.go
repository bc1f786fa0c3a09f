package farm

import (
	"math"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// What a node says is believed up to what its placement, or a stop of a former copy, asks for, however high that is.
func TestDisbelieve(t *testing.T) {
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
		"as the placement has it":      {pod.MaxReported + 5, 0, pod.MaxReported + 5, true},
		"beyond that":                  {pod.MaxReported + 5, 0, pod.MaxReported + 6, false},
		"a placement at the end":       {pod.MaxRevision, 0, pod.MaxRevision, true},
		"as a former copy has to stop": {1_700_000_000_000, pod.MaxReported + 7, pod.MaxReported + 7, true},
	} {
		s := &reconcile.Snapshot{
			Pods: []reconcile.Pod{{
				Placement: pod.Placement{Identity: id, Node: "n1", Revision: tt.placed, Ghosts: []pod.Ghost{{Node: "n2", Revision: tt.stop}}},
				Reality:   &pod.Reality{Identity: id, Revision: tt.reported}, Ghosts: map[string]*pod.Reality{"n2": {Identity: id, Revision: tt.reported}},
			}},
			Orphans: []reconcile.Orphan{{Node: "n3", Orphan: pod.Orphan{Identity: id, Revision: tt.reported}}, {Node: "n3", Orphan: pod.Orphan{Revision: 1}}},
		}
		disbelieve(s)
		if tt.placed == pod.MaxRevision { // that is said besides
			s.Errors = s.Errors[1:]
		}
		reality, former, orphan := s.Pods[0].Reality != nil, s.Pods[0].Ghosts["n2"] != nil, len(s.Orphans) == 2
		if reality != tt.want || former != tt.want || orphan != tt.want || len(s.Errors) != map[bool]int{true: 0, false: 3}[tt.want] {
			t.Errorf("%s: believed: %t, %t, %t; want %t; %q", name, reality, former, orphan, tt.want, s.Errors)
		}
	}
}
