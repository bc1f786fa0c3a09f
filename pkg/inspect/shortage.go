package inspect

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// mover returns the first pod that must move off its node, nil if there is none, or if replicas have no node at all.
func (s *Situation) mover() *pod.Placement {
	sel, err := s.RC.Selector()
	if err != nil || s.running() < s.RC.Desired() {
		return nil
	}
	for i := range s.Placements {
		p := &s.Placements[i]
		if v := s.Nodes[p.Node]; p.RunState == pod.Running &&
			(p.LostSince != nil || p.UnmanagedSince != nil || v != nil && (v.MustLeave() || !v.MayMatch(sel))) {
			return p
		}
	}
	return nil
}

func avoids(s *Situation, p *pod.Placement) map[string]bool {
	names := map[string]bool{}
	if p == nil {
		return names
	}
	names[p.Node] = true
	for _, g := range p.Ghosts {
		names[g.Node] = true
	}
	for _, a := range s.RC.Avoided(p, s.Now) {
		names[a.Node] = true
	}
	return names
}

// lacking returns the role of the pod that must move, else the roles with too few pods. Of roles with the same demands
// on nodes it returns the first.
func (s *Situation) lacking(mover *pod.Placement) []string {
	if mover != nil {
		return []string{mover.Role}
	}
	has := map[string]int{}
	for i := range s.Placements {
		if s.Placements[i].RunState == pod.Running {
			has[s.Placements[i].Role]++
		}
	}
	var roles []string
	known := map[string]bool{}
	for _, g := range s.RC.ReplicaGroups {
		alike := s.RC.ManifestOf(g.Role)
		if g.HasPreferences() {
			alike = g.Role
		}
		if g.Count == nil || has[g.Role] >= *g.Count || known[alike] {
			continue
		}
		known[alike] = true
		roles = append(roles, g.Role)
	}
	if len(roles) == 0 {
		return []string{""} // any pod of the controller
	}
	return roles
}

func (s *Situation) manifestOf(role string) *manifest.Manifest {
	if digest := s.RC.ManifestOf(role); digest != s.RC.ManifestDigest {
		return s.Groups[digest]
	}
	return s.Manifest
}

// refusals returns the nodes that would not take the mover, or, if that is nil, one more pod of the role. takes has the
// others.
func refusals(s *Situation, role string, mover *pod.Placement) (reasons map[scheduler.Reason][]string, takes []string) {
	reasons = map[scheduler.Reason][]string{}
	sel, err := s.RC.Selector()
	if err != nil {
		return reasons, nil
	}
	next := pod.Identity{RCID: s.RC.ID}
	rule := placement.RuleFor(scheduler.Rule{Selector: sel, Epoch: s.Epoch, MaxPerNode: s.RC.MaxPerNode},
		s.manifestOf(role))
	preferences := s.RC.PreferencesOf(role)
	avoids := avoids(s, mover)
	if mover != nil {
		next = mover.Identity
	}
	perNode := map[string]int{}
	eligible, _ := rule.Eligible(s.Nodes)
	tally := scheduler.NewTally(preferences.Spread.Label, preferences.Spread.Held(),
		scheduler.GroupsOf(s.Nodes, eligible, preferences.Spread.Label))
	for i := range s.Placements {
		p := &s.Placements[i]
		perNode[p.Node]++
		if p.RunState == pod.Running && p.Identity != next && preferences.Count(p.Role) {
			tally.Add(scheduler.GroupOf(s.Nodes[p.Node], preferences.Spread.Label), 1)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Nodes)) {
		if s.RC.EachNode() && (perNode[name] > 0 || rule.Excludes(s.Nodes[name]) != "") {
			continue // the node needs no pod, or has one
		}
		at := scheduler.Candidate{
			View: s.Nodes[name], Reservation: s.Taken[name], Pods: perNode[name],
			Avoid: avoids[name], Skewed: tally.Refuses(s.Nodes[name]),
		}
		if reason := rule.Check(at, next); reason != "" {
			if reason == scheduler.Ports {
				reason = portsReason(at, rule.Ask, next)
			}
			reasons[reason] = append(reasons[reason], name)
		} else {
			takes = append(takes, name)
		}
	}
	return reasons, takes
}

// In this file, scheduler.Ports means that another pod has a port. These are the other reasons about ports.
const (
	portInUse scheduler.Reason = "port in use"
	rangeFull scheduler.Reason = "range full"
)

func portsReason(at scheduler.Candidate, want node.Claim, id pod.Identity) scheduler.Reason {
	want.Pod = id
	switch clash := scheduler.ClashOf(at.View, at.Reservation, want); {
	case clash.Port == 0:
		return rangeFull
	case clash.Machine:
		return portInUse
	default:
		return scheduler.Ports
	}
}

var advice = []struct {
	reason scheduler.Reason
	what   string // after "These nodes"
	next   string
}{
	{
		scheduler.Selector, "have labels that its selector %q does not match",
		"Change the selector, or label a node: rcctl label node NODE KEY=VALUE",
	},
	{scheduler.NotAlive, "have no living preparer", "Start the preparer there."},
	{
		scheduler.NotSynced, "have not reported what they run since the store was made or went back",
		"Wait; if that does not help, look at the preparer there.",
	},
	{
		scheduler.Drained, "are drained or cordoned",
		"When they are wanted again: rcctl node undrain NODE, rcctl node uncordon NODE",
	},
	{
		scheduler.Containers, "cannot run containers",
		"Mend what they lack, as rcctl nodes -o yaml shows it, or add a node: docs/running.md, Images.",
	},
	{
		scheduler.Unread, "have a record of their operators that cannot be read",
		"Correct or remove it, below nodeops/ in Consul; then repeat its settings: rcctl label node, cordon or drain.",
	},
	{
		scheduler.Relabelled, "have new labels that their reservation does not have yet",
		"Wait: a farm updates it within a minute.",
	},
	{
		scheduler.Avoided, "are where it is or was, or did not become available when it was moved there",
		"Look at them: rcctl pods; or add a node.",
	},
	{
		scheduler.Resources, "have no slot, CPU or memory left for it",
		"Add a node, or free capacity: rcctl pods --node NODE",
	},
	{
		scheduler.Ports, "have its port taken by another pod",
		"Add a node: two pods cannot share a static port on one node.",
	},
	{
		portInUse, "have another program that listens on its port",
		"Stop that program (rcctl nodes -o wide shows the port below IN USE), or choose another port.",
	},
	{
		rangeFull, "have too few free ports in the range for its dynamic ports",
		"Widen the range there (preparer --port-min, --port-max), or add a node.",
	},
	{
		scheduler.Skew, "are in groups that have as many of its pods as spread allows, or are in no group",
		"Free capacity in the group with the fewest of its pods, add a node there, or raise spread.skew.",
	},
	{scheduler.MaxPerNode, "have as many of its pods as max_per_node allows", "Add a node, or raise max_per_node."},
}

// refusedByScheduler is about reasons that we do not know. They come from an outside scheduler, so neither waiting nor
// another node helps.
func refusedByScheduler(s *Situation, takes []string) (Cause, bool) {
	_, counts, _ := strings.Cut(s.why(rc.InsufficientNodes), rc.TakeNone)
	others := scheduler.ParseReasons(counts).Others()
	if len(others) == 0 {
		return Cause{}, false
	}
	what := "a reason of its own"
	if len(others) > 1 {
		what = "reasons of its own"
	}
	cause := Cause{
		"Its scheduler refuses nodes for " + what + ": " + others.String() + ".",
		"Look at the scheduler's log and documents.",
	}
	if len(takes) > 0 {
		cause.What += " By the farm's own rule, these nodes have capacity: " + SomeOf(takes) + "."
	}
	return cause, true
}

func shortage(s *Situation) []Cause {
	if !s.is(rc.InsufficientNodes) {
		return nil
	}
	if len(s.Nodes) == 0 {
		return []Cause{{"There is no node at all.", "Start a preparer on each machine."}}
	}
	mover := s.mover()
	var causes []Cause
	free := false // some node takes a pod now, so the farm's counts are of an earlier moment, or by another rule
	roles := s.lacking(mover)
	for i, role := range roles {
		of := ""
		if len(roles) > 1 {
			of = "For " + role + ": "
		}
		found, takes := s.shortageOf(role, of, mover, i == 0)
		causes, free = append(causes, found...), free || takes
	}
	what := s.why(rc.InsufficientNodes)
	if len(causes) > 0 && !free {
		what = withoutCounts(what)
	}
	return slices.Insert(causes, 0, Cause{What: what + "."})
}

// withoutCounts removes the counts of nodes from the reason of InsufficientNodes.
func withoutCounts(reason string) string {
	before, _, found := strings.Cut(reason, rc.TakeNone)
	if of := strings.LastIndex(before, "; of "); found && of >= 0 {
		return before[:of]
	}
	return reason
}

// shortageOf explains why nodes take no more pods of a role; first: also the refusals of an outside scheduler. free:
// some node takes a pod now.
func (s *Situation) shortageOf(role, of string, mover *pod.Placement, first bool) (causes []Cause, free bool) {
	reasons, takes := refusals(s, role, mover)
	if cause, refused := refusedByScheduler(s, takes); refused {
		if takes = nil; first {
			causes = append(causes, cause)
		}
	}
	for _, a := range advice {
		names := reasons[a.reason]
		if len(names) == 0 {
			continue
		}
		what := a.what
		if a.reason == scheduler.Selector {
			what = fmt.Sprintf(a.what, s.RC.NodeSelector)
		}
		if a.reason == scheduler.Containers {
			names = field.Each(names, func(n string) string { return n + " (" + s.Nodes[n].WhyNoContainers() + ")" })
		}
		causes = append(causes,
			Cause{
				of + fmt.Sprintf("These nodes (%d of %d) %s: %s.", len(names), len(s.Nodes), what, SomeOf(names)),
				a.next,
			})
	}
	if len(takes) > 0 {
		causes = append(causes,
			Cause{
				of + "These nodes have capacity now: " + SomeOf(takes) + ".",
				"Wait: its farm looks again when a node changes.",
			})
	}
	return causes, len(takes) > 0
}
