package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// If old and new pods differ only in limits of CPU and memory, running processes get them without a restart, if the
// node supports that.

const whyLimits = "the limits of running processes change"

// onlyLimits reports whether pods of two documents differ, and only in their limits.
func onlyLimits(current, updated *record.ServiceSpec) bool {
	if current == nil || current.Pod == nil || updated.Pod == nil {
		return false
	}
	differ := false
	alike := func(was, is *manifest.Manifest) bool {
		limits := manifest.OnlyLimitsDiffer(was, is)
		differ = differ || limits
		return limits || was.Same(is)
	}
	if !alike(current.Pod, updated.Pod) {
		return false
	}
	before, after := current.Groups(), updated.Groups()
	for role := range rolesOf(before, after) {
		if !alike(manifestOf(current.Pod, before, role), manifestOf(updated.Pod, after, role)) {
			return false
		}
	}
	return differ
}

// manifestOf returns the manifest of a role's pods, base for an unknown role.
func manifestOf(base *manifest.Manifest, groups []rc.ReplicaGroup, role string) *manifest.Manifest {
	if g := field.Find(groups, func(g *rc.ReplicaGroup) bool { return g.Role == role }); g != nil {
		return rc.GroupManifest(base, g)
	}
	return base
}

func isLimit(path string) bool {
	return slices.Contains([]string{"pod", "replica_groups"}, topOf(path)) && strings.Contains(path, "].resources.")
}

// relimited returns the change for pods that differ only in limits: no new pods are needed.
func (s SpecChange) relimited() SpecChange {
	s.Fields = slices.Clone(s.Fields)
	for i := range s.Fields {
		if f := &s.Fields[i]; isLimit(f.Path) {
			f.Kind, f.Why = NeedsUpdate, whyLimits
		}
	}
	s.Kind = kindOf(s.Fields)
	return s
}

// namedGroups returns a document's groups. With a pod on each node it has none, and its pods have the default role.
func namedGroups(s *record.ServiceSpec) []rc.ReplicaGroup {
	if groups := s.Groups(); len(groups) > 0 {
		return groups
	}
	return []rc.ReplicaGroup{{Role: rc.DefaultRole}}
}

// limits describes the pods' new limits, with the roles of each if they differ.
func (p *planner) limits(roles []string) string {
	said := map[string][]string{} // roles by the text of their limits
	var texts []string
	groups := namedGroups(p.spec)
	for _, g := range groups {
		if len(roles) > 0 && !slices.Contains(roles, g.Role) {
			continue
		}
		text := manifestOf(p.spec.Pod, groups, g.Role).Limits()
		if said[text] = append(said[text], g.Role); len(said[text]) == 1 {
			texts = append(texts, text)
		}
	}
	if len(texts) == 1 {
		return texts[0]
	}
	return strings.Join(field.Each(texts, func(text string) string {
		return fmt.Sprintf("%s (%s)", text, strings.Join(said[text], ", "))
	}), "; ")
}

// restarts warns of a process that may get less memory than it uses, so that its pod is restarted.
func (p *planner) restarts(c course) []string {
	if c != relimit {
		return nil
	}
	before, after := namedGroups(&p.base.Spec), namedGroups(p.spec)
	for role := range rolesOf(before, after) {
		was, is := manifestOf(p.base.Spec.Pod, before, role), manifestOf(p.spec.Pod, after, role)
		for i := range is.Launchables { // they differ only in limits
			if a, b := was.Launchables[i].Resources.Memory, is.Launchables[i].Resources.Memory; b > 0 &&
				(a == 0 || b < a) {
				return []string{
					"a process may have less memory: a pod with a process that uses more is restarted",
				}
			}
		}
	}
	return nil
}
