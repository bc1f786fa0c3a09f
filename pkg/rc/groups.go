package rc

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// ReplicaGroup is the replicas of one role, and what is different about them (ADR 23).
type ReplicaGroup struct {
	Role  string `json:"role"`
	Count *int   `json:"count"` // required; a record without it is invalid

	// These change the controller's manifest for the group; see GroupManifest.
	Env       map[string]string   `json:"env,omitempty" feature:"group-manifests"`
	Command   string              `json:"command,omitempty" feature:"group-manifests"`
	Resources *manifest.Resources `json:"resources,omitempty" feature:"group-manifests"`

	// Each of these replaces the controller's setting as a whole; see PreferencesOf.
	Spread   Spread       `json:"spread,omitzero" feature:"group-placing"`
	Affinity []Preference `json:"affinity,omitempty" feature:"group-placing"`
	Placing  Placing      `json:"placing,omitempty" feature:"group-placing"`
	// Ordered: replicas start and stop one by one, by index, and no index has two living copies.
	Ordered bool `json:"ordered,omitempty" feature:"ordered"`
}

// Digests are the digests of a controller's manifests.
type Digests struct {
	Base   string
	Groups map[string]string // by role, of groups with a manifest of their own
}

// Of returns the digest of the manifest of a role's pods.
func (d Digests) Of(role string) string {
	if digest := d.Groups[role]; digest != "" {
		return digest
	}
	return d.Base
}

// Equal reports whether both have the same digests.
func (d Digests) Equal(other Digests) bool {
	return d.Base == other.Base && maps.Equal(d.Groups, other.Groups)
}

// All returns every digest once: the base first, then the others, sorted.
func (d Digests) All() []string {
	groups := slices.Sorted(maps.Values(d.Groups))
	groups = slices.DeleteFunc(slices.Compact(groups), func(digest string) bool { return digest == d.Base })
	return append([]string{d.Base}, groups...)
}

// Digests returns the digests of the desired manifests.
func (r *RC) Digests() Digests { return Digests{Base: r.ManifestDigest, Groups: r.GroupManifests} }

// ManifestOf returns the desired digest of a role's pods.
func (r *RC) ManifestOf(role string) string { return r.Digests().Of(role) }

// Former returns the digests for the pods beyond Limit.
func (i *InPlace) Former() Digests { return Digests{Base: i.From, Groups: i.FromGroups} }

// Counts reports whether Limit applies to a role.
func (i *InPlace) Counts(role string) bool {
	return len(i.Roles) == 0 || slices.Contains(i.Roles, role)
}

// Counted returns how many replicas the roles have to which Limit applies.
func (i *InPlace) Counted(groups []ReplicaGroup) int {
	return Total(slices.DeleteFunc(slices.Clone(groups), func(g ReplicaGroup) bool { return !i.Counts(g.Role) }))
}

// Ordered is false for a role without a group.
func (r *RC) Ordered(role string) bool {
	g := field.Find(r.ReplicaGroups, func(g *ReplicaGroup) bool { return g.Role == role })
	return g != nil && g.Ordered
}

// HasOrdered reports whether a group is ordered.
func (r *RC) HasOrdered() bool { return HasOrdered(r.ReplicaGroups) }

// HasOrdered reports whether a group is ordered.
func HasOrdered(groups []ReplicaGroup) bool {
	return slices.ContainsFunc(groups, func(g ReplicaGroup) bool { return g.Ordered })
}

// CountOf returns the desired replicas of a role; 0 without such a group.
func (r *RC) CountOf(role string) int {
	g := field.Find(r.ReplicaGroups, func(g *ReplicaGroup) bool { return g.Role == role && g.Count != nil })
	if g == nil {
		return 0
	}
	return *g.Count
}

// Counts returns groups with only role and count.
func Counts(groups []ReplicaGroup) []ReplicaGroup {
	return field.Each(groups,
		func(g ReplicaGroup) ReplicaGroup { return ReplicaGroup{Role: g.Role, Count: field.Copy(g.Count)} })
}

// WithCounts returns the roles and counts that are given, with the other fields of the controller's groups.
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

// Differs reports whether the group changes the manifest.
func (r *ReplicaGroup) Differs() bool { return len(r.Env) > 0 || r.Command != "" || r.Resources != nil }

// GroupManifest returns the manifest of a group's pods. The group's env is added to the env of every launchable. Its
// command and resources replace the fields of the first launchable. base is not changed.
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

// Manifests makes the manifests of a controller and its groups. canonical has the canonical JSON of each by digest.
func Manifests(base *manifest.Manifest,
	groups []ReplicaGroup,
) (digests Digests, canonical map[string][]byte, err error) {
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

func (r *ReplicaGroup) validateManifest(errs *field.Errors, path string, base *manifest.Manifest) {
	if !r.Differs() || base == nil || len(base.Validate()) > 0 {
		return
	}
	seen := map[string]bool{}
	for _, e := range GroupManifest(base, r).Validate() {
		_, rest, inLaunchable := strings.Cut(e.Field, "].")
		switch {
		case inLaunchable && strings.HasPrefix(e.Field, "launchables["):
			e.Field = path + "." + rest
		case e.Field == "" && len(r.Env) > 0: // the manifest's size
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

// MaxGroupBytes bounds a controller's manifests, in canonical JSON, plus the groups' env. One transaction writes both,
// and its limit of 512 KiB applies to their base64.
const MaxGroupBytes = 360_000

func validateSize(errs *field.Errors, groups []ReplicaGroup, base *manifest.Manifest) {
	if base == nil || !slices.ContainsFunc(groups, func(g ReplicaGroup) bool { return g.Differs() }) {
		return
	}
	_, canonical, err := Manifests(base, groups)
	if err != nil {
		return // validateManifest or Validate reports the mistake
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
		errs.Add("replica_groups", field.Text(fmt.Sprintf("%d bytes of manifests and of what makes them", size)),
			fmt.Sprintf("at most %d bytes for all groups together", MaxGroupBytes))
	}
}
