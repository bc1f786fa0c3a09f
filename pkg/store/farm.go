package store

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/contain"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Fence proves the ownership of a controller in one tenure.
type Fence = consul.Fence

// FarmSession is what a farm does under one session, one type for each task.
type FarmSession struct {
	*db
	*underLock
	*Views
	*Watches
	*Agents
	*Owners
	*Passes
	*Batches
	*Duties
}

// underLock is what all that is done under one session of a farm has in common.
type underLock struct {
	*db
	sess   *consul.Session
	farmID string
	merged *consul.Merger // what passes of many controllers read and write
}

// FarmSession returns the writer for one farm under one session.
func (s *Store) FarmSession(sess *consul.Session, farmID string) *FarmSession {
	u := &underLock{db: s.db, sess: sess, farmID: farmID, merged: s.c.NewMerger()}
	return &FarmSession{
		db: s.db, underLock: u, Views: s.Views, Watches: s.Watches, Agents: s.Agents,
		Owners: &Owners{u}, Passes: &Passes{u}, Batches: &Batches{u}, Duties: &Duties{u},
	}
}

// RC reads one controller.
func (t *underLock) RC(ctx context.Context, id string, consistent bool) (Rec[rc.RC], error) {
	return t.RCs.Get(ctx, levelOf(consistent), id)
}

// Placements reads the placements of one controller.
func (t *underLock) Placements(ctx context.Context, rcID string, consistent bool) ([]Rec[pod.Placement], []error, error) {
	return t.Pods.List(ctx, levelOf(consistent), rcID)
}

// Owners is how a farm becomes and stops being the owner of controllers, and finds those without one.
type Owners struct{ *underLock }

// RCExists reports whether there is a record of a controller, readable or not.
func (t *Owners) RCExists(ctx context.Context, rcID string) (bool, error) {
	return t.RCs.Exists(ctx, rcID)
}

// ListReservedNodes returns the names of all nodes that have a reservation, readable or not.
func (t *Owners) ListReservedNodes(ctx context.Context) ([]string, error) {
	return t.Reservations.IDs(ctx)
}

// Ask leaves a request for a controller's owner, as Operator.Ask does.
func (t *Owners) Ask(ctx context.Context, r Request, a Audit) error {
	return (&Operator{t.db}).Ask(ctx, r, a)
}

// Passes are the reads of passes over controllers.
type Passes struct{ *underLock }

// Kinds of requests that passes share.
const (
	SpoiledReads  = consul.SpoiledReads
	SpoiledWrites = consul.SpoiledWrites
)

// OnSpoiled has f told of each request that failed and was shared: how many reads are done again alone, or of how many writes the
// outcome is unknown. It is for before the first of them.
func (t *FarmSession) OnSpoiled(f func(kind string, parts int)) { t.merged.Spoiled = f }

// lockValue is what a farm writes into a lock. Unique makes every value differ, which moves the lock's index.
type lockValue struct {
	Farm        string `json:"farm"`
	Incarnation string `json:"incarnation"`
	Unique      string `json:"stamp"`
}

// ownerOf returns the farm that holds a lock: "" when none does, or when what it wrote cannot be read.
func ownerOf(lock consul.Pair) string {
	var v lockValue
	if lock.Session == "" || json.Unmarshal(lock.Value, &v) != nil {
		return ""
	}
	return v.Farm
}

func (t *underLock) lockValue() []byte {
	b := field.AppendText([]byte(`{"farm":`), t.farmID)
	b = field.AppendText(append(b, `,"incarnation":`...), t.sess.Incarnation)
	return append(field.AppendText(append(b, `,"stamp":`...), NewID()), '}')
}

// Join writes the member record, with what this program emulates. It vanishes with the session.
func (t *Owners) Join(ctx context.Context, m Member) error {
	m.ID, m.Incarnation, m.EmulationVersion = t.farmID, t.sess.Incarnation, t.guard.own()
	record, err := encode(m)
	if err != nil {
		return err
	}
	_, err = t.c.Locks.Acquire(ctx, t.keys.Farms.Key(t.farmID), t.sess.Deleting, func() []byte { return record })
	return err
}

// Claimed is a lock that was taken, with what ReadUnit would have returned at that moment.
type Claimed struct {
	Fence   Fence
	Unit    Unit
	UnitErr error
}

// Claim takes the lock of a unit and reads the unit with it: a farm that takes over claims thousands. It returns
// *consul.LockedError (see LockedBy) when another farm holds the lock, ErrLost when the session is dead.
func (t *Owners) Claim(ctx context.Context, unit string) (Claimed, error) {
	sent := time.Now()
	f, found, below, err := t.merged.AcquireReading(ctx, t.keys.Locks.Key(unit), t.sess.Releasing, t.lockValue, t.unitKeys(unit))
	got := Claimed{Fence: f}
	switch {
	case err == nil:
		got.Unit = t.unitOf(unit, found, below)
	case f.Key != "": // the lock is ours, but the token may not read all of the unit
		got.UnitErr = err
	default:
		return got, err
	}
	t.sess.Confirm(sent)
	return got, nil
}

// ClaimAll takes the locks of several units and reads nothing. It returns the fences of those that it surely got; for the others,
// and only for them, there is an error, and Claim tells what is true of each.
func (t *Owners) ClaimAll(ctx context.Context, units []string) (map[string]Fence, error) {
	keys := t.keys.Locks.Keys(units)
	sent := time.Now()
	byKey, err := t.c.Locks.AcquireAll(ctx, keys, t.sess.Releasing, t.lockValue)
	_ = t.sess.Answered(sent, err)
	got := make(map[string]Fence, len(byKey))
	for i, id := range units {
		if f, ok := byKey[keys[i]]; ok {
			got[id] = f
		}
	}
	return got, err
}

// Bump moves the fence, after which no transaction with the old one can land. Its errors are those of Claim; ErrLost also
// when another farm holds the lock.
func (t *Owners) Bump(ctx context.Context, f Fence) (Fence, error) {
	return t.c.Locks.Bump(ctx, f, t.lockValue)
}

// Release gives the lock of a unit up and rings its bell, so that others notice. It bears the whole fence: a release that
// arrives late must not give up what the same session has taken again since.
func (t *Owners) Release(ctx context.Context, unit string, f Fence) error {
	_, err := t.c.Commit(ctx, append(f.Ops(), consul.Unlock(f.Key, t.lockValue(), f.Session), t.ring(unit)))
	return err
}

// Ring rings the bell of a controller's unit.
func (s *db) Ring(ctx context.Context, rcID string) error {
	_, err := s.c.Commit(ctx, []consul.Op{s.ring(rcID)})
	return err
}

// LockState is what is known of all locks: the units whose lock somebody else holds.
type LockState map[string]bool

// Locks reads which units other sessions than this one own.
func (t *Owners) Locks(ctx context.Context) (LockState, error) {
	pairs, err := t.c.List(ctx, t.keys.Locks.Key(), consul.Default)
	if err != nil {
		return nil, err
	}
	state := LockState{}
	for _, p := range pairs {
		if p.Session != "" && p.Session != t.sess.Releasing {
			state[strings.TrimPrefix(p.Key, t.keys.Locks.Key())] = true
		}
	}
	return state, nil
}

// SweepBells makes the bells that are missing and removes those whose unit is gone (R4), unless something is asked about it. It returns the ids of all
// controllers, and those without a record about which something is asked.
func (t *Owners) SweepBells(ctx context.Context) (ids, asked []string, err error) {
	var bells [Shards][]consul.Pair // before the controllers: one that is made meanwhile rings
	for shard := range Shards {
		if bells[shard], err = t.c.List(ctx, t.keys.Bells.Shard(shard), consul.Default); err != nil {
			return nil, nil, err
		}
	}
	if ids, err = t.RCs.IDs(ctx); err != nil {
		return nil, nil, err
	}
	requests, _, err := t.Requests.List(ctx, consul.Default)
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
		if err := t.sweepShard(ctx, shard, bells[shard], keep); err != nil {
			return nil, nil, err
		}
	}
	return ids, asked, nil
}

func (t *Owners) sweepShard(ctx context.Context, shard int, bells []consul.Pair, units []string) error {
	have := map[string]uint64{}
	for _, p := range bells {
		have[p.Key] = p.ModifyIndex
	}
	var acts [][]consul.Op // each lands whole or not at all
	for _, unit := range units {
		key := t.keys.Bells.Key(unit)
		if shardOf(unit) != shard {
			continue
		}
		if _, ok := have[key]; !ok {
			acts = append(acts, []consul.Op{consul.Set(key, []byte(NewID()))})
		}
		delete(have, key)
	}
	delete(have, t.keys.Bells.Shard(shard)) // the marker
	for key, index := range have {
		unit := key[len(t.keys.Bells.Shard(shard)):]
		acts = append(acts, []consul.Op{consul.CheckMissing(t.keys.RCs.Key(unit)), consul.DeleteCAS(key, index)})
	}
	for chunk := range slices.Chunk(acts, consul.MaxTxnOps/2) {
		// A refusal means that something changed meanwhile; the next sweep sees it.
		if _, err := t.c.Commit(ctx, slices.Concat(chunk...)); err != nil && !errors.Is(err, ErrRefused) {
			return err
		}
	}
	return nil
}

// At names one identity on one node.
type At struct {
	Node string
	pod.Identity
}

// Wanted is what a pass reads after the head: by then it knows the names of all of it.
type Wanted struct {
	Manifest     string   // digest; empty: none
	Others       []string // digests of other manifests
	Realities    []At
	Intents      []At
	Reservations []string // names of nodes
	// Nodes is how many nodes there are, as far as is known; zero: many. See listsReservations.
	Nodes int
}

// Empty reports whether nothing is wanted.
func (w *Wanted) Empty() bool {
	return w.Manifest == "" && len(w.Others)+len(w.Realities)+len(w.Intents)+len(w.Reservations) == 0
}

// Details is what was wanted.
type Details struct {
	Manifest    *manifest.Manifest
	ManifestErr error                         // as of Store.Manifest
	Others      map[string]*manifest.Manifest // those of Wanted.Others that can be read
	OthersErrs  map[string]error              // of the rest, as of Store.Manifest
	Reports     map[At]Report                 // one for each of Wanted.Realities
	Intents     map[At]pod.Intent
	Corrupt     []error // of the intents; those are absent
	// Reservations and Unreadable are as of Store.Reservations.
	Reservations map[string]Rec[node.Reservation]
	Unreadable   map[string]error
}

// Report is what a node reports of one copy of a pod.
type Report struct {
	Reality *pod.Reality // nil: there is none, or it cannot be read
	Index   uint64       // Consul's index of the record, readable or not; zero: there is none
	Err     error        // a *CorruptError where it cannot be read
}

// ReadDetails reads all that is wanted together. Intents that do not exist are absent.
func (t *Passes) ReadDetails(ctx context.Context, w Wanted, consistent bool) (Details, error) {
	var d Details
	r := consul.Reading{Keys: slices.Concat(t.keys.Realities.KeysAt(w.Realities), t.keys.Intents.KeysAt(w.Intents))}
	if w.Manifest != "" {
		r.Keys = append(r.Keys, t.keys.Manifests.Key(w.Manifest))
	}
	for _, digest := range w.Others {
		r.Keys = append(r.Keys, t.keys.Manifests.Key(digest))
	}
	group, groupCtx := errgroup.WithContext(ctx)
	if w.listsReservations() {
		group.Go(func() error {
			return contain.Do(func() (err error) { // of a look: it is contained with it
				d.Reservations, d.Unreadable, err = t.listTaken(groupCtx, w.Reservations, levelOf(consistent))
				return err
			})
		})
	} else {
		r.Keys = append(r.Keys, t.keys.Reservations.Keys(w.Reservations)...)
	}
	var found map[string]consul.Pair
	group.Go(func() (err error) {
		found, _, err = t.merged.Read(groupCtx, r, levelOf(consistent))
		return err
	})
	if err := group.Wait(); err != nil {
		return d, err
	}
	if d.Reservations == nil {
		d.Reservations, d.Unreadable = t.taken(found, w.Reservations)
	}
	if w.Manifest != "" {
		d.Manifest, _, d.ManifestErr = t.manifestOf(found, w.Manifest)
	}
	d.Others, d.OthersErrs = t.othersOf(found, w.Others)
	d.Reports = t.reportsOf(found, w.Realities)
	d.Intents, d.Corrupt = t.Intents.recallAt(found, w.Intents)
	return d, nil
}

// RealitiesAt reads what nodes did about identities; those without a reality are absent. Records that cannot be read are
// absent too and come back as errors.
func (s *Views) RealitiesAt(ctx context.Context, at []At, consistent bool) (map[At]pod.Reality, []error, error) {
	found, err := s.c.GetMany(ctx, s.keys.Realities.KeysAt(at), levelOf(consistent))
	if err != nil {
		return nil, nil, err
	}
	realities, corrupt := s.Realities.recallAt(found, at)
	return realities, corrupt, nil
}

// Agents are what Consul itself knows of machines, and what daemons tell of themselves besides their records.
type Agents struct{ *db }

// Passing returns the names of the nodes whose preparers pass in Consul's catalog, which survives a wipe of the records.
func (s *Agents) Passing(ctx context.Context) ([]string, error) {
	metas, err := s.c.Catalog.Passing(ctx, consul.ServiceName("preparer"), prefixMeta, s.keys.Prefix())
	return field.Each(metas, func(meta map[string]string) string { return meta[nodeMeta] }), err
}

// Keys in the meta of a daemon's service. Clusters that share a Consul differ in the prefix.
const (
	nodeMeta   = "rcfarm_preparer"
	prefixMeta = "rcfarm_prefix"
	// emulatesMeta is what the daemon emulates, for whoever makes the first records (ADR 28).
	emulatesMeta = "rcfarm_emulates"
)

// FarmMeta returns the meta under which a farm's liveness must be registered.
func (s *Agents) FarmMeta() map[string]string {
	return map[string]string{prefixMeta: s.keys.Prefix(), emulatesMeta: s.guard.own()}
}

// PreparerMeta returns the meta under which a preparer's liveness must be registered.
func (s *Agents) PreparerMeta(nodeName string) map[string]string {
	return map[string]string{nodeMeta: nodeName, prefixMeta: s.keys.Prefix(), emulatesMeta: s.guard.own()}
}

// IsLocked reports whether another session than this one owns a unit.
func (t *Owners) IsLocked(ctx context.Context, unit string) (bool, error) {
	return t.lockedElsewhere(ctx, t.keys.Locks.Key(unit))
}

func (t *underLock) lockedElsewhere(ctx context.Context, lock string) (bool, error) {
	found, _, err := t.merged.Read(ctx, consul.Reading{Keys: []string{lock}}, consul.Default)
	owner := found[lock].Session
	return owner != "" && owner != t.sess.Releasing, err
}

// Unreserved returns what nodes have been told about and hold no claim for. It is a hint: what changes meanwhile may be
// among it. A node whose reservation cannot be read is left out.
func (t *Owners) Unreserved(ctx context.Context, nodes []string) ([]At, error) {
	if len(nodes) == 0 {
		return nil, nil
	}
	var intents consul.Reading
	for _, name := range nodes {
		intents.Prefixes = append(intents.Prefixes, t.keys.Intents.Below(name))
	}
	_, below, err := t.merged.Read(ctx, intents, consul.Default)
	if err != nil {
		return nil, err
	}
	found, err := t.c.GetMany(ctx, t.keys.Reservations.Keys(nodes), consul.Default) // later: what is placed meanwhile has a claim
	if err != nil {
		return nil, err
	}
	reserved, unreadable := t.taken(found, nodes)
	var missing []At
	for _, p := range below {
		name, _, _ := strings.Cut(p.Key[len(t.keys.Intents.Key()):], "/")
		in, err := t.Intents.decode(p)
		if err != nil || unreadable[name] != nil {
			continue // also the marker
		}
		if _, claimed := reserved[name].Value.Claims[in.Value.Identity.String()]; !claimed {
			missing = append(missing, At{Node: name, Identity: in.Value.Identity})
		}
	}
	return missing, nil
}

// FailedAgents returns the names of the machines whose Consul agents have failed.
func (s *Agents) FailedAgents(ctx context.Context) (map[string]bool, error) {
	return s.c.Catalog.FailedNodes(ctx)
}

// LivingAgents returns which of some Consul agents are known, and have not failed.
func (s *Agents) LivingAgents(ctx context.Context, agents []string) (map[string]bool, error) {
	return s.c.Catalog.LivingNodes(ctx, agents)
}

// TripBreaker trips the mass-stop breaker, if it is as it was read, and writes the audit record with it. It returns
// ErrConflict when it is not. It bears no fence, as it belongs to no controller: the index is enough. A farm that has lost everything
// since, and whose write lands late, can only keep pods from being stopped, and no more once an operator has reset the
// breaker, which moves the index.
func (t *Duties) TripBreaker(ctx context.Context, index uint64, b Breaker, a Audit) error {
	_, err := t.c.Commit(ctx, []consul.Op{cas(t.keys.Breaker.Key(), b, index), t.audit(a)})
	return conflictOn(err, t.keys.Breaker.Key())
}

// reportsOf decodes what was found of the reports of some copies.
//
// What the gate does not allow is left out of them: what a farm did because of it might not be written either, such as
// that a pod has had its second node, and would be done again and again.
func (t *underLock) reportsOf(found map[string]consul.Pair, wanted []At) map[At]Report {
	reports := make(map[At]Report, len(wanted))
	for _, at := range wanted {
		p, ok := found[t.keys.Realities.At(at)]
		if !ok {
			reports[at] = Report{}
			continue
		}
		rec, err := t.Realities.recall(p)
		if err != nil {
			reports[at] = Report{Index: p.ModifyIndex, Err: err}
			continue
		}
		reports[at] = Report{Reality: allowed(t.guard, &rec.Value), Index: rec.Index}
	}
	return reports
}
