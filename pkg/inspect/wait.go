package inspect

import (
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Observation is what a wait sees at one moment.
type Observation struct {
	RC     *rc.RC     // nil: gone
	Status *rc.Status // nil: none yet
	Farms  []store.Member
}

// Progress says on one line how far a controller is.
func Progress(want rc.RC, o Observation) string {
	st := o.Status
	switch {
	case Unclaimed(o.RC, o.Farms):
		return "waiting for a farm: " + whyUnclaimed(o.Farms)
	case st == nil:
		return "waiting for its farm to report"
	case st.ObservedGeneration < want.Generation:
		return fmt.Sprintf("waiting for its farm to see generation %d, it has seen %d", want.Generation, st.ObservedGeneration)
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

// Goals are the goals of a watch: the conditions, and Gone. What people wait for most often comes first.
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

// Reached reports whether a watch until a goal has come to its end; an empty goal is none.
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

// Converged reports whether a generation of a controller has converged. overtaken says why it never will, "" while it may.
func Converged(want *rc.RC, o Observation) (done bool, overtaken string) {
	switch {
	case o.RC == nil:
		return false, fmt.Sprintf("rc %s (%s) was deleted before generation %d converged", want.Name, want.ID, want.Generation)
	case o.RC.Generation > want.Generation:
		return false, fmt.Sprintf("rc %s: generation %d was replaced by %d (changed by %s) before it converged", want.Name, want.Generation, o.RC.Generation, o.RC.ChangedBy)
	default:
		return o.Status != nil && o.Status.ObservedGeneration == want.Generation && o.Status.Is(rc.Converged), ""
	}
}

// Served is Converged but for what keeps pods from leaving their nodes: it is done, too, where as many pods as asked for
// are available, and none stops.
func Served(want *rc.RC, o Observation) (done bool, overtaken string) {
	if done, overtaken = Converged(want, o); done || overtaken != "" || o.Status == nil {
		return done, overtaken
	}
	st := o.Status
	return st.ObservedGeneration == want.Generation && st.Is(rc.Blocked) &&
		st.Placed == st.Desired && st.Available == st.Desired && st.Stopping == 0, ""
}

// Unblocked returns an observation without the condition that a pod cannot leave its node.
func Unblocked(o Observation) Observation {
	if o.Status != nil {
		st := *o.Status
		st.Conditions = slices.DeleteFunc(slices.Clone(st.Conditions), func(c rc.Condition) bool { return c.Type == rc.Blocked })
		o.Status = &st
	}
	return o
}

// MayBeHalted reports whether a generation's own pods have to be looked at, to tell whether it is halted. soon: its
// status tells of trouble already; else that of one pod is in its report alone.
func MayBeHalted(want *rc.RC, o Observation) (may, soon bool) {
	if o.Status == nil || o.Status.ObservedGeneration != want.Generation {
		return false, false
	}
	soon = o.Status.Is(rc.Blocked) || o.Status.Is(rc.CrashLooping)
	return soon || !o.Status.Is(rc.Converged), soon
}

// Halted reports whether the generation that a status is about does not converge without another change: it is blocked,
// or pods of its manifest crash-loop, or trying again does not mend what keeps them from running. Those of the manifest
// before may, until they are replaced. worst is the pod that keeps it, nil where none does.
func Halted(o Observation, pods *Pods) (is bool, worst *pod.Placement, says pod.Reality) {
	worst, says = Failing(pods, o.RC.Digests())
	return o.Status.Is(rc.Blocked) || worst != nil && severity(&says) >= hopeless && !getsSecondNode(o.Status, worst, &says), worst, says
}

// getsSecondNode reports whether a hopeless pod is tried on another node, or may be for all that its owner has said so
// far: a status may be older than the report of the pod.
func getsSecondNode(st *rc.Status, p *pod.Placement, says *pod.Reality) bool {
	return says.NeverAvailable && p.Tried() == nil && !st.Hopeless
}

// How bad a report about a pod is that is not available.
const (
	onItsWay = iota
	sick     // its check does not pass
	ended    // one of its processes has ended since it was started first
	failed
	hopeless // trying again does not mend it
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

// Failing returns the pod that is worst off of those that are to run some manifests and are not available, nil for
// none. What was on a lost machine fails no more.
func Failing(pods *Pods, digests rc.Digests) (worst *pod.Placement, says pod.Reality) {
	for i := range pods.Placements {
		p := &pods.Placements[i]
		r, reported := pods.Realities[store.At{Identity: p.Identity, Node: p.Node}]
		if !reported || pods.Losses.lost(p.Node) || p.RunState != pod.Running || p.Digest != digests.Of(p.Role) || r.Revision < p.Revision || r.Available && r.Digest == p.Digest {
			continue
		}
		if worst == nil || severity(&r) > severity(&says) {
			worst, says = p, r
		}
	}
	return worst, says
}

// LogsOf is the command that shows what a pod wrote.
func LogsOf(p *pod.Placement) string { return "rcctl logs " + PodName(p.PodID, p.Identity) }

// LastWords reports whether the end of a pod's log may say why it fails, and of which process; empty: of all of them. A pod that is on its
// way has written nothing of the kind.
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
