package farm

import (
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// reserve returns the new reservations that a change needs, or why a node cannot take the change. It also chooses the
// change's dynamic ports. No other pod gets these ports, because change and reservations land together (P3).
func reserve(
	nodes map[string]*node.View, reserved map[string]store.Rec[node.Reservation], ch *reconcile.Change,
) ([]store.ReservationWrite, scheduler.Reason) {
	var writes []store.ReservationWrite
	for i := range ch.Reserve {
		r := &ch.Reserve[i]
		rec := reserved[r.Node]
		next := nextOf(nodes, rec, r.Node)
		if reason := reserveOn(nodes, next, ch, r); reason != "" {
			return nil, reason
		}
		writes = append(writes, store.ReservationWrite{Node: r.Node, Index: rec.Index, Value: next})
	}
	return writes, ""
}

func nextOf(
	nodes map[string]*node.View, rec store.Rec[node.Reservation], nodeName string,
) node.Reservation {
	next := rec.Value.Clone()
	if n := nodes[nodeName]; rec.Index == 0 && n != nil && n.MustLeave() {
		next.Ineligible = true // the record was lost (R13); the end of the drain removes this
	}
	return next
}

// reserveOn writes a change into the reservation of one node, or returns why the node cannot take it.
func reserveOn(
	nodes map[string]*node.View, next node.Reservation, ch *reconcile.Change, r *reconcile.ReserveChange,
) scheduler.Reason {
	key := ch.Identity.String()
	if r.Claim == nil {
		delete(next.Claims, key)
		return ""
	}
	n := nodes[r.Node]
	if adds(ch) && r.Node == ch.Placement.Node && n != nil && scheduler.Outdated(n, next) {
		return scheduler.Relabelled
	}
	taken, ports, reason := claimOn(nodes[r.Node], next, r)
	if reason == "" {
		ch.AssignPorts(r.Node, ports)
		next.Claims[key] = taken
	}
	return reason
}

// adds reports whether a change brings a pod to a node. Only then the node's labels must match: a pod that is there
// stays.
func adds(ch *reconcile.Change) bool {
	return ch.Action == reconcile.Place || ch.Action == reconcile.Move
}

// claimOn returns the share of a node that a change takes, with its dynamic ports, or why the share does not fit.
func claimOn(
	n *node.View, res node.Reservation, r *reconcile.ReserveChange,
) (node.Claim, map[string]int, scheduler.Reason) {
	taken := *r.Claim
	var ports map[string]int
	var reason scheduler.Reason
	switch {
	case n == nil && len(r.Dynamic) > 0:
		return taken, nil, scheduler.NotAlive // its range of ports is not known
	case n != nil && len(r.Dynamic) > 0:
		taken, ports, reason = scheduler.ClaimOn(n, res, taken, r.Dynamic, r.KeepPorts)
	}
	if r.Keep {
		taken = taken.With(res.Claims[taken.Pod.String()])
	}
	if reason == "" && n != nil && !r.Force {
		reason = scheduler.Fits(n, res, taken.Pod, taken)
	}
	return taken, ports, reason
}

func freedBy(ch *reconcile.Change) []string {
	var names []string
	for _, r := range ch.Reserve {
		if r.Claim == nil || ch.Action == reconcile.FinishUpgrade {
			names = append(names, r.Node)
		}
	}
	return names
}
