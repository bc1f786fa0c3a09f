package farm

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A pass writes its changes in several batches. The view has the changes of all of them, because the next pass decides
// from the view.
func TestTheViewHasWhatAllBatchesHaveWritten(t *testing.T) {
	t.Parallel()
	at := func(index int, node string) pod.Placement {
		return pod.Placement{Identity: pod.Identity{RCID: "u-1", Role: "main", Index: index}, Node: node}
	}
	write := func(p *pod.Placement, landed uint64) store.PodWrite {
		return store.PodWrite{Identity: p.Identity, Placement: p, Landed: landed}
	}
	kept, moved, gone := at(0, "n0"), at(1, "n1"), at(2, "n2")
	head := &store.Head{}
	for _, p := range []pod.Placement{kept, moved, gone} {
		head.Placements = append(head.Placements, store.Rec[pod.Placement]{Value: p, Index: 3})
	}
	for _, id := range []string{"a", "b", "c"} {
		head.Requests = append(head.Requests, store.Rec[store.Request]{Value: store.Request{ID: id}})
	}
	moved.Node = "n9"
	added := at(3, "n3")
	status := &rc.Status{Desired: 3}
	v := &view{Unit: store.Unit{Heads: map[string]*store.Head{"u-1": head}}}
	if v.add("u-1", traces{}) || v.stale || !v.add("u-1", traces{stale: true}) || !v.stale {
		t.Errorf("stale: %t", v.stale)
	}
	wrote := v.add("u-1", traces{landed: []*batch{
		{Batch: store.Batch{Status: status, Part: store.Part{Pods: []store.PodWrite{write(&added, 7)}}}},
		{Batch: store.Batch{Part: store.Part{Pods: []store.PodWrite{write(&moved, 8), {Identity: gone.Identity}}}}},
	}})
	before, head := head, v.Heads["u-1"]
	want := []struct {
		node  string
		index uint64
	}{{"n0", 3}, {"n9", 8}, {"n3", 7}}
	if len(head.Placements) != len(want) {
		t.Fatalf("%+v", head.Placements)
	}
	for i, w := range want {
		if got := head.Placements[i]; got.Value.Node != w.node || got.Index != w.index {
			t.Errorf("%+v, want %+v", got, w)
		}
	}
	if head.Status != status || !wrote {
		t.Errorf("status %+v, wrote %t", head.Status, wrote)
	}
	if p := before.Placements; p[1].Value.Node != "n1" || p[2].Value.Node != "n2" || before.Status != nil {
		t.Errorf("the head that a pass has read was changed: %+v", before)
	}
	v.add("u-1", traces{landed: []*batch{
		{Batch: store.Batch{Part: store.Part{Answered: []string{"a"}}}},
		{Batch: store.Batch{Part: store.Part{Answered: []string{"c"}}}},
	}})
	head = v.Heads["u-1"]
	if len(head.Requests) != 1 || head.Requests[0].Value.ID != "b" {
		t.Errorf("requests %+v", head.Requests)
	}
}
