package inspect

import (
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Observation is what a wait has read at one moment.
type Observation struct {
	RC     *rc.RC     // nil: gone
	Status *rc.Status // nil: none yet
	Farms  []store.Member
}

// Progress is a line about how far a controller is.
func Progress(want rc.RC, o Observation) string {
	st := o.Status
	switch {
	case Unclaimed(o.RC, o.Farms):
		return "waiting for a farm: " + whyUnclaimed(o.Farms)
	case st == nil:
		return "waiting for its farm to report"
	case st.ObservedGeneration < want.Generation:
		return fmt.Sprintf("waiting for its farm to see generation %d, it has seen %d",
			want.Generation, st.ObservedGeneration)
	}
	alarms := ""
	line := fmt.Sprintf("%d of %d replicas available", st.Available, st.Desired)
	for _, c := range st.Conditions {
		switch {
		case c.Type == rc.Converged && !c.True && c.Reason != "":
			line = c.Reason
		case c.Type != rc.Converged && c.True:
			alarms += fmt.Sprintf("; %s: %s", c.Type, c.Reason)
		}
	}
	if st.LastError != "" {
		alarms += "; error: " + st.LastError
	}
	return line + alarms
}

// Gone is the goal of a watch that ends with the controller.
const Gone = "Gone"

// Goals are the goals of a watch, the most frequent first.
var Goals = goals()

func goals() []string {
	var others []string
	for _, k := range rc.Kinds {
		if k.Severity > rc.Good {
			others = append(others, string(k.Type))
		}
	}
	slices.Sort(others)
	return append([]string{string(rc.Converged), Gone}, others...)
}

// Reached reports whether the goal of a watch is reached; an empty goal is never reached.
func Reached(until string, o Observation) bool {
	switch {
	case until == "" || o.RC == nil:
		return until == Gone
	case until == string(rc.Unclaimed):
		return Unclaimed(o.RC, o.Farms)
	case until == Gone:
		return false
	default:
		return o.Status != nil && o.Status.ObservedGeneration >= o.RC.Generation && o.Status.Is(rc.ConditionType(until))
	}
}

// Converged reports whether a generation has converged. overtaken is why it never can any more, "" while it can.
func Converged(want *rc.RC, o Observation) (done bool, overtaken string) {
	switch {
	case o.RC == nil:
		return false, fmt.Sprintf("rc %s (%s) was deleted before generation %d converged",
			want.Name, want.ID, want.Generation)
	case o.RC.Generation > want.Generation:
		return false, fmt.Sprintf("rc %s: generation %d was replaced by %d (changed by %s) before it converged",
			want.Name, want.Generation, o.RC.Generation, o.RC.ChangedBy)
	default:
		return o.Status != nil && o.Status.ObservedGeneration == want.Generation && o.Status.Is(rc.Converged), ""
	}
}

// Served is Converged, but it ignores a pod that cannot move off its node, if as many pods as desired are available and
// none stops.
func Served(want *rc.RC, o Observation) (done bool, overtaken string) {
	if done, overtaken = Converged(want, o); done || overtaken != "" || o.Status == nil {
		return done, overtaken
	}
	st := o.Status
	return st.ObservedGeneration == want.Generation && st.Is(rc.Blocked) &&
		st.Placed == st.Desired && st.Available == st.Desired && st.Stopping == 0, ""
}

// Unblocked returns an observation without the condition Blocked.
func Unblocked(o Observation) Observation {
	if o.Status != nil {
		st := *o.Status
		st.Conditions = slices.DeleteFunc(slices.Clone(st.Conditions), func(c rc.Condition) bool {
			return c.Type == rc.Blocked
		})
		o.Status = &st
	}
	return o
}

// MayBeHalted reports whether the caller must read the pods to know whether a generation is halted. soon: the status
// shows trouble; otherwise only the report of a pod can show it.
func MayBeHalted(want *rc.RC, o Observation) (may, soon bool) {
	if o.Status == nil || o.Status.ObservedGeneration != want.Generation {
		return false, false
	}
	soon = o.Status.Is(rc.Blocked) || o.Status.Is(rc.CrashLooping)
	return soon || !o.Status.Is(rc.Converged), soon
}

// Halted reports whether the observed generation cannot converge without another change: it is blocked, or pods of its
// own manifest crash-loop or are hopeless. worst is the pod that halts it, nil if none does.
func Halted(o Observation, pods *Pods) (is bool, worst *pod.Placement, reality pod.Reality) {
	worst, reality = Failing(pods, o.RC.Digests())
	return o.Status.Is(rc.Blocked) ||
		worst != nil && severity(&reality) >= hopeless && !getsSecondNode(o.Status, worst, &reality), worst, reality
}

// getsSecondNode reports whether the owner may still try a hopeless pod on another node. The status may be older than
// the report, so it decides only when it shows that the owner has given up.
func getsSecondNode(st *rc.Status, p *pod.Placement, r *pod.Reality) bool {
	return r.NeverAvailable && p.Tried() == nil && !st.Hopeless
}

// How bad the report of an unavailable pod is.
const (
	onItsWay = iota
	sick     // its check does not pass
	ended    // one of its processes has ended since the pod was first started
	failed
	hopeless // trying again does not help
	crashLooping
)

func severity(r *pod.Reality) int {
	switch {
	case r.State == pod.StateCrashLooping:
		return crashLooping
	case r.Hopeless:
		return hopeless
	case r.State == pod.StateFailed:
		return failed
	case r.Restarts > 0:
		return ended
	case r.State == pod.StateUnhealthy:
		return sick
	default:
		return onItsWay
	}
}

// Failing returns the worst unavailable pod that should run these manifests, and its report; nil for none. It leaves
// out pods on lost machines.
func Failing(pods *Pods, digests rc.Digests) (worst *pod.Placement, reality pod.Reality) {
	for i := range pods.Placements {
		p := &pods.Placements[i]
		r, reported := pods.Realities[store.At{Identity: p.Identity, Node: p.Node}]
		if !reported || pods.Losses.lost(p.Node) || p.RunState != pod.Running || p.Digest != digests.Of(p.Role) ||
			r.Revision < p.Revision || r.Available && r.Digest == p.Digest {
			continue
		}
		if worst == nil || severity(&r) > severity(&reality) {
			worst, reality = p, r
		}
	}
	return worst, reality
}

// LogsOf is the command for a pod's log. It names a pod of a revision by its controller, because another revision may
// have a pod of that name.
func LogsOf(p *pod.Placement, controller string) string {
	name := NameOf(p)
	if rc.UnitOf(p.RCID) != p.RCID {
		name = fmt.Sprintf("%s/%s.%d", controller, p.Role, p.Index)
	}
	return "rcctl logs " + name
}

// LastWords reports whether the end of a pod's log may show why it fails. process has that log; empty: all.
func LastWords(p *pod.Placement, r *pod.Reality) (process string, is bool) {
	switch {
	case p == nil:
		return "", false
	case r.LastExit != nil:
		return r.LastExit.Launchable, true
	default:
		return "", r.State == pod.StateUnhealthy
	}
}
