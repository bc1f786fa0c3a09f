package plan

import (
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// What stands by gives its pods up first, wherever it comes; then the newest does.
func TestLeaving(t *testing.T) {
	t.Parallel()
	revision := func(id string, s *rc.Service) record.Controller {
		return record.Controller{RC: rc.RC{ID: id, Service: s}}
	}
	p := &planner{svc: &record.Service{Controllers: []record.Controller{
		revision("foreign", nil), revision("old", &rc.Service{}), revision("aside", &rc.Service{Standby: true}), revision("new", &rc.Service{}),
	}}}
	if got := p.leaving(); !slices.Equal(got, []string{"aside", "new", "old", "foreign"}) {
		t.Errorf("order %v", got)
	}
}
