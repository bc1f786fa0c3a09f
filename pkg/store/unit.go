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

// Unit is all that a look at a unit reads first, at one moment (ADR 29). Whatever is read later is at least as new as
// its bell and its drops.
type Unit struct {
	ID        string
	BellIndex uint64 // zero: there is no bell
	Drops     Drops
	Heads     map[string]*Head // by controller id: of all that have any of what a head holds
	// Rollout is that of the service; index zero: there is none, and with RolloutErr it cannot be read. Trouble is what
	// stands beside it; one that cannot be read is none.
	Rollout    Rec[rollout.Record]
	RolloutErr error
	Trouble    Rec[RolloutTrouble]
}

// Head is what there is of one controller besides what its nodes report.
type Head struct {
	RC       Rec[rc.RC]
	Err      error // ErrNotFound where there is no record, *CorruptError where it cannot be read
	Status   *rc.Status
	Requests []Rec[Request] // oldest first; one that cannot be read asks for nothing
	// Placements are those that can be read; Corrupt has an error for each of the others.
	Placements []Rec[pod.Placement]
	Corrupt    []error
}

// Exists reports whether the controller has a record, readable or not.
func (h *Head) Exists() bool { return !errors.Is(h.Err, ErrNotFound) }

// Owned reports whether the owner of the unit has something to do with the controller: it has a record, or somebody
// asks about what it left behind. Other pods without a record are left alone (P4).
func (h *Head) Owned() bool { return h.Exists() || len(h.Requests) > 0 }

// ReadUnit reads a unit with all of its controllers and its rollout.
func (t *Passes) ReadUnit(ctx context.Context, unit string, consistent bool) (Unit, error) {
	found, below, err := t.merged.Read(ctx, t.unitKeys(unit), levelOf(consistent))
	if err != nil {
		return Unit{}, err
	}
	return t.unitOf(unit, found, below), nil
}

func (t *underLock) unitKeys(unit string) consul.Reading {
	return consul.Reading{
		// The unit's own record and status are those of a controller without a service. What is below a prefix does not
		// include the key that equals it.
		Keys: []string{
			t.keys.Bells.Key(unit), t.keys.Drops.Key(unit), t.keys.RCs.Key(unit), t.keys.Statuses.Key(unit), t.keys.Rollouts.Key(unit),
		},
		Prefixes: []string{
			t.keys.RCs.OfUnit(unit), t.keys.Statuses.OfUnit(unit), t.keys.Requests.OfUnit(unit), t.keys.Pods.OfUnit(unit), t.keys.Drops.OfUnit(unit),
			t.keys.Rollouts.OfUnit(unit),
		},
	}
}

// unitOf fills in what can be read.
func (t *underLock) unitOf(unit string, found map[string]consul.Pair, below []consul.Pair) Unit {
	u := Unit{
		ID: unit, BellIndex: found[t.keys.Bells.Key(unit)].ModifyIndex, Drops: t.dropsOf(unit, found, below), Heads: map[string]*Head{},
	}
	if u.Rollout, u.RolloutErr = t.Rollouts.recallIn(found, t.keys.Rollouts.Key(unit)); u.RolloutErr != nil {
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

// addTo adds one pair that was found below a prefix of a unit.
func (t *underLock) addTo(u *Unit, p consul.Pair) {
	if p.Key == t.keys.RolloutTroubles.Key(u.ID) {
		u.Trouble, _ = t.RolloutTroubles.recall(p)
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
		h.RC, h.Err = t.RCs.recall(p)
	} else if h := head(t.keys.Statuses); h != nil {
		if st, err := t.Statuses.recall(p); err == nil {
			h.Status = &st.Value
		}
	} else if h := head(t.keys.Requests); h != nil {
		if r, err := t.Requests.decode(p); err == nil {
			h.Requests = append(h.Requests, r)
		}
	} else if h := head(t.keys.Pods); h != nil {
		if rec, err := t.Pods.recall(p); err == nil {
			h.Placements = append(h.Placements, rec)
		} else {
			h.Corrupt = append(h.Corrupt, err)
		}
	}
}

// Latest returns the id of the controller whose labels decide which farms may own the unit: that of the highest
// revision. Of controllers that cannot be read it is the last one; "" where no controller has a record.
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

// IDs returns the controllers of the unit, the highest revision first and those that run before one, or have no record,
// last.
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
	slices.SortFunc(ids, func(a, b string) int { return cmp.Or(cmp.Compare(revision(b), revision(a)), cmp.Compare(b, a)) })
	return ids
}

// UnitRC reads the record of the controller whose labels decide which farms may own a unit; see Unit.Latest. It returns
// ErrNotFound where the unit has no controller.
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
