package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/ownerless"
)

// Unexplained returns, sorted, the copies with a share but without an intent on their node. The result is a hint, as of
// Unreserved. It leaves out local services and nodes with an unreadable reservation.
func (o *Owners) Unexplained(ctx context.Context, nodes []string) ([]At, error) {
	if len(nodes) == 0 {
		return nil, nil
	}
	found, err := o.c.GetMany(ctx, o.keys.Reservations.Keys(nodes), consul.Default)
	if err != nil {
		return nil, err
	}
	// Intents after shares: one transaction writes both of a pod, so each share that was read has its intent.
	var intents consul.Reading
	for _, name := range nodes {
		intents.Prefixes = append(intents.Prefixes, o.keys.Intents.Below(name))
	}
	_, below, err := o.merged.Read(ctx, intents, consul.Default)
	if err != nil {
		return nil, err
	}
	known := ownerless.Known{}
	known.Note(o.keys.Intents.about(ownerless.Intent,
		field.Each(below, func(p consul.Pair) string { return p.Key }))...)
	shares, _ := o.shares(found, nodes)
	unexplained := lacking(ownerless.Intent, known, ownerless.Share, shares)
	slices.SortFunc(unexplained,
		func(a, b At) int { return cmp.Or(cmp.Compare(a.Node, b.Node), a.Compare(b.Identity)) })
	return unexplained, nil
}

func (s *db) shares(found map[string]consul.Pair, nodes []string) (shares []At, unreadable map[string]error) {
	reserved, unreadable := s.taken(found, nodes)
	for name, rec := range reserved {
		for _, h := range rec.Value.Claims {
			shares = append(shares, At{Node: name, Identity: h.Pod})
		}
	}
	return shares, unreadable
}

// lacking returns the copies whose record of the sort `of` has no owner in known. known must have all records of the
// sorts in `whole` (ownerless.Scan).
func lacking(whole ownerless.Facts, known ownerless.Known, of ownerless.Facts, copies []At) (found []At) {
	return field.Each(ownerless.Scan(whole, known, recordsAt(of, copies)),
		func(f ownerless.Finding) At { return copies[f.N] })
}

func recordsAt(of ownerless.Facts, copies []At) []ownerless.Record {
	records := make([]ownerless.Record, len(copies))
	for i, at := range copies {
		records[i] = ownerless.Record{Of: of, Node: at.Node, About: at.Identity.String(), N: i}
	}
	return records
}

// Unplaced returns, in order, the copies whose pod has neither its placement nor a ghost on the copy's node. It leaves
// out copies with an unreadable placement.
func (o *Owners) Unplaced(ctx context.Context, copies []At) ([]At, error) {
	keys := field.Each(copies, func(at At) string { return o.keys.Pods.Key(at.Identity.String()) })
	found, err := o.c.GetMany(ctx, keys, consul.Consistent)
	if err != nil {
		return nil, err
	}
	known, read := ownerless.Known{}, []At(nil)
	for i, at := range copies {
		rec, err := o.Pods.decodeIn(found, keys[i])
		if err != nil {
			continue
		}
		if read = append(read, at); rec.Index != 0 {
			known.Place(&rec.Value)
		}
	}
	return lacking(ownerless.Copy|ownerless.Orphan, known, ownerless.Share, read), nil
}

// HaveIntents returns which copies have an intent, readable or not.
func (v *Views) HaveIntents(ctx context.Context, copies []At) (map[At]bool, error) {
	found, err := v.c.GetMany(ctx, v.keys.Intents.KeysAt(copies), consul.Consistent)
	if err != nil {
		return nil, fmt.Errorf("read the intents of %d pods: %w", len(copies), err)
	}
	intended := map[At]bool{}
	for _, at := range copies {
		if _, exists := found[v.keys.Intents.At(at)]; exists {
			intended[at] = true
		}
	}
	return intended, nil
}

// AskRepair asks a controller's owner to repair a node's reservation. There is one such request for a controller and a
// node. While an earlier one is not answered, AskRepair returns ErrConflict.
func (l *Leader) AskRepair(ctx context.Context, rcID, node string, a Audit) error {
	r := NewRepair(l.farmID, rcID, node)
	r.ID = leaderID + node
	key := l.keys.Requests.Key(rcID, r.ID)
	return l.write(ctx, key, cas(key, r, 0), l.audit(a), l.ring(rcID))
}
