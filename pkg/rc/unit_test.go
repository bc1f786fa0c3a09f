package rc_test

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func TestUnitOfAController(t *testing.T) {
	t.Parallel()
	const unit = "01m82rq476dk3dzcatmcv2vmc4"
	for id, want := range map[string]struct {
		unit string
		pre  bool
	}{
		unit:                           {unit, false},
		rc.RevisionID(unit, 1):         {unit, false},
		rc.RevisionID(unit, 10):        {unit, false},
		rc.PreDeployID(unit, 10):       {unit, true},
		unit + "-7":                    {unit, false},
		unit + "-7-pre":                {unit, true},
		"":                             {"", false},
		"rc-1":                         {"rc-1", false},
		"rc-1-pre":                     {"rc-1-pre", false},
		unit + "x":                     {unit + "x", false},
		unit + "x-1":                   {unit + "x-1", false},
		unit + "/main.0":               {unit + "/main.0", false},
		unit[1:] + "-1":                {unit[1:] + "-1", false},
		"01M82RQ476DK3DZCATMCV2VMC4":   {"01M82RQ476DK3DZCATMCV2VMC4", false},
		"local-twenty-six-bytes-or-7":  {"local-twenty-six-bytes-or-7", false},
		"alsotwentysixbytesnotaulid-1": {"alsotwentysixbytesnotaulid-1", false},
	} {
		if got, pre := rc.UnitOf(id), rc.IsPreDeploy(id); got != want.unit || pre != want.pre {
			t.Errorf("%q: %q, %v; want %q, %v", id, got, pre, want.unit, want.pre)
		}
	}
}

// The longest ids are names as the records of pods need them.
func TestIDsOfRevisionsAreNames(t *testing.T) {
	t.Parallel()
	for _, id := range []string{rc.RevisionID("01m82rq476dk3dzcatmcv2vmc4", rc.MaxGeneration), rc.PreDeployID("01m82rq476dk3dzcatmcv2vmc4", rc.MaxGeneration)} {
		if err := (pod.Identity{RCID: id, Role: rc.DefaultRole}).Check(); err != nil {
			t.Error(err)
		}
	}
}
