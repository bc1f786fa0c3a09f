package plan

import (
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// A controller that stands by comes first, at any place in the list. Then the newest comes.
func TestStandbyPodsStopFirst(t *testing.T) {
	t.Parallel()
	revision := func(id string, s *rc.Service) record.Controller {
		return record.Controller{RC: rc.RC{ID: id, Service: s}}
	}
	p := &planner{svc: &record.Service{Controllers: []record.Controller{
		revision("foreign", nil),
		revision("old", &rc.Service{}),
		revision("aside", &rc.Service{Standby: true}),
		revision("new", &rc.Service{}),
	}}}
	if got := p.leaving(); !slices.Equal(got, []string{"aside", "new", "old", "foreign"}) {
		t.Errorf("order %v", got)
	}
}

// With a pod on each node, only pods that have no node yet are missing.
func TestPodsWithANodeAreNotMissing(t *testing.T) {
	t.Parallel()
	there := []placed{{node: "n0"}, {node: "n1"}}
	p := &planner{spec: &record.ServiceSpec{Mode: rc.EachNode}}
	if got := rc.Total(p.missing(5, there)); got != 3 {
		t.Errorf("%d pods are missing, want 3", got)
	}
}
