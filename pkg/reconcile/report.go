package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// report fills the plan's status from the snapshot.
func (c *computation) report() {
	s := c.s
	st := rc.Status{RCID: s.RC.ID, ObservedGeneration: s.RC.Generation, Desired: s.RC.Desired(), Owner: s.Owner}
	if s.Previous != nil {
		st.Conditions = slices.Clone(s.Previous.Conditions)
	}
	if s.RC.DeletedAt != nil {
		st.Desired = 0
	}
	var outdated, adopted int
	var waitingFor *Pod
	lost := map[string]bool{}
	for i := range s.Pods {
		p := &s.Pods[i]
		if p.RunState == pod.Stopped {
			st.Stopping++
			continue
		}
		st.Placed++
		switch {
		case s.available(p):
			st.Available++
		case waitingFor == nil:
			waitingFor = p
		}
		switch {
		case s.gone(p.Node):
			st.Lost++
			lost[p.Node] = true
		case !s.aliveOn(p.Node):
			st.Unmanaged++
			lost[p.Node] = true
		}
		if p.Digest != s.RC.ManifestDigest {
			outdated++
		}
		if c.stays(p) && (p.Digest != s.RC.ManifestDigest || st.Placed > st.Desired) {
			adopted++
		}
	}
	failures := slices.Clone(s.Errors)
	for _, r := range s.Requests {
		if r.Waits != "" {
			failures = append(failures, r.Waits)
		}
	}
	st.LastError = Few(failures)
	c.plan.Status = st
	c.conditions(outdated, adopted, waitingFor)
	c.plan.set(s.Now, rc.NodeLost, len(lost) > 0, fmt.Sprintf("%d pods on lost nodes, %d on nodes without a preparer: %s",
		st.Lost, st.Unmanaged, strings.Join(slices.Sorted(maps.Keys(lost)), ", ")))
}

func (c *computation) conditions(outdated, adopted int, waitingFor *Pod) {
	s, st := c.s, &c.plan.Status
	set := func(t rc.ConditionType, isTrue bool, reason string) { c.plan.set(s.Now, t, isTrue, reason) }
	set(rc.Holding, c.waiting, s.Hold)
	set(rc.Blocked, c.blocked != "", c.blocked)
	set(rc.BreakerTripped, c.held > 0, s.Breaker)
	set(rc.Regressed, adopted > 0, fmt.Sprintf(
		"%d pods were found running and stay as they are until the controller is changed", adopted))
	if st.Placed >= st.Desired {
		set(rc.InsufficientNodes, false, "")
	}
	settled := len(c.plan.Changes) == 0 && len(c.plan.Adds) == 0 && st.LastError == "" && c.blocked == "" && !c.moving()
	switch {
	case settled && st.Placed == st.Desired && st.Available == st.Desired && st.Stopping == 0 && outdated == 0:
		set(rc.Converged, true, fmt.Sprintf("%d of %d replicas available", st.Available, st.Desired))
	case s.RC.Disabled:
		set(rc.Converged, false, "the controller is disabled: nothing is placed and nothing removed")
	default:
		reason := fmt.Sprintf("%d of %d replicas available, %d placed", st.Available, st.Desired, st.Placed)
		if st.Stopping > 0 {
			reason += fmt.Sprintf(", %d stopping", st.Stopping)
		}
		if outdated > 0 {
			reason += fmt.Sprintf(", %d with another manifest", outdated)
		}
		if waitingFor != nil {
			reason += fmt.Sprintf("; waiting for %s.%d on %s (%s)",
				waitingFor.Role, waitingFor.Identity.Index, waitingFor.Node, describe(waitingFor.Reality))
		}
		set(rc.Converged, false, reason)
	}
}

// moving reports whether a pod has copies elsewhere that have not confirmed their stop.
func (c *computation) moving() bool {
	return slices.ContainsFunc(c.s.Pods, func(p Pod) bool { return len(p.Placement.Ghosts) > 0 })
}

// describe says in a few words what a node reports.
func describe(r *pod.Reality) string {
	switch {
	case r == nil:
		return "nothing reported yet"
	case r.Message != "":
		return fmt.Sprintf("%s: %s", r.State, r.Message)
	default:
		return string(r.State)
	}
}

// How much of what is wrong a status repeats: it is stored several times, in one transaction with everything else.
const (
	maxErrors     = 5
	maxErrorBytes = 2000
)

// Few joins what is wrong to one text that is not long, however much it is.
func Few(errs []string) string {
	text := strings.Join(errs[:min(len(errs), maxErrors)], "; ")
	if len(text) > maxErrorBytes {
		text = strings.ToValidUTF8(text[:maxErrorBytes], "") + "..."
	}
	if more := len(errs) - maxErrors; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}
