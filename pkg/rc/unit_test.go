package rc_test

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func TestUnitOfAController(t *testing.T) {
	t.Parallel()
	const unit = "01m82rq476dk3dzcatmcv2vmc4"
	for id, want := range map[string]string{
		unit:                           unit,
		rc.RevisionID(unit, 1):         unit,
		rc.RevisionID(unit, 10):        unit,
		rc.PreDeployID(unit, 10):       unit,
		unit + "-7":                    unit,
		unit + "-7-pre":                unit,
		"":                             "",
		"rc-1":                         "rc-1",
		"rc-1-pre":                     "rc-1-pre",
		unit + "x":                     unit + "x",
		unit + "x-1":                   unit + "x-1",
		unit + "/main.0":               unit + "/main.0",
		unit[1:] + "-1":                unit[1:] + "-1",
		"01M82RQ476DK3DZCATMCV2VMC4":   "01M82RQ476DK3DZCATMCV2VMC4",
		"local-twenty-six-bytes-or-7":  "local-twenty-six-bytes-or-7",
		"alsotwentysixbytesnotaulid-1": "alsotwentysixbytesnotaulid-1",
	} {
		if got := rc.UnitOf(id); got != want {
			t.Errorf("%q: %q, want %q", id, got, want)
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
