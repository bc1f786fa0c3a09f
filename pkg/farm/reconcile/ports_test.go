package reconcile_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

func dynamicPorts(s *reconcile.Snapshot) {
	s.Manifest.Ports = []manifest.Port{{Name: "http", Dynamic: true}, {Name: "admin", Port: 9000}}
}

func wantPorts(t *testing.T, what string, got, want map[string]int) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("%s has ports %v, want %v", what, got, want)
	}
}

func TestAPlacedPodAsksForPortNumbers(t *testing.T) {
	s := snapshotOf(1)
	dynamicPorts(s)
	plan := reconcile.Compute(s)
	ch := plan.Placer().On(pod.Identity{RCID: "rc", Role: "main"}, "n1")
	before := ch
	r := ch.Reserve[0]
	if !slices.Equal(r.Dynamic, []string{"http"}) || !slices.Equal(r.Claim.Ports, []int{9000}) {
		t.Errorf("asks for %v besides %v, want http besides 9000", r.Dynamic, r.Claim.Ports)
	}
	ch.AssignPorts("n1", map[string]int{"http": 20007})
	want := map[string]int{"http": 20007, "admin": 9000}
	wantPorts(t, "the placement", ch.Placement.Ports, want)
	wantPorts(t, "the intent", ch.Intents[0].Intent.Ports, want)
	wantPorts(t, "the change before", before.Placement.Ports, map[string]int{"http": 0, "admin": 9000})
}

// A pod keeps its port numbers in an upgrade. Afterwards its share is reduced to them.
func TestAnUpgradeKeepsPortNumbers(t *testing.T) {
	s := snapshotOf(1)
	dynamicPorts(s)
	least := 0
	s.RC.MinAvailable = &least
	p := running(0, "n0", 5, 0)
	p.Digest, p.Reality.Digest, p.Ports = "m0", "m0", map[string]int{"http": 20007, "gone": 20008}
	s.Pods = []reconcile.Pod{p}
	ch := only(t, s, reconcile.Upgrade)
	r := ch.Reserve[0]
	if !r.Keep || r.KeepPorts["http"] != 20007 || !slices.Equal(r.Dynamic, []string{"http"}) {
		t.Errorf("reserves %+v, want http to keep 20007", r)
	}
	p = running(0, "n0", 5, 0)
	p.Ports, p.Switching = map[string]int{"http": 20007, "admin": 9000}, true
	s.Pods = []reconcile.Pod{p}
	ch = only(t, s, reconcile.FinishUpgrade)
	if h := ch.Reserve[0].Claim; !slices.Equal(h.Ports, []int{9000, 20007}) {
		t.Errorf("P3: after the upgrade it holds %v, want its own two", h.Ports)
	}
}

// A moved pod has other port numbers on its new node. Its former copy keeps the ports that it listens on, also when it
// becomes the pod again.
func TestAFormerCopyKeepsItsPortNumbers(t *testing.T) {
	s := snapshotOf(1)
	dynamicPorts(s)
	old := map[string]int{"http": 20007, "admin": 9000}
	p := running(0, "n0", 5, 0)
	p.Ports = old
	s.Pods = []reconcile.Pod{p}
	s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost = false, true
	plan := reconcile.Compute(s)
	ch := plan.Placer().On(p.Identity, "n1")
	if len(ch.Reserve[0].KeepPorts) != 0 || !slices.Equal(ch.Reserve[0].Dynamic, []string{"http"}) {
		t.Errorf("reserves %+v, want a new number for http", ch.Reserve[0])
	}
	ch.AssignPorts("n1", map[string]int{"http": 20001})
	wantPorts(t, "the former copy", ch.Placement.Ghosts[0].Ports, old)
	wantPorts(t, "its stop", ch.Placement.GhostIntent(ch.Placement.Ghosts[0]).Ports, old)

	// The node returns before the new copy is available.
	s.Nodes["n0"].Alive, s.Nodes["n0"].MachineLost = true, false
	s.Now = s.Now.Add(time.Second)
	back := *p.Reality
	s.Pods = []reconcile.Pod{{Placement: *ch.Placement, Index: 10, Ghosts: map[string]*pod.Reality{"n0": &back}}}
	won := only(t, s, reconcile.Return)
	wantPorts(t, "the pod", won.Placement.Ports, old)
	wantPorts(t, "the one that lost", won.Placement.Ghosts[0].Ports, map[string]int{"http": 20001, "admin": 9000})
	for _, in := range won.Intents {
		if in.Node == "n0" {
			wantPorts(t, "its intent", in.Intent.Ports, old)
		}
	}
}

// An adopted pod keeps the port numbers that its node reports.
func TestAnOrphanKeepsItsPortNumbers(t *testing.T) {
	s := snapshotOf(1)
	dynamicPorts(s)
	ports := map[string]int{"http": 20009, "admin": 9000}
	s.Orphans = []reconcile.Orphan{{Node: "n2", Orphan: pod.Orphan{
		Identity: pod.Identity{RCID: "rc", Role: "main"}, PodID: "p", Digest: "m1", Revision: 5, Ports: ports,
	}}}
	ch := only(t, s, reconcile.Adopt)
	wantPorts(t, "the placement", ch.Placement.Ports, ports)
	if !slices.Equal(ch.Reserve[0].Claim.Ports, []int{9000, 20009}) || len(ch.Reserve[0].Dynamic) > 0 {
		t.Errorf("reserves %+v, want the present ports and no new one", ch.Reserve[0])
	}
}
