package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// report makes the plan's status. The status describes the controller without the pods that the plan forgets: those that
// were asked to stop, and have.
type report struct {
	*draft
	s *Snapshot // without these
}

// report fills the plan's status from the snapshot.
func (c report) report() {
	s := c.s
	st := rc.Status{RCID: s.RC.ID, ObservedGeneration: s.RC.Generation, Desired: s.RC.Desired(), Owner: s.Owner}
	if s.Previous != nil {
		st.Conditions = slices.DeleteFunc(slices.Clone(s.Previous.Conditions), func(c rc.Condition) bool {
			return rc.SeverityOf(c.Type) == rc.NoCondition // of another version; who cannot set one cannot end it
		})
		for i := range st.Conditions { // whoever wrote them
			st.Conditions[i].Reason = field.Cut(st.Conditions[i].Reason, rc.MaxReason)
		}
	}
	if s.RC.DeletedAt != nil {
		st.Desired = 0
	}
	adopted, ended := 0, 0
	var waitingFor *Pod
	lost := map[string]bool{}
	for p := range s.all() {
		if p.RunState == pod.Stopped {
			st.Stopping++
			continue
		}
		st.Placed++
		switch {
		case s.available(p):
			st.Available++
		case s.endedWell(p):
			ended++
		case waitingFor == nil:
			waitingFor = p
		}
		switch {
		case s.machineLost(p.Node):
			st.Lost++
			lost[p.Node] = true
		case !s.aliveOn(p.Node):
			st.Unmanaged++
			lost[p.Node] = true
		}
		if c.s.stays(p) && (!known(s, p) || st.Placed > st.Desired) {
			adopted++
		}
	}
	c.progress(&st)
	c.plan.failures = append(slices.Clone(s.Errors), unreadOperators(s)...)
	for _, r := range s.Requests {
		if r.Waits != "" {
			c.plan.failures = append(c.plan.failures, r.Waits)
		}
	}
	st.LastError = Few(c.plan.failures)
	c.plan.Status = st
	c.reportVoid()
	c.conditions(offTarget(s), adopted, ended, waitingFor)
	if s.each != nil && AllowsMassStop(&s.RC) && (s.massStopUsed() || c.plan.Status.Is(rc.Converged)) {
		c.plan.Status.MassStopUsed = s.RC.Generation
	}
	c.plan.set(s.Now, rc.NodeLost, len(lost) > 0, fmt.Sprintf("%d pods on lost nodes, %d on nodes without a preparer: %s",
		st.Lost, st.Unmanaged, field.Few(slices.Sorted(maps.Keys(lost)), maxNames, ", ")))
}

// unreadOperators says where a record of operators that cannot be read decides what becomes of a pod: which stays where it would not match, and which
// node that would ask for one gets none.
func unreadOperators(s *Snapshot) (texts []string) {
	rule, err := s.Rule()
	if err != nil {
		return nil
	}
	has := map[string]bool{}
	for p := range s.all() {
		v := s.Nodes[p.Node]
		has[p.Node] = true
		if v != nil && v.OpsUnread != "" && p.RunState == pod.Running && !v.Matches(rule.Selector) {
			texts = append(texts, fmt.Sprintf("%s; %s.%d stays on %s", v.OpsUnread, p.Role, p.Identity.Index, p.Node))
		}
	}
	if s.each == nil {
		return texts
	}
	for _, name := range slices.Sorted(maps.Keys(s.Nodes)) {
		if v := s.Nodes[name]; v.OpsUnread != "" && v.Alive && !has[name] && v.Matches(rule.Selector) {
			texts = append(texts, fmt.Sprintf("%s; %s gets no pod", v.OpsUnread, name))
		}
	}
	return texts
}

// reportVoid says in the status for a while that requests were not carried out: whoever asked may not be there any more.
func (c report) reportVoid() {
	var reasons []string
	for _, v := range c.plan.Void {
		reasons = append(reasons, v.Reason)
	}
	if len(reasons) > 0 {
		c.plan.set(c.s.Now, rc.RequestVoid, true, Few(reasons))
	}
	i := slices.IndexFunc(c.plan.Status.Conditions, func(cond rc.Condition) bool { return cond.Type == rc.RequestVoid && cond.True })
	if i < 0 {
		return
	}
	if left := voidShown - c.s.Now.Sub(c.plan.Status.Conditions[i].Since); left > 0 {
		c.requeueAfter(left)
	} else if len(reasons) == 0 {
		c.plan.set(c.s.Now, rc.RequestVoid, false, "")
	}
}

func (c report) conditions(outdated, adopted, ended int, waitingFor *Pod) {
	s, st := c.s, &c.plan.Status
	set := func(t rc.ConditionType, isTrue bool, reason string) { c.plan.set(s.Now, t, isTrue, reason) }
	set(rc.Holding, c.waiting, s.Hold)
	set(rc.Blocked, c.blocked != "", c.blocked)
	set(rc.SchedulerFailing, false, "") // until it is asked
	set(rc.AwaitsStop, len(c.awaitsStop) > 0, Few(c.awaitsStop))
	set(rc.WaitsForService, c.awaitsService != "", c.awaitsService)
	crashes := crashLoops(c.s)
	set(rc.CrashLooping, crashes != "", crashes)
	misplaced := misplacements(c.s)
	set(rc.Misplaced, misplaced != "", misplaced)
	if ip := s.RC.InPlace; ip != nil {
		about := min(ip.Counted(s.RC.ReplicaGroups), st.Desired)
		set(rc.RolloutGone, s.Rollout == "" && (ip.Limit < about || ip.Keep != nil && st.Placed > st.Desired), fmt.Sprintf(
			"%d of %d pods may run %s, and no rollout is in charge any more", ip.Limit, about, newOnes(s)))
	} else {
		set(rc.RolloutGone, false, "")
	}
	set(rc.RolloutTrouble, s.RolloutTrouble != "", s.RolloutTrouble)
	set(rc.RolloutStuck, s.RolloutStuck != "", s.RolloutStuck)
	set(rc.BreakerTripped, c.withheld > 0, s.Breaker)
	set(rc.Regressed, adopted > 0, fmt.Sprintf(
		"%d pods were found running and stay as they are until the controller is changed", adopted))
	if st.Placed >= st.Desired || s.RC.Disabled {
		set(rc.InsufficientNodes, false, "")
	}
	done := ""
	if ended > 0 {
		done = fmt.Sprintf(", %d ended with status 0", ended)
	}
	left, dead := leftBehind(c.s)
	quiet := c.settled() && len(c.plan.Adds) == 0 && st.LastError == "" && c.blocked == "" && left == nil
	switch {
	case quiet && st.Placed == st.Desired && st.Available+ended == st.Desired && outdated == 0:
		reason := fmt.Sprintf("%d of %d replicas available%s", st.Available, st.Desired, done)
		if len(dead) > 0 {
			reason += "; nothing can confirm that copies have stopped on machines that are lost: " + field.Few(dead, maxNames, ", ")
		}
		set(rc.Converged, true, reason)
	case s.RC.Disabled:
		set(rc.Converged, false, "the controller is disabled: nothing is placed and nothing removed")
	default:
		reason := fmt.Sprintf("%d of %d replicas available%s, %d placed", st.Available, st.Desired, done, st.Placed)
		if st.Stopping > 0 {
			reason += fmt.Sprintf(", %d stopping", st.Stopping)
		}
		if c.later > 0 {
			reason += fmt.Sprintf(", %d come with later stages", c.later)
		}
		if outdated > 0 {
			reason += fmt.Sprintf(", %d with another manifest", outdated)
		}
		if waitingFor != nil {
			reason += fmt.Sprintf("; waiting for %s.%d on %s (%s)",
				waitingFor.Role, waitingFor.Identity.Index, waitingFor.Node, describe(waitingFor.Reality))
			if before := tried(s, waitingFor); before != "" {
				reason += "; " + before
			}
		}
		if waitingFor == nil && left != nil {
			reason += fmt.Sprintf("; %s has not confirmed that %s.%d stopped there", left.Name, left.Pod.Role, left.Pod.Index)
		}
		set(rc.Converged, false, reason)
	}
}

// settled reports whether the plan changes nothing, or only forgets pods and nothing can follow from that: there are no
// orphans, of which one may be adopted then, and no role lacks pods, for which there may be room then.
func (c report) settled() bool {
	forgotten := len(c.draft.s.Pods) - len(c.s.Pods)
	switch {
	case len(c.plan.Changes) > forgotten:
		return false
	case forgotten == 0:
		return true
	case len(c.s.Orphans) > 0:
		return false
	}
	placed := map[string]int{}
	for p := range c.s.running() {
		placed[p.Role]++
	}
	return !slices.ContainsFunc(c.s.RC.ReplicaGroups, func(g rc.ReplicaGroup) bool {
		return placed[g.Role] < c.s.RC.CountOf(g.Role)
	})
}

// crashLoops names the pods that end again and again, and how they ended last; "" for none. How often they were started again is left
// out: a status changes no more often than what it says.
func crashLoops(s *Snapshot) string {
	var pods []string
	for p := range s.running() {
		if r := p.Reality; r != nil && r.State == pod.StateCrashLooping && !s.machineLost(p.Node) {
			text := fmt.Sprintf("%s.%d on %s", p.Role, p.Identity.Index, p.Node)
			if r.LastExit != nil {
				text += fmt.Sprintf(" (%s %s)", r.LastExit.Launchable, r.LastExit)
			}
			pods = append(pods, text)
		}
	}
	switch len(pods) {
	case 0:
		return ""
	case 1:
		return "1 pod ends again and again soon after its start: " + pods[0]
	default:
		return fmt.Sprintf("%d pods end again and again soon after their start: %s", len(pods), field.Few(pods, maxNames, ", "))
	}
}

// unconfirmedStop is a copy of a pod that must stop, and that its node has not confirmed to have stopped.
type unconfirmedStop struct {
	Name string // of the node
	Pod  pod.Identity
}

// leftBehind returns the first copy that must stop and has not, nil for none. Those on lost machines do not count: they may stay there
// for ever, and hold up nothing but the end of a deleted controller (P5). Their nodes come back by name.
func leftBehind(s *Snapshot) (left *unconfirmedStop, dead []string) {
	lost := map[string]bool{}
	note := func(p *Pod, name string) {
		switch {
		case s.machineLost(name) && s.RC.DeletedAt == nil:
			lost[name] = true
		case left == nil:
			left = &unconfirmedStop{name, p.Identity}
		}
	}
	for p := range s.all() {
		if p.RunState == pod.Stopped && !s.Vacant(p) {
			note(p, p.Node)
		}
		for _, g := range p.Placement.Ghosts {
			note(p, g.Node)
		}
	}
	return left, slices.Sorted(maps.Keys(lost))
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
	maxNames      = 5
	maxErrors     = 5
	maxErrorBytes = 400 // of each, in JSON
)

// Few joins what is wrong to one text that is not long, however much it is.
func Few(errs []string) string {
	first := slices.Clone(errs[:min(len(errs), maxErrors)])
	for i := range first {
		first[i] = field.Cut(first[i], maxErrorBytes)
	}
	if more := len(errs) - len(first); more > 0 {
		first = append(first, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(first, "; ")
}

// progress fills in what a rollout decides by (ADR 16).
func (c report) progress(st *rc.Status) {
	if c.s.RC.Service != nil && c.allAdopted() {
		st.Epoch = c.s.Epoch
	}
	for p := range c.s.all() {
		for _, g := range p.Placement.Ghosts {
			if !c.s.machineLost(g.Node) {
				st.Ghosts++
			}
		}
		if p.RunState == pod.Stopped {
			if c.s.machineLost(p.Node) {
				st.StoppingLost++
			}
			continue
		}
		available, managed := c.s.available(p), c.s.aliveOn(p.Node)
		if available && !managed {
			st.UnmanagedAvailable++
		}
		if p.Reality != nil && p.Reality.Standby {
			st.StandingBy++
		}
		if !c.s.rolls(p) {
			continue
		}
		st.Updated++
		if available && managed {
			st.UpdatedAvailable++
		}
	}
	c.secondNodes(st)
	if c.s.RC.Service != nil || rc.IsPreDeploy(c.s.RC.ID) { // rollouts are decided from it
		st.Failing = failing(c.s)
	}
}

// secondNodes says when a pod last began to leave a node where it never became available, and whether one fails that
// does not.
func (c report) secondNodes(st *rc.Status) {
	for p := range c.s.all() {
		if a := p.Placement.Tried(); a != nil && c.s.rolls(p) && (st.TriedElsewhere == nil || a.Since.After(*st.TriedElsewhere)) {
			st.TriedElsewhere = new(a.Since)
		}
		if left := c.s.mayYet(p); left > 0 && c.s.unfit(p) {
			c.requeueAfter(left)
		}
		st.Hopeless = st.Hopeless || p.RunState == pod.Running && c.s.current(p) && c.s.hopeless(p) && p.Reality.NeverAvailable
	}
}

// allAdopted reports whether the placements show all that is known to run: the nodes have spoken, and what they spoke of is adopted.
func (c *draft) allAdopted() bool {
	return c.s.Hold == "" && !slices.ContainsFunc(c.plan.Changes, func(ch Change) bool { return ch.Action == Adopt })
}

// newOnes names the manifests whose pods an upgrade in place limits.
func newOnes(s *Snapshot) string {
	roles := s.RC.InPlace.Roles
	if len(roles) == 0 {
		return fmt.Sprintf("manifest %.8s", s.RC.ManifestDigest)
	}
	return "the new manifest of " + field.Few(roles, maxNames, ", ")
}

// isUnhealthy reports whether the node says of the pod as it should be that its check does not pass.
func isUnhealthy(p *Pod) bool {
	r := p.Reality
	return r != nil && r.Revision >= p.Revision && r.Digest == p.Digest && r.State == pod.StateUnhealthy
}

// maxLogEnd bounds what a status repeats of a log, in bytes. Two pods with theirs fit into the reason of a rollout.
const maxLogEnd = 250

// whyFailing says why a pod is not available: what its node says, how a process of it ended that runs again, and, for a
// rollout to keep, the end of its log. That of a version that the placement does not ask for says nothing.
func (s *Snapshot) whyFailing(p *Pod) string {
	r, why := p.Reality, field.Cut(describe(p.Reality), maxErrorBytes)
	if r.Digest != p.Digest {
		return why
	}
	if exit := r.LastExit; exit != nil && r.Restarts > 0 && r.State != pod.StateFailed && r.State != pod.StateCrashLooping {
		why = fmt.Sprintf("%s; %s %s before", why, exit.Launchable, exit)
	}
	if text := r.LogTail; text != "" && s.Rollout != "" {
		if more := len(text) - maxLogEnd; more > 0 {
			text = "..." + strings.ToValidUTF8(text[more:], "")
		}
		why += "; its log ends: " + text
	}
	return field.Cut(why, rc.MaxReason)
}

// failing returns the first few pods at the manifests that their roles have now that fail or are unhealthy, those
// first for which there is no hope. A rollout whose stage fails keeps them, because the pods are gone when people
// look.
func failing(s *Snapshot) []rc.PodFailure {
	var found []rc.PodFailure
	for p := range s.running() {
		if !s.rolls(p) || s.available(p) || !s.aliveOn(p.Node) || !hasFailed(p) && !isUnhealthy(p) {
			continue
		}
		found = append(found, rc.PodFailure{
			Pod: fmt.Sprintf("%s.%d", p.Role, p.Identity.Index), Node: p.Node, Reason: s.whyFailing(p), Hopeless: s.hopeless(p),
		})
	}
	slices.SortStableFunc(found, func(a, b rc.PodFailure) int { return boolFirst(a.Hopeless, b.Hopeless) })
	return found[:min(len(found), rc.MaxFailing)]
}
