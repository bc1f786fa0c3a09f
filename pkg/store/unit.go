package store

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// Unit has all records of a unit that a look reads first, as of one moment (ADR 29).
type Unit struct {
	ID        string
	BellIndex uint64 // zero: there is no bell
	Drops     Drops
	Heads     map[string]*Head // by controller id; also of controllers without a record
	// Rollout is the service's rollout; index zero: none. RolloutErr: it cannot be read. Trouble has its alerts; index
	// zero: none.
	Rollout    Rec[rollout.Record]
	RolloutErr error
	Trouble    Rec[RolloutTrouble]
}

// Head has the records of one controller except reports.
type Head struct {
	RC       Rec[rc.RC]
	Err      error // ErrNotFound if there is no record, *CorruptError if it cannot be read
	Status   *rc.Status
	Requests []Rec[Request] // oldest first, without those that cannot be read
	// Placements are the readable ones. Corrupt has an error for each other one.
	Placements []Rec[pod.Placement]
	Corrupt    []error
}

// Exists reports whether the controller has a record, readable or not.
func (h *Head) Exists() bool { return !errors.Is(h.Err, ErrNotFound) }

// Owned reports whether the owner must handle the controller: it has a record, or a request about its remains.
// Otherwise the owner leaves its pods alone (P4).
func (h *Head) Owned() bool { return h.Exists() || len(h.Requests) > 0 }

// ReadUnit reads a unit with its controllers and its rollout.
func (p *Passes) ReadUnit(ctx context.Context, unit string, level Level) (Unit, error) {
	found, below, err := p.merged.Read(ctx, p.unitKeys(unit), level)
	if err != nil {
		return Unit{}, err
	}
	return p.unitOf(unit, found, below), nil
}

func (t *underLock) unitKeys(unit string) consul.Reading {
	return consul.Reading{
		// For a controller without a service, two of these are the keys of its record and its status. A read below a
		// prefix does not include the key that equals the prefix.
		Keys: []string{
			t.keys.Bells.Key(unit), t.keys.Drops.Key(unit), t.keys.RCs.Key(unit),
			t.keys.Statuses.Key(unit), t.keys.Rollouts.Key(unit),
		},
		Prefixes: []string{
			t.keys.RCs.OfUnit(unit), t.keys.Statuses.OfUnit(unit), t.keys.Requests.OfUnit(unit),
			t.keys.Pods.OfUnit(unit), t.keys.Drops.OfUnit(unit),
			t.keys.Rollouts.OfUnit(unit),
		},
	}
}

func (t *underLock) unitOf(unit string, found map[string]consul.Pair, below []consul.Pair) Unit {
	u := Unit{
		ID: unit, BellIndex: found[t.keys.Bells.Key(unit)].ModifyIndex, Drops: t.dropsOf(unit, found,
			below), Heads: map[string]*Head{},
	}
	if u.Rollout, u.RolloutErr = t.Rollouts.decodeIn(found, t.keys.Rollouts.Key(unit)); u.RolloutErr != nil {
		u.Rollout = Rec[rollout.Record]{Index: found[t.keys.Rollouts.Key(unit)].ModifyIndex}
	}
	for _, key := range []string{t.keys.RCs.Key(unit), t.keys.Statuses.Key(unit)} {
		if p, ok := found[key]; ok {
			t.addTo(&u, p)
		}
	}
	for _, p := range below {
		t.addTo(&u, p)
	}
	return u
}

func (t *underLock) addTo(u *Unit, p consul.Pair) {
	if p.Key == t.keys.RolloutTroubles.Key(u.ID) {
		u.Trouble, _ = t.RolloutTroubles.decode(p)
		return
	}
	head := func(k Kind) *Head {
		if !strings.HasPrefix(p.Key, k.prefix) || strings.HasSuffix(p.Key, "/") {
			return nil
		}
		id := k.first(p.Key)
		if rc.UnitOf(id) != u.ID {
			return nil
		}
		h := u.Heads[id]
		if h == nil {
			h = &Head{Err: ErrNotFound}
			u.Heads[id] = h
		}
		return h
	}
	if h := head(t.keys.RCs); h != nil {
		h.RC, h.Err = t.RCs.decode(p)
	} else if h := head(t.keys.Statuses); h != nil {
		if st, err := t.Statuses.decode(p); err == nil {
			h.Status = &st.Value
		}
	} else if h := head(t.keys.Requests); h != nil {
		if r, err := t.Requests.decode(p); err == nil {
			h.Requests = append(h.Requests, r)
		}
	} else if h := head(t.keys.Pods); h != nil {
		if rec, err := t.Pods.decode(p); err == nil {
			h.Placements = append(h.Placements, rec)
		} else {
			h.Corrupt = append(h.Corrupt, err)
		}
	}
}

// Latest returns the controller whose labels decide which farms may own the unit: the highest revision, or the last id
// if no record can be read, or "" without a record.
func (u *Unit) Latest() string {
	latest, number := "", int64(-1)
	for id, h := range u.Heads {
		if !h.Exists() {
			continue
		}
		n := int64(0)
		if s := h.RC.Value.Service; h.Err == nil && s != nil {
			n = s.Revision
		}
		if n > number || n == number && id > latest {
			latest, number = id, n
		}
	}
	return latest
}

// IDs returns the highest revision first. Controllers that run before a revision, or without a record, come last.
func (u *Unit) IDs() []string {
	ids := make([]string, 0, len(u.Heads))
	for id := range u.Heads {
		ids = append(ids, id)
	}
	revision := func(id string) int64 {
		if s := u.Heads[id].RC.Value.Service; s != nil {
			return s.Revision
		}
		return 0
	}
	slices.SortFunc(ids,
		func(a, b string) int { return cmp.Or(cmp.Compare(revision(b), revision(a)), cmp.Compare(b, a)) })
	return ids
}

// UnitRC reads the controller of Unit.Latest, or returns ErrNotFound.
func (t *underLock) UnitRC(ctx context.Context, unit string) (Rec[rc.RC], error) {
	r := consul.Reading{Keys: []string{t.keys.RCs.Key(unit)}, Prefixes: []string{t.keys.RCs.OfUnit(unit)}}
	found, below, err := t.merged.Read(ctx, r, consul.Default)
	if err != nil {
		return Rec[rc.RC]{}, err
	}
	u := t.unitOf(unit, found, below)
	h := u.Heads[u.Latest()]
	if h == nil {
		return Rec[rc.RC]{}, ErrNotFound
	}
	return h.RC, h.Err
}
