package farm

import (
	"fmt"
	"io"
	"maps"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
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

// BenchmarkPlacing is what a pass that places 5,000 pods on 1,000 empty nodes does between its reads and its writes.
func BenchmarkPlacing(b *testing.B) {
	ps := placingPass(b, 5000, 1000)
	b.ReportAllocs()
	for b.Loop() {
		plan := reconcile.Compute(ps.snapshot)
		names := ps.room.nodes.guessed
		ps.room.nodes.pool = scheduler.Pool{Preferred: scheduler.Preference{Order: placement.InOrder(names)}}
		if left, _, _, err := ps.room.search(b.Context(), &plan, placement.Look{All: true}); err != nil || len(left) > 0 {
			b.Fatal(len(left), err)
		}
		ps.placing.assigned(&plan, 0, nil, 0, scheduler.Reasons{})
		batches, err := ps.writer.batches(b.Context(), &plan)
		if err != nil || len(batches) > 100 {
			b.Fatal(len(batches), err)
		}
		ps.room.nodes.guessed, ps.room.nodes.perNode = names, map[string]int{}
	}
}

// placingPass returns a controller that lacks all of its pods, with what its pass has read.
func placingPass(t testing.TB, pods, nodes int) *pass {
	t.Helper()
	keys, err := store.NewKeys("test/")
	if err != nil {
		t.Fatal(err)
	}
	client, err := consul.New(consul.Config{Address: "127.0.0.1:1"}) // nothing is sent
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	log, err := obs.NewLogger(io.Discard, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	f := NewFarm(Config{ID: "f1", Store: store.New(client, keys).FarmSession(&consul.Session{}, "f1"), Log: log})
	id := store.NewID()
	s := &reconcile.Snapshot{
		Now: time.Now(), Owner: "f1", Manifest: &manifest.Manifest{ID: "web", Labels: map[string]string{"team": "test"}}, Nodes: map[string]*node.View{}, Epoch: "n",
		RC: rc.RC{ID: id, Name: "web", ManifestDigest: fmt.Sprintf("%064d", 1), MaxPerNode: 10, ReplicaGroups: []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &pods}}},
	}
	ps := passOver(unitOver(f.kit, id, store.Fence{}))
	ps.snapshot, ps.schema = s, store.Rec[store.Schema]{Index: 7}
	ps.head, ps.BellIndex = store.Head{RC: store.Rec[rc.RC]{Value: s.RC, Index: 8}}, 9
	ps.room.nodes = newCandidates(s, nil, "")
	for i := range nodes {
		name := fmt.Sprintf("n-%x-%05d", i%16, i)
		s.Nodes[name] = node.NewView(node.Node{Name: name, Capacity: node.Capacity{Slots: 100}, Epoch: "n"}, node.Ops{}, true)
		ps.room.reserved[name] = store.Rec[node.Reservation]{}
		ps.room.nodes.guessed = append(ps.room.nodes.guessed, name)
	}
	ps.room.nodes.early = ps.room.reserved
	return ps
}

// Pods that share a node are packed together. Where others have taken room meanwhile, so that not all of them fit, those that do are
// placed: each batch reserves exactly what it places, and each node is in one batch.
func TestPodsOfOneNodeArePackedTogether(t *testing.T) {
	t.Parallel()
	const pods, slots, left = 500, 100, 2
	ps := placingPass(t, pods, 100)
	plan := reconcile.Compute(ps.snapshot)
	ps.room.nodes.pool = scheduler.Pool{Preferred: scheduler.Preference{Order: placement.InOrder(ps.room.nodes.guessed)}}
	if _, _, _, err := ps.room.search(t.Context(), &plan, placement.Look{All: true}); err != nil {
		t.Fatal(err)
	}
	ps.placing.assigned(&plan, 0, nil, 0, scheduler.Reasons{})
	tight := plan.Changes[0].Placement.Node
	others := map[string]node.Claim{}
	for i := range slots - left {
		id := pod.Identity{RCID: "other", Role: rc.DefaultRole, Index: i}
		others[id.String()] = node.Claim{Pod: id}
	}
	ps.room.reserved[tight] = store.Rec[node.Reservation]{Value: node.Reservation{Claims: others}, Index: 5}
	planned := map[string]int{}
	for i := range plan.Changes {
		planned[plan.Changes[i].Placement.Node]++
	}
	planned[tight] = left
	batches, err := ps.writer.batches(t.Context(), &plan)
	if err != nil {
		t.Fatal(err)
	}
	placed, audited := map[string]int{}, 0
	for _, b := range batches {
		audited += b.changes
		here := map[string]int{}
		for i := range b.Pods {
			here[b.Pods[i].Placement.Node]++
		}
		for _, w := range b.Reservations {
			if placed[w.Node] != 0 {
				t.Errorf("%s is in two batches", w.Node)
			}
			placed[w.Node] = here[w.Node]
			own := 0
			for _, h := range w.Value.Claims {
				if h.Pod.RCID == ps.id {
					own++
				}
			}
			if own != here[w.Node] || w.Index != ps.room.reserved[w.Node].Index {
				t.Errorf("%s: %d pods placed, %d reserved, on index %d", w.Node, here[w.Node], own, w.Index)
			}
		}
	}
	if !maps.Equal(placed, planned) {
		t.Errorf("placed %v, planned %v", placed, planned)
	}
	if !plan.Status.Is(rc.Blocked) || len(others) != slots-left {
		t.Errorf("status %+v; the reservation as read has %d holders", plan.Status, len(others))
	}
	if lines := batches[0].Audit.Changes; audited != pods-5+left || lines[len(lines)-1] != fmt.Sprintf("and %d more", audited-store.MaxAuditChanges) {
		t.Errorf("%d changes, audited as %q", audited, lines)
	}
}

// Of changes on one node some may rely on the minimum and others not: together they depend on all that each of them does.
func TestChangesOfOneNodeDependOnAllThatEachDoes(t *testing.T) {
	t.Parallel()
	ps := &writer{minimum: &minimum{}, reading: &reading{
		view: &view{
			reports: map[store.At]store.Report{{Node: "n1", Identity: pod.Identity{RCID: "web"}}: {Index: 7}},
			Unit:    store.Unit{Drops: store.Drops{Index: 6}}, schema: store.Rec[store.Schema]{Index: 8}, breaker: store.Rec[store.Breaker]{Index: 9},
		},
	}}
	id := pod.Identity{RCID: "web"}
	dead := []reconcile.DeadNode{{Name: "n2", Index: 2}}
	changes := []reconcile.Change{
		{Identity: id, NeedsMinimum: true, NeedsBreaker: true, Answers: []string{"r1"}},
		{Identity: id, NeedsSchema: true, NeedsReports: []string{"n1"}},
		{Identity: id, NeedsDead: dead},
		{Identity: id, NeedsDead: dead},
	}
	var part store.Part
	for i := range changes {
		if !ps.addTo(&part, &changes[i]) {
			t.Fatalf("change %d does not join", i)
		}
	}
	if part.DropsIndex != 6 || part.Reported[store.At{Node: "n1", Identity: id}] != 7 || part.SchemaIndex != 8 ||
		part.BreakerIndex != 9 || part.Dead["n2"] != 2 || len(part.Pods) != len(changes) || len(part.Answered) != 1 {
		t.Errorf("%+v", part)
	}
	changes[0].NeedsDead = []reconcile.DeadNode{{Name: "n2", Index: 3}}
	if ps.addTo(&part, &changes[0]) {
		t.Error("changes that disagree on a node are packed together")
	}
}
