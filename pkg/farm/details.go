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
	w := store.Wanted{Nodes: len(s.Nodes)}
	for i := range s.Pods {
		p := &s.Pods[i]
		w.Realities = append(w.Realities, at(p)...)
		if ps.resync || asked[p.Identity] {
			asked[p.Identity] = true
			w.Intents = append(w.Intents, at(p)...)
		}
	}
	for i := range s.Companions {
		for j := range s.Companions[i].Pods {
			w.Realities = append(w.Realities, at(&s.Companions[i].Pods[j])...)
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
	d, err := ps.view.detailsOf(ctx, ps.kit.reads, ps.id, w)
	if err != nil {
		return err
	}
	if ps.room.nodes != nil {
		ps.room.nodes.early = d.Reservations
	}
	ps.reported = d.Reported
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
		for j := range s.Companions[i].Pods {
			addReports(&s.Companions[i].Pods[j], d)
		}
	}
	for i := range s.Pods {
		addReports(&s.Pods[i], d)
	}
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
			w.Intents = append(w.Intents, at(p)...)
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

// addReports adds what nodes report about a pod.
func addReports(p *reconcile.Pod, d store.Details) {
	p.Reality, p.Ghosts = nil, map[string]*pod.Reality{}
	for _, key := range at(p) {
		if r, ok := d.Realities[key]; ok && key.Node == p.Node {
			p.Reality = &r
		} else if ok {
			p.Ghosts[key.Node] = &r
		}
	}
}

// addIntents adds what nodes were told about a pod.
func addIntents(p *reconcile.Pod, d store.Details) {
	p.Intents = map[string]*pod.Intent{}
	for _, key := range at(p) {
		if in, ok := d.Intents[key]; ok {
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

// addClaims adds which nodes hold a claim for a pod.
func addClaims(p *reconcile.Pod, d store.Details) {
	p.Claims = map[string]*node.Claim{}
	for _, name := range nodesOf(p) {
		if res, read := d.Reservations[name]; read && d.Unreadable[name] == nil {
			p.Claims[name] = nil
			if h, has := res.Value.Claims[p.Identity.String()]; has {
				p.Claims[name] = &h
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
