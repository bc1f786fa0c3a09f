// Package scheduler chooses nodes for pods. Scheduler is the interface, View is what a scheduler sees, ByLabel is the
// farms' built-in scheduler, and Rule decides whether a node may take a pod at all.
//
// A program that schedules for farms implements Scheduler and serves it with package remote. A program with its own
// farm, such as docs/examples/farm, sets app.FarmConfig.Scheduler. A farm checks each answer with the rule and the
// nodes' reservations before it writes. So no scheduler can overfill a node, or use a drained node. See ADR 20, and ADR
// 3 about books.
package scheduler

import (
	"context"
	"errors"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Scheduler chooses nodes for pods. A farm, or the controller's next owner, may repeat a call. Several goroutines may
// call a method at once. A method must return when its context ends, and must not keep the view.
type Scheduler interface {
	// EligibleNodes returns nodes in the order in which the farm tries them. refused counts the other nodes by reason,
	// for people; nil means the numbers of View.Eligible. The farm calls EligibleNodes first, also with books. It gives
	// back shares of nodes that are missing in the answer.
	//
	// Without books, a pod goes to the node with capacity that has the fewest pods of its controller; among equals, the
	// order decides. The farm does not consider other uses of the nodes. A scheduler that packs pods, or balances
	// zones, implements Books and chooses each pod's node. The farm ignores, logs and counts a name that is unknown,
	// repeated, or not in View.Eligible.
	EligibleNodes(ctx context.Context, v *View) (nodes []string, refused Reasons, err error)
	// AllocateNodes gives each replica a share of one node. A replica with a share gets the same again, unless it must
	// avoid that node. Then it gets another, and the farm gives the former back. The answer lacks replicas for which no
	// node has capacity. For such a replica, the controller's status shows the reasons in refused, the second result of
	// EligibleNodes. So EligibleNodes should leave out full nodes, and count them in refused. After an error, the farm
	// does not know which shares were given. With books, the farm calls this before it writes a placement.
	//
	// The view does not show what is taken on nodes. The farm gives back a share that does not fit. Within 15 s it asks
	// again, with that node in Want.Avoid. If the scheduler names the node again, the replica waits for capacity there.
	AllocateNodes(ctx context.Context, o Owner, v *View, wants []Want) ([]Allocation, error)
	// DeallocateNodes takes shares back after a node has confirmed the stop (P5). A share that is not in the books is
	// no error.
	DeallocateNodes(ctx context.Context, o Owner, allocations []Allocation) error
}

// Books is a Scheduler that keeps books of its shares, and chooses the node of each pod. Write
//
//	var _ scheduler.Books = (*T)(nil)
//
// because farms use a T with a wrong method as a scheduler without books. The books can be only in memory: a new owner,
// and each resync (every ten minutes), asks again for shares that the books lack, with Want.Node set.
type Books interface {
	Scheduler
	// AllocatedNodes returns all shares of the controller, or ErrNoBooks.
	AllocatedNodes(ctx context.Context, o Owner) ([]Allocation, error)
}

// ErrNoBooks is the answer of a Scheduler with the methods of Books that keeps no books, such as the client of a
// scheduler in another process. Farms then call only EligibleNodes.
var ErrNoBooks = errors.New("the scheduler keeps no books")

// NoBooks is embedded in schedulers without books. Farms then use only the nodes' reservations.
type NoBooks struct{}

// AllocateNodes implements Scheduler. Farms do not call it.
func (NoBooks) AllocateNodes(context.Context, Owner, *View, []Want) ([]Allocation, error) {
	return nil, ErrNoBooks
}

// DeallocateNodes does nothing.
func (NoBooks) DeallocateNodes(context.Context, Owner, []Allocation) error { return nil }

// Allocation is one replica's share of one node.
type Allocation struct {
	Pod  pod.Identity `json:"pod"`
	Node string       `json:"node"`
}

// Want asks for a share for one replica.
type Want struct {
	Pod pod.Identity `json:"pod"`
	// Avoid names nodes that the replica must not get:
	//   - nodes where it is, or where it was and may still run; it keeps its shares of these nodes;
	//   - nodes to which it was moved, if this move was undone;
	//   - the last few nodes that the scheduler named just before, and that had no capacity.
	Avoid []string `json:"avoid,omitempty"`
	// Node, if set, is where the replica is already. The scheduler must enter this share into the books, even if it
	// does not fit.
	Node string `json:"node,omitempty"`
}

// Owner identifies a controller, and the farm's tenure as its owner.
type Owner struct {
	RCID string `json:"rc_id"`
	// Term sorts after the terms of earlier owners. The scheduler must refuse a request with an earlier term than a
	// previous request: its farm has lost the controller, and it could undo what the new owner did.
	Term string `json:"term"`
}
