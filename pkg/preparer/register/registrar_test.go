package register

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
)

// A pod that changes its name always has one: the new name is registered first, and the old one removed when the disk
// has the change.
func TestTheNameThatAPodMustHave(t *testing.T) {
	t.Parallel()
	n := &node.Node{Name: "n1", Address: "127.0.0.1"}
	p := Pod{
		ID: pod.Identity{
			RCID: "rc",
			Role: "main",
		}, Installed: &install.Installed{Digest: "d"}, Manifest: &manifest.Manifest{ID: "web"},
		Up: true, Alive: true, Works: true, Rested: true,
	}
	main, standby := ServiceID("n1", p.ID), StandbyServiceID("n1", p.ID)
	now := time.Now()
	var s service
	look := func(what string, there []string, wantDue, wantKnown, wantStandby bool, wantExpected ...string) change {
		t.Helper()
		local, expected, want := map[string]consul.Health{}, map[string]bool{}, map[string]bool{}
		for _, id := range there {
			local[id] = consul.Health{Passing: true}
		}
		for _, id := range wantExpected {
			want[id] = true
		}
		now = now.Add(time.Hour) // so long that the gate delays no registration
		c, due, _, _ := s.saw(n, &p, local, expected, now, Running)
		maps.DeleteFunc(expected, func(_ string, stays bool) bool { return !stays })
		if due != wantDue || s.health.Known != wantKnown || s.health.Passing != wantKnown || s.standby != wantStandby ||
			!maps.Equal(expected, want) {
			t.Errorf("%s: due %t, health %+v, stands by %t, expected %v", what, due, s.health, s.standby, expected)
		}
		return c
	}
	c := look("nothing is there", nil, true, false, false, main, standby)
	s.fingerprint = c.fingerprint
	look("registered", []string{main}, false, true, false, main, standby)
	p.Noted = s.fingerprint
	look("noted", []string{main}, false, true, false, main)
	p.Standby = true
	c = look("to stand by", []string{main}, true, true, false, main, standby)
	s.fingerprint = c.fingerprint
	look("under both names", []string{main, standby}, false, true, false, main, standby)
	p.Noted = s.fingerprint
	look("noted, and the one is to go", []string{main, standby}, false, true, false, standby)
	look("gone", []string{standby}, false, true, true, standby)
	p.Installed = &install.Installed{Digest: "e"}
	look("another version", []string{standby}, true, false, true, main, standby)
	p.Works = false
	look("it does not work, and another version", []string{standby}, true, false, true, main, standby)
	p.Standby = false
	look("it does not work, and is to have the name", []string{standby}, true, false, true, main, standby)
	look("it does not work, and has no name", nil, false, false, false, main, standby)
	p.Standby = true
	look("it does not work, and is to stand by without a name", nil, false, false, true, main, standby)
	look("it does not work, and is to give the name up", []string{main}, true, false, false, main, standby)
	p.Up, p.Alive = false, false
	look("nothing runs", []string{standby}, false, true, true)
}

// With Nothing, a preparer registers and deregisters no service. Only with All, it deregisters services of unknown
// pods.
func TestReach(t *testing.T) {
	t.Parallel()
	n := &node.Node{Name: "n1", Address: "127.0.0.1"}
	id := func(index int) pod.Identity { return pod.Identity{RCID: "rc", Role: "main", Index: index} }
	runs := Pod{
		ID: id(0), Installed: &install.Installed{Digest: "d"}, Manifest: &manifest.Manifest{ID: "web"},
		Up: true, Alive: true, Works: true, Rested: true,
	}
	stopped := Pod{ID: id(1), Installed: runs.Installed, Manifest: runs.Manifest}
	known, unknown, foreign := ServiceID("n1", id(1)), ServiceID("n1", id(2)), "somebody-else"
	local := map[string]consul.Health{known: {}, unknown: {}, foreign: {}}
	for reach, want := range map[Reach]struct {
		registers bool
		strays    []string
	}{
		Nothing: {false, nil},
		Running: {true, nil},
		Known:   {true, []string{known}},
		All:     {true, []string{known, unknown}},
	} {
		r, err := New(Config{Node: *n, Dir: t.TempDir(), Changed: func(map[pod.Identity]time.Time) {}})
		if err != nil {
			t.Fatal(err)
		}
		register, strays := r.saw([]Pod{runs, stopped}, local, nil, time.Now(), reach)
		slices.Sort(strays)
		if registers := len(register) == 1 && register[0].id == runs.ID; registers != want.registers ||
			!slices.Equal(strays, want.strays) {
			t.Errorf("reach %d: registers %+v, deregisters %v; want %+v", reach, register, strays, want)
		}
	}
}

// A pod stays available if limits change twice before its services are registered again.
func TestLimitsChangeTwiceBeforeARegistration(t *testing.T) {
	t.Parallel()
	n := &node.Node{Name: "n1", Address: "127.0.0.1"}
	in := (&install.Installed{Digest: "a"}).Relimited("b", nil)
	p := Pod{
		ID: pod.Identity{RCID: "rc", Role: "main"}, Installed: in, Manifest: &manifest.Manifest{ID: "web"},
		Up: true, Alive: true, Works: true, Rested: true,
	}
	var s service
	s.fingerprint = changeOf(n, &p).fingerprint
	local := map[string]consul.Health{ServiceID("n1", p.ID): {Passing: true}}
	for i, digest := range []string{"c", "d"} {
		p.Installed = p.Installed.Relimited(digest, nil)
		if _, due, _, _ := s.saw(n, &p, local, map[string]bool{}, time.Now().Add(time.Duration(i)*time.Hour),
			Running); !due || !s.health.Known || !s.health.Passing {
			t.Errorf("%s: due %t, %+v", digest, due, s.health)
		}
	}
}
