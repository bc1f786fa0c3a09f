package store

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// lockedUnit returns the unit that a key below Locks is the lock of; ok is false for the lock of a rollout.
func (k *Keys) lockedUnit(key string) (unit string, ok bool) {
	unit = strings.TrimPrefix(key, k.Locks.Key())
	return unit, !strings.Contains(unit, "/")
}

// RunnerOf returns the farm that carries a service's rollout out, "" when none does.
func (s *Deployments) RunnerOf(ctx context.Context, service string) (farmID string, err error) {
	found, err := s.c.GetMany(ctx, []string{s.keys.RolloutLocks.Key(service)}, consul.Default)
	if err != nil {
		return "", err
	}
	return ownerOf(found[s.keys.RolloutLocks.Key(service)]), nil
}

// ringRollout is the operation that rings the bell of a service's rollout.
func (s *db) ringRollout(service string) consul.Op {
	return consul.Set(s.keys.RolloutBells.Key(service), []byte(NewID()))
}

// SweepRolloutBell removes the bell of a service that has no rollout: an owner rings once more when it is released. It returns like Commit.
func (s *Leader) SweepRolloutBell(ctx context.Context, service string, index uint64) error {
	_, err := s.fenced(ctx, []consul.Op{consul.CheckMissing(s.keys.Rollouts.Key(service)), consul.DeleteCAS(s.keys.RolloutBells.Key(service), index)})
	return err
}

// RolloutsSeen is one delivery of the watch of rollouts.
type RolloutsSeen struct {
	Recs    []Rec[rollout.Record]
	Corrupt map[string]error // by service: a *CorruptError for each record that cannot be read
	Bells   map[string]uint64
	// Incidents are what is wrong with rollouts, by service; what cannot be read has only its index.
	Incidents map[string]Rec[RolloutIncident]
	// WentBack and MarkerMissing are as of Seen.
	WentBack, MarkerMissing bool
}

// WatchRollouts delivers all rollouts, and the index of each one's bell, by service. It returns like WatchBells.
func (t *Runs) WatchRollouts(ctx context.Context, onError func(error), deliver func(RolloutsSeen) error) error {
	prefix := t.keys.Rollouts.Key()
	return t.watchPrefix(ctx, prefix, consul.WatchOptions{OnError: onError}, func(snap consul.Snapshot, markerMissing bool) error {
		seen := RolloutsSeen{
			Corrupt: map[string]error{}, Bells: map[string]uint64{}, Incidents: map[string]Rec[RolloutIncident]{},
			WentBack: snap.WentBack, MarkerMissing: markerMissing,
		}
		for _, p := range snap.Pairs {
			service, part, below := strings.Cut(strings.TrimPrefix(p.Key, prefix), "/")
			switch {
			case p.Key == prefix:
			case below && part == "bell":
				seen.Bells[service] = p.ModifyIndex
			case below && part == "trouble":
				seen.Incidents[service], _ = t.RolloutIncidents.decode(p)
			case !below:
				if rec, err := t.Rollouts.recall(p); err != nil {
					seen.Corrupt[service] = err
				} else {
					seen.Recs = append(seen.Recs, rec)
				}
			}
		}
		return deliver(seen)
	})
}

// Runs is how a farm carries rollouts out.
type Runs struct{ *underLock }

// ClaimRollout takes the lock of a service's rollout, whether there is one or not. Its errors are those of Claim.
func (t *Runs) ClaimRollout(ctx context.Context, service string) (Fence, error) {
	return t.c.Locks.Acquire(ctx, t.keys.RolloutLocks.Key(service), t.sess.Releasing, t.lockValue)
}

// IsRolloutLocked reports whether another session than this one carries a service's rollout out.
func (t *Runs) IsRolloutLocked(ctx context.Context, service string) (bool, error) {
	return t.lockedElsewhere(ctx, t.keys.RolloutLocks.Key(service))
}

// AbandonRollout removes the lock of a rollout that there is none of any more. It returns like Commit.
func (t *Runs) AbandonRollout(ctx context.Context, service string, f Fence) error {
	return t.fenced(ctx, append(f.Ops(), consul.CheckMissing(t.keys.Rollouts.Key(service)), consul.Delete(f.Key)))
}

// ReleaseRollout gives a rollout up that another farm is to carry out, and rings its bell. It returns like Commit: refused also where
// there is no rollout any more; see AbandonRollout.
func (t *Runs) ReleaseRollout(ctx context.Context, service string, f Fence, index uint64) error {
	return t.fenced(ctx, append(f.Ops(),
		consul.CheckIndex(t.keys.Rollouts.Key(service), index), consul.Unlock(f.Key, t.lockValue(), f.Session), t.ringRollout(service)))
}

// RolloutView is what a step of a rollout is decided from, all of it read at one moment.
type RolloutView struct {
	Rollout Rec[rollout.Record]
	Schema  Rec[Schema]
	// Breaker counts as tripped where its record is missing or cannot be read.
	Breaker Rec[Breaker]
	RCs     map[string]Rec[rc.RC]     // by id; one that is not there has index zero, and one that cannot be read is left out
	Status  map[string]Rec[rc.Status] // by id; those that are there and can be read
	// Indices are those of all the keys of RCs and statuses that were read; one that is missing has none.
	Indices  map[string]uint64
	Corrupt  []error // of controllers, a *CorruptError each; a status that cannot be read counts as none
	Incident Rec[RolloutIncident]
	Bell     uint64 // index; zero: there is none. All else is as new as that
}

// ReadRollout reads a service's rollout with its controllers, their statuses, schema and breaker. ids are the controllers that it was
// known to have: where it has others by now all is read again. It returns ErrNotFound where there is no rollout, and
// *CorruptError where it, or the schema, cannot be read.
func (t *Runs) ReadRollout(ctx context.Context, service string, ids []string, consistent bool) (v RolloutView, err error) {
	for {
		found, _, err := t.merged.Read(ctx, consul.Reading{Keys: t.rolloutKeys(service, ids)}, levelOf(consistent))
		if err != nil {
			return v, err
		}
		if v.Rollout, err = t.Rollouts.recallIn(found, t.keys.Rollouts.Key(service)); err != nil {
			return v, err
		}
		if v.Rollout.Index == 0 {
			return v, ErrNotFound
		}
		if named := RolloutRCs(&v.Rollout.Value); !slices.Equal(named, ids) {
			ids = named
			continue
		}
		return v, t.fillRollout(&v, found, ids)
	}
}

// RolloutRCs returns the ids of all controllers that a rollout is about, sorted: that which runs before it among them.
func RolloutRCs(r *rollout.Record) []string {
	ids := map[string]bool{}
	for i := range r.Revisions {
		ids[r.Revisions[i].RC] = true
	}
	if r.PreDeploy != nil {
		ids[r.PreDeploy.RC] = true
	}
	return slices.Sorted(maps.Keys(ids))
}

func (t *Runs) rolloutKeys(service string, ids []string) []string {
	keys := []string{t.keys.Rollouts.Key(service), t.keys.RolloutBells.Key(service), t.keys.RolloutIncidents.Key(service), t.keys.Schema.Key(), t.keys.Breaker.Key()}
	for _, id := range ids {
		keys = append(keys, t.keys.RCs.Key(id), t.keys.Statuses.Key(id))
	}
	return keys
}

func (t *Runs) fillRollout(v *RolloutView, found map[string]consul.Pair, ids []string) (err error) {
	if v.Schema, err = t.Schema.recallIn(found, t.keys.Schema.Key()); err != nil {
		return err
	}
	v.Bell = found[t.keys.RolloutBells.Key(v.Rollout.Value.Service)].ModifyIndex
	v.Incident, _ = t.RolloutIncidents.recallIn(found, t.keys.RolloutIncidents.Key(v.Rollout.Value.Service)) // else it is written anew
	v.Breaker, err = t.Breaker.recallIn(found, t.keys.Breaker.Key())
	switch {
	case err != nil:
		v.Breaker.Value = Breaker{Tripped: true, Reason: err.Error()}
	case v.Breaker.Index == 0:
		v.Breaker.Value = Breaker{Tripped: true, Reason: "its record is missing"}
	}
	v.RCs, v.Status, v.Indices = map[string]Rec[rc.RC]{}, map[string]Rec[rc.Status]{}, map[string]uint64{}
	for _, id := range ids {
		record, status := t.keys.RCs.Key(id), t.keys.Statuses.Key(id)
		v.Indices[record], v.Indices[status] = found[record].ModifyIndex, found[status].ModifyIndex
		rec, err := t.RCs.recallIn(found, record)
		if err != nil {
			v.Corrupt = append(v.Corrupt, err)
		} else {
			v.RCs[id] = rec
		}
		if st, err := t.Statuses.recallIn(found, status); err == nil && st.Index != 0 {
			v.Status[id] = st
		}
	}
	return nil
}

// RolloutStep is one write of a service's runner. It lands whole or not at all, and only while the fence holds and all that it was
// decided from is as it was read.
type RolloutStep struct {
	Fence Fence
	View  *RolloutView
	// Record is the rollout as it shall be; nil leaves it as it is. Ended removes it, with its bell and its lock.
	Record *rollout.Record
	Ended  bool
	RCs    []rc.RC // that change; others of the view must be as they were read
	Audit  *Audit
	// Incident is what somebody has to be alerted to; nil leaves it as it is.
	Incident *RolloutIncident
}

// CommitRollout carries a step out, and returns the index at which its record, or else the first of its controllers, has landed. Its error matches ErrRefused (see
// LockRefused) or ErrUnknown. One that matches none of them says that what the service was could not be read, and nothing was sent.
func (t *Runs) CommitRollout(ctx context.Context, s *RolloutStep) (index uint64, err error) {
	ops := append(s.Fence.Ops(), t.rolloutConditions(s)...)
	for i := range s.RCs {
		r := &s.RCs[i]
		ops = append(ops, t.casRC(ctx, *r, s.View.Indices[t.keys.RCs.Key(r.ID)]))
	}
	ops = append(ops, t.stepRings(s)...)
	service, was := s.View.Rollout.Value.Service, s.View.Rollout.Index
	key := t.keys.Rollouts.Key(service)
	switch {
	case s.Ended:
		outcome, err := t.outcomeOps(ctx, s)
		if err != nil {
			return 0, err
		}
		ops = append(ops, outcome...)
		ops = append(ops, consul.CheckIndex(key, was), consul.Delete(key), consul.Delete(t.keys.RolloutBells.Key(service)))
	case s.Record != nil:
		ops = append(ops, cas(key, s.Record, was))
	default:
		ops = append(ops, consul.CheckIndex(key, was))
	}
	if s.Incident != nil {
		ops = append(ops, cas(t.keys.RolloutIncidents.Key(service), s.Incident, s.View.Incident.Index))
	}
	if s.Audit != nil {
		ops = append(ops, t.audit(*s.Audit))
	}
	if s.Ended {
		ops = append(ops, consul.Delete(s.Fence.Key))
	}
	written, err := t.fencedIndices(ctx, ops)
	if s.Record == nil && len(s.RCs) > 0 {
		key = t.keys.RCs.Key(s.RCs[0].ID)
	}
	return written[key], err
}

// stepRings rings for the controllers that a step changes, and for all of them when the rollout comes to rest: pods that had to stay where
// they are may go now, and nothing else tells their owner.
func (t *Runs) stepRings(s *RolloutStep) []consul.Op {
	ids := field.Each(s.RCs, func(r rc.RC) string { return r.ID })
	if s.Record != nil && s.Record.State.Idle() && !s.View.Rollout.Value.State.Idle() {
		ids = append(ids, field.Each(s.Record.Revisions, func(of rollout.Revision) string { return of.RC })...)
	}
	return t.rings(ids...)
}

// rolloutConditions is what a step was decided from, besides what it writes.
func (t *Runs) rolloutConditions(s *RolloutStep) []consul.Op {
	ops := []consul.Op{sameRecord(t.keys.Schema.Key(), s.View.Schema.Index), sameRecord(t.keys.Breaker.Key(), s.View.Breaker.Index)}
	written := map[string]bool{}
	for i := range s.RCs {
		written[t.keys.RCs.Key(s.RCs[i].ID)] = true
	}
	for _, key := range slices.Sorted(maps.Keys(s.View.Indices)) {
		if !written[key] {
			ops = append(ops, sameRecord(key, s.View.Indices[key]))
		}
	}
	return ops
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

// AskRollout notes what an operator asks of a rollout, for its runner to carry out. It returns ErrNotFound where there is no rollout,
// ErrConflict where it is another one than the operator has seen, or changes without end, ErrAsked, or *CorruptError.
func (s *Operator) AskRollout(ctx context.Context, a RolloutAsk) error {
	key := s.keys.Rollouts.Key(a.Service)
	err := error(nil)
	for range askTries {
		var rec Rec[rollout.Record]
		if rec, err = s.Rollouts.Get(ctx, consul.Consistent, a.Service); err != nil {
			return err
		}
		switch asked := rec.Value.Request; {
		case a.ID != "" && a.ID != rec.Value.ID:
			return ErrConflict
		case asked != nil && asked.Verb == a.Request.Verb:
			return nil
		case asked != nil:
			return ErrAsked
		}
		rec.Value.Request = &a.Request
		err = s.commitDefinitely(ctx, "rollout of "+a.Service, a.Audit, cas(key, rec.Value, rec.Index), s.ringRollout(a.Service))
		if !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return err
}

// askTries is how often an operator's request is written anew because the runner was faster.
const askTries = 20

// outcomeOps lists what writes how a rollout ended into the history of its service: into the entry of the revision that it was for. An
// entry that is missing, or that cannot be read, keeps no rollout from ending.
func (t *Runs) outcomeOps(ctx context.Context, s *RolloutStep) ([]consul.Op, error) {
	r := &s.View.Rollout.Value
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
