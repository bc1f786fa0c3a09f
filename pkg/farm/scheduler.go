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
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
)

// Scheduler says which nodes may take pods. The built-in one selects by label among the nodes that are alive and open.
type Scheduler interface {
	// EligibleNodes returns node names in the order in which they should be tried, and counts the other nodes by why
	// they are not among them.
	EligibleNodes(ctx context.Context, s *reconcile.Snapshot) (nodes []string, others placement.Reasons, err error)
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

// EligibleNodes implements Scheduler from the farm's view of the nodes.
func (s *selecting) EligibleNodes(_ context.Context, snap *reconcile.Snapshot) ([]string, placement.Reasons, error) {
	e, err := s.split(snap, 0)
	return append(e.share, e.rest...), e.others, err
}

// split is EligibleNodes with the farm's share of the nodes apart from the rest. The version is that of the snapshot's
// nodes; zero: not known.
func (s *selecting) split(snap *reconcile.Snapshot, version uint64) (eligible, error) {
	e, err := s.eligible(snap.Nodes, version, snap.RC.NodeSelector)
	if err != nil {
		return eligible{}, err
	}
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, s.farm.cfg.ID, snap.RC.ID, snap.Now.UnixNano()) // writing to a hash cannot fail
	seed := h.Sum64()
	return eligible{placement.Order(e.share, seed), placement.Order(e.rest, seed), maps.Clone(e.others)}, nil
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
