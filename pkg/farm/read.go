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
	DropsOf(ctx context.Context, rcIDs []string) (store.DropsBy, error)
	ReadDetails(ctx context.Context, w store.Wanted, consistent bool) (store.Details, error)
	Placements(ctx context.Context, rcID string, consistent bool) ([]store.Rec[pod.Placement], []error, error)
	NodeOrphans(ctx context.Context, name string) (rec store.Rec[node.Node], complete bool, err error)
	EarlyReads
	CompanionReads
	RolloutReads
	ClusterReads
}

// ClusterReads are what Consul itself knows of nodes.
type ClusterReads interface {
	Passing(ctx context.Context) ([]string, error)
	NodesHeld(ctx context.Context, names []string) (map[string]store.Hold, error)
	FailedAgents(ctx context.Context) (map[string]bool, error)
}

// view is what one pass has read, with the indices that its writes depend on.
type view struct {
	head        store.Head
	schema      store.Rec[store.Schema]
	rollout     store.InCharge // where the record has a mutator
	breaker     store.Rec[store.Breaker]
	companions  []store.Companion   // that have a record
	drops       store.DropsBy       // of the controller and its companions, as listed before the realities
	reported    map[store.At]uint64 // indices of the realities
	minimum     *minimum            // nil: no change needs it
	snapshot    *reconcile.Snapshot
	beside      bool                  // companions are read, whatever was expected
	early       *store.Early          // what was read at once; nil: nothing, or it is too old for what is read now
	nodesBefore map[string]*node.View // as they were before early was read
	deep        bool
	consistent  bool          // what was read is not that of a leader that is behind
	later       time.Duration // when the status is due that was not written, because it only counts; zero: there is none
	foreseen    bool          // the status says what will be when the plan's changes have landed, and nothing else follows
	// nodesVersion is that of the snapshot's nodes.
	nodesVersion uint64
	roomMark     uint64                                 // nodes told of later may have room that this pass does not see
	reserved     map[string]store.Rec[node.Reservation] // read so far, by node
	nodes        *candidates                            // for new pods; nil until they are looked for
	taken        []string                               // from the ledger, until the pass is over
}

// read takes the snapshot for one pass: in one round trip where the last pass tells what is needed, else in two, or three where the last
// pass needed the minimum and so this one may: then drops are counted from before the realities, or at the same moment. Nodes are looked at before their realities, too: one whose preparer is found to
// count drops has reported under another one before that (ADR 11). An unreadable placement fails the whole pass, because
// what it holds is not known. With an error the view has what was read before that.
func (c *ReplicationController) read(ctx context.Context, v *view) error {
	f := c.farm
	v.consistent, v.roomMark = c.consistent, f.scarcity.mark()
	v.schema, v.breaker, v.reserved = f.world.schemaRec(), f.world.breakerRec(), map[string]store.Rec[node.Reservation]{}
	c.readEarly(ctx, v)
	var err error
	if v.head, err = c.readHead(ctx, v); err != nil {
		return err
	}
	// Before the orphans: what they say must be at least as new as what the hold ended for.
	hold := f.hold(v.schema.Value.Nonce)
	s := &reconcile.Snapshot{
		Now: time.Now().UTC(), Owner: f.cfg.ID, RC: v.head.RC.Value, Previous: v.head.Status,
		Orphans: f.world.orphansOf(c.ID), Stopped: c.stoppedAt(),
		Nonce: v.schema.Value.Nonce, Hold: hold, Breaker: breakerReason(v.breaker),
	}
	v.snapshot, v.drops = s, store.DropsBy{c.ID: v.head.Drops}
	if hold != "" || len(s.Orphans) > 0 {
		v.early = nil // what nodes report is read after what they run
	}
	if err := c.readRollout(ctx, v); err != nil {
		return err
	}
	if err := c.readCompanions(ctx, v); err != nil {
		return err
	}
	if err := c.readDrops(ctx, v); err != nil {
		return err
	}
	if s.Nodes = v.nodesBefore; v.early == nil {
		s.Nodes, v.nodesVersion = f.world.nodesAt()
	}
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

// phantomRecord makes up the record of a controller that has none, for as long as somebody asks for something. Where that is a
// sweep it is deleted, so that all that it left behind goes; otherwise disabled, so that nothing goes but what was asked for.
func phantomRecord(id, by string, requests []store.Rec[store.Request]) rc.RC {
	r := rc.RC{ID: id, Name: id, Disabled: true, ChangedBy: by}
	if slices.ContainsFunc(requests, func(r store.Rec[store.Request]) bool { return r.Value.Kind == store.SweepOrphan }) {
		now := time.Now().UTC()
		r.DeletedAt, r.Disabled = &now, false
	}
	return r
}

// readHead reads the controller with its bell, status and placements. A phantom's record is made up. Nobody else writes the placements: where one is older than at the last look the store went back
// in time, even if others have written so much since that no watch could tell.
func (c *ReplicationController) readHead(ctx context.Context, v *view) (store.Head, error) {
	first, consistent := c.claimed, c.consistent
	c.claimed = nil
	for again := false; ; again = true {
		var head store.Head
		var err error
		switch {
		case first != nil:
			head, err, first = first.Head, first.HeadErr, nil
			consistent = true // under the lock
		case v.early != nil && !again:
			head, err = v.early.Head, v.early.HeadErr
		default:
			v.early = nil
			head, err = c.farm.cfg.Store.ReadHead(ctx, c.ID, consistent)
		}
		switch {
		case err == nil:
			c.phantom = false // it came back
		case errors.Is(err, store.ErrNotFound) && c.phantom && len(head.Requests) > 0:
			head.RC.Value = phantomRecord(c.ID, c.farm.cfg.ID, head.Requests)
		default:
			return head, err
		}
		if err := joined(head.Corrupt); err != nil {
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
	about, err := c.readAbout(ctx, requests)
	if err != nil {
		return err
	}
	for _, rec := range requests {
		r := rec.Value
		if c.phantom && r.Kind == store.SweepOrphan {
			// It stays until the last transaction, which removes all: it is what tells a successor that a sweep is under way.
			swept[store.At{Node: r.Node, Identity: r.Pod}] = true
			continue
		}
		asked := reconcile.Request{ID: r.ID, Node: r.Node, Pod: r.Pod}
		switch r.Kind {
		case store.ForgetPod:
			hold := about.holds[r.Node]
			asked.Forget, asked.Alive, asked.NodeIndex, asked.Declared = true, hold.Held, hold.Index, r.NodeIndex
		case store.SweepOrphan: // there is a record again
		case store.RepairReservation:
			c.checkDeeply() // in the next pass: shares may be missing, too
			if e := about.Unreadable[r.Node]; e != nil {
				asked.Waits = "a request to repair a reservation waits: " + e.Error()
			}
			for _, h := range about.Reservations[r.Node].Value.Holders {
				if h.Pod.RCID == c.ID {
					s.Leaks = append(s.Leaks, reconcile.Leak{Node: r.Node, Pod: h.Pod})
				}
			}
		default: // a newer rcctl asks, and a newer farm may own the controller next
			asked.Waits = fmt.Sprintf("request %s waits: this farm does not know what %q is; upgrade it, or remove the request", r.ID, r.Kind)
		}
		s.Requests = append(s.Requests, asked)
	}
	s.Orphans = c.notConfirmed(s.Orphans)
	if c.phantom {
		placed := map[pod.Identity]bool{}
		for i := range s.Pods {
			placed[s.Pods[i].Identity] = true
		}
		s.Orphans = slices.DeleteFunc(slices.Clone(s.Orphans), func(o reconcile.Orphan) bool {
			return !swept[store.At{Node: o.Node, Identity: o.Identity}] && !placed[o.Identity]
		})
		s.Orphans, err = c.stillThere(ctx, s.Orphans)
	}
	return err
}

// aboutRequests is what is read because operators ask for something.
type aboutRequests struct {
	store.Details
	holds map[string]store.Hold // of the nodes on which pods are to be forgotten
}

// readAbout reads what requests are about. What is watched of nodes may be older than the operator's word, or than the node's return.
func (c *ReplicationController) readAbout(ctx context.Context, requests []store.Rec[store.Request]) (about aboutRequests, err error) {
	nodes := map[store.RequestKind]map[string]bool{store.ForgetPod: {}, store.SweepOrphan: {}, store.RepairReservation: {}}
	for i := range requests {
		if of := nodes[requests[i].Value.Kind]; of != nil {
			of[requests[i].Value.Node] = true
		}
	}
	if dead := slices.Sorted(maps.Keys(nodes[store.ForgetPod])); len(dead) > 0 {
		if about.holds, err = c.farm.cfg.Store.NodesHeld(ctx, dead); err != nil {
			return about, err
		}
	}
	if leaky := slices.Sorted(maps.Keys(nodes[store.RepairReservation])); len(leaky) > 0 {
		about.Details, err = c.farm.cfg.Store.ReadDetails(ctx, store.Wanted{Reservations: leaky}, false)
	}
	return about, err
}

// stillThere reads again whether nodes run what they were seen to. A sweep adopts an orphan, which may start it, and has it
// stopped: once is enough.
func (c *ReplicationController) stillThere(ctx context.Context, orphans []reconcile.Orphan) ([]reconcile.Orphan, error) {
	var there []reconcile.Orphan
	listed := map[store.At]bool{}
	asked := map[string]bool{}
	for _, o := range orphans {
		if asked[o.Node] {
			continue
		}
		asked[o.Node] = true
		rec, complete, err := c.farm.cfg.Store.NodeOrphans(ctx, o.Node)
		var corrupt *store.CorruptError
		switch {
		case errors.Is(err, store.ErrNotFound), errors.As(err, &corrupt):
			continue
		case err != nil:
			return nil, err
		case !complete:
			return nil, fmt.Errorf("node %s is writing what it runs: %w", o.Node, store.ErrRefused)
		}
		for i := range rec.Value.Orphans {
			listed[store.At{Node: o.Node, Identity: rec.Value.Orphans[i].Identity}] = true
		}
	}
	for _, o := range orphans {
		if listed[store.At{Node: o.Node, Identity: o.Identity}] {
			there = append(there, o)
		}
	}
	return there, nil
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
	w := store.Wanted{Nodes: len(s.Nodes)}
	for i := range s.Pods {
		p := &s.Pods[i]
		w.Realities = append(w.Realities, at(p)...)
		if v.deep || asked[p.Identity] {
			asked[p.Identity] = true
			w.Intents = append(w.Intents, at(p)...)
		}
	}
	for i := range s.Companions {
		for j := range s.Companions[i].Pods {
			w.Realities = append(w.Realities, at(&s.Companions[i].Pods[j])...)
		}
	}
	if !c.phantom {
		if s.Manifest = c.farm.manifests.get(s.RC.ManifestDigest); s.Manifest == nil {
			w.Manifest = s.RC.ManifestDigest
		}
		w.Others = c.otherManifests(s)
	}
	if err := c.guess(ctx, v); err != nil {
		return err
	}
	if v.deep {
		w.Reservations = nodesOfAll(s.Pods)
	}
	if v.nodes != nil {
		w.Reservations = append(w.Reservations, without(v.nodes.guessed, w.Reservations)...)
	}
	d, err := c.detailsOf(ctx, v, w)
	if err != nil {
		return err
	}
	if v.nodes != nil {
		v.nodes.early = d.Reservations
	}
	v.reported = d.Reported
	c.keepReservations(v, d)
	if w.Manifest != "" {
		if err := c.useManifest(s, d); err != nil {
			return err
		}
	}
	if err := c.useOthers(s, d); err != nil {
		return err
	}
	more, err := c.readAhead(ctx, s, d.Realities, asked)
	if err != nil {
		return err
	}
	for _, e := range append(d.Corrupt, more.Corrupt...) {
		s.Errors = append(s.Errors, e.Error())
	}
	maps.Copy(d.Intents, more.Intents)
	for i := range s.Companions {
		for j := range s.Companions[i].Pods {
			addReports(&s.Companions[i].Pods[j], d, false)
		}
	}
	for i := range s.Pods {
		addReports(&s.Pods[i], d, asked[s.Pods[i].Identity])
		if v.deep {
			addHeld(&s.Pods[i], d)
		}
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
		if d.Unreadable[name] == nil && disagrees(v.snapshot.Nodes[name], rec.Value) {
			c.farm.suspects.add(name)
		}
	}
}

// addReports adds what nodes report about a pod and, if that was asked for, what they were told.
func addReports(p *reconcile.Pod, d store.Details, asked bool) {
	p.Reality, p.Intents, p.Ghosts = nil, nil, map[string]*pod.Reality{}
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

// addHeld adds which nodes hold a share for a pod.
func addHeld(p *reconcile.Pod, d store.Details) {
	p.Held = map[string]*node.Holder{}
	for _, name := range nodesOf(p) {
		if res, read := d.Reservations[name]; read && d.Unreadable[name] == nil {
			p.Held[name] = nil
			if h, held := res.Value.Holders[p.Identity.String()]; held {
				p.Held[name] = &h
			}
		}
	}
}

// nodesOfAll returns every node that has, or may still have, a copy of one of the pods.
func nodesOfAll(pods []reconcile.Pod) []string {
	seen := map[string]bool{}
	for i := range pods {
		for _, name := range nodesOf(&pods[i]) {
			seen[name] = true
		}
	}
	return slices.Collect(maps.Keys(seen))
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
