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

func TestNamesOfRevisions(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct {
		service  string
		revision int64
		is       bool
	}{
		"web-r3":            {"web", 3, true},
		"web-r10-r2":        {"web-r10", 2, true},
		"web-r03":           {},
		"web-r-3":           {},
		"web-r0":            {},
		"web-r+3":           {},
		"web-r":             {},
		"web-rest":          {},
		"-r3":               {},
		"web":               {},
		"web-r3-pre-deploy": {},
	} {
		service, revision, is := rc.ParseRevisionName(name)
		if is != want.is || is && (service != want.service || revision != want.revision) {
			t.Errorf("%s: %q, %d, %t; want %+v", name, service, revision, is, want)
		}
	}
	const unit = "01m82rq476dk3dzcatmcv2vmc4"
	for id, want := range map[string]string{
		rc.RevisionID(unit, 3):  rc.RevisionName("web", 3),
		rc.PreDeployID(unit, 3): rc.PreDeployName("web", 3),
		unit:                    "",
		unit + "-3-prefix":      "",
		unit + "-03":            "",
		unit + "--3":            "",
		"rc-3":                  "",
	} {
		if name, is := rc.NameOf("web", id); is != (want != "") || is && name != want {
			t.Errorf("%s: %q, %t; want %q", id, name, is, want)
		}
	}
}

// Even the longest ids are valid names, because records of pods need names.
func TestIDsOfRevisionsAreNames(t *testing.T) {
	t.Parallel()
	for _, id := range []string{
		rc.RevisionID("01m82rq476dk3dzcatmcv2vmc4", rc.MaxGeneration),
		rc.PreDeployID("01m82rq476dk3dzcatmcv2vmc4", rc.MaxGeneration),
	} {
		if err := (pod.Identity{RCID: id, Role: rc.DefaultRole}).Check(); err != nil {
			t.Error(err)
		}
	}
}
