package farm

import (
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// reserve returns the new reservations that a change needs, or why a node cannot take it. It fills in the numbers of the
// change's dynamic ports: nobody else gets one of them, since it lands only if these reservations do (P3).
func reserve(nodes map[string]*node.View, reserved map[string]store.Rec[node.Reservation], ch *reconcile.Change) ([]store.ReservationWrite, scheduler.Reason) {
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

// nextOf returns a copy of a node's reservation for a change to write to.
func nextOf(nodes map[string]*node.View, rec store.Rec[node.Reservation], nodeName string) node.Reservation {
	next := rec.Value.Clone()
	if n := nodes[nodeName]; rec.Index == 0 && n != nil && n.MustLeave() {
		next.Closed = true // the record was lost (R13); whoever ends the drain writes it
	}
	return next
}

// reserveOn is reserve on one node. With a reason the reservation is as it was.
func reserveOn(nodes map[string]*node.View, next node.Reservation, ch *reconcile.Change, r *reconcile.ReserveChange) scheduler.Reason {
	key := ch.Identity.String()
	if r.Holder == nil {
		delete(next.Holders, key)
		return ""
	}
	n := nodes[r.Node]
	if adds(ch) && r.Node == ch.Placement.Node && n != nil && scheduler.Outdated(n, next) {
		return scheduler.Relabelled
	}
	taken, ports, reason := share(nodes[r.Node], next, r)
	if reason == "" {
		ch.AssignPorts(r.Node, ports)
		next.Holders[key] = taken
	}
	return reason
}

// adds reports whether a change brings a pod to a node, which must match then. What is there already has its share whatever the
// node's labels are.
func adds(ch *reconcile.Change) bool {
	return ch.Action == reconcile.Place || ch.Action == reconcile.Move
}

// share returns what a change takes of a node besides what is reserved there, with the numbers of dynamic ports.
func share(n *node.View, res node.Reservation, r *reconcile.ReserveChange) (node.Holder, map[string]int, scheduler.Reason) {
	taken := *r.Holder
	var ports map[string]int
	var reason scheduler.Reason
	switch {
	case n == nil && len(r.Dynamic) > 0:
		return taken, nil, scheduler.NotAlive // whatever its range was
	case n != nil && len(r.Dynamic) > 0:
		taken, ports, reason = scheduler.Share(n, res, taken, r.Dynamic, r.Held)
	}
	if r.Keep {
		taken = taken.With(res.Holders[taken.Pod.String()])
	}
	if reason == "" && n != nil && !r.Force {
		reason = scheduler.Fits(n, res, taken.Pod, taken)
	}
	return taken, ports, reason
}
