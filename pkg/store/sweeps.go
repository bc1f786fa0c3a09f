package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/ownerless"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// OrphanedIntents returns, by controller, the intents without a placement, if their controller has no record. If such a
// controller has other placements, its record was lost, and its list is empty. controllers is how many have a record.
// The result leaves out unreadable intents. It may include intents that are just being removed.
func (l *Leader) OrphanedIntents(ctx context.Context) (left map[string][]At, controllers int, err error) {
	orphaned, err := l.OrphanedRecords(ctx)
	if err != nil {
		return nil, 0, err
	}
	ids, err := l.RCs.IDs(ctx)
	if err != nil {
		return nil, 0, err
	}
	left = map[string][]At{}
	var keys []string
	for _, f := range orphaned {
		switch {
		case f.Kind.Name == ownerless.Unplaced:
		case f.Has&ownerless.Siblings != 0:
			left[f.RCID()] = nil
		case f.Kind.Name == ownerless.OrphanedIntent:
			keys = append(keys, f.Key)
		}
	}
	intents, _, err := l.Intents.at(ctx, Default, keys)
	if err != nil {
		return nil, 0, err
	}
	for _, in := range intents {
		at := At{Node: l.keys.Intents.first(in.Key), Identity: in.Value.Identity}
		left[at.RCID] = append(left[at.RCID], at)
	}
	return left, len(ids), nil
}

// AskSweep asks the unit's next owner to stop a pod that has only an intent. There is at most one such request for a
// pod and a node. AskSweep returns ErrConflict if it is not answered yet, or if the controller or the placement exists
// by now.
func (l *Leader) AskSweep(ctx context.Context, at At, a Audit) error {
	identity := at.Identity.String()
	r := Request{
		ID: fmt.Sprintf("%s%s-%s.%d", leaderID, at.Node, at.Role, at.Index), RCID: at.RCID, Kind: SweepOrphan,
		Node: at.Node, Pod: at.Identity, By: l.farmID, At: time.Now().UTC(),
	}
	request, record, placement := l.keys.Requests.Key(at.RCID, r.ID), l.keys.RCs.Key(at.RCID), l.keys.Pods.Key(identity)
	err := l.write(ctx, request, consul.CheckMissing(record), consul.CheckMissing(placement), cas(request, r, 0),
		l.audit(a), l.ring(at.RCID))
	return conflictOn(conflictOn(err, record), placement)
}

// SweepBells makes missing bells and removes the bells of units that are gone (R4), unless there is a request. It
// returns all controllers' ids, and the ids of requests without a controller.
func (o *Owners) SweepBells(ctx context.Context) (ids, asked []string, err error) {
	// Bells before controllers: the bell of a controller that is made meanwhile rings, so its index changes.
	var bells [Shards][]consul.Pair
	for shard := range Shards {
		if bells[shard], err = o.c.List(ctx, o.keys.Bells.Shard(shard), consul.Default); err != nil {
			return nil, nil, err
		}
	}
	if ids, err = o.RCs.IDs(ctx); err != nil {
		return nil, nil, err
	}
	requests, _, err := o.Requests.List(ctx, consul.Default)
	if err != nil {
		return nil, nil, err
	}
	there := map[string]bool{}
	for _, id := range ids {
		there[id] = true
	}
	for i := range requests {
		if id := requests[i].Value.RCID; !there[id] {
			there[id], asked = true, append(asked, id)
		}
	}
	keep := rc.UnitsOf(slices.Concat(ids, asked))
	for shard := range Shards {
		if err := o.sweepShard(ctx, shard, bells[shard], keep); err != nil {
			return nil, nil, err
		}
	}
	return ids, asked, nil
}

func (o *Owners) sweepShard(ctx context.Context, shard int, bells []consul.Pair, units []string) error {
	have := map[string]uint64{}
	for _, p := range bells {
		have[p.Key] = p.ModifyIndex
	}
	var acts [][]consul.Op // each lands whole or not at all
	for _, unit := range units {
		key := o.keys.Bells.Key(unit)
		if shardOf(unit) != shard {
			continue
		}
		if _, ok := have[key]; !ok {
			acts = append(acts, []consul.Op{consul.Set(key, []byte(NewID()))})
		}
		delete(have, key)
	}
	delete(have, o.keys.Bells.Shard(shard)) // the marker is not a bell
	for key, index := range have {
		unit := key[len(o.keys.Bells.Shard(shard)):]
		acts = append(acts, []consul.Op{consul.CheckMissing(o.keys.RCs.Key(unit)), consul.DeleteCAS(key, index)})
	}
	for chunk := range slices.Chunk(acts, consul.MaxTxnOps/2) {
		// Something changed meanwhile. The next sweep reads it again.
		if err := o.send(ctx, slices.Concat(chunk...)...); err != nil && !errors.Is(err, ErrRefused) {
			return err
		}
	}
	return nil
}
