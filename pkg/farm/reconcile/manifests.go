package reconcile

import (
	"math"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// KeepsDigests reports whether existing pods keep their manifest when they are placed elsewhere.
func (s *Snapshot) KeepsDigests() bool { return s.Rollout != "" || s.RC.InPlace != nil }

// ManifestOf returns nil for a manifest that was not read or cannot be read.
func (s *Snapshot) ManifestOf(digest string) *manifest.Manifest {
	if digest == s.RC.ManifestDigest {
		return s.Manifest
	}
	return s.Manifests[digest]
}

func (s *Snapshot) digestFor(p *pod.Placement) string {
	if s.KeepsDigests() {
		return p.Digest
	}
	return s.RC.ManifestOf(p.Role)
}

// former returns the former digest of a role, which pods beyond the limit of an upgrade in place get; false if it is
// the role's own.
func (s *Snapshot) former(role string) (digest string, is bool) {
	ip := s.RC.InPlace
	if ip == nil || ip.From == "" || !ip.Counts(role) {
		return "", false
	}
	if digest = ip.Former().Of(role); digest == s.RC.ManifestOf(role) {
		return "", false
	}
	return digest, true
}

func (s *Snapshot) formers() bool {
	return slices.ContainsFunc(s.RC.ReplicaGroups, func(g rc.ReplicaGroup) bool {
		_, is := s.former(g.Role)
		return is
	})
}

// limited reports whether the limit of an upgrade in place applies to a pod.
func (f *Facts) limited(p *Pod) bool {
	return f.RC.InPlace != nil && f.RC.InPlace.Counts(p.Role) && !f.unwanted(p)
}

// inRollout reports whether this pod decides if a stage of a rollout has succeeded. A pod of a role that does not
// change shows nothing about the change.
func (f *Facts) inRollout(p *Pod) bool { return f.current(p) && (f.RC.InPlace == nil || f.limited(p)) }

func (s *Snapshot) current(p *Pod) bool { return p.Digest == s.RC.ManifestOf(p.Role) }

// updated returns how many limited pods are meant to run the present manifests of their roles.
func updated(f *Facts) int {
	n := 0
	for p := range f.running() {
		if f.limited(p) && f.current(p) {
			n++
		}
	}
	return n
}

func (s *scaling) newDigest(role string) string {
	from, limited := s.f.former(role)
	if !limited || updated(s.f)+s.newest < s.f.RC.InPlace.Limit {
		return s.f.RC.ManifestOf(role)
	}
	return from
}

// nextManifest is the next step of an upgrade.
type nextManifest struct {
	most int  // of the limited pods, this many get another digest at most
	back bool // they get the former digest again
}

func (r nextManifest) digest(s *Snapshot, role string) string {
	if from, is := s.former(role); r.back && is {
		return from
	}
	return s.RC.ManifestOf(role)
}

// upgradeTo returns the next step of the upgrade. Pods beyond the limit get the former digest again, except in two
// cases. Without a former digest, they would be upgraded over and over. In a change of mode in stages, the limit may
// begin below the number of pods that have the right manifest already.
func upgradeTo(f *Facts) nextManifest {
	ip := f.RC.InPlace
	if ip == nil {
		return nextManifest{most: math.MaxInt}
	}
	over := updated(f) - ip.Limit
	if f.formers() && over > 0 && !f.RC.InStages() {
		return nextManifest{most: over, back: true}
	}
	return nextManifest{most: max(0, -over)}
}

// offTarget returns how many placed pods have another manifest than they should have.
func offTarget(f *Facts) int {
	limited, updated, off := 0, 0, 0
	for p := range f.running() {
		switch isNew := f.current(p); {
		case !f.limited(p) && !isNew:
			off++
		case f.limited(p) && isNew:
			updated++
			fallthrough
		case f.limited(p):
			limited++
		}
	}
	if f.RC.InPlace == nil {
		return off
	}
	if wanted := min(f.RC.InPlace.Limit, limited); f.formers() || updated < wanted {
		off += max(updated-wanted, wanted-updated)
	}
	return off
}

func hasExpectedDigest(f *Facts, p *Pod) bool {
	from, is := f.former(p.Role)
	return f.current(p) || is && p.Digest == from
}

// addMayRun adds all digests that nodes may run for ordered groups, also those that no placement has as its own.
func (s *Snapshot) addMayRun(add func(digest string)) {
	for p := range s.all() {
		if s.ordered(p.Role) {
			for _, digest := range s.mayRun(p) {
				add(digest)
			}
		}
	}
	for _, v := range s.Nodes {
		for i := range v.Orphans {
			if o := &v.Orphans[i]; o.RCID == s.RC.ID && s.ordered(o.Role) {
				add(o.Digest)
			}
		}
	}
}

// OtherDigests returns the digests, besides the controller's own, with which pods may be placed. The result is sorted,
// and has at most the given number of digests.
func (s *Snapshot) OtherDigests(most int) []string {
	seen := map[string]bool{s.RC.ManifestDigest: true, "": true}
	var digests []string
	add := func(digest string) {
		if !seen[digest] {
			seen[digest] = true
			digests = append(digests, digest)
		}
	}
	for _, digest := range s.RC.Digests().All() {
		add(digest)
	}
	if ip := s.RC.InPlace; ip != nil {
		for _, digest := range ip.Former().All() {
			add(digest)
		}
	}
	for p := range s.all() {
		if s.KeepsDigests() || s.ordered(p.Role) {
			add(p.Digest)
		}
	}
	if s.RC.HasOrdered() {
		s.addMayRun(add)
	}
	digests = digests[:min(len(digests), most)]
	slices.Sort(digests)
	return digests
}
