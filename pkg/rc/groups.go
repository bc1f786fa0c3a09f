package rc

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// ReplicaGroup is how many replicas of one role there are, and what is different about them (ADR 23).
type ReplicaGroup struct {
	Role  string `json:"role"`
	Count *int   `json:"count"` // required; a record without it is not readable as "none"

	// Env, Command and Resources make the group's manifest of the controller's; see GroupManifest.
	Env       map[string]string   `json:"env,omitempty" feature:"group-manifests"`
	Command   string              `json:"command,omitempty" feature:"group-manifests"`
	Resources *manifest.Resources `json:"resources,omitempty" feature:"group-manifests"`

	// Spread, Affinity and Placing, each as a whole, replace the controller's for the group's pods; see WishesOf.
	Spread   Spread       `json:"spread,omitzero" feature:"group-placing"`
	Affinity []Preference `json:"affinity,omitempty" feature:"group-placing"`
	Placing  Placing      `json:"placing,omitempty" feature:"group-placing"`
	// Ordered: replicas start and stop one after the other by their indices, and no index has two living copies.
	Ordered bool `json:"ordered,omitempty" feature:"ordered"`
}

// Digests are the digests of a controller's manifests.
type Digests struct {
	Base   string
	Groups map[string]string // by role, of the groups whose manifest is another
}

// Of returns the digest of the manifest that a role's pods run.
func (d Digests) Of(role string) string {
	if digest := d.Groups[role]; digest != "" {
		return digest
	}
	return d.Base
}

// Equal reports whether both name the same manifest for each role.
func (d Digests) Equal(other Digests) bool {
	return d.Base == other.Base && maps.Equal(d.Groups, other.Groups)
}

// All returns every digest once: the base first, then those of groups, sorted.
func (d Digests) All() []string {
	groups := slices.Sorted(maps.Values(d.Groups))
	groups = slices.DeleteFunc(slices.Compact(groups), func(digest string) bool { return digest == d.Base })
	return append([]string{d.Base}, groups...)
}

// Digests returns the digests of the manifests that the controller asks for.
func (r *RC) Digests() Digests { return Digests{Base: r.ManifestDigest, Groups: r.GroupManifests} }

// ManifestOf returns the digest of the manifest that a role's pods shall run.
func (r *RC) ManifestOf(role string) string { return r.Digests().Of(role) }

// Former returns the digests that pods beyond the limit get again.
func (p *InPlace) Former() Digests { return Digests{Base: p.From, Groups: p.FromGroups} }

// Counts reports whether the limit counts the pods of a role.
func (p *InPlace) Counts(role string) bool {
	return len(p.Roles) == 0 || slices.Contains(p.Roles, role)
}

// Counted returns how many replicas groups have of the roles that the limit counts.
func (p *InPlace) Counted(groups []ReplicaGroup) int {
	return Total(slices.DeleteFunc(slices.Clone(groups), func(g ReplicaGroup) bool { return !p.Counts(g.Role) }))
}

// Ordered reports whether replicas of a role start and stop one after the other. A role that the controller has no group of does not.
func (r *RC) Ordered(role string) bool {
	g := field.Find(r.ReplicaGroups, func(g *ReplicaGroup) bool { return g.Role == role })
	return g != nil && g.Ordered
}

// HasOrdered reports whether a group of the controller is ordered.
func (r *RC) HasOrdered() bool { return HasOrdered(r.ReplicaGroups) }

// HasOrdered reports whether one of some groups is ordered.
func HasOrdered(groups []ReplicaGroup) bool {
	return slices.ContainsFunc(groups, func(g ReplicaGroup) bool { return g.Ordered })
}

// CountOf returns how many replicas of a role there shall be.
func (r *RC) CountOf(role string) int {
	g := field.Find(r.ReplicaGroups, func(g *ReplicaGroup) bool { return g.Role == role && g.Count != nil })
	if g == nil {
		return 0
	}
	return *g.Count
}

// Counts returns groups with nothing but role and count.
func Counts(groups []ReplicaGroup) []ReplicaGroup {
	return field.Each(groups, func(g ReplicaGroup) ReplicaGroup { return ReplicaGroup{Role: g.Role, Count: field.Copy(g.Count)} })
}

// WithCounts returns the controller's groups with the counts, and in the order, of others. What else a group says stays.
func (r *RC) WithCounts(counts []ReplicaGroup) []ReplicaGroup {
	return field.Each(counts, func(c ReplicaGroup) ReplicaGroup {
		g := ReplicaGroup{Role: c.Role}
		if own := field.Find(r.ReplicaGroups, func(g *ReplicaGroup) bool { return g.Role == c.Role }); own != nil {
			g = field.Copy(*own)
		}
		g.Count = field.Copy(c.Count)
		return g
	})
}

// Differs reports whether the group's manifest is made of more than the controller's.
func (g *ReplicaGroup) Differs() bool { return len(g.Env) > 0 || g.Command != "" || g.Resources != nil }

// GroupManifest returns the manifest of a group's pods: the controller's, where the group's env is added to that of every launchable, and
// its command and resources replace those of the first. The controller's own stays as it is.
func GroupManifest(base *manifest.Manifest, g *ReplicaGroup) *manifest.Manifest {
	if !g.Differs() || len(base.Launchables) == 0 {
		return base
	}
	m := *base
	m.Launchables = slices.Clone(base.Launchables)
	for i := range m.Launchables {
		m.Launchables[i].Env = merged(m.Launchables[i].Env, g.Env)
	}
	first := &m.Launchables[0]
	if g.Command != "" {
		first.Command = g.Command
	}
	if g.Resources != nil {
		first.Resources = *g.Resources
	}
	return &m
}

func merged(base, more map[string]string) map[string]string {
	if len(more) == 0 {
		return base
	}
	return field.Merge(base, more)
}

// Manifests makes the manifests of a controller's groups of its own: their digests, and each in canonical JSON by its digest.
func Manifests(base *manifest.Manifest, groups []ReplicaGroup) (digests Digests, canonical map[string][]byte, err error) {
	canonical = map[string][]byte{}
	add := func(m *manifest.Manifest) (string, error) {
		data, err := m.Canonical()
		if err != nil {
			return "", err
		}
		digest := manifest.Digest(data)
		canonical[digest] = data
		return digest, nil
	}
	if digests.Base, err = add(base); err != nil {
		return digests, nil, err
	}
	for i := range groups {
		g := &groups[i]
		digest, err := add(GroupManifest(base, g))
		if err != nil {
			return digests, nil, err
		}
		if digest == digests.Base {
			continue
		}
		if digests.Groups == nil {
			digests.Groups = map[string]string{}
		}
		digests.Groups[g.Role] = digest
	}
	return digests, canonical, nil
}

// validate records what is wrong with a group's own part of its manifest, where the controller's manifest has no mistake.
func (g *ReplicaGroup) validateManifest(errs *field.Errors, path string, base *manifest.Manifest) {
	if !g.Differs() || base == nil || len(base.Validate()) > 0 {
		return
	}
	seen := map[string]bool{}
	for _, e := range GroupManifest(base, g).Validate() {
		_, rest, inLaunchable := strings.Cut(e.Field, "].")
		switch {
		case inLaunchable && strings.HasPrefix(e.Field, "launchables["):
			e.Field = path + "." + rest
		case e.Field == "" && len(g.Env) > 0: // the manifest's size
			e.Field = path + ".env"
		default:
			e.Field = field.Join(path, e.Field)
		}
		if !seen[e.Field] {
			seen[e.Field] = true
			*errs = append(*errs, e)
		}
	}
}

// MaxGroupBytes bounds the manifests of a controller, in canonical JSON, together with what its groups have of their own. Both are written in one
// transaction, whose limit of 512 KiB counts them in base64.
const MaxGroupBytes = 360_000

// validateSize records groups whose manifests one transaction does not take. Their mistakes have been recorded.
func validateSize(errs *field.Errors, groups []ReplicaGroup, base *manifest.Manifest) {
	if base == nil || !slices.ContainsFunc(groups, func(g ReplicaGroup) bool { return g.Differs() }) {
		return
	}
	_, canonical, err := Manifests(base, groups)
	if err != nil {
		return // of the base; it has an error of its own
	}
	size := 0
	for _, data := range canonical {
		size += len(data)
	}
	for i := range groups {
		for key, value := range groups[i].Env {
			size += len(key) + len(value)
		}
	}
	if size > MaxGroupBytes {
		errs.Add("replica_groups", field.Text(fmt.Sprintf("%d bytes of manifests and of what makes them", size)), fmt.Sprintf("at most %d bytes for all groups together", MaxGroupBytes))
	}
}
