package farm

import (
	"context"
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// readDetails reads the manifest, unless it is known, what the pods' nodes report, what they were told where it matters,
// and what is taken on the nodes that new pods may go to.
func (ps *reader) readDetails(ctx context.Context) error {
	s := ps.snapshot
	ps.resync = ps.shared.now().resync
	asked := map[pod.Identity]bool{} // what the nodes were told about these
	for _, o := range s.Orphans {
		asked[o.Identity] = true
	}
	w := store.Wanted{Nodes: len(s.Nodes), Realities: ps.unread(ps.id)}
	for i := range s.Companions {
		w.Realities = append(w.Realities, ps.unread(s.Companions[i].RCID)...)
	}
	for i := range s.Pods {
		p := &s.Pods[i]
		if ps.resync || asked[p.Identity] {
			asked[p.Identity] = true
			w.Intents = append(w.Intents, copiesOf(&p.Placement)...)
		}
	}
	if !ps.mem.recordless {
		if s.Manifest = ps.kit.manifests.get(s.RC.ManifestDigest); s.Manifest == nil {
			w.Manifest = s.RC.ManifestDigest
		}
		w.Others = ps.otherManifests(s)
	}
	if err := ps.room.guess(ctx); err != nil {
		return err
	}
	if ps.resync {
		w.Reservations = nodesOfAll(s.Pods)
	}
	if ps.room.nodes != nil {
		w.Reservations = append(w.Reservations, without(ps.room.nodes.guessed, w.Reservations)...)
	}
	d, err := ps.view.readDetails(ctx, ps.kit.reads, w)
	if err != nil {
		return err
	}
	if ps.room.nodes != nil {
		ps.room.nodes.early = d.Reservations
	}
	ps.room.keep(d)
	if w.Manifest != "" {
		if err := ps.useManifest(s, d); err != nil {
			return err
		}
	}
	if err := ps.useOthers(s, d); err != nil {
		return err
	}
	for i := range s.Companions {
		s.Companions[i].Pods = ps.podsOf(s.Companions[i].RCID).pods
	}
	own := ps.podsOf(ps.id)
	copy(s.Pods, own.pods)
	s.Errors = append(s.Errors, own.doubts...)
	more, err := ps.readAhead(ctx, s, w.Others, asked)
	if err != nil {
		return err
	}
	for _, e := range append(d.Corrupt, more.Corrupt...) {
		s.Errors = append(s.Errors, e.Error())
	}
	maps.Copy(d.Intents, more.Intents)
	for i := range s.Pods {
		if asked[s.Pods[i].Identity] {
			addIntents(&s.Pods[i], d)
		}
		if ps.resync {
			addClaims(&s.Pods[i], d)
		}
	}
	return nil
}

// readAhead reads what the nodes were told about pods of which they have applied more than the placement asks for, and the manifests that ordered
// pods may run, as their nodes report, besides those that were read before.
func (ps *reader) readAhead(ctx context.Context, s *reconcile.Snapshot, read []string, asked map[pod.Identity]bool) (store.Details, error) {
	var w store.Wanted
	for i := range s.Pods {
		p := &s.Pods[i]
		if !asked[p.Identity] && p.Reality != nil && p.Reality.Revision > p.Revision {
			asked[p.Identity] = true
			w.Intents = append(w.Intents, copiesOf(&p.Placement)...)
		}
	}
	if s.RC.HasOrdered() {
		w.Others = without(ps.otherManifests(s), read)
	}
	if len(w.Intents)+len(w.Others) == 0 {
		return store.Details{}, nil
	}
	d, err := ps.kit.reads.ReadDetails(ctx, w, ps.consistent)
	if err != nil {
		return d, err
	}
	return d, ps.useOthers(s, d)
}

// addIntents adds what nodes were told about a pod.
func addIntents(p *reconcile.Pod, d store.Details) {
	p.Intents = map[string]*pod.Intent{}
	for _, key := range copiesOf(&p.Placement) {
		if in, ok := d.Intents[key]; ok {
			p.Intents[key.Node] = &in
		}
	}
}

// addClaims adds which nodes hold a claim for a pod.
func addClaims(p *reconcile.Pod, d store.Details) {
	p.Claims = map[string]*node.Claim{}
	for _, at := range copiesOf(&p.Placement) {
		if res, read := d.Reservations[at.Node]; read && d.Unreadable[at.Node] == nil {
			p.Claims[at.Node] = nil
			if h, has := res.Value.Claims[p.Identity.String()]; has {
				p.Claims[at.Node] = &h
			}
		}
	}
}

// nodesOfAll returns every node that has, or may still have, a copy of one of the pods.
func nodesOfAll(pods []reconcile.Pod) []string {
	seen := map[string]bool{}
	for i := range pods {
		for _, at := range copiesOf(&pods[i].Placement) {
			seen[at.Node] = true
		}
	}
	return slices.Collect(maps.Keys(seen))
}
