package farm

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/placement"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
)

// Scheduler says which nodes may take pods. The built-in one selects by label among the nodes that are alive and open, and
// what it allocates is part of the farm's own transactions: the nodes' reservations. A Scheduler that is given to a farm is
// outside of them; one that counts what it has given away implements Allocator too.
type Scheduler interface {
	// EligibleNodes returns node names in the order in which they should be tried, and counts the other nodes by why
	// they are not among them. A name that is unknown, repeated, or of a node that is not eligible as the farm sees it
	// (alive, open, matching the controller's selector) is ignored, logged and counted.
	EligibleNodes(ctx context.Context, s *reconcile.Snapshot) (nodes []string, others placement.Reasons, err error)
}

// Allocation is one replica's share of one node.
type Allocation struct {
	Pod  pod.Identity
	Node string
}

// Want asks for a share for one replica.
type Want struct {
	Pod pod.Identity
	// Avoid names nodes where the replica is, or was and may still run. It keeps its shares of those.
	Avoid []string
	// Node, if set, is where the replica is already: its share there is to be booked whether it fits or not.
	Node string
}

// Owner says on whose behalf a farm asks.
type Owner struct {
	RCID string
	// Term sorts after the terms of all earlier owners of the controller. A request under an earlier term than one that was
	// seen is late, of a farm that has lost the controller, and should be refused: nothing else keeps it from undoing what
	// the new owner did.
	Term string
}

// Allocator is a Scheduler that keeps books of its own. The farm allocates before it writes a placement, and deallocates
// after a node has confirmed that the replica stopped there (P5). Every method may be called again with the same arguments:
// after a failure, and by the next owner after a crash. A method must return when its context ends. See ADR 3.
type Allocator interface {
	Scheduler
	// AllocatedNodes returns all that the books hold for the controller.
	AllocatedNodes(ctx context.Context, o Owner) ([]Allocation, error)
	// AllocateNodes gives each replica a share of one node, and returns those that it gave. A replica that has a share of a
	// node that it need not avoid gets that one. Replicas that no node takes are absent from the answer. An error says that
	// it is not known what was given.
	AllocateNodes(ctx context.Context, o Owner, s *reconcile.Snapshot, wants []Want) ([]Allocation, error)
	// DeallocateNodes takes shares back. One that is not held is fine.
	DeallocateNodes(ctx context.Context, o Owner, shares []Allocation) error
}

// selecting is the built-in scheduler. It remembers what each selector gave for the nodes and farms as they are:
// controllers share few selectors, and there are thousands of both.
type selecting struct {
	farm *Farm

	mu      sync.Mutex
	version uint64 // of the nodes that found is about
	members []string
	nonce   string
	found   map[string]eligible // by selector
}

// eligible is what a selector gave. Each node is the share of one farm, which tries it first: farms that place at the same
// time rarely meet then.
type eligible struct {
	share, rest []string
	others      placement.Reasons
}

// choice is what a pass chooses from: eligible nodes in an order of its own.
type choice struct {
	share, rest placement.Walk
	others      placement.Reasons
}

// EligibleNodes implements Scheduler from the farm's view of the nodes.
func (s *selecting) EligibleNodes(_ context.Context, snap *reconcile.Snapshot) ([]string, placement.Reasons, error) {
	e, err := s.split(snap, 0)
	return slices.AppendSeq(slices.Collect(e.share.All()), e.rest.All()), e.others, err
}

// split is EligibleNodes with the farm's share of the nodes apart from the rest. The version is that of the snapshot's
// nodes; zero: not known.
func (s *selecting) split(snap *reconcile.Snapshot, version uint64) (choice, error) {
	e, err := s.eligible(snap.Nodes, version, snap.RC.NodeSelector)
	if err != nil {
		return choice{}, err
	}
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, s.farm.cfg.ID, snap.RC.ID, snap.Now.UnixNano()) // writing to a hash cannot fail
	seed := h.Sum64()
	return choice{placement.NewWalk(e.share, seed), placement.NewWalk(e.rest, seed), maps.Clone(e.others)}, nil
}

func (s *selecting) eligible(nodes map[string]*node.View, version uint64, selector string) (eligible, error) {
	nonce := s.farm.world.schemaRec().Value.Nonce
	var members []string
	for _, m := range s.farm.world.members() {
		members = append(members, m.ID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	same := version != 0 && s.version == version && s.nonce == nonce && slices.Equal(s.members, members)
	if !same || len(s.found) >= maxCachedSelectors {
		s.version, s.members, s.nonce, s.found = version, members, nonce, map[string]eligible{}
	}
	if e, ok := s.found[selector]; ok {
		return e, nil
	}
	sel, err := rc.ParseSelector(selector)
	if err != nil {
		return eligible{}, err
	}
	var e eligible
	names, others := placement.Eligible(nodes, sel, nonce)
	e.others = others
	for _, name := range names {
		if placement.PreferredOwner(name, members) == s.farm.cfg.ID {
			e.share = append(e.share, name)
		} else {
			e.rest = append(e.rest, name)
		}
	}
	s.found[selector] = e
	return e, nil
}

const maxCachedSelectors = 1000
