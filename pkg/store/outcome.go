package store

import (
	"context"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
)

// outcomeOps lists what writes how a rollout ended into the history of its service: into the entry of the revision that it was for. An
// entry that is missing, or that cannot be read, keeps no rollout from ending.
func (t *FarmTenure) outcomeOps(ctx context.Context, s *RolloutStep) ([]consul.Op, error) {
	r := &s.View.Rollout.Value
	if s.Record != nil {
		r = s.Record
	}
	keys := make([]string, len(r.Revisions))
	for i := range r.Revisions {
		keys[i] = t.keys.Entry(r.Service, r.Revisions[i].Rev)
	}
	found, err := t.c.GetMany(ctx, keys, consul.Consistent)
	if err != nil {
		return nil, err
	}
	now := time.Now().UTC()
	var ops []consul.Op
	for _, key := range keys {
		pair, ok := found[key]
		if !ok {
			continue
		}
		value, err := record.Ending{Rollout: r.ID, EndedAt: &now, Outcome: r.State, Reason: r.Reason}.Into(pair.Value)
		if err == nil {
			ops = append(ops, consul.CAS(key, value, pair.ModifyIndex))
		}
	}
	return ops, nil
}
