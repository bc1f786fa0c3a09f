package farm

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// BenchmarkBatches packs 5,000 new pods on 1,000 empty nodes.
func BenchmarkBatches(b *testing.B) {
	ps, plan, reserved := placingPass(b, 5000, 1000)
	packer, changes := ps.packer(nil), plan.Changes
	b.ReportAllocs()
	for b.Loop() {
		plan.Changes = changes
		if batches := packer.pack(plan, reserved, nil); len(batches) > 100 {
			b.Fatal(len(batches))
		}
	}
}

// placingPass returns the pass over a controller without pods, and its plan, which has placed the same number of pods
// on each of some empty nodes.
func placingPass(t testing.TB, pods, nodes int) (*pass, *reconcile.Plan, map[string]store.Rec[node.Reservation]) {
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
		Now: time.Now(), Owner: "f1",
		Manifest: &manifest.Manifest{ID: "web", Labels: map[string]string{"team": "test"}},
		Nodes:    map[string]*node.View{}, Epoch: "n",
		RC: rc.RC{
			ID: id, Name: "web", ManifestDigest: fmt.Sprintf("%064d", 1), MaxPerNode: 10,
			ReplicaGroups: []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &pods}},
		},
	}
	ps := passOver(unitOver(f.kit, id, store.Fence{}))
	ps.snapshot, ps.schema = s, store.Rec[store.Schema]{Index: 7}
	ps.head, ps.BellIndex = store.Head{RC: store.Rec[rc.RC]{Value: s.RC, Index: 8}}, 9
	reserved := map[string]store.Rec[node.Reservation]{}
	for i := range nodes {
		name := fmt.Sprintf("n-%x-%05d", i%16, i)
		s.Nodes[name] = node.NewView(node.Node{Name: name, Capacity: node.Capacity{Slots: 100}, Epoch: "n"},
			node.Ops{}, true)
		reserved[name] = store.Rec[node.Reservation]{}
	}
	plan := reconcile.Compute(s)
	placer, each, names := plan.Placer(), pods/nodes, slices.Sorted(maps.Keys(s.Nodes))
	for i, id := range plan.Adds {
		plan.Changes = append(plan.Changes, placer.On(id, names[i/each]))
	}
	return ps, &plan, reserved
}

// Pods on the same node are packed together. If other controllers have taken capacity since, and not all of the pods
// fit, the pods that fit are placed. Each batch reserves exactly what it places, and each node is in one batch.
func TestPodsOfOneNodeArePackedTogether(t *testing.T) {
	t.Parallel()
	const pods, slots, left = 500, 100, 2
	ps, plan, reserved := placingPass(t, pods, 100)
	tight := plan.Changes[0].Placement.Node
	others := map[string]node.Claim{}
	for i := range slots - left {
		id := pod.Identity{RCID: "other", Role: rc.DefaultRole, Index: i}
		others[id.String()] = node.Claim{Pod: id}
	}
	reserved[tight] = store.Rec[node.Reservation]{Value: node.Reservation{Claims: others}, Index: 5}
	planned := map[string]int{}
	for i := range plan.Changes {
		planned[plan.Changes[i].Placement.Node]++
	}
	planned[tight] = left
	batches := ps.packer(nil).pack(plan, reserved, nil)
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
			if own != here[w.Node] || w.Index != reserved[w.Node].Index {
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
	if lines := batches[0].Audit.Changes; audited != pods-5+left ||
		lines[len(lines)-1] != fmt.Sprintf("and %d more", audited-store.MaxAuditChanges) {
		t.Errorf("%d changes, audited as %q", audited, lines)
	}
}

// If the description of a change panics, its pod is placed all the same. The log has the stack once.
func TestAChangeThatCannotBeDescribedLands(t *testing.T) {
	t.Parallel()
	ps, plan, reserved := placingPass(t, 4, 2)
	text := &bytes.Buffer{}
	log, err := obs.NewLogger(text, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	packer := ps.packer(nil)
	packer.log, packer.describe = log, func(ch *reconcile.Change) string {
		if ch.Identity.Index < 2 {
			panic("no words")
		}
		return ch.String()
	}
	batches := packer.pack(plan, reserved, nil)
	if len(batches) != 1 || len(batches[0].Pods) != 4 {
		t.Fatalf("%+v", batches)
	}
	lines := batches[0].Audit.Changes
	if garbled := fmt.Sprintf("place %s (not described: see the log of the farm)", plan.Changes[0].Identity); len(
		lines) != 4 || lines[0] != garbled || lines[3] != plan.Changes[3].String() {
		t.Errorf("%q", lines)
	}
	logged := text.String()
	if n := strings.Count(logged, "cannot be described"); n != 1 || !strings.Contains(logged, "no words") {
		t.Errorf("logged %d times: %s", n, logged)
	}
}

// Some changes on one node may depend on the minimum, and others not. If they are packed together, the batch has the
// conditions of all of them.
func TestChangesOfOneNodeDependOnAllThatEachDoes(t *testing.T) {
	t.Parallel()
	packer := &packer{basis: basis{
		reports: map[store.At]store.Report{{Node: "n1", Identity: pod.Identity{RCID: "web"}}: {Index: 7}},
		drops:   6, schema: 8, breaker: 9,
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
		if !packer.addTo(&part, &changes[i]) {
			t.Fatalf("change %d does not join", i)
		}
	}
	if part.DropsIndex != 6 || part.Reported[store.At{Node: "n1", Identity: id}] != 7 || part.SchemaIndex != 8 ||
		part.BreakerIndex != 9 || part.Dead["n2"] != 2 || len(part.Pods) != len(changes) || len(part.Answered) != 1 {
		t.Errorf("%+v", part)
	}
	changes[0].NeedsDead = []reconcile.DeadNode{{Name: "n2", Index: 3}}
	if packer.addTo(&part, &changes[0]) {
		t.Error("changes that disagree on a node are packed together")
	}
}
