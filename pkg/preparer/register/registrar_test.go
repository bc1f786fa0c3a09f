package register

import (
	"maps"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
)

// A pod changes its name in steps, and is never without one: the other name is there before the one goes, and goes when the disk knows.
func TestTheNameThatAPodIsToHave(t *testing.T) {
	t.Parallel()
	n := &node.Node{Name: "n1", Address: "127.0.0.1"}
	p := Pod{
		ID: pod.Identity{RCID: "rc", Role: "main"}, Installed: &install.Installed{Digest: "d"}, Manifest: &manifest.Manifest{ID: "web"},
		Up: true, Alive: true, Rested: true,
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
		now = now.Add(time.Hour) // nothing is paced
		c, due, _, _ := s.saw(n, &p, local, expected, now)
		maps.DeleteFunc(expected, func(_ string, stays bool) bool { return !stays })
		if due != wantDue || s.health.Known != wantKnown || s.health.Passing != wantKnown || s.standby != wantStandby || !maps.Equal(expected, want) {
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
	p.Up, p.Alive = false, false
	look("nothing runs", []string{standby}, false, true, true)
}
