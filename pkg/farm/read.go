package farm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Reads are what a pass reads.
type Reads interface {
	ReadHead(ctx context.Context, rcID string, consistent bool) (store.Head, error)
	Manifest(ctx context.Context, digest string) (*manifest.Manifest, error)
	Placements(ctx context.Context, rcID string, consistent bool) ([]store.Rec[pod.Placement], []error, error)
	PodReads
}

// PodReads are what a pass reads about its pods and their nodes.
type PodReads interface {
	Realities(ctx context.Context, at []store.At, consistent bool) (map[store.At]pod.Reality, []error, error)
	Intents(ctx context.Context, at []store.At, consistent bool) (map[store.At]pod.Intent, []error, error)
	Reservations(ctx context.Context, nodes []string) (map[string]store.Rec[node.Reservation], map[string]error, error)
	Passing(ctx context.Context) ([]string, error)
	FailedAgents(ctx context.Context) (map[string]bool, error)
}

// view is what one pass has read, with the indices that its writes depend on.
type view struct {
	head     store.Head
	schema   store.Rec[store.Schema]
	breaker  store.Rec[store.Breaker]
	snapshot *reconcile.Snapshot
	deep     bool
	// consistent: the placements are not those of a leader that is behind.
	consistent bool
	reserved   map[string]store.Rec[node.Reservation] // read so far, by node
	taken      []string                               // from the ledger, until the pass is over
}

// read takes the snapshot for one pass. What is read first (the bell) is the oldest: a report that comes in later moves the
// bell and so refuses a write that depends on it. An unreadable placement fails the whole pass, because what it holds is
// not known. With an error it returns what it has read before that.
func (c *ReplicationController) read(ctx context.Context) (*view, error) {
	f := c.farm
	v := &view{consistent: c.consistent, schema: f.world.schemaRec(), breaker: f.world.breakerRec(), reserved: map[string]store.Rec[node.Reservation]{}}
	var err error
	if v.head, err = c.readHead(ctx); err != nil {
		return v, err
	}
	record := v.head.RC.Value
	s := &reconcile.Snapshot{
		Now: time.Now().UTC(), Owner: f.cfg.ID, RC: record, Previous: v.head.Status,
		Nodes: f.world.nodes(), Orphans: f.world.orphansOf(c.ID),
		Hold: f.hold(v.schema.Value.Nonce), Breaker: breakerReason(v.breaker),
	}
	v.snapshot = s
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.readManifest(groupCtx, s) })
	group.Go(func() error { return c.readPlacements(groupCtx, s, v.head.RC.Index) })
	if err := group.Wait(); err != nil {
		return v, err
	}
	if err := c.readNodes(ctx, v); err != nil {
		return v, err
	}
	if err := c.addRequests(ctx, s, v.head.Requests); err != nil {
		return v, err
	}
	c.consistent = false
	return v, nil
}

// readHead reads the controller with its bell and status. A phantom's record is made up: deleted, so that all that it left
// behind goes.
func (c *ReplicationController) readHead(ctx context.Context) (store.Head, error) {
	var head store.Head
	var err error
	if first := c.claimed; first != nil {
		head, err, c.claimed = first.Head, first.HeadErr, nil
	} else {
		head, err = c.farm.cfg.Store.ReadHead(ctx, c.ID, c.consistent)
	}
	switch {
	case err == nil:
		c.phantom = false // it came back
	case errors.Is(err, store.ErrNotFound) && c.phantom:
		now := time.Now().UTC()
		head.RC.Value = rc.RC{ID: c.ID, Name: c.ID, DeletedAt: &now, ChangedBy: c.farm.cfg.ID}
		return head, nil
	}
	return head, err
}

func (c *ReplicationController) readManifest(ctx context.Context, s *reconcile.Snapshot) error {
	if c.phantom {
		return nil
	}
	var corrupt *store.CorruptError
	m, err := c.farm.manifests.get(ctx, c.farm.cfg.Store, s.RC.ManifestDigest)
	switch {
	case err == nil:
		s.Manifest = m
	case errors.Is(err, store.ErrNotFound), errors.As(err, &corrupt):
		s.Errors = append(s.Errors, fmt.Sprintf("manifest %.8s: %v; apply the controller again", s.RC.ManifestDigest, err))
	default:
		return err
	}
	return nil
}

// readPlacements reads the placements, which nobody else writes: where one is older than at the last look, or gone, the
// store went back in time, even if others have written so much since that no watch could tell.
func (c *ReplicationController) readPlacements(ctx context.Context, s *reconcile.Snapshot, rcIndex uint64) error {
	consistent := c.consistent
	for {
		placements, corrupt, err := c.farm.cfg.Store.Placements(ctx, c.ID, consistent)
		if err == nil {
			err = errors.Join(corrupt...)
		}
		if err != nil {
			return err
		}
		if c.last.after(rcIndex, placements) {
			if !consistent {
				consistent = true // a new leader may be behind for a moment
				continue
			}
			return fmt.Errorf("controller %s: %w", c.ID, store.ErrRegressed)
		}
		c.last = remember(rcIndex, placements)
		for _, rec := range placements {
			s.Pods = append(s.Pods, reconcile.Pod{Placement: rec.Value, Index: rec.Index})
		}
		return nil
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
			recs, _, err := c.farm.cfg.Store.Reservations(ctx, []string{r.Node})
			if err != nil {
				return err
			}
			for _, h := range recs[r.Node].Value.Holders {
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

// readNodes adds what the pods' nodes report and, where it matters, what they were told.
func (c *ReplicationController) readNodes(ctx context.Context, v *view) error {
	s := v.snapshot
	c.mu.Lock()
	v.deep = c.deep
	c.mu.Unlock()
	orphaned := map[pod.Identity]bool{}
	for _, o := range s.Orphans {
		orphaned[o.Identity] = true
	}
	var at, told []store.At
	for i := range s.Pods {
		p := &s.Pods[i]
		for _, name := range nodesOf(p) {
			at = append(at, store.At{Node: name, Identity: p.Identity})
			if v.deep || orphaned[p.Identity] {
				told = append(told, store.At{Node: name, Identity: p.Identity})
			}
		}
	}
	realities, corrupt, err := c.farm.cfg.Store.Realities(ctx, at, c.consistent)
	if err != nil {
		return err
	}
	for i := range s.Pods {
		// What the node has applied is ahead of the placement: what it was told says what that is.
		p := &s.Pods[i]
		key := store.At{Node: p.Node, Identity: p.Identity}
		if realities[key].Revision > p.Revision && !v.deep && !orphaned[p.Identity] {
			orphaned[p.Identity] = true
			for _, name := range nodesOf(p) {
				told = append(told, store.At{Node: name, Identity: p.Identity})
			}
		}
	}
	intents, corruptIntents, err := c.farm.cfg.Store.Intents(ctx, told, c.consistent)
	if err != nil {
		return err
	}
	for _, e := range append(corrupt, corruptIntents...) {
		s.Errors = append(s.Errors, e.Error())
	}
	for i := range s.Pods {
		p := &s.Pods[i]
		p.Ghosts = map[string]*pod.Reality{}
		if v.deep || orphaned[p.Identity] {
			p.Intents = map[string]*pod.Intent{}
		}
		for _, name := range nodesOf(p) {
			key := store.At{Node: name, Identity: p.Identity}
			if r, ok := realities[key]; ok && name == p.Node {
				p.Reality = &r
			} else if ok {
				p.Ghosts[name] = &r
			}
			if in, ok := intents[key]; ok && p.Intents != nil {
				p.Intents[name] = &in
			}
		}
	}
	return nil
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

func (c *manifestCache) get(ctx context.Context, from Reads, digest string) (*manifest.Manifest, error) {
	c.mu.Lock()
	m := c.byID[digest]
	c.mu.Unlock()
	if m != nil {
		return m, nil
	}
	m, err := from.Manifest(ctx, digest)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.byID) >= maxCachedManifests {
		for old := range maps.Keys(c.byID) {
			delete(c.byID, old)
			break
		}
	}
	c.byID[digest] = m
	return m, nil
}
