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

// RolloutTrouble is the record at rollouts/<unit>/trouble: the alerts about a rollout.
type RolloutTrouble struct {
	Rollout string `json:"rollout"` // id
	Reason  string `json:"reason"`
	// Ended: the rollout has ended. The record is kept until the service's next rollout.
	Ended bool `json:"ended,omitempty"`
}

// RolloutOf reads the rollout of a service. ErrNotFound: there is no service or no rollout.
func (s *Deployments) RolloutOf(ctx context.Context, service string) (Rec[rollout.Record], error) {
	deployed, err := s.Deployed.Get(ctx, Consistent, service)
	if err != nil {
		return Rec[rollout.Record]{}, err
	}
	return s.Rollouts.Get(ctx, Consistent, deployed.Value.ID)
}

// RolloutFor reads the rollout of a controller's service; nil: none.
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

// OwnerOf returns the farm that owns a unit; "" if none does.
func (s *Deployments) OwnerOf(ctx context.Context, unit string) (farmID string, err error) {
	key := s.keys.Locks.Key(unit)
	found, err := s.c.GetMany(ctx, []string{key}, consul.Default)
	if err != nil {
		return "", err
	}
	return ownerOf(found[key]), nil
}

// RolloutStep is one step of a rollout. It lands whole or not at all, while the fence holds, and only if all records
// from which it was decided are unchanged.
type RolloutStep struct {
	Fence   Fence
	Unit    *Unit
	Schema  uint64 // index
	Breaker uint64 // index; zero: the breaker could not be read, so the step changes no counts
	// Record is the new rollout; nil leaves it as it is. Ended removes it.
	Record  *rollout.Record
	Ended   bool
	RCs     []rc.RC // changed controllers; the other controllers of the unit must be unchanged
	Audit   *Audit
	Trouble *RolloutTrouble // new alerts; nil: none
	Over    bool            // the reason for the former alerts has ended
}

// ForgetsTrouble reports whether the step removes former alerts.
func (r *RolloutStep) ForgetsTrouble() bool {
	old := &r.Unit.Trouble
	return r.Trouble == nil && old.Index != 0 && (r.Ended || r.Over || old.Value.Rollout != r.Unit.Rollout.Value.ID)
}

// GateVersion returns the known version gate; "" before the first write.
func (t *Batches) GateVersion() string {
	version, _ := t.guard.last()
	return version
}

// CommitRollout returns the index at which the step landed, ErrRefused (see LockRefused) or ErrUnknown. Any other error
// means that nothing was sent.
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
		// A delete by index succeeds if the record is gone. Then a repeated step would write the outcome twice.
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
	written, err := t.fenced(ctx, ops)
	for _, at := range written { // an unchanged record keeps its earlier index
		index = max(index, at)
	}
	return index, err
}

// outcomeOps writes a rollout's outcome into the history entries of its revisions. It skips an entry that is missing,
// unreadable, or of another rollout, because the rollout must be able to end.
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

// RolloutAsk is an operator's request to a rollout.
type RolloutAsk struct {
	Service string
	ID      string // of the rollout that the operator has seen; empty: any
	Request rollout.Request
	Audit   Audit
}

// ErrAsked means that the owner has not handled an earlier, different request yet.
var ErrAsked = errors.New("something else was asked, and not looked at yet")

// AskRollout writes an operator's request into a rollout. The owner of the unit carries it out. AskRollout returns:
//   - ErrNotFound if there is no rollout;
//   - ErrConflict if the operator has seen another rollout, or if the record changes at each attempt;
//   - ErrAsked;
//   - *CorruptError.
func (o *Operator) AskRollout(ctx context.Context, a RolloutAsk) error {
	err := error(nil)
	for range askTries {
		var rec Rec[rollout.Record]
		if rec, err = (&Deployments{o.db}).RolloutOf(ctx, a.Service); err != nil {
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
		err = o.commitDefinitely(ctx, "rollout of "+a.Service, a.Audit,
			cas(o.keys.Rollouts.Key(unit), rec.Value, rec.Index), o.ring(unit))
		if !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return err
}

// askTries bounds the tries of AskRollout, because the owner may change the record each time.
const askTries = 20
