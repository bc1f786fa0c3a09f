package farm

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A pod is only brought to a node whose reservation has the label versions that the farm knows. Pods that are already
// there, and pods that move off, do not depend on the label versions.
func TestOnlyNewPodsDependOnLabelVersions(t *testing.T) {
	t.Parallel()
	id := pod.Identity{RCID: "web", Role: "main"}
	known := node.NewView(node.Node{Name: "n1", Capacity: node.Capacity{Slots: 9}}, node.Ops{}, true)
	claim := node.NewClaim(id, nil, 0, 0)
	here := []reconcile.ReserveChange{{Node: "n1", Claim: &claim}}
	for name, tt := range map[string]struct {
		action  reconcile.Action
		on      string
		reserve []reconcile.ReserveChange
		refused scheduler.Reason
	}{
		"placed":     {reconcile.Place, "n1", here, scheduler.Relabelled},
		"moved here": {reconcile.Move, "n1", here, scheduler.Relabelled},
		"moved elsewhere": {
			reconcile.Move, "n2",
			[]reconcile.ReserveChange{{Node: "n2", Claim: &claim}, {Node: "n1"}},
			"",
		},
		"upgraded":   {reconcile.Upgrade, "n1", here, ""},
		"back again": {reconcile.Return, "n1", here, ""},
		"adopted": {
			reconcile.Adopt, "n1",
			[]reconcile.ReserveChange{{Node: "n1", Claim: &claim, Force: true}},
			"",
		},
	} {
		for version, labels := range map[string]map[string]string{"": nil, "the same": {}, "others": {"pool": "b"}} {
			res, want := node.Reservation{}, scheduler.Reason("")
			if version != "" {
				res = res.WithOps(node.Ops{Labels: labels})
			}
			if version == "others" {
				want = tt.refused
			}
			nodes := map[string]*node.View{"n1": known}
			ch := &reconcile.Change{
				Action: tt.action, Identity: id,
				Placement: &pod.Placement{Identity: id, Node: tt.on}, Reserve: tt.reserve,
			}
			writes, refused := reserve(nodes, map[string]store.Rec[node.Reservation]{"n1": {Value: res, Index: 7}}, ch)
			if refused != want {
				t.Errorf("%s, %s version: %q, want %q", name, version, refused, want)
			}
			for _, w := range writes {
				if w.Node == "n1" && w.Value.Labels != res.Labels {
					t.Errorf("%s, %s version: written with %+v", name, version, w.Value.Labels)
				}
			}
		}
	}
}
