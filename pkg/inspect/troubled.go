package inspect

import (
	"fmt"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// maxTroubled bounds how many pods an explanation goes into.
const maxTroubled = 10

// troubledPods looks at each pod that is not as it should be.
func troubledPods(s *Situation) []Cause {
	slices.SortFunc(s.Placements, func(a, b pod.Placement) int { return a.Compare(b.Identity) })
	var causes []Cause
	left := 0
	add := func(c Cause, is bool) {
		switch {
		case !is:
		case len(causes) == maxTroubled:
			left++
		default:
			causes = append(causes, c)
		}
	}
	for i := range s.Placements {
		p := &s.Placements[i]
		add(aboutPod(s, p))
		for _, g := range p.Ghosts {
			add(aboutGhost(s, p, g), true)
		}
	}
	if left > 0 {
		causes = append(causes, Cause{fmt.Sprintf("And %d more.", left), "See all: rcctl pods --rc " + s.RC.Name})
	}
	return causes
}

// aboutPod says what is wrong with one pod; is is false when nothing is.
func aboutPod(s *Situation, p *pod.Placement) (c Cause, is bool) {
	name := PodName(p.PodID, p.Identity)
	v := s.Nodes[p.Node]
	alive := v != nil && v.Alive
	if r, ended := s.ended(p); ended { // whatever became of its node since
		return aboutState(p, r, name), r.State != pod.StateEnded
	}
	switch {
	case p.LostSince != nil:
		return aboutLost(s, p, name), true
	case p.RunState == pod.Stopped && !alive:
		return Cause{
			fmt.Sprintf("%s was asked to stop, and node %s, which has no living preparer, cannot confirm it.", name, p.Node),
			fmt.Sprintf("Start the preparer of %s, or if the machine is gone for good: rcctl pod forget %s --node %s", p.Node, name, p.Node),
		}, true
	case s.Losses.lost(p.Node):
		return Cause{name + " was on node " + p.Node + ", whose machine is gone; its owner has not noted that yet.", "Wait; if it stays so, look at the farms: rcctl farms"}, true
	case p.UnmanagedSince != nil || !alive:
		return aboutUnmanaged(s, p, name), true
	}
	r, reported := s.Realities[store.At{Identity: p.Identity, Node: p.Node}]
	switch {
	case p.RunState == pod.Stopped && !(reported && r.State == pod.StateStopped):
		return Cause{fmt.Sprintf("%s on %s was asked to stop%s and has not confirmed it%s.", name, p.Node, since(p.StoppingSince, s.Now), says(r)), "Wait for its stop_grace; then look at the preparer of " + p.Node + "."}, true
	case p.Leaves() != nil:
		return Cause{fmt.Sprintf("%s has stopped on %s, where it never became available; it is placed again where there is room.", name, p.Node), "Wait; if it stays so, see what is said of nodes."}, true
	case p.RunState == pod.Stopped:
		return Cause{fmt.Sprintf("%s on %s has stopped; its owner is about to remove it.", name, p.Node), "Wait."}, true
	case !reported:
		return Cause{fmt.Sprintf("%s was placed on %s, which has not reported on it yet.", name, p.Node), "Wait; if it stays so, look at the preparer of " + p.Node + "."}, true
	case r.Available && r.Digest == p.Digest:
		return aboutStaying(s, p, v, name)
	default:
		return aboutState(p, r, name), true
	}
}

// ended returns what the node of a pod that runs once says of its end, if it has ended.
func (s *Situation) ended(p *pod.Placement) (r pod.Reality, ended bool) {
	m := s.Groups[p.Digest]
	if p.Digest == s.RC.ManifestDigest {
		m = s.Manifest
	}
	r = s.Realities[store.At{Identity: p.Identity, Node: p.Node}]
	return r, p.RunState == pod.Running && m != nil && m.RunsOnce() && r.Ended(p.Digest)
}

func since(at *time.Time, now time.Time) string {
	if at == nil {
		return ""
	}
	return " " + Age(now, *at) + " ago"
}

func says(r pod.Reality) string {
	if r.Message == "" {
		return ""
	}
	return " (" + r.Message + ")"
}

// aboutLost is about a pod whose machine is gone.
func aboutLost(s *Situation, p *pod.Placement, name string) Cause {
	what := fmt.Sprintf("%s was on node %s, which is gone since %s.", name, p.Node, p.LostSince.UTC().Format(time.RFC3339))
	forget := fmt.Sprintf("Bring %s back, or if it is gone for good: rcctl pod forget %s --node %s", p.Node, name, p.Node)
	after := s.RC.NodeLoss.After.Or(rc.DefaultNodeLossAfter)
	switch {
	case p.RunState == pod.Stopped:
		return Cause{what + " Nobody can confirm that it stopped.", forget}
	case s.RC.NodeLoss.Action == "keep":
		return Cause{what + " Its controller says node_loss.action: keep, so that it is not replaced.", forget}
	case !s.RC.ReplacesLost():
		return Cause{what + " Its controller is static, so that it is not replaced.", forget}
	case s.Now.Sub(*p.LostSince) < after:
		return Cause{what + fmt.Sprintf(" It is replaced %s after the loss.", after), "Wait."}
	default:
		return Cause{what + " It is to be replaced.", "If no replacement comes, look for a node with room: rcctl nodes"}
	}
}

// aboutUnmanaged is about a pod whose node has no living preparer.
func aboutUnmanaged(s *Situation, p *pod.Placement, name string) Cause {
	what := fmt.Sprintf("%s is on node %s, whose preparer does not live; its last report counts.", name, p.Node)
	if p.UnmanagedSince != nil {
		after := s.RC.NodeLoss.UnmanagedAfter.Or(rc.DefaultUnmanagedAfter)
		what = fmt.Sprintf("%s is on node %s, whose preparer is gone since %s; its last report counts",
			name, p.Node, p.UnmanagedSince.UTC().Format(time.RFC3339))
		if s.RC.ReplacesLost() {
			what += fmt.Sprintf(", and it is replaced %s after that", after)
		}
		what += "."
	}
	return Cause{what, "Start the preparer of " + p.Node + "."}
}

// aboutStaying is about a pod that is well, on a node that it should leave.
func aboutStaying(s *Situation, p *pod.Placement, v *node.View, name string) (c Cause, is bool) {
	if v.Ops.Drain == nil {
		return Cause{}, false
	}
	what := fmt.Sprintf("%s is on node %s, which is drained since %s", name, p.Node, v.Ops.Drain.Since.UTC().Format(time.RFC3339))
	if s.RC.Strategy == rc.Static {
		return Cause{
			what + ", and stays there because its controller is static.",
			fmt.Sprintf("rcctl node undrain %s, or stop it at a deadline: rcctl node drain %s --deadline 0s --force", p.Node, p.Node),
		}, true
	}
	if least := s.RC.MinimumAvailable(); s.Status != nil && s.Status.Available-1 < least {
		return Cause{
			what + fmt.Sprintf(", and must stay: %d available replicas and a minimum of %d leave no room.", s.Status.Available, least),
			"Lower min_available, or help the other replicas to become available.",
		}, true
	}
	return Cause{what + "; it moves when another node has room.", "Wait, or look for room: rcctl nodes"}, true
}

// aboutState is about a pod whose node reports something other than available.
func aboutState(p *pod.Placement, r pod.Reality, name string) Cause {
	what := fmt.Sprintf("%s on %s is %s%s", name, p.Node, r.State, says(r))
	if r.Digest != p.Digest && r.State != pod.StateStopped {
		what += fmt.Sprintf(", still with manifest %s", Short(r.Digest))
	}
	if r.Restarts > 0 {
		what += fmt.Sprintf(", restarted %d times", r.Restarts)
	}
	next := "Wait: it is on its way."
	switch r.State {
	case pod.StateFailed:
		next = "Mend what its message says, or apply a manifest that works."
		if r.LastExit != nil || r.Restarts > 0 {
			next = "Apply a manifest that works, or mend what it needs; what it wrote: " + LogsOf(p)
		}
	case pod.StateCrashLooping:
		next = "Apply a manifest that works; what it wrote: " + LogsOf(p)
	case pod.StateUnhealthy:
		next = "Look why its health check does not pass; what it wrote: " + LogsOf(p)
	case pod.StateOrphaned:
		next = "Its owner adopts it; if it does not, look at the farm's log."
	case pod.StateEnded:
		next = "It has done its work, and its restart policy leaves it at that; what it wrote: " + LogsOf(p)
	case pod.StateStopped:
		next = "It stopped though it should run; look at the preparer of " + p.Node + "."
	default:
		if r.Restarts > 0 {
			next = "It has ended before; what it wrote: " + LogsOf(p)
		}
	}
	return Cause{what + ".", next}
}

// aboutGhost is about a former copy that has not confirmed its stop.
func aboutGhost(s *Situation, p *pod.Placement, g pod.Ghost) Cause {
	name := PodName(p.PodID, p.Identity)
	if v := s.Nodes[g.Node]; g.Revision == 0 && v != nil && v.Alive {
		return Cause{
			fmt.Sprintf("%s moves from node %s, where it runs on, to %s.", name, g.Node, p.Node),
			fmt.Sprintf("Wait: if it is not available there within %s it goes back.", s.deadline()),
		}
	}
	what := fmt.Sprintf("%s has left node %s for %s, and its stop there is not confirmed", name, g.Node, p.Node)
	if v := s.Nodes[g.Node]; v != nil && v.Alive {
		return Cause{what + ".", "Wait; the node stops it when the new copy is available."}
	}
	return Cause{
		what + " because no preparer lives there.",
		fmt.Sprintf("Bring %s back, or if it is gone for good: rcctl pod forget %s --node %s", g.Node, name, g.Node),
	}
}
