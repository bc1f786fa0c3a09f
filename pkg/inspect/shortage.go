package inspect

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// mover returns the first pod that has to leave its node, nil where there is none or where others have none at all.
func (s *Situation) mover() *pod.Placement {
	sel, err := s.RC.Selector()
	if err != nil || s.running() < s.RC.Desired() {
		return nil
	}
	for i := range s.Placements {
		p := &s.Placements[i]
		if v := s.Nodes[p.Node]; p.RunState == pod.Running && (p.LostSince != nil || p.UnmanagedSince != nil || v != nil && (v.MustLeave() || !v.MayMatch(sel))) {
			return p
		}
	}
	return nil
}

// avoids returns the nodes that a pod must not be moved to.
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

// lacking returns the roles that have fewer pods than they should, in their order: those whose pods want the same of nodes are one, by its first
// name. Where one has to move it is that of the mover.
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
		if g.Wishes() {
			alike = g.Role
		}
		if g.Count == nil || has[g.Role] >= *g.Count || known[alike] {
			continue
		}
		known[alike] = true
		roles = append(roles, g.Role)
	}
	if len(roles) == 0 {
		return []string{""} // any of its pods
	}
	return roles
}

// manifestOf returns the manifest of a role's pods, nil where it cannot be read.
func (s *Situation) manifestOf(role string) *manifest.Manifest {
	if digest := s.RC.ManifestOf(role); digest != s.RC.ManifestDigest {
		return s.Groups[digest]
	}
	return s.Manifest
}

// refusals returns, by reason, the nodes that would not take one more pod of a role, or the one that has to move.
func refusals(s *Situation, role string, mover *pod.Placement) (reasons map[scheduler.Reason][]string, takes []string) {
	reasons = map[scheduler.Reason][]string{}
	sel, err := s.RC.Selector()
	if err != nil {
		return reasons, nil
	}
	next := pod.Identity{RCID: s.RC.ID}
	rule := placement.RuleFor(scheduler.Rule{Selector: sel, Epoch: s.Epoch, MaxPerNode: s.RC.MaxPerNode}, s.manifestOf(role))
	wishes := s.RC.WishesOf(role)
	avoids := avoids(s, mover)
	if mover != nil {
		next = mover.Identity
	}
	perNode := map[string]int{}
	eligible, _ := rule.Eligible(s.Nodes)
	tally := scheduler.NewTally(wishes.Spread.Label, wishes.Spread.Held(), scheduler.GroupsOf(s.Nodes, eligible, wishes.Spread.Label))
	for i := range s.Placements {
		p := &s.Placements[i]
		perNode[p.Node]++
		if p.RunState == pod.Running && p.Identity != next && wishes.Count(p.Role) {
			tally.Add(scheduler.GroupOf(s.Nodes[p.Node], wishes.Spread.Label), 1)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Nodes)) {
		if s.RC.EachNode() && (perNode[name] > 0 || rule.Excludes(s.Nodes[name]) != "") {
			continue // it asks for none, or has its own
		}
		at := scheduler.Candidate{View: s.Nodes[name], Reservation: s.Taken[name], Pods: perNode[name], Avoid: avoids[name], Skewed: tally.Refuses(s.Nodes[name])}
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

// What may be in the way where the reason is scheduler.Ports: another pod, or these.
const (
	portInUse scheduler.Reason = "port in use"
	rangeFull scheduler.Reason = "range full"
)

// portsReason says what kind of clash keeps a node that has not the ports for a pod from taking it.
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

// advice says, for each reason, why nodes take no pod and what to do.
var advice = []struct {
	reason scheduler.Reason
	what   string // after the names of nodes
	next   string
}{
	{scheduler.Selector, "have labels that its selector %q does not match", "Change the selector, or label a node: rcctl label node NODE KEY=VALUE"},
	{scheduler.NotAlive, "have no living preparer", "Start the preparer there."},
	{scheduler.NotSynced, "have not yet said what they run, since the store was new or went back", "Wait; if it stays so, look at the preparer there."},
	{scheduler.Drained, "are drained or cordoned", "When they are wanted again: rcctl node undrain NODE, rcctl node uncordon NODE"},
	{scheduler.Unread, "have a record of their operators that cannot be read", "Mend or remove it, below nodeops/ in Consul; then say again what it said: rcctl label node, cordon or drain."},
	{scheduler.Relabelled, "have labels that are not those that placing counts on there", "Wait: a farm mends that within a minute."},
	{scheduler.Avoided, "are where it is or was, or did not become available when it was moved there", "Look at them: rcctl pods; or add a node."},
	{scheduler.Resources, "have no slot, CPU or memory left for it", "Add a node, or free room: rcctl pods --node NODE"},
	{scheduler.Ports, "have its port taken by another pod", "Add a node: two pods cannot share a static port on one node."},
	{portInUse, "have something else that listens on its port", "Stop that, which rcctl nodes -o wide shows below IN USE, or choose another port."},
	{rangeFull, "have too few numbers left for its dynamic ports", "Widen the range there (preparer --port-min, --port-max), or add a node."},
	{scheduler.Skew, "are in groups that have as many of its pods as spread lets them, or in none", "Free room where it has the fewest pods, add a node there, or raise spread.skew."},
	{scheduler.MaxPerNode, "have as many of its pods as max_per_node allows", "Add a node, or raise max_per_node."},
}

// refusedByScheduler is about reasons in the status that are not ours: a scheduler that is not the built-in one has them, so that neither
// waiting nor another node helps.
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
	cause := Cause{"Its scheduler refuses nodes by " + what + ": " + others.String() + ".", "Look at the scheduler: its log, and what it means by that."}
	if len(takes) > 0 {
		cause.What += " By the farm's own rule there is room on " + SomeOf(takes) + "."
	}
	return cause, true
}

// shortage looks for nodes, where replicas lack them.
func shortage(s *Situation) []Cause {
	if !s.is(rc.InsufficientNodes) {
		return nil
	}
	if len(s.Nodes) == 0 {
		return []Cause{{"There is no node at all.", "Start a preparer on each machine."}}
	}
	what := count(max(0, s.RC.Desired()-s.running()), "replica has", "replicas have") + " no node"
	mover := s.mover()
	if s.running() >= s.RC.Desired() && mover != nil {
		what = PodName(mover.PodID, mover.Identity) + " has to leave its node, and no other takes it"
	}
	causes := []Cause{{What: what + ": " + s.why(rc.InsufficientNodes) + "."}}
	roles := s.lacking(mover)
	for i, role := range roles {
		of := ""
		if len(roles) > 1 {
			of = "For " + role + ": "
		}
		causes = append(causes, s.shortageOf(role, of, mover, i == 0)...)
	}
	return causes
}

// shortageOf says why nodes take no more pods of a role. What a scheduler refuses is said once, of the first.
func (s *Situation) shortageOf(role, of string, mover *pod.Placement, first bool) (causes []Cause) {
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
		causes = append(causes, Cause{of + fmt.Sprintf("These nodes (%d of %d) %s: %s.", len(names), len(s.Nodes), what, SomeOf(names)), a.next})
	}
	if len(takes) > 0 {
		causes = append(causes, Cause{of + "By now there is room on " + SomeOf(takes) + ".", "Wait: its farm looks again when a node changes."})
	}
	return causes
}
