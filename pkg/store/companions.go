package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Marks are the keys of one controller that move when its pods do not count as they did, as listed at one moment.
type Marks struct {
	Stops uint64 // index; zero: there is no such key
	Bell  uint64 // index; zero: there is none
	Drops Drops
}

// Companion is what an owner reads of the controller of another revision of its service.
type Companion struct {
	RCID  string
	Marks Marks
	// Exists: there is a record, readable or not. What is left of a controller without one belongs to nobody.
	Exists     bool
	Record     uint64     // index of the record
	Asks       *int       // how many replicas it asks for; nil: it cannot be read
	Status     *rc.Status // nil: there is none that can be read
	Placements []Rec[pod.Placement]
	Corrupt    []error // one for each placement that cannot be read
}

// ReadCompanions reads a controller's own marks and its companions, all at one moment: what is read later is newer than the marks.
// Of controllers with thousands of pods it reads as much as their own passes do.
func (t *Passes) ReadCompanions(ctx context.Context, rcID string, ids []string, consistent bool) (Marks, []Companion, error) {
	found, below, err := t.merged.Read(ctx, t.companionKeys(rcID, ids), levelOf(consistent))
	if err != nil {
		return Marks{}, nil, err
	}
	return t.marksOf(rcID, found, below), t.companionsOf(ids, found, below), nil
}

func (t *Passes) companionKeys(rcID string, ids []string) consul.Reading {
	r := t.markKeys(append([]string{rcID}, ids...))
	for _, id := range ids {
		r.Keys = append(r.Keys, t.keys.RCs.Key(id), t.keys.Statuses.Key(id))
		r.Prefixes = append(r.Prefixes, t.keys.Pods.Below(id))
	}
	return r
}

// companionsOf picks companions out of what was read.
func (t *Passes) companionsOf(ids []string, found map[string]consul.Pair, below []consul.Pair) []Companion {
	companions := make([]Companion, len(ids))
	for i, id := range ids {
		r, err := t.RCs.recallIn(found, t.keys.RCs.Key(id))
		c := Companion{RCID: id, Marks: t.marksOf(id, found, below), Exists: r.Index != 0, Record: r.Index, Status: t.statusOf(found, id)}
		if n := r.Value.Asks(); c.Exists && err == nil {
			c.Asks = &n
		}
		c.Placements, c.Corrupt = each(pairsUnder(below, []string{t.keys.Pods.Below(id)}), t.Pods.recall)
		companions[i] = c
	}
	return companions
}

// pairsUnder returns the pairs whose keys begin with one of the prefixes.
func pairsUnder(pairs []consul.Pair, prefixes []string) []consul.Pair {
	var some []consul.Pair
	for _, p := range pairs {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(p.Key, prefix) }) {
			some = append(some, p)
		}
	}
	return some
}

func (s *db) markKeys(ids []string) consul.Reading {
	var r consul.Reading
	for _, id := range ids {
		r.Keys = append(r.Keys, s.keys.Stops.Key(id), s.keys.Bells.Key(id), s.keys.Drops.Key(id))
		r.Prefixes = append(r.Prefixes, s.keys.Drops.Below(id))
	}
	return r
}

func (s *db) marksOf(id string, found map[string]consul.Pair, below []consul.Pair) Marks {
	return Marks{Stops: found[s.keys.Stops.Key(id)].ModifyIndex, Bell: found[s.keys.Bells.Key(id)].ModifyIndex, Drops: s.dropsOf(id, found, below)}
}

// DropsBy are the drops of several controllers.
type DropsBy map[string]Drops // by controller id

// Since is like Drops.Since, of all of them together.
func (d DropsBy) Since(before DropsBy) (drops int64, known bool) {
	for id, was := range before {
		now, there := d[id]
		n, known := now.Since(was)
		if !there || !known {
			return 0, false
		}
		drops = min(drops+n, maxDrops)
	}
	return drops, true
}

// DropsOf lists the drops of some controllers, at one moment.
func (t *Passes) DropsOf(ctx context.Context, ids []string) (DropsBy, error) {
	var r consul.Reading
	for _, id := range ids {
		r.Keys = append(r.Keys, t.keys.Drops.Key(id))
		r.Prefixes = append(r.Prefixes, t.keys.Drops.Below(id))
	}
	found, below, err := t.merged.Read(ctx, r, consul.Default)
	if err != nil {
		return nil, err
	}
	drops := make(DropsBy, len(ids))
	for _, id := range ids {
		drops[id] = t.dropsOf(id, found, below)
	}
	return drops, nil
}

// MakeMarks makes what is missing of the keys that batches of a controller and its companions depend on. Whoever has looked before must
// look again.
func (s *db) MakeMarks(ctx context.Context, drops, stops []string) error {
	for _, key := range slices.Concat(s.keys.Drops.Keys(drops), s.keys.Stops.Keys(stops)) {
		if err := s.create(ctx, consul.CAS(key, []byte(NewID()), 0)); err != nil {
			return err
		}
	}
	return nil
}

// CompanionIndices must not have moved; zero means that a part does not depend on that one.
type CompanionIndices struct{ Stops, Drops, Bell, Record uint64 }

func (i CompanionIndices) with(other CompanionIndices) CompanionIndices {
	return CompanionIndices{max(i.Stops, other.Stops), max(i.Drops, other.Drops), max(i.Bell, other.Bell), max(i.Record, other.Record)}
}

// companionOps lists what a part depends on of other controllers, in a stable order.
func (s *db) companionOps(p *Part) []operation {
	var ops []operation
	check := func(key string, index uint64) {
		if index != 0 {
			ops = append(ops, operation{verb: checkIndex, key: key, index: index})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(p.Companions)) {
		on := p.Companions[id]
		check(s.keys.Stops.Key(id), on.Stops)
		check(s.keys.Drops.Key(id), on.Drops)
		check(s.keys.Bells.Key(id), on.Bell)
		check(s.keys.RCs.Key(id), on.Record)
	}
	return ops
}

// InCharge is a rollout as owners see it.
type InCharge struct {
	Index uint64 // of its record; zero: there is none
	Term  string // as in the records of its controllers; empty: it cannot be read
	State string
}

// RolloutInCharge reads which rollout a service has.
func (t *Passes) RolloutInCharge(ctx context.Context, service string, consistent bool) (InCharge, error) {
	key := t.keys.Rollouts.Key(service)
	found, _, err := t.merged.Read(ctx, consul.Reading{Keys: []string{key}}, levelOf(consistent))
	if err != nil {
		return InCharge{}, fmt.Errorf("read the rollout of %s: %w", service, err)
	}
	return t.inChargeOf(service, found), nil
}

// inChargeOf picks the rollout of a service out of what was read.
func (s *db) inChargeOf(service string, found map[string]consul.Pair) InCharge {
	pair, ok := found[s.keys.Rollouts.Key(service)]
	if !ok {
		return InCharge{}
	}
	now := InCharge{Index: pair.ModifyIndex}
	var rec struct{ ID, Service, State string }
	if json.Unmarshal(pair.Value, &rec) == nil && rec.ID != "" && rec.Service == service {
		now.Term, now.State = service+"/"+rec.ID, rec.State
	}
	return now
}

// ReleaseMutator takes a controller away from a rollout of a service that is not in charge any more: it is as was read. Nothing else of
// the record changes, nor does its generation: what was found running stays as it is (R2). A controller without a service is that of a
// pre_deploy: it is disabled, so that its program, which may have run, does not run again; one that runs goes on to its end. It returns
// like Commit.
func (t *Owners) ReleaseMutator(ctx context.Context, f Fence, rec Rec[rc.RC], service string, was InCharge, schemaIndex uint64, a Audit) error {
	next := rec.Value
	next.Mutator, next.Disabled = "", next.Disabled || next.Service == nil
	ops := append(f.Ops(), consul.CheckIndex(t.keys.Schema.Key(), schemaIndex), sameRecord(t.keys.Rollouts.Key(service), was.Index))
	return t.fenced(ctx, append(ops, t.casRC(ctx, next, rec.Index), t.audit(a), t.ring(next.ID)))
}

// othersOf picks manifests out of what was read.
func (s *db) othersOf(found map[string]consul.Pair, digests []string) (map[string]*manifest.Manifest, map[string]error) {
	manifests, errs := map[string]*manifest.Manifest{}, map[string]error{}
	for _, digest := range digests {
		if m, _, err := s.manifestOf(found, digest); err == nil {
			manifests[digest] = m
		} else {
			errs[digest] = err
		}
	}
	return manifests, errs
}
