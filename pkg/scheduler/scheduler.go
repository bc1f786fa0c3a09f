// Package scheduler is how nodes are chosen for pods. Scheduler is the interface, View what one is shown, ByLabel the scheduler that
// farms have of their own, and Rule the one rule that says whether a node may take a pod at all.
//
// A program that schedules for farms implements Scheduler and serves it with package remote; a farm of one's own, such as docs/examples/farm,
// sets app.FarmConfig.Scheduler. Whatever a scheduler says is judged by the rule and by the nodes' reservations before anything is written, so that none can
// overfill a node or use one that is drained. See ADR 20, and ADR 3 about schedulers that keep books.
package scheduler

import (
	"context"
	"errors"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Scheduler chooses nodes for pods. Every method may be called again with the same arguments, after a failure and by the next owner of a
// controller, and by several goroutines at once. A method must return when its context ends, and must not keep the view.
type Scheduler interface {
	// EligibleNodes is asked first, of schedulers with books too: a share of a node that it left out is given back. It returns names of nodes in the order in which they should be tried, and counts other nodes by why they are not
	// among them, for people; nil: as View.Eligible does. Of a scheduler without books a pod goes to the first node that has room, of those with the
	// fewest pods of its controller: the order decides among equals. What else nodes have is for the scheduler to consider. One that packs a
	// controller's pods, or balances zones, implements Books, and is asked for the node of each pod. A name
	// that is unknown, repeated, or of a node that is not among View.Eligible is ignored, logged and counted.
	EligibleNodes(ctx context.Context, v *View) (nodes []string, refused Reasons, err error)
	// AllocateNodes gives each replica a share of one node, and returns those that it gave. A replica that has a share of a node that it
	// need not avoid gets that one, or another if it must leave it by now: the former share is given back. Replicas that no node takes are absent
	// from the answer; the status counts what EligibleNodes refused, so that a node which is known to be full is better left out there. An error says that it is not known what
	// was given. It is asked of schedulers with books, before a placement is written.
	//
	// The view does not tell what is taken on nodes. A share that does not fit there is given back with DeallocateNodes, and the replica asked for
	// again within 15 s, with that node among those to avoid: whoever names it all the same has the replica wait for room there.
	AllocateNodes(ctx context.Context, o Owner, v *View, wants []Want) ([]Allocation, error)
	// DeallocateNodes takes shares back, after a node has confirmed that the replica stopped there (P5). One that is not held is fine.
	DeallocateNodes(ctx context.Context, o Owner, allocations []Allocation) error
}

// Books is a Scheduler that counts what it has given away, and is asked for the node of each pod. Write
//
//	var _ scheduler.Books = (*T)(nil)
//
// as a T whose method differs in a type is a scheduler without books. Books in memory are enough: what is missing from them is asked for with
// Want.Node set, when a controller gets another owner, and in its next resync, after ten minutes at the most.
type Books interface {
	Scheduler
	// AllocatedNodes returns all that the books hold for the controller, or ErrNoBooks if there are none after all.
	AllocatedNodes(ctx context.Context, o Owner) ([]Allocation, error)
}

// ErrNoBooks is what a Scheduler says that could keep books and keeps none, such as one in another process: it is asked for
// EligibleNodes only.
var ErrNoBooks = errors.New("the scheduler keeps no books")

// NoBooks is for schedulers to embed that keep no books: the nodes' reservations are all that counts.
type NoBooks struct{}

// AllocateNodes implements Scheduler. Farms do not call it.
func (NoBooks) AllocateNodes(context.Context, Owner, *View, []Want) ([]Allocation, error) {
	return nil, ErrNoBooks
}

// DeallocateNodes implements Scheduler: there is nothing to take back.
func (NoBooks) DeallocateNodes(context.Context, Owner, []Allocation) error { return nil }

// Allocation is one replica's share of one node.
type Allocation struct {
	Pod  pod.Identity `json:"pod"`
	Node string       `json:"node"`
}

// Want asks for a share for one replica.
type Want struct {
	Pod pod.Identity `json:"pod"`
	// Avoid names nodes where the replica is, or was and may still run, whose shares it keeps; those to which it was moved in vain; and the
	// last few that were named for it just before and had no room.
	Avoid []string `json:"avoid,omitempty"`
	// Node, if set, is where the replica is already: its share there is to be booked whether it fits or not.
	Node string `json:"node,omitempty"`
}

// Owner says on whose behalf a farm asks.
type Owner struct {
	RCID string `json:"rc_id"`
	// Term sorts after the terms of all earlier owners of the controller. A request under an earlier term than one that was
	// seen is late, of a farm that has lost the controller, and should be refused: nothing else keeps it from undoing what
	// the new owner did.
	Term string `json:"term"`
}
