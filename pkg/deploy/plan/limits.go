package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// Where pods differ in their limits of CPU and memory alone, the limits of running processes change: in place, and
// without a restart where the node can.

const whyLimits = "the limits of running processes change"

// onlyLimits reports whether pods of two documents differ in their limits, and in nothing else, whatever else the
// documents say.
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

// manifestOf returns the manifest of a role's pods; that of a role that is not there is the base.
func manifestOf(base *manifest.Manifest, groups []rc.ReplicaGroup, role string) *manifest.Manifest {
	if g := field.Find(groups, func(g *rc.ReplicaGroup) bool { return g.Role == role }); g != nil {
		return rc.GroupManifest(base, g)
	}
	return base
}

// isLimit reports whether a path leads to what a process may take.
func isLimit(path string) bool {
	return slices.Contains([]string{"pod", "replica_groups"}, topOf(path)) && strings.Contains(path, "].resources.")
}

// relimit says what fields take where pods differ in their limits alone.
func (c *SpecChange) relimit() {
	for i := range c.Fields {
		if f := &c.Fields[i]; isLimit(f.Path) {
			f.Kind, f.Why = NeedsUpdate, whyLimits
		}
	}
	c.Kind = kindOf(c.Fields)
}

// onlyRelimits reports whether nothing but limits of the controller's pods changes that would take new pods, from any
// manifest that they have, and all nodes can change them while the pods run.
func (p *planner) onlyRelimits() bool {
	if p.current == nil || !onlyLimits(&p.base.Spec, p.spec) || !p.otherPods() {
		return false
	}
	was, _, err := rc.Manifests(p.base.Spec.Pod, p.base.Spec.Groups())
	if err != nil || !was.Equal(p.current.RC.Digests()) || !p.former() || !p.current.HasPods() {
		return false
	}
	return p.State == nil || !slices.ContainsFunc(p.placed(), func(at placed) bool {
		v := p.State.Nodes[at.node]
		return v == nil || !v.HoldsLimits()
	})
}

// former reports whether pods that an upgrade in place has not reached yet differ in their limits alone, too.
func (p *planner) former() bool {
	in := p.current.RC.InPlace
	if in == nil {
		return true
	}
	from := in.Former()
	return slices.ContainsFunc(p.svc.History, func(e record.Entry) bool {
		digests, _, err := rc.Manifests(e.Spec.Pod, e.Spec.Groups())
		same := from.Equal(p.digests) // they are to be as they were
		return err == nil && digests.Equal(from) && (same || onlyLimits(&e.Spec, p.spec))
	})
}

// chooseInPlace upgrades pods in place where nothing but their limits changes, whatever the document says of
// strategies, unless their nodes have no room for that, or the document lets no pod be missing: a pod that cannot have
// its limits as it runs is started again.
func (p *planner) chooseInPlace() {
	change, knobs := p.change, p.knobs
	if !p.relimits || p.ForceRecreate || p.Override != "" || knobs.Kind() == rollout.InPlaceStrategy {
		return
	}
	knobs.Strategy, knobs.Order, knobs.Canary, knobs.MaxSurge, knobs.AutoPromote, knobs.KeepOld = rollout.InPlaceStrategy, "", nil, nil, nil, nil
	change.Fields = slices.Clone(change.Fields)
	change.relimit()
	r, n := p.svc.Rollout, p.spec.Total()
	switch {
	case change.Kind == NeedsRecreate, p.unattached(), p.unfinished():
		return
	case r != nil && (r.Strategy != rollout.InPlaceStrategy || r.GoesBack()):
		return
	case r == nil && slices.ContainsFunc(p.svc.Others(p.base.RC), func(c record.Controller) bool { return c.HasPods() }):
		return
	case n > 0 && knobs.Numbers(rollout.InPlaceStrategy, n, p.current.RC.Desired()).Unavailable == 0:
		return
	}
	if takes := record.StageTakes(rollout.InPlaceStrategy, p.base.Spec.Pod, p.spec.Pod); !takes.Within(&knobs) {
		return
	}
	if p.State != nil && p.stuck(p.placed()).Pods > 0 {
		return
	}
	p.knobs, p.change = knobs, change
}

// namedGroups returns the groups of a document. Where it has a pod on each node it names none, and the pods have the
// default role.
func namedGroups(s *record.ServiceSpec) []rc.ReplicaGroup {
	if groups := s.Groups(); len(groups) > 0 {
		return groups
	}
	return []rc.ReplicaGroup{{Role: rc.DefaultRole}}
}

// limits says in words what the pods may take from now on: of each role that changes, where they are not the same.
func (p *planner) limits(roles []string) string {
	said := map[string][]string{} // roles by what is said of them
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

// restarts warns that a pod may be started again all the same.
func (p *planner) restarts(c course) []string {
	if c != inPlace || !p.relimits {
		return nil
	}
	before, after := namedGroups(&p.base.Spec), namedGroups(p.spec)
	for role := range rolesOf(before, after) {
		was, is := manifestOf(p.base.Spec.Pod, before, role), manifestOf(p.spec.Pod, after, role)
		for i := range is.Launchables { // they differ in nothing but limits
			if a, b := was.Launchables[i].Resources.Memory, is.Launchables[i].Resources.Memory; b > 0 && (a == 0 || b < a) {
				return []string{"a process may have less memory: a pod in which one uses more than it may is started again"}
			}
		}
	}
	return nil
}
