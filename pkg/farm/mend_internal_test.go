package farm

import (
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A reservation that was lost is written again as ineligible if its node is drained. It takes no new pods, only the
// shares of pods that are already there.
func TestALostReservationOfADrainedNodeIsWrittenIneligible(t *testing.T) {
	t.Parallel()
	id := pod.Identity{RCID: "web", Role: "main"}
	nodes := map[string]*node.View{
		"n1": {
			Node: node.Node{Name: "n1", Capacity: node.Capacity{Slots: 9}}, Alive: true,
			Ops: node.Ops{Drain: &node.Drain{Since: time.Unix(1, 0)}},
		},
	}
	claim := node.NewClaim(id, nil, 0, 0)
	for name, tt := range map[string]struct {
		rec        store.Rec[node.Reservation]
		reserve    reconcile.ReserveChange
		ineligible bool
		refused    scheduler.Reason
	}{
		"adopted there": {
			reserve:    reconcile.ReserveChange{Node: "n1", Claim: &claim, Force: true},
			ineligible: true,
		},
		"released there": {reserve: reconcile.ReserveChange{Node: "n1"}, ineligible: true},
		"placed there": {
			reserve: reconcile.ReserveChange{Node: "n1", Claim: &claim},
			refused: scheduler.Drained,
		},
		"there, and not drained": {
			rec:     store.Rec[node.Reservation]{Index: 7},
			reserve: reconcile.ReserveChange{Node: "n1"},
		},
		"another node, not known": {reserve: reconcile.ReserveChange{Node: "n2"}},
	} {
		ch := &reconcile.Change{Identity: id, Reserve: []reconcile.ReserveChange{tt.reserve}}
		writes, refused := reserve(nodes, map[string]store.Rec[node.Reservation]{"n1": tt.rec}, ch)
		if refused != tt.refused || refused == "" && writes[0].Value.Ineligible != tt.ineligible {
			t.Errorf("%s: %+v, %q", name, writes, refused)
		}
	}
}
