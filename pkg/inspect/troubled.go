package inspect

import (
	"fmt"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

const maxTroubled = 10

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

// aboutPod returns false if nothing is wrong with the pod.
func aboutPod(s *Situation, p *pod.Placement) (c Cause, is bool) {
	name := NameOf(p)
	v := s.Nodes[p.Node]
	alive := v != nil && v.Alive
	if r, ended := s.ended(p); ended { // the state of its node does not matter then
		return aboutState(s, p, r, name), r.State != pod.StateEnded
	}
	switch {
	case p.LostSince != nil:
		return aboutLost(s, p, name), true
	case p.RunState == pod.Stopped && !alive:
		return Cause{
			fmt.Sprintf("%s was asked to stop, and node %s, which has no living preparer, cannot confirm it.",
				name, p.Node),
			fmt.Sprintf("Start the preparer of %s, or if the machine is gone for good: rcctl pod forget %s --node %s",
				p.Node, name, p.Node),
		}, true
	case s.Losses.lost(p.Node):
		return Cause{
			name + " was on node " + p.Node + ", whose machine is gone; its owner has not written that yet.",
			"Wait; if that does not help, look at the farms: rcctl farms",
		}, true
	case p.UnmanagedSince != nil || !alive:
		return aboutUnmanaged(s, p, name), true
	}
	r, reported := s.Realities[store.At{Identity: p.Identity, Node: p.Node}]
	switch {
	case p.RunState == pod.Stopped && !(reported && r.State == pod.StateStopped):
		return Cause{
			fmt.Sprintf("%s on %s was asked to stop%s and has not confirmed it%s.",
				name, p.Node, since(p.StoppingSince, s.Now), messageOf(r)),
			"Wait for its stop_grace; then look at the preparer of " + p.Node + ".",
		}, true
	case p.Leaves() != nil:
		return Cause{fmt.Sprintf("%s has stopped on %s, where it never became available; it will be placed on a node "+
			"with capacity.", name, p.Node), "Wait; if that does not help, look at the causes about nodes."}, true
	case p.RunState == pod.Stopped:
		return Cause{fmt.Sprintf("%s on %s has stopped; its owner will remove it.", name, p.Node), "Wait."}, true
	case !reported:
		return Cause{
			fmt.Sprintf("%s was placed on %s, which has not reported on it yet.", name, p.Node),
			"Wait; if that does not help, look at the preparer of " + p.Node + ".",
		}, true
	case r.Available && r.Digest == p.Digest:
		return aboutDrained(s, p, v, name)
	default:
		return aboutState(s, p, r, name), true
	}
}

// ended returns the report of a pod, and whether the pod runs once and has ended.
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

func messageOf(r pod.Reality) string {
	if r.Message == "" {
		return ""
	}
	return " (" + r.Message + ")"
}

func aboutLost(s *Situation, p *pod.Placement, name string) Cause {
	what := fmt.Sprintf("%s was on node %s, which is gone since %s.", name, p.Node, At(*p.LostSince))
	forget := fmt.Sprintf("Bring %s back, or if it is gone for good: rcctl pod forget %s --node %s",
		p.Node, name, p.Node)
	after := s.RC.NodeLoss.After.Or(rc.DefaultNodeLossAfter)
	switch {
	case p.RunState == pod.Stopped:
		return Cause{what + " Nobody can confirm that it stopped.", forget}
	case s.RC.NodeLoss.Action == "keep":
		return Cause{what + " Its controller has node_loss.action: keep, so it is not replaced.", forget}
	case !s.RC.ReplacesLost():
		return Cause{what + " Its controller is static, so it is not replaced.", forget}
	case s.Now.Sub(*p.LostSince) < after:
		return Cause{what + fmt.Sprintf(" It is replaced %s after the loss.", after), "Wait."}
	default:
		return Cause{
			what + " It will be replaced.",
			"If no replacement comes, look for a node with capacity: rcctl nodes",
		}
	}
}

func aboutUnmanaged(s *Situation, p *pod.Placement, name string) Cause {
	what := fmt.Sprintf("%s is on node %s, whose preparer does not live; its last report is used.", name, p.Node)
	if p.UnmanagedSince != nil {
		after := s.RC.NodeLoss.UnmanagedAfter.Or(rc.DefaultUnmanagedAfter)
		what = fmt.Sprintf("%s is on node %s, whose preparer is gone since %s; its last report is used",
			name, p.Node, At(*p.UnmanagedSince))
		if s.RC.ReplacesLost() {
			what += fmt.Sprintf(", and it is replaced %s after that", after)
		}
		what += "."
	}
	return Cause{what, "Start the preparer of " + p.Node + "."}
}

func aboutDrained(s *Situation, p *pod.Placement, v *node.View, name string) (c Cause, is bool) {
	if v.Ops.Drain == nil {
		return Cause{}, false
	}
	what := fmt.Sprintf("%s is on node %s, which is drained since %s", name, p.Node, At(v.Ops.Drain.Since))
	if s.RC.Strategy == rc.Static {
		return Cause{
			what + ", and does not move because its controller is static.",
			fmt.Sprintf("rcctl node undrain %s, or stop it at a deadline: rcctl node drain %s --deadline 0s --force",
				p.Node, p.Node),
		}, true
	}
	if least := s.RC.MinimumAvailable(); s.Status != nil && s.Status.Available-1 < least {
		return Cause{
			what + fmt.Sprintf(", and cannot move: %s available, and the minimum is %d.",
				field.Count(s.Status.Available, "replica"), least),
			"Lower min_available, or help the other replicas to become available.",
		}, true
	}
	return Cause{what + "; it moves when another node has capacity.", "Wait, or look for capacity: rcctl nodes"}, true
}

func aboutState(s *Situation, p *pod.Placement, r pod.Reality, name string) Cause {
	what := fmt.Sprintf("%s on %s is %s%s", name, p.Node, r.State, messageOf(r))
	if r.Digest != p.Digest && r.State != pod.StateStopped {
		what += fmt.Sprintf(", still with manifest %s", Short(r.Digest))
	}
	if r.Restarts > 0 {
		what += fmt.Sprintf(", restarted %d times", r.Restarts)
	}
	next, itsLog := "Wait: it is on its way.", "; its log: "+LogsOf(p, s.RC.Name)
	switch r.State {
	case pod.StateFailed:
		next = "Correct what its message names, or apply a manifest that works."
		if r.LastExit != nil || r.Restarts > 0 {
			next = "Apply a manifest that works, or correct what it needs" + itsLog
		}
	case pod.StateCrashLooping:
		next = "Apply a manifest that works" + itsLog
	case pod.StateUnhealthy:
		next = "Look why its health check does not pass" + itsLog
	case pod.StateOrphaned:
		next = "Its owner adopts it; if it does not, look at the farm's log."
	case pod.StateEnded:
		next = "It has done its work, and its restart policy does not restart it" + itsLog
	case pod.StateStopped:
		next = "It stopped although it should run; look at the preparer of " + p.Node + "."
	default:
		if r.Restarts > 0 {
			next = "It has ended before" + itsLog
		}
	}
	return Cause{what + ".", next}
}

func aboutGhost(s *Situation, p *pod.Placement, g pod.Ghost) Cause {
	name := NameOf(p)
	if v := s.Nodes[g.Node]; g.Revision == 0 && v != nil && v.Alive {
		return Cause{
			fmt.Sprintf("%s moves from node %s, where it runs on, to %s.", name, g.Node, p.Node),
			fmt.Sprintf("Wait: if it is not available there within %s, it returns.", s.deadline()),
		}
	}
	what := fmt.Sprintf("%s has moved from node %s to %s, and its stop on %s is not confirmed",
		name, g.Node, p.Node, g.Node)
	if v := s.Nodes[g.Node]; v != nil && v.Alive {
		return Cause{what + ".", "Wait; the node stops it when the new copy is available."}
	}
	return Cause{
		what + " because no preparer lives there.",
		fmt.Sprintf("Bring %s back, or if it is gone for good: rcctl pod forget %s --node %s", g.Node, name, g.Node),
	}
}
