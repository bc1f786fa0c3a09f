package store

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// outcome is what the end of a rollout adds to the entry of the revision that it was for.
type outcome struct {
	Rollout string        `json:"rollout"`
	EndedAt *time.Time    `json:"ended_at,omitempty"`
	Outcome rollout.State `json:"outcome,omitempty"`
	Reason  string        `json:"reason,omitempty"`
}

// outcomeOps lists what writes how a rollout ended into the history of its service: into the entry of the revision that it was for. An
// entry that is missing, or that cannot be read, keeps no rollout from ending.
func (t *FarmTenure) outcomeOps(ctx context.Context, s *RolloutStep) ([]consul.Op, error) {
	record := &s.View.Rollout.Value
	if s.Record != nil {
		record = s.Record
	}
	keys := make([]string, len(record.Revisions))
	for i := range record.Revisions {
		keys[i] = t.keys.Entry(record.Service, record.Revisions[i].Rev)
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
		value, err := withOutcome(pair.Value, outcome{Rollout: record.ID, EndedAt: &now, Outcome: record.State, Reason: record.Reason})
		if err == nil {
			ops = append(ops, consul.CAS(key, value, pair.ModifyIndex))
		}
	}
	return ops, nil
}

// errOtherRollout means that an entry is not about this rollout.
var errOtherRollout = errors.New("the entry is of another rollout, or has an outcome")

// withOutcome returns the entry with how its rollout ended. All else in it stays as it is, fields of later versions too.
func withOutcome(entry []byte, o outcome) ([]byte, error) {
	var before outcome
	if err := json.Unmarshal(entry, &before); err != nil {
		return nil, err
	}
	if before.Rollout != o.Rollout || before.EndedAt != nil {
		return nil, errOtherRollout
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(entry, &fields); err != nil {
		return nil, err
	}
	fields["ended_at"], fields["outcome"] = encode(o.EndedAt), encode(o.Outcome)
	if o.Reason != "" {
		fields["reason"] = encode(o.Reason)
	}
	return encode(fields), nil
}
