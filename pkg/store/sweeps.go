package store

import (
	"context"
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
)

// OrphanedIntents returns where nodes are told of pods that have no placement and whose controllers have no record, by controller, and how many
// controllers have one. What others remove at this moment may be among them. Intents that cannot be read are left out. A controller that has other placements is named
// with nothing left: its record was lost.
func (s *Leader) OrphanedIntents(ctx context.Context) (left map[string][]At, controllers int, err error) {
	orphaned, err := s.OrphanedRecords(ctx)
	if err != nil {
		return nil, 0, err
	}
	ids, err := s.RCs.IDs(ctx)
	if err != nil {
		return nil, 0, err
	}
	var keys []string
	for _, o := range orphaned {
		if !o.Placed {
			keys = append(keys, o.Intents...)
		}
	}
	found, err := s.c.GetMany(ctx, keys, consul.Default)
	if err != nil {
		return nil, 0, err
	}
	left = map[string][]At{}
	for rcID, o := range orphaned {
		if o.Placed {
			left[rcID] = nil
		}
	}
	for key := range found {
		if rec, err := s.Intents.decodeIn(found, key); err == nil {
			at := At{Node: s.keys.Intents.first(key), Identity: rec.Value.Identity}
			left[at.RCID] = append(left[at.RCID], at)
		}
	}
	return left, len(ids), nil
}

// AskSweep asks whoever owns it next to stop a pod of a controller without a record, of which nothing tells but what its node is told, with an audit record, and rings.
// There is one such request for a pod and a node. It returns ErrConflict, and nothing is written, while that is not answered, and where there is a
// record or a placement by now.
func (s *Leader) AskSweep(ctx context.Context, at At, a Audit) error {
	identity := at.Identity.String()
	r := Request{ID: fmt.Sprintf("%s%s-%s.%d", leaderID, at.Node, at.Role, at.Index), RCID: at.RCID, Kind: SweepOrphan, Node: at.Node, Pod: at.Identity, By: s.farmID, At: time.Now().UTC()}
	request, record, placement := s.keys.Requests.Key(at.RCID, r.ID), s.keys.RCs.Key(at.RCID), s.keys.Pods.Key(identity)
	_, err := s.fenced(ctx, []consul.Op{
		consul.CheckMissing(record), consul.CheckMissing(placement), cas(request, r, 0), s.audit(a), s.ring(at.RCID),
	})
	for _, key := range []string{request, record, placement} {
		err = conflictOn(err, key)
	}
	return err
}
