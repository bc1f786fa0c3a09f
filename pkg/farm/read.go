package farm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Reads are what a pass reads: the head, and then everything else together.
type Reads interface {
	ReadHead(ctx context.Context, rcID string, consistent bool) (store.Head, error)
	ReadDetails(ctx context.Context, w store.Wanted, consistent bool) (store.Details, error)
	Placements(ctx context.Context, rcID string, consistent bool) ([]store.Rec[pod.Placement], []error, error)
	ClusterReads
}

// ClusterReads are what Consul itself knows of nodes.
type ClusterReads interface {
	Passing(ctx context.Context) ([]string, error)
	FailedAgents(ctx context.Context) (map[string]bool, error)
}

// view is what one pass has read, with the indices that its writes depend on.
type view struct {
	head       store.Head
	schema     store.Rec[store.Schema]
	breaker    store.Rec[store.Breaker]
	snapshot   *reconcile.Snapshot
	deep       bool
	consistent bool // what was read is not that of a leader that is behind
	// nodesVersion is that of the snapshot's nodes.
	nodesVersion uint64
	reserved     map[string]store.Rec[node.Reservation] // read so far, by node
	nodes        *candidates                            // for new pods; nil until they are looked for
	taken        []string                               // from the ledger, until the pass is over
}

// read takes the snapshot for one pass, in two round trips. What is read first (the bell) is the oldest: a report that comes
// in later moves the bell and so refuses a write that depends on it. An unreadable placement fails the whole pass, because
// what it holds is not known. With an error the view has what was read before that.
func (c *ReplicationController) read(ctx context.Context, v *view) error {
	f := c.farm
	v.consistent = c.consistent
	v.schema, v.breaker, v.reserved = f.world.schemaRec(), f.world.breakerRec(), map[string]store.Rec[node.Reservation]{}
	var err error
	if v.head, err = c.readHead(ctx); err != nil {
		return err
	}
	s := &reconcile.Snapshot{
		Now: time.Now().UTC(), Owner: f.cfg.ID, RC: v.head.RC.Value, Previous: v.head.Status,
		Orphans: f.world.orphansOf(c.ID),
		Hold:    f.hold(v.schema.Value.Nonce), Breaker: breakerReason(v.breaker),
	}
	s.Nodes, v.nodesVersion = f.world.nodesAt()
	v.snapshot = s
	for _, rec := range v.head.Placements {
		s.Pods = append(s.Pods, reconcile.Pod{Placement: rec.Value, Index: rec.Index})
	}
	if err := c.readDetails(ctx, v); err != nil {
		return err
	}
	if err := c.addRequests(ctx, s, v.head.Requests); err != nil {
		return err
	}
	c.consistent = false
	return nil
}

// readHead reads the controller with its bell, status and placements. A phantom's record is made up: deleted, so that all
// that it left behind goes. Nobody else writes the placements: where one is older than at the last look the store went back
// in time, even if others have written so much since that no watch could tell.
func (c *ReplicationController) readHead(ctx context.Context) (store.Head, error) {
	first, consistent := c.claimed, c.consistent
	c.claimed = nil
	for {
		var head store.Head
		var err error
		if first != nil {
			head, err, first = first.Head, first.HeadErr, nil
			consistent = true // under the lock
		} else {
			head, err = c.farm.cfg.Store.ReadHead(ctx, c.ID, consistent)
		}
		switch {
		case err == nil:
			c.phantom = false // it came back
		case errors.Is(err, store.ErrNotFound) && c.phantom:
			now := time.Now().UTC()
			head.RC.Value = rc.RC{ID: c.ID, Name: c.ID, DeletedAt: &now, ChangedBy: c.farm.cfg.ID}
		default:
			return head, err
		}
		if err := errors.Join(head.Corrupt...); err != nil {
			return head, err
		}
		switch index := head.RC.Index; {
		case !c.last.after(index, head.Placements):
			c.last = remember(index, head.Placements)
			return head, nil
		case consistent:
			return head, fmt.Errorf("controller %s: %w", c.ID, store.ErrRegressed)
		}
		consistent = true // a new leader may be behind for a moment
	}
}

// addRequests adds what operators ask for, and reads what a request for repair is about. For a phantom only those orphans
// count that somebody asked to be swept, or that have a placement by now.
func (c *ReplicationController) addRequests(ctx context.Context, s *reconcile.Snapshot, requests []store.Rec[store.Request]) error {
	swept := map[store.At]bool{}
	for _, rec := range requests[:min(len(requests), store.MaxAnswered)] {
		r := rec.Value
		s.Requests = append(s.Requests, reconcile.Request{ID: r.ID, Forget: r.Kind == store.ForgetPod, Node: r.Node, Pod: r.Pod})
		switch r.Kind {
		case store.ForgetPod: // the decision needs nothing more
		case store.SweepOrphan:
			swept[store.At{Node: r.Node, Identity: r.Pod}] = true
		case store.RepairReservation:
			d, err := c.farm.cfg.Store.ReadDetails(ctx, store.Wanted{Reservations: []string{r.Node}}, false)
			if err != nil {
				return err
			}
			for _, h := range d.Reservations[r.Node].Value.Holders {
				if h.Pod.RCID == c.ID {
					s.Leaks = append(s.Leaks, reconcile.Leak{Node: r.Node, Pod: h.Pod})
				}
			}
		}
	}
	if c.phantom {
		placed := map[pod.Identity]bool{}
		for i := range s.Pods {
			placed[s.Pods[i].Identity] = true
		}
		s.Orphans = slices.DeleteFunc(slices.Clone(s.Orphans), func(o reconcile.Orphan) bool {
			return !swept[store.At{Node: o.Node, Identity: o.Identity}] && !placed[o.Identity]
		})
	}
	return nil
}

func breakerReason(b store.Rec[store.Breaker]) string {
	switch {
	case b.Index == 0:
		return "the breaker record is missing or unreadable"
	case b.Value.Tripped:
		return "the mass-stop breaker has tripped: " + b.Value.Reason
	default:
		return ""
	}
}

// readDetails reads the manifest, unless it is known, what the pods' nodes report, what they were told where it matters,
// and what is taken on the nodes that new pods may go to.
func (c *ReplicationController) readDetails(ctx context.Context, v *view) error {
	s := v.snapshot
	c.mu.Lock()
	v.deep = c.deep
	c.mu.Unlock()
	asked := map[pod.Identity]bool{} // what the nodes were told about these
	for _, o := range s.Orphans {
		asked[o.Identity] = true
	}
	var w store.Wanted
	for i := range s.Pods {
		p := &s.Pods[i]
		w.Realities = append(w.Realities, at(p)...)
		if v.deep || asked[p.Identity] {
			asked[p.Identity] = true
			w.Intents = append(w.Intents, at(p)...)
		}
	}
	if !c.phantom {
		if s.Manifest = c.farm.manifests.get(s.RC.ManifestDigest); s.Manifest == nil {
			w.Manifest = s.RC.ManifestDigest
		}
	}
	if err := c.guess(ctx, v); err != nil {
		return err
	}
	if v.nodes != nil {
		w.Reservations = v.nodes.guessed
	}
	d, err := c.farm.cfg.Store.ReadDetails(ctx, w, c.consistent)
	if err != nil {
		return err
	}
	if v.nodes != nil {
		v.nodes.early = d.Reservations
	}
	c.keepReservations(v, d)
	if w.Manifest != "" {
		if err := c.useManifest(s, d); err != nil {
			return err
		}
	}
	more, err := c.readAhead(ctx, s, d.Realities, asked)
	if err != nil {
		return err
	}
	for _, e := range append(d.Corrupt, more.Corrupt...) {
		s.Errors = append(s.Errors, e.Error())
	}
	maps.Copy(d.Intents, more.Intents)
	for i := range s.Pods {
		addReports(&s.Pods[i], d, asked[s.Pods[i].Identity])
	}
	return nil
}

// readAhead reads what the nodes were told about pods of which they have applied more than the placement asks for.
func (c *ReplicationController) readAhead(ctx context.Context, s *reconcile.Snapshot, realities map[store.At]pod.Reality, asked map[pod.Identity]bool) (store.Details, error) {
	var w store.Wanted
	for i := range s.Pods {
		p := &s.Pods[i]
		if !asked[p.Identity] && realities[store.At{Node: p.Node, Identity: p.Identity}].Revision > p.Revision {
			asked[p.Identity] = true
			w.Intents = append(w.Intents, at(p)...)
		}
	}
	if len(w.Intents) == 0 {
		return store.Details{}, nil
	}
	return c.farm.cfg.Store.ReadDetails(ctx, w, c.consistent)
}

func (c *ReplicationController) useManifest(s *reconcile.Snapshot, d store.Details) error {
	var corrupt *store.CorruptError
	switch err := d.ManifestErr; {
	case err == nil:
		s.Manifest = d.Manifest
		c.farm.manifests.put(s.RC.ManifestDigest, d.Manifest)
	case errors.Is(err, store.ErrNotFound), errors.As(err, &corrupt):
		s.Errors = append(s.Errors, fmt.Sprintf("manifest %.8s: %v; apply the controller again", s.RC.ManifestDigest, err))
	default:
		return err
	}
	return nil
}

// keepReservations keeps what is taken for the batches: their writes are refused where it is outdated.
func (c *ReplicationController) keepReservations(v *view, d store.Details) {
	for name, e := range d.Unreadable {
		c.log.WithError(e).WithField(obs.Node, name).Error("nothing is placed on a node")
	}
	if len(d.Unreadable) == 0 { // else the batches read again, and say which one it is
		maps.Copy(v.reserved, d.Reservations)
	}
	for name, rec := range d.Reservations {
		if d.Unreadable[name] == nil && misclosed(v.snapshot.Nodes[name], rec.Value) {
			c.farm.suspects.add(name)
		}
	}
}

// addReports adds what nodes report about a pod and, if that was asked for, what they were told.
func addReports(p *reconcile.Pod, d store.Details, asked bool) {
	p.Ghosts = map[string]*pod.Reality{}
	if asked {
		p.Intents = map[string]*pod.Intent{}
	}
	for _, key := range at(p) {
		if r, ok := d.Realities[key]; ok && key.Node == p.Node {
			p.Reality = &r
		} else if ok {
			p.Ghosts[key.Node] = &r
		}
		if in, ok := d.Intents[key]; ok && asked {
			p.Intents[key.Node] = &in
		}
	}
}

// at returns where the pod is or may still be.
func at(p *reconcile.Pod) []store.At {
	names := nodesOf(p)
	out := make([]store.At, len(names))
	for i, name := range names {
		out[i] = store.At{Node: name, Identity: p.Identity}
	}
	return out
}

// nodesOf returns every node that has, or may still have, a copy of the pod.
func nodesOf(p *reconcile.Pod) []string {
	names := []string{p.Node}
	for _, g := range p.Placement.Ghosts {
		if !slices.Contains(names, g.Node) {
			names = append(names, g.Node)
		}
	}
	return names
}

// manifestCache keeps manifests by digest. They never change, so that nothing in it is ever stale.
type manifestCache struct {
	mu   sync.Mutex
	byID map[string]*manifest.Manifest
}

const maxCachedManifests = 1000

func newManifestCache() *manifestCache { return &manifestCache{byID: map[string]*manifest.Manifest{}} }

// get returns nil for one that it does not have.
func (c *manifestCache) get(digest string) *manifest.Manifest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byID[digest]
}

func (c *manifestCache) put(digest string, m *manifest.Manifest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.byID) >= maxCachedManifests {
		for old := range maps.Keys(c.byID) {
			delete(c.byID, old)
			break
		}
	}
	c.byID[digest] = m
}
