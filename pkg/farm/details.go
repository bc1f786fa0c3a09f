package farm

import (
	"context"
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// readDetails reads what the snapshot still lacks, and the reservations of the guessed nodes.
func (r *reader) readDetails(ctx context.Context, got *readings, guessed []string) (err error) {
	s := got.snapshot
	asked := map[pod.Identity]bool{} // the identities whose intents are read
	for _, o := range s.Orphans {
		asked[o.Identity] = true
	}
	w := r.wanted(s, guessed, asked)
	ids := []string{r.id}
	for i := range s.Companions {
		ids = append(ids, s.Companions[i].RCID)
	}
	got.reports, got.details, err = r.readReports(ctx, r.kit.reads, w, ids...)
	if err != nil {
		return err
	}
	d := got.details
	if w.Manifest != "" {
		if err := r.useManifest(s, d); err != nil {
			return err
		}
	}
	if err := r.useOthers(s, d); err != nil {
		return err
	}
	for i := range s.Companions {
		s.Companions[i].Pods = got.reports.pods[s.Companions[i].RCID].pods
	}
	own := got.reports.pods[r.id]
	s.Pods = slices.Clone(own.pods)
	s.Errors = append(s.Errors, own.doubts...)
	more, err := r.readAhead(ctx, s, w.Others, asked)
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
		if r.resync {
			addClaims(&s.Pods[i], d)
		}
	}
	return nil
}

// wanted returns what to read besides the reports. It adds to asked the identities whose intents this includes, and to
// the snapshot the manifests that the cache has.
func (r *reader) wanted(s *reconcile.Snapshot, guessed []string, asked map[pod.Identity]bool) store.Wanted {
	w := store.Wanted{Nodes: len(s.Nodes)}
	for i := range s.Pods {
		p := &s.Pods[i]
		if r.resync || asked[p.Identity] {
			asked[p.Identity] = true
			w.Intents = append(w.Intents, copiesOf(&p.Placement)...)
		}
	}
	if !r.recordless {
		if s.Manifest == nil {
			w.Manifest = s.RC.ManifestDigest
		}
		w.Others = r.otherManifests(s)
	}
	if r.resync {
		w.Reservations = nodesOfAll(s.Pods)
	}
	w.Reservations = append(w.Reservations, field.Without(guessed, w.Reservations)...)
	return w
}

// readAhead makes the reads that depend on the reports: the intents of pods whose node has applied a higher revision
// than the placement has, and the manifests that ordered pods run according to their reports.
func (r *reader) readAhead(
	ctx context.Context, s *reconcile.Snapshot, read []string, asked map[pod.Identity]bool,
) (store.Details, error) {
	var w store.Wanted
	for i := range s.Pods {
		p := &s.Pods[i]
		if !asked[p.Identity] && p.Reality != nil && p.Reality.Revision > p.Revision {
			asked[p.Identity] = true
			w.Intents = append(w.Intents, copiesOf(&p.Placement)...)
		}
	}
	if s.RC.HasOrdered() {
		w.Others = field.Without(r.otherManifests(s), read)
	}
	if len(w.Intents)+len(w.Others) == 0 {
		return store.Details{}, nil
	}
	d, err := r.kit.reads.ReadDetails(ctx, w, r.level)
	if err != nil {
		return d, err
	}
	return d, r.useOthers(s, d)
}

func addIntents(p *reconcile.Pod, d store.Details) {
	p.Intents = map[string]*pod.Intent{}
	for _, key := range copiesOf(&p.Placement) {
		if in, ok := d.Intents[key]; ok {
			p.Intents[key.Node] = &in
		}
	}
}

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

func nodesOfAll(pods []reconcile.Pod) []string {
	seen := map[string]bool{}
	for i := range pods {
		for _, at := range copiesOf(&pods[i].Placement) {
			seen[at.Node] = true
		}
	}
	return slices.Collect(maps.Keys(seen))
}

// readIntentsOf returns the intents that all nodes have for some identities without a placement. Only the owner writes
// intents, so no new intent appears before the plan lands.
func (r *reader) readIntentsOf(
	ctx context.Context, ids []pod.Identity,
) (found map[store.At]pod.Intent, unreadable []error, err error) {
	var w store.Wanted
	for _, id := range ids {
		for name := range r.nodes {
			w.Intents = append(w.Intents, store.At{Node: name, Identity: id})
		}
	}
	if len(w.Intents) == 0 {
		return nil, nil, nil
	}
	d, err := r.kit.reads.ReadDetails(ctx, w, store.Consistent)
	return d.Intents, d.Corrupt, err
}

// readReservations reads the reservations that the changes need and that the pass has not read.
func (r *reader) readReservations(
	ctx context.Context, changes []reconcile.Change, read map[string]store.Rec[node.Reservation],
) (reserved map[string]store.Rec[node.Reservation], unreadable map[string]error, err error) {
	var names []string
	wanted := map[string]bool{}
	for i := range changes {
		for _, c := range changes[i].Reserve {
			if _, known := read[c.Node]; !known && !wanted[c.Node] {
				wanted[c.Node] = true
				names = append(names, c.Node)
			}
		}
	}
	if len(names) == 0 {
		return read, nil, nil
	}
	d, err := r.kit.reads.ReadDetails(ctx, store.Wanted{Reservations: names, Nodes: len(r.nodes)}, store.Default)
	if err != nil {
		return nil, nil, err
	}
	reserved = maps.Clone(read)
	maps.Copy(reserved, d.Reservations)
	return reserved, d.Unreadable, nil
}
