package store

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/contain"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/ownerless"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Fence proves the ownership of a unit in one tenure.
type Fence = consul.Fence

// FarmSession has a farm's reads and writes under one session. Each embedded type is for one task.
type FarmSession struct {
	*db
	*underLock
	*Views
	*Watches
	*Agents
	*Owners
	*Passes
	*Batches
	*ClusterWrites
}

type underLock struct {
	*db
	sess   *consul.Session
	farmID string
	merged *consul.Merger // reads and writes of passes over many controllers
}

// FarmSession returns the writer for a farm under a session.
func (s *Store) FarmSession(sess *consul.Session, farmID string) *FarmSession {
	u := &underLock{db: s.db, sess: sess, farmID: farmID, merged: s.c.NewMerger()}
	return &FarmSession{
		db: s.db, underLock: u, Views: s.Views, Watches: s.Watches, Agents: s.Agents,
		Owners: &Owners{u}, Passes: &Passes{u}, Batches: &Batches{u}, ClusterWrites: &ClusterWrites{u},
	}
}

// RC reads one controller.
func (t *underLock) RC(ctx context.Context, id string, level Level) (Rec[rc.RC], error) {
	return t.RCs.Get(ctx, level, id)
}

// Placements reads the placements of one controller.
func (t *underLock) Placements(ctx context.Context, rcID string, level Level) ([]Rec[pod.Placement], []error, error) {
	return t.Pods.List(ctx, level, rcID)
}

// Passes has the reads of passes.
type Passes struct{ *underLock }

// The kinds of failures of OnMergedFailure.
const (
	FailedReads  = consul.FailedReads
	FailedWrites = consul.FailedWrites
)

// OnMergedFailure registers f for shared requests that fail. f gets how many reads are repeated alone, or how many
// writes have an unknown outcome. Call it before the first request.
func (t *FarmSession) OnMergedFailure(f func(kind string, parts int)) { t.merged.OnFailure = f }

// Ring rings the bell of a controller's unit.
func (s *db) Ring(ctx context.Context, rcID string) error {
	return s.send(ctx, s.ring(rcID))
}

// At names one identity on one node.
type At struct {
	Node string
	pod.Identity
}

// Wanted names the records of a pass's second request (ReadDetails). The first (ReadUnit) contains these names.
type Wanted struct {
	Manifest     string   // digest; empty: none
	Others       []string // digests of other manifests
	Realities    []At
	Intents      []At
	Reservations []string // names of nodes
	// Nodes is how many nodes there are; zero: many. See listsReservations.
	Nodes int
}

// Empty reports whether nothing is wanted.
func (w *Wanted) Empty() bool {
	return w.Manifest == "" && len(w.Others)+len(w.Realities)+len(w.Intents)+len(w.Reservations) == 0
}

// Details is the result of a read of Wanted.
type Details struct {
	Manifest    *manifest.Manifest
	ManifestErr error                         // of Store.Manifest
	Others      map[string]*manifest.Manifest // the manifests of Wanted.Others that can be read
	OthersErrs  map[string]error              // errors of Store.Manifest for the other digests
	Reports     map[At]Report                 // one for each of Wanted.Realities
	Intents     map[At]pod.Intent
	Corrupt     []error // one error for each unreadable intent, which is not in Intents
	// As results of Views.ReservationsOf.
	Reservations map[string]Rec[node.Reservation]
	Unreadable   map[string]error
}

// Report is a node's report of one copy of a pod.
type Report struct {
	Reality *pod.Reality // nil: there is none, or it cannot be read
	Index   uint64       // Consul's index of the record, readable or not; zero: there is none
	Err     error        // a *CorruptError if it cannot be read
}

// ReadDetails reads all of Wanted together. Missing intents are absent.
func (p *Passes) ReadDetails(ctx context.Context, w Wanted, level Level) (Details, error) {
	var d Details
	r := consul.Reading{Keys: slices.Concat(p.keys.Realities.KeysAt(w.Realities), p.keys.Intents.KeysAt(w.Intents))}
	if w.Manifest != "" {
		r.Keys = append(r.Keys, p.keys.Manifests.Key(w.Manifest))
	}
	for _, digest := range w.Others {
		r.Keys = append(r.Keys, p.keys.Manifests.Key(digest))
	}
	group, groupCtx := errgroup.WithContext(ctx)
	if w.listsReservations() {
		group.Go(func() error {
			return contain.Do(func() (err error) { // a part of a look, so it is contained with the look
				d.Reservations, d.Unreadable, err = p.listTaken(groupCtx, w.Reservations, level)
				return err
			})
		})
	} else {
		r.Keys = append(r.Keys, p.keys.Reservations.Keys(w.Reservations)...)
	}
	var found map[string]consul.Pair
	group.Go(func() (err error) {
		found, _, err = p.merged.Read(groupCtx, r, level)
		return err
	})
	if err := group.Wait(); err != nil {
		return d, err
	}
	if d.Reservations == nil {
		d.Reservations, d.Unreadable = p.taken(found, w.Reservations)
	}
	if w.Manifest != "" {
		d.Manifest, _, d.ManifestErr = p.manifestOf(found, w.Manifest)
	}
	d.Others, d.OthersErrs = p.othersOf(found, w.Others)
	d.Reports = p.reportsOf(found, w.Realities)
	d.Intents, d.Corrupt = p.Intents.decodeAt(found, w.Intents)
	return d, nil
}

// RealitiesAt reads the reports about identities, without missing and unreadable ones. It returns an error for each
// unreadable one.
func (v *Views) RealitiesAt(ctx context.Context, at []At, level Level) (map[At]pod.Reality, []error, error) {
	found, err := v.c.GetMany(ctx, v.keys.Realities.KeysAt(at), level)
	if err != nil {
		return nil, nil, err
	}
	realities, corrupt := v.Realities.decodeAt(found, at)
	return realities, corrupt, nil
}

// Agents has Consul's view of machines, and what daemons write about themselves besides their records.
type Agents struct{ *db }

// Passing returns the nodes whose preparers pass in the catalog, which survives a wipe of the records.
func (a *Agents) Passing(ctx context.Context) ([]string, error) {
	metas, err := a.c.Catalog.Passing(ctx, consul.ServiceName("preparer"), prefixMeta, a.keys.Prefix())
	return field.Each(metas, func(meta map[string]string) string { return meta[nodeMeta] }), err
}

// Keys in the meta of a daemon's Consul service. The prefix tells apart clusters that share a Consul.
const (
	nodeMeta   = "rcfarm_preparer"
	prefixMeta = "rcfarm_prefix"
	// emulatesMeta is the emulated version, for the writer of the first records (ADR 28).
	emulatesMeta = "rcfarm_emulates"
)

// FarmMeta returns the meta for a farm's liveness.
func (a *Agents) FarmMeta() map[string]string {
	return map[string]string{prefixMeta: a.keys.Prefix(), emulatesMeta: a.guard.own()}
}

// PreparerMeta returns the meta for a preparer's liveness.
func (a *Agents) PreparerMeta(nodeName string) map[string]string {
	return map[string]string{nodeMeta: nodeName, prefixMeta: a.keys.Prefix(), emulatesMeta: a.guard.own()}
}

// Unreserved returns the copies with an intent but without a share on their node. The result is a hint, because it may
// include records that change meanwhile. It leaves out nodes with an unreadable reservation.
func (o *Owners) Unreserved(ctx context.Context, nodes []string) ([]At, error) {
	if len(nodes) == 0 {
		return nil, nil
	}
	var intents consul.Reading
	for _, name := range nodes {
		intents.Prefixes = append(intents.Prefixes, o.keys.Intents.Below(name))
	}
	_, below, err := o.merged.Read(ctx, intents, consul.Default)
	if err != nil {
		return nil, err
	}
	// Reservations after intents, because a pod that is placed meanwhile has a share.
	found, err := o.c.GetMany(ctx, o.keys.Reservations.Keys(nodes), consul.Default)
	if err != nil {
		return nil, err
	}
	shares, unreadable := o.shares(found, nodes)
	known := ownerless.Known{}
	known.Note(recordsAt(ownerless.Share, shares)...)
	var intended []At
	for _, p := range below {
		name := o.keys.Intents.first(p.Key)
		if in, err := o.Intents.decode(p); err == nil && unreadable[name] == nil { // the marker cannot be decoded
			intended = append(intended, At{Node: name, Identity: in.Value.Identity})
		}
	}
	return lacking(ownerless.Share, known, ownerless.Intent, intended), nil
}

// FailedAgents returns the machines whose Consul agents have failed.
func (a *Agents) FailedAgents(ctx context.Context) (map[string]bool, error) {
	return a.c.Catalog.FailedNodes(ctx)
}

// LivingAgents returns which Consul agents are known and have not failed.
func (a *Agents) LivingAgents(ctx context.Context, agents []string) (map[string]bool, error) {
	return a.c.Catalog.LivingNodes(ctx, agents)
}

// reportsOf drops fields that the gate forbids. If a farm acted on such a field, it could not write the result, for
// example that a pod has had its second node. It would repeat the act again and again.
func (t *underLock) reportsOf(found map[string]consul.Pair, wanted []At) map[At]Report {
	reports := make(map[At]Report, len(wanted))
	for _, at := range wanted {
		p, ok := found[t.keys.Realities.At(at)]
		if !ok {
			reports[at] = Report{}
			continue
		}
		rec, err := t.Realities.decode(p)
		if err != nil {
			reports[at] = Report{Index: p.ModifyIndex, Err: err}
			continue
		}
		reports[at] = Report{Reality: allowed(t.guard, &rec.Value), Index: rec.Index}
	}
	return reports
}
