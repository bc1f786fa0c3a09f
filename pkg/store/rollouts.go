package store

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// RolloutTrouble is the record at rollouts/<unit>/trouble: what people are to be alerted to about a service's rollout.
type RolloutTrouble struct {
	Rollout string `json:"rollout"` // id
	Reason  string `json:"reason"`
	// Ended: the rollout has ended and left this behind. It lasts until another rollout of the service begins.
	Ended bool `json:"ended,omitempty"`
}

// RolloutOf reads the rollout of a service. It returns ErrNotFound where there is no such service, or it has none.
func (s *Deployments) RolloutOf(ctx context.Context, service string) (Rec[rollout.Record], error) {
	deployed, err := s.Deployed.Get(ctx, Consistent, service)
	if err != nil {
		return Rec[rollout.Record]{}, err
	}
	return s.Rollouts.Get(ctx, Consistent, deployed.Value.ID)
}

// RolloutFor reads the rollout of the service that a controller is of, nil where there is none.
func (s *Deployments) RolloutFor(ctx context.Context, r *rc.RC) (*rollout.Record, error) {
	if r.Service == nil && !rc.IsPreDeploy(r.ID) {
		return nil, nil
	}
	rec, err := s.Rollouts.Get(ctx, Consistent, rc.UnitOf(r.ID))
	switch {
	case errors.Is(err, ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &rec.Value, nil
}

// OwnerOf returns the farm that owns a unit, "" when none does.
func (s *Deployments) OwnerOf(ctx context.Context, unit string) (farmID string, err error) {
	key := s.keys.Locks.Key(unit)
	found, err := s.c.GetMany(ctx, []string{key}, consul.Default)
	if err != nil {
		return "", err
	}
	return ownerOf(found[key]), nil
}

// RolloutStep is one step of a rollout, which the owner of its unit writes. It lands whole or not at all, and only
// while the fence holds and all that it was decided from is as it was read.
type RolloutStep struct {
	Fence   Fence
	Unit    *Unit
	Schema  uint64 // index
	Breaker uint64 // index; zero: it could not be read, so that the step moves nothing, whatever it says by now
	// Record is the rollout as it shall be; nil leaves it as it is. Ended removes it.
	Record  *rollout.Record
	Ended   bool
	RCs     []rc.RC // that change; the others of the unit must be as they were read
	Audit   *Audit
	Trouble *RolloutTrouble // that people are to be alerted to; nil: none is new
	Over    bool            // what people were alerted to before is over: the rollout goes on
}

// ForgetsTrouble reports whether the step removes what people were alerted to.
func (s *RolloutStep) ForgetsTrouble() bool {
	old := &s.Unit.Trouble
	return s.Trouble == nil && old.Index != 0 && (s.Ended || s.Over || old.Value.Rollout != s.Unit.Rollout.Value.ID)
}

// GateVersion returns the version gate as it is known, "" before the first write.
func (t *Batches) GateVersion() string {
	version, _ := t.guard.last()
	return version
}

// CommitRollout carries a step out, and returns Consul's index at which it has landed. Its error matches ErrRefused
// (see LockRefused) or ErrUnknown. One that matches none of them says that what the service was could not be read, and
// nothing was sent.
func (t *Batches) CommitRollout(ctx context.Context, s *RolloutStep) (index uint64, err error) {
	unit, was := s.Unit.ID, &s.Unit.Rollout
	ops := append(s.Fence.Ops(), sameRecord(t.keys.Schema.Key(), s.Schema))
	if s.Breaker != 0 {
		ops = append(ops, consul.CheckIndex(t.keys.Breaker.Key(), s.Breaker))
	}
	changed := map[string]bool{}
	for i := range s.RCs {
		changed[s.RCs[i].ID] = true
	}
	for _, id := range slices.Sorted(maps.Keys(s.Unit.Heads)) {
		if !changed[id] {
			ops = append(ops, t.sameRC(id, s.Unit.Heads[id].RC.Index))
		}
	}
	for i := range s.RCs {
		ops = append(ops, t.casRC(ctx, s.RCs[i], s.Unit.Heads[s.RCs[i].ID].RC.Index))
	}
	key := t.keys.Rollouts.Key(unit)
	switch {
	case s.Ended:
		outcome, err := t.outcomeOps(ctx, s)
		if err != nil {
			return 0, err
		}
		// A delete by index is accepted also where the record is gone, so that the outcome would be written a second
		// time.
		ops = append(append(ops, outcome...), consul.CheckIndex(key, was.Index), consul.Delete(key))
	case s.Record != nil:
		ops = append(ops, cas(key, s.Record, was.Index))
	default:
		ops = append(ops, consul.CheckIndex(key, was.Index))
	}
	switch {
	case s.Trouble != nil:
		ops = append(ops, set(t.keys.RolloutTroubles.Key(unit), s.Trouble))
	case s.ForgetsTrouble():
		ops = append(ops, consul.Delete(t.keys.RolloutTroubles.Key(unit)))
	}
	if s.Audit != nil {
		ops = append(ops, t.audit(*s.Audit))
	}
	written, err := t.fencedIndices(ctx, ops)
	for _, at := range written { // what was written as it is already has an earlier one
		index = max(index, at)
	}
	return index, err
}

// outcomeOps lists what writes how a rollout ended into the history of its service: into the entry of the revision that
// it was for. An entry that is missing, or that cannot be read, keeps no rollout from ending.
func (t *Batches) outcomeOps(ctx context.Context, s *RolloutStep) ([]consul.Op, error) {
	r := &s.Unit.Rollout.Value
	if s.Record != nil {
		r = s.Record
	}
	keys := field.Each(r.Revisions, func(of rollout.Revision) string {
		return t.keys.Entries.Key(r.Service, strconv.FormatInt(of.Rev, 10))
	})
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

// RolloutAsk is what an operator asks of a rollout.
type RolloutAsk struct {
	Service string
	ID      string // of the rollout that the operator has seen; empty: whichever there is
	Request rollout.Request
	Audit   Audit
}

// ErrAsked means that something else was asked of a rollout, and has not been looked at yet.
var ErrAsked = errors.New("something else was asked, and not looked at yet")

// AskRollout notes what an operator asks of a rollout, for the owner of its unit to carry out. It returns ErrNotFound
// where there is no rollout, ErrConflict where it is another one than the operator has seen, or changes without end,
// ErrAsked, or *CorruptError.
func (s *Operator) AskRollout(ctx context.Context, a RolloutAsk) error {
	err := error(nil)
	for range askTries {
		var rec Rec[rollout.Record]
		if rec, err = (&Deployments{s.db}).RolloutOf(ctx, a.Service); err != nil {
			return err
		}
		switch asked := rec.Value.Request; {
		case a.ID != "" && a.ID != rec.Value.ID:
			return ErrConflict
		case asked != nil && asked.Verb != a.Request.Verb:
			return ErrAsked
		case asked != nil && (asked.Force || !a.Request.Force):
			return nil
		}
		rec.Value.Request = &a.Request
		unit := rec.Value.Unit()
		err = s.commitDefinitely(ctx, "rollout of "+a.Service, a.Audit, cas(s.keys.Rollouts.Key(unit), rec.Value, rec.Index), s.ring(unit))
		if !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return err
}

// askTries is how often an operator's request is written anew because the owner was faster.
const askTries = 20
