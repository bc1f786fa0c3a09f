package reconcile

import (
	"math"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// KeepsDigests reports whether pods that exist keep the manifest that they have when they are placed elsewhere: a rollout is in
// charge, or an upgrade in place has a limit.
func (s *Snapshot) KeepsDigests() bool { return s.Rollout != "" || s.RC.InPlace != nil }

// ManifestOf returns the manifest with a digest, nil where it was not read or cannot be.
func (s *Snapshot) ManifestOf(digest string) *manifest.Manifest {
	if digest == s.RC.ManifestDigest {
		return s.Manifest
	}
	return s.Manifests[digest]
}

// digestFor returns the digest with which a pod that exists is placed elsewhere.
func (s *Snapshot) digestFor(p *pod.Placement) string {
	if s.KeepsDigests() {
		return p.Digest
	}
	return s.RC.ManifestOf(p.Role)
}

// DigestOf returns the digest with which a pod of a plan that was computed from the snapshot is placed.
func (s *Snapshot) DigestOf(id pod.Identity) string {
	if p := s.find(id); p != nil {
		return s.digestFor(&p.Placement)
	}
	if digest, ok := s.chosen[id]; ok {
		return digest
	}
	return s.RC.ManifestOf(id.Role)
}

// Lot is pods that room is looked for together, by what they have in common.
type Lot struct {
	Digest string
	Role   string // where its group has wishes of its own for nodes; empty: the controller's
}

// Placing returns the manifest of the pods that room is looked for; see LookFor.
func (s *Snapshot) Placing() *manifest.Manifest {
	if s.lot.Digest == "" {
		return s.Manifest
	}
	return s.ManifestOf(s.lot.Digest)
}

// Wishes returns where the pods should be that room is looked for; see LookFor.
func (s *Snapshot) Wishes() rc.Wishes { return s.RC.WishesOf(s.lot.Role) }

// LookFor makes the rule, the wishes, and NewClaim of no pod in particular, those of some pods.
func (s *Snapshot) LookFor(lot Lot) {
	if s.lot != lot {
		s.lot, s.rule = lot, nil
	}
}

// LotOf returns the lot of a pod.
func (s *Snapshot) LotOf(id pod.Identity) Lot {
	lot := Lot{Digest: s.DigestOf(id)}
	if s.RC.HasWishes(id.Role) {
		lot.Role = id.Role
	}
	return lot
}

// ByLot returns pods that are to be placed by their lots, in their order.
func (s *Snapshot) ByLot(ids []pod.Identity) (lots []Lot, pods map[Lot][]pod.Identity) {
	pods = map[Lot][]pod.Identity{}
	for _, id := range ids {
		lot := s.LotOf(id)
		if pods[lot] == nil {
			lots = append(lots, lot)
		}
		pods[lot] = append(pods[lot], id)
	}
	return lots, pods
}

// former returns the digest that a role's pods beyond the limit of an upgrade in place get, if there is one besides the role's own.
func former(s *Snapshot, role string) (digest string, is bool) {
	ip := s.RC.InPlace
	if ip == nil || ip.From == "" || !ip.Counts(role) {
		return "", false
	}
	if digest = ip.Former().Of(role); digest == s.RC.ManifestOf(role) {
		return "", false
	}
	return digest, true
}

// formers reports whether pods of any role beyond the limit of an upgrade in place get another digest than their role's.
func formers(s *Snapshot) bool {
	return slices.ContainsFunc(s.RC.ReplicaGroups, func(g rc.ReplicaGroup) bool {
		_, is := former(s, g.Role)
		return is
	})
}

// limited reports whether the limit of an upgrade in place counts a pod.
func (s *Snapshot) limited(p *Pod) bool {
	return s.RC.InPlace != nil && s.RC.InPlace.Counts(p.Role) && !s.unasked(p)
}

// rolls reports whether a pod is one that a rollout judges its stages by: those of a role that does not change say nothing about the change.
func (s *Snapshot) rolls(p *Pod) bool { return s.current(p) && (s.RC.InPlace == nil || s.limited(p)) }

// current reports whether a pod is meant to run the manifest that its role has now.
func (s *Snapshot) current(p *Pod) bool { return p.Digest == s.RC.ManifestOf(p.Role) }

// updated returns how many pods that the limit of an upgrade in place counts are meant to run the manifests that their roles have now.
func updated(s *Snapshot) int {
	n := 0
	for p := range s.running() {
		if s.limited(p) && s.current(p) {
			n++
		}
	}
	return n
}

// newDigest returns the digest of one more new replica of a role.
func (c *scaling) newDigest(role string) string {
	from, limited := former(c.s, role)
	if !limited || updated(c.s)+c.newest < c.s.RC.InPlace.Limit {
		return c.s.RC.ManifestOf(role)
	}
	return from
}

// rolling is what the upgrade does next: so many of the pods that the limit counts get another digest at the most.
type rolling struct {
	most int
	back bool // they get the former one again
}

// digest returns what a pod shall run once its turn has come.
func (to rolling) digest(s *Snapshot, role string) string {
	if from, is := former(s, role); to.back && is {
		return from
	}
	return s.RC.ManifestOf(role)
}

// roll returns where the upgrade goes. Without a former digest, pods beyond the limit stay as they are: they would be upgraded over and
// over. So do they while a change of mode goes in stages, whose limit may begin below what is right already.
func roll(s *Snapshot) rolling {
	ip := s.RC.InPlace
	if ip == nil {
		return rolling{most: math.MaxInt}
	}
	over := updated(s) - ip.Limit
	if formers(s) && over > 0 && !s.RC.InStages() {
		return rolling{most: over, back: true}
	}
	return rolling{most: max(0, -over)}
}

// offTarget returns how many placed pods have another manifest than they should.
func offTarget(s *Snapshot) int {
	limited, updated, off := 0, 0, 0
	for p := range s.running() {
		switch isNew := s.current(p); {
		case !s.limited(p) && !isNew:
			off++
		case s.limited(p) && isNew:
			updated++
			fallthrough
		case s.limited(p):
			limited++
		}
	}
	if s.RC.InPlace == nil {
		return off
	}
	if wanted := min(s.RC.InPlace.Limit, limited); formers(s) || updated < wanted {
		off += max(updated-wanted, wanted-updated)
	}
	return off
}

// known reports whether a pod's digest is one that pods of its role are meant to have.
func known(s *Snapshot, p *Pod) bool {
	from, is := former(s, p.Role)
	return s.current(p) || is && p.Digest == from
}

// eachMayRun yields the digests besides those that pods are placed with that nodes may run of ordered groups.
func (s *Snapshot) eachMayRun(yield func(digest string)) {
	for p := range s.all() {
		if s.ordered(p.Role) {
			for _, digest := range s.mayRun(p) {
				yield(digest)
			}
		}
	}
	for _, v := range s.Nodes {
		for i := range v.Orphans {
			if o := &v.Orphans[i]; o.RCID == s.RC.ID && s.ordered(o.Role) {
				yield(o.Digest)
			}
		}
	}
}

// OtherDigests returns the digests besides the controller's own of manifests that pods may be placed with, sorted, at most so many.
func (s *Snapshot) OtherDigests(most int) []string {
	seen := map[string]bool{s.RC.ManifestDigest: true, "": true}
	var digests []string
	note := func(digest string) {
		if !seen[digest] {
			seen[digest] = true
			digests = append(digests, digest)
		}
	}
	for _, digest := range s.RC.Digests().All() {
		note(digest)
	}
	if ip := s.RC.InPlace; ip != nil {
		for _, digest := range ip.Former().All() {
			note(digest)
		}
	}
	for i := range s.Pods {
		if s.KeepsDigests() || s.ordered(s.Pods[i].Role) {
			note(s.Pods[i].Digest)
		}
	}
	if s.RC.HasOrdered() {
		s.eachMayRun(note)
	}
	digests = digests[:min(len(digests), most)]
	slices.Sort(digests)
	return digests
}
