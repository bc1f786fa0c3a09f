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
	d, err := ps.detailsOf(ctx, w)
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
	more, err := ps.readAhead(ctx, s, d.Realities, asked)
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
		if ps.resync {
			addClaims(&s.Pods[i], d)
		}
	}
	return nil
}

// readAhead reads what the nodes were told about pods of which they have applied more than the placement asks for.
func (ps *reader) readAhead(ctx context.Context, s *reconcile.Snapshot, realities map[store.At]pod.Reality, asked map[pod.Identity]bool) (store.Details, error) {
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
	return ps.kit.reads.ReadDetails(ctx, w, ps.mem.consistent)
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
