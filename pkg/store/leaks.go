package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Unexplained returns shares of nodes that no intent explains, but for those of the nodes' own services, sorted. It is a hint: what changes meanwhile may be
// among it. A node whose reservation cannot be read is left out.
func (t *Owners) Unexplained(ctx context.Context, nodes []string) ([]At, error) {
	if len(nodes) == 0 {
		return nil, nil
	}
	found, err := t.c.GetMany(ctx, t.keys.Reservations.Keys(nodes), consul.Default)
	if err != nil {
		return nil, err
	}
	var intents consul.Reading // later: whatever had a claim by then was told about in the same transaction
	for _, name := range nodes {
		intents.Prefixes = append(intents.Prefixes, t.keys.Intents.Below(name))
	}
	_, below, err := t.merged.Read(ctx, intents, consul.Default)
	if err != nil {
		return nil, err
	}
	told := make(map[string]bool, len(below))
	for _, p := range below {
		told[p.Key] = true
	}
	reserved, unreadable := t.taken(found, nodes)
	var unexplained []At
	for _, name := range nodes {
		if unreadable[name] != nil {
			continue
		}
		for key, h := range reserved[name].Value.Claims {
			if h.Pod.RCID != "" && !h.Pod.Local() && !told[t.keys.Intents.Key(name, key)] {
				unexplained = append(unexplained, At{Node: name, Identity: h.Pod})
			}
		}
	}
	slices.SortFunc(unexplained, func(a, b At) int { return cmp.Or(cmp.Compare(a.Node, b.Node), a.Compare(b.Identity)) })
	return unexplained, nil
}

// Unplaced returns those of some copies of which their controllers know nothing, in their order: neither the placement nor a ghost is on the node. Where a placement cannot be read
// that is not said of it.
func (t *Owners) Unplaced(ctx context.Context, copies []At) ([]At, error) {
	keys := field.Each(copies, func(at At) string { return t.keys.Pods.Key(at.Identity.String()) })
	found, err := t.c.GetMany(ctx, keys, consul.Consistent)
	if err != nil {
		return nil, err
	}
	var unplaced []At
	for i, at := range copies {
		rec, err := t.Pods.decodeIn(found, keys[i])
		p := &rec.Value
		there := p.Node == at.Node || slices.ContainsFunc(p.Ghosts, func(g pod.Ghost) bool { return g.Node == at.Node })
		if err == nil && (rec.Index == 0 || !there) {
			unplaced = append(unplaced, at)
		}
	}
	return unplaced, nil
}

// Told returns those of some copies that have an intent, readable or not.
func (s *Views) Told(ctx context.Context, copies []At) (map[At]bool, error) {
	found, err := s.c.GetMany(ctx, s.keys.Intents.KeysAt(copies), consul.Consistent)
	if err != nil {
		return nil, fmt.Errorf("read whether nodes are told to run %d pods: %w", len(copies), err)
	}
	told := map[At]bool{}
	for _, at := range copies {
		if _, exists := found[s.keys.Intents.At(at)]; exists {
			told[at] = true
		}
	}
	return told, nil
}

// AskRepair asks the owner of a controller to repair what a node has reserved for it, with an audit record, and rings. There is one such request for a controller and a
// node: it returns ErrConflict, and nothing is written, while that is not answered.
func (s *Leader) AskRepair(ctx context.Context, rcID, node string, a Audit) error {
	r := NewRepair(s.farmID, rcID, node)
	r.ID = leaderID + node
	key := s.keys.Requests.Key(rcID, r.ID)
	_, err := s.fenced(ctx, []consul.Op{cas(key, r, 0), s.audit(a), s.ring(rcID)})
	return conflictOn(err, key)
}
