package place

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// BenchmarkAssign finds nodes for 5,000 pods on 1,000 empty nodes whose reservations were read before.
func BenchmarkAssign(b *testing.B) {
	s, snap := guessed(5000, 1000)
	names, early := s.found.guessed, s.found.readAhead
	b.ReportAllocs()
	for b.Loop() {
		plan := reconcile.Compute(snap)
		if err := s.Assign(b.Context(), &plan, math.MaxInt); err != nil || plan.Status.Is(rc.InsufficientNodes) {
			b.Fatal(plan.Status, err)
		}
		s.found = newCandidates(s.facts, &s.lot, nil, "")
		s.found.inOrder(placement.InOrder(names), placement.Walk{})
		s.found.guessed, s.found.readAhead = names, early
	}
}

// noMetrics counts nothing.
type noMetrics struct{}

func (noMetrics) SchedulerFailed(string)                    {}
func (noMetrics) SetMissing(string, int, scheduler.Reasons) {}

// guessed returns a search that has taken all nodes, and the snapshot for the plan. The nodes are empty, and the
// controller has no pods yet.
func guessed(pods, nodes int) (*Search, *reconcile.Snapshot) {
	id := store.NewID()
	snap := &reconcile.Snapshot{
		Now: time.Now(), Owner: "f1", Manifest: &manifest.Manifest{ID: "web"}, Nodes: map[string]*node.View{},
		Epoch: "n",
		RC: rc.RC{
			ID: id, Name: "web", ManifestDigest: fmt.Sprintf("%064d", 1), MaxPerNode: 10,
			ReplicaGroups: []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &pods}},
		},
	}
	f := New(Config{Farm: "f1", Log: obs.Discard(), Metrics: noMetrics{}})
	s := f.Begin(scheduler.Owner{RCID: id}, Nodes{Views: snap.Nodes}, Memory{}, obs.Discard())
	s.facts = reconcile.FactsOf(snap)
	s.lot = s.facts.DefaultLot()
	s.found = newCandidates(s.facts, &s.lot, nil, "")
	s.found.readAhead = s.reserved
	for i := range nodes {
		name := fmt.Sprintf("n-%x-%05d", i%16, i)
		record := node.Node{Name: name, Capacity: node.Capacity{Slots: 100}, Epoch: "n"}
		snap.Nodes[name] = node.NewView(record, node.Ops{}, true)
		s.reserved[name] = store.Rec[node.Reservation]{}
		s.found.guessed = append(s.found.guessed, name)
	}
	s.found.inOrder(placement.InOrder(s.found.guessed), placement.Walk{})
	return s, snap
}

// A search places at most as many pods as the caller allows, and leaves the others for the next look.
func TestPodsBeyondTheMaximumWaitForTheNextLook(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ pods, most, placed int }{
		{pods: 301, most: math.MaxInt, placed: 301},
		{pods: 301, most: 300, placed: 300},
		{pods: 300, most: 300, placed: 300},
	} {
		s, snap := guessed(test.pods, 200)
		plan := reconcile.Compute(snap)
		if err := s.Assign(t.Context(), &plan, test.most); err != nil {
			t.Fatal(err)
		}
		if again := plan.Again > 0; len(plan.Changes) != test.placed || again != (test.placed < test.pods) {
			t.Errorf("%+v: %d placed, again %v", test, len(plan.Changes), again)
		}
	}
}

// A scheduler that balances must know which pods stop.
func TestAViewHasWhichPodsStop(t *testing.T) {
	t.Parallel()
	var s reconcile.Snapshot
	want := []scheduler.Placed{{Node: "n1"}, {Node: "n2", Stopping: true}}
	for i, state := range []pod.RunState{pod.Running, pod.Stopped} {
		s.Pods = append(s.Pods, reconcile.Pod{Placement: pod.Placement{Node: want[i].Node, RunState: state}})
	}
	facts := reconcile.FactsOf(&s)
	lot := facts.DefaultLot()
	if got := slices.Collect(viewOf(facts, &lot, 0).Pods()); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// The last few nodes that could not take a pod are remembered until the scheduler names a node that can, or names none.
func TestUnfitNodesAreRememberedForAWhile(t *testing.T) {
	t.Parallel()
	a, b := pod.Identity{Role: "main"}, pod.Identity{Role: "main", Index: 1}
	both := []pod.Identity{a, b}
	var m Memory
	m.noteUnfit(both, []scheduler.Allocation{{Pod: a, Node: "n1"}})
	m.noteUnfit(both, []scheduler.Allocation{{Pod: a, Node: "n2"}, {Pod: b, Node: "n2"}})
	m.noteUnfit(both, []scheduler.Allocation{{Pod: a, Node: "n2"}, {Pod: b, Node: "n3"}})
	if !slices.Equal(m.unfit[a], []string{"n1", "n2"}) || !slices.Equal(m.unfit[b], []string{"n2", "n3"}) {
		t.Errorf("%v", m.unfit)
	}
	for _, name := range []string{"n3", "n4", "n5", "n6", "n7", "n8", "n9"} {
		m.noteUnfit([]pod.Identity{a}, []scheduler.Allocation{{Pod: a, Node: name}})
	}
	if len(m.unfit[a]) != maxUnfit || m.unfit[a][0] != "n2" || !slices.Equal(m.unfit[b], []string{"n2", "n3"}) {
		t.Errorf("%v", m.unfit)
	}
	if m.noteUnfit([]pod.Identity{b}, nil); len(m.unfit) != 1 {
		t.Errorf("the second pod has a node, or none was named, but its unfit nodes are kept: %v", m.unfit)
	}
}

// shortages notes the missing pods that a search reports.
type shortages struct {
	noMetrics
	pods int
	why  scheduler.Reasons
}

func (s *shortages) SetMissing(_ string, pods int, why scheduler.Reasons) { s.pods, s.why = pods, why }

// emptyNodes returns empty reservations.
type emptyNodes struct{ Reads }

func (emptyNodes) ReadDetails(_ context.Context, w store.Wanted, _ store.Level) (store.Details, error) {
	d := store.Details{Reservations: map[string]store.Rec[node.Reservation]{}}
	for _, name := range w.Reservations {
		d.Reservations[name] = store.Rec[node.Reservation]{}
	}
	return d, nil
}

// A role with its own placement preferences is placed after the others. max_per_node counts the pods of all roles, and
// so does the reported shortage.
func TestMaxPerNodeHoldsForAllRoles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ nodes, main, placed, short int }{
		{1, 1, 1, 1}, {2, 3, 2, 2}, {2, 1, 2, 0}, {3, 2, 3, 0},
	} {
		s, snap := guessed(0, c.nodes)
		one := 1
		snap.RC.MaxPerNode = 1
		snap.RC.ReplicaGroups = []rc.ReplicaGroup{
			{Role: rc.DefaultRole, Count: &c.main}, {Role: "side", Count: &one, Placing: rc.PlacePack},
		}
		var short shortages
		s.finder.cfg.Metrics, s.finder.cfg.Reads = &short, emptyNodes{}
		s.finder.cfg.OnReservation = func(*node.View, node.Reservation) {}
		plan := reconcile.Compute(snap)
		if err := s.Assign(t.Context(), &plan, math.MaxInt); err != nil {
			t.Fatal(err)
		}
		on := map[string]int{}
		for _, change := range plan.Changes {
			on[change.Placement.Node]++
		}
		if len(on) != c.placed || len(plan.Changes) != c.placed {
			t.Errorf("%+v: pods by node: %v, want one on each of %d", c, on, c.placed)
		}
		if short.pods != c.short || (short.why[scheduler.MaxPerNode] > 0) != (c.short > 0) {
			t.Errorf("%+v: %d pods are reported to be missing, because of %v", c, short.pods, short.why)
		}
	}
}
