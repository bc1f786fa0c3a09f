package store

import (
	"context"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// MaxExpected is more than what fits into the one transaction of ReadEarly.
const MaxExpected = consul.MaxTxnOps

// Expected is what a pass will most likely read, as far as the last one of its controller tells.
type Expected struct {
	RCID       string
	Companions []string // other revisions of its service; empty: they are not read
	CountDrops bool     // count the controller's drops; where there are companions that is done anyway
	Service    string   // whose rollout may be in charge; empty: none
	Realities  []At
	NodesFreed []string // whose reservations give room back
}

// bound leaves out what has no room in a transaction that takes so many operations more: reservations before realities, which each pass needs.
func (e *Expected) bound(room int) {
	if len(e.Realities)+len(e.NodesFreed) > room {
		e.NodesFreed = nil
	}
	if len(e.Realities) > room {
		e.Realities = nil
	}
}

// Early is what was expected, all of it at one moment.
type Early struct {
	Expected
	Head       Head
	HeadErr    error       // as of ReadHead
	Drops      Drops       // of the controller, where it or companions were asked for
	Companions []Companion // as of ReadCompanions
	Rollout    InCharge

	store *db
	found map[string]consul.Pair
}

// ReadEarly reads what is expected in one transaction. Where realities and reservations do not fit in they are left to ReadDetails. It returns nil where
// the rest does not either, or where some of it cannot be read: who reads one thing after the other finds out which.
func (t *Passes) ReadEarly(ctx context.Context, e Expected) *Early {
	r := t.earlyKeys(&e)
	e.bound(consul.MaxTxnOps - r.Operations())
	r.Keys = slices.Concat(r.Keys, t.keys.Realities.KeysAt(e.Realities), t.keys.Reservations.Keys(e.NodesFreed))
	if r.Operations() > consul.MaxTxnOps {
		return nil
	}
	found, below, err := t.merged.Read(ctx, r, consul.Default)
	if err != nil {
		return nil
	}
	early := &Early{Expected: e, store: t.db, found: found}
	early.Head, early.HeadErr = t.headOf(e.RCID, found, pairsUnder(below, t.headKeys(e.RCID).Prefixes))
	early.Drops = t.dropsOf(e.RCID, found, below)
	if len(e.Companions) > 0 {
		early.Companions = t.companionsOf(e.Companions, found, below)
	}
	if e.Service != "" {
		early.Rollout = t.inChargeOf(e.Service, found)
	}
	return early
}

// earlyKeys is what is expected, without realities.
func (t *Passes) earlyKeys(e *Expected) consul.Reading {
	r := t.headKeys(e.RCID)
	switch {
	case len(e.Companions) > 0:
		more := t.companionKeys(e.RCID, e.Companions)
		r.Prefixes = append(r.Prefixes, more.Prefixes...)
		r.Keys = append(r.Keys, slices.DeleteFunc(more.Keys, func(key string) bool { return slices.Contains(r.Keys, key) })...)
	case e.CountDrops:
		r.Prefixes = append(r.Prefixes, t.keys.Drops.Below(e.RCID))
	}
	if e.Service != "" {
		r.Keys = append(r.Keys, t.keys.Rollouts.Key(e.Service))
	}
	return r
}

// RealitiesOf returns those of what is wanted that were read, as ReadDetails does, and the rest. With them come all reservations that were.
func (e *Early) RealitiesOf(wanted []At) (d Details, rest []At) {
	read := make(map[At]bool, len(e.Realities))
	for _, at := range e.Realities {
		read[at] = true
	}
	var here []At
	for _, at := range wanted {
		if read[at] {
			here = append(here, at)
		} else {
			rest = append(rest, at)
		}
	}
	d.Realities, d.Corrupt = e.store.Realities.recallAt(e.found, here)
	d.Reported, d.Intents = reportedAt(e.store.keys, e.found, here), map[At]pod.Intent{}
	d.Reservations, d.Unreadable = e.store.taken(e.found, e.NodesFreed)
	return d, rest
}

// reportedAt returns the indices of realities, also of those that cannot be read.
func reportedAt(keys *Keys, found map[string]consul.Pair, wanted []At) map[At]uint64 {
	reported := make(map[At]uint64, len(wanted))
	for _, at := range wanted {
		if p, ok := found[keys.Realities.At(at)]; ok {
			reported[at] = p.ModifyIndex
		}
	}
	return reported
}
