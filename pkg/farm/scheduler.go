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
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// Scheduler says which nodes may take pods. The built-in one selects by label among the nodes that are alive and open, and
// what it allocates is part of the farm's own transactions: the nodes' reservations. A Scheduler that is given to a farm is
// outside of them; one that counts what it has given away implements Allocator too.
type Scheduler interface {
	// EligibleNodes returns node names in the order in which they should be tried, and counts the other nodes by why
	// they are not among them. A pod goes to the first that has room, of those with the fewest pods of its controller; what else
	// nodes have, and the controller's spread, are for the scheduler to consider. A name that is unknown, repeated, or of a node that is not eligible as the farm sees it
	// (alive, open, matching the controller's selector) is ignored, logged and counted.
	EligibleNodes(ctx context.Context, s *reconcile.Snapshot) (nodes []string, others scheduler.Reasons, err error)
}

// Allocation is one replica's share of one node.
type Allocation struct {
	Pod  pod.Identity
	Node string
}

// Want asks for a share for one replica.
type Want struct {
	Pod pod.Identity
	// Avoid names nodes where the replica is, or was and may still run, whose shares it keeps, and those to which it was moved in vain.
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

// selecting is the built-in scheduler. It remembers what each selector gave for the nodes and farms as they were, and looks only
// at the nodes that have changed since: controllers share few selectors, and there are thousands of both.
type selecting struct {
	farm *Farm

	mu      sync.Mutex
	members []string // what found is about
	nonce   string
	found   map[asked]*remembered
}

// asked is what controllers may have in common.
type asked struct{ selector, spread string }

// remembered is a selector with what it gave last.
type remembered struct {
	selector
	selection
	version uint64 // of the nodes; zero: there is no selection yet
}

// EligibleNodes implements Scheduler from the farm's view of the nodes.
func (s *selecting) EligibleNodes(_ context.Context, snap *reconcile.Snapshot) ([]string, scheduler.Reasons, error) {
	c, err := s.candidates(snap, 0)
	if err != nil {
		return nil, nil, err
	}
	return slices.AppendSeq(slices.Collect(c.pool.share.all()), c.pool.rest.all()), c.others, nil
}

// candidates is EligibleNodes as a pass uses it. The version is that of the snapshot's nodes; zero: not known.
func (s *selecting) candidates(snap *reconcile.Snapshot, version uint64) (*candidates, error) {
	by, e, err := s.selected(snap.Nodes, version, asked{snap.RC.NodeSelector, snap.RC.Spread})
	if err != nil {
		return nil, err
	}
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, s.farm.cfg.ID, snap.RC.ID, snap.Now.UnixNano()) // writing to a hash cannot fail
	found := newCandidates(snap, maps.Clone(e.others), snap.RC.Spread)
	if snap.RC.Spread != "" {
		found.spreadOver(e.groups, h.Sum64())
		found.mine = by.mine
	} else if len(e.groups) > 0 {
		found.inOrder(placement.NewWalk(e.groups[0].First, h.Sum64()), placement.NewWalk(e.groups[0].Rest, h.Sum64()))
	}
	return found, nil
}

// selected returns what a selector gives for the nodes of a version.
func (s *selecting) selected(nodes map[string]*node.View, version uint64, by asked) (selector, selection, error) {
	nonce := s.farm.world.schemaRec().Value.Nonce
	var members []string
	for _, m := range s.farm.world.members() {
		members = append(members, m.ID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found == nil || s.nonce != nonce || !slices.Equal(s.members, members) || len(s.found) >= maxCachedSelectors {
		s.members, s.nonce, s.found = members, nonce, map[asked]*remembered{}
	}
	r := s.found[by]
	if r == nil {
		made, err := s.selectorFor(by)
		if err != nil {
			return selector{}, selection{}, err
		}
		r = &remembered{selector: made}
		s.found[by] = r
	}
	now, known := s.since(r, version)
	if !known {
		now = r.all(nodes)
	}
	if version > r.version {
		r.selection, r.version = now, version
	}
	return r.selector, now, nil
}

// since returns what a selector gives for the nodes of a version, from what it gave for those of another, if it is known what has
// changed in between.
func (s *selecting) since(r *remembered, version uint64) (now selection, known bool) {
	if version == 0 || r.version == 0 {
		return selection{}, false
	}
	changes, known := s.farm.world.between(r.version, version)
	if !known || len(changes) == 0 {
		return r.selection, known
	}
	return r.after(r.selection, changes), true
}

// selectorFor makes a selector for the nonce and the members of now. The caller holds the mutex.
func (s *selecting) selectorFor(by asked) (selector, error) {
	sel, err := rc.ParseSelector(by.selector)
	if err != nil {
		return selector{}, err
	}
	members := s.members
	rule := scheduler.Rule{Selector: sel, Nonce: s.nonce}
	return selector{
		excludes: rule.Excludes,
		mine:     func(name string) bool { return placement.PreferredOwner(name, members) == s.farm.cfg.ID },
		spread:   by.spread,
	}, nil
}

const maxCachedSelectors = 1000
