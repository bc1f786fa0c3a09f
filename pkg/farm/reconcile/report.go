package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

type report struct {
	*draft
	after *Facts // without the pods that the plan forgets
}

func (r report) report() {
	s := r.after
	st := rc.Status{RCID: s.RC.ID, ObservedGeneration: s.RC.Generation, Desired: s.RC.Desired(), Owner: s.Owner}
	if s.Previous != nil {
		st.Conditions = slices.DeleteFunc(slices.Clone(s.Previous.Conditions), func(cond rc.Condition) bool {
			// A type that another version wrote, and that this version would never clear
			return rc.SeverityOf(cond.Type) == rc.NoCondition
		})
		for i := range st.Conditions { // another version may have written longer reasons
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
		if r.after.keptAsAdopted(p) && (!hasExpectedDigest(s, p) || st.Placed > st.Desired) {
			adopted++
		}
	}
	r.progress(&st)
	r.plan.failures = append(slices.Clone(s.Errors), unreadOperators(s)...)
	for _, req := range s.Requests {
		if req.Waits != "" {
			r.plan.failures = append(r.plan.failures, req.Waits)
		}
	}
	st.LastError = Few(r.plan.failures)
	r.plan.Status = st
	r.reportVoid()
	r.conditions(offTarget(s), adopted, ended, waitingFor)
	if s.each != nil && AllowsMassStop(&s.RC) && (massStopUsed(s) || r.plan.Status.Is(rc.Converged)) {
		r.plan.Status.MassStopUsed = s.RC.Generation
	}
	r.plan.set(s.Now, rc.NodeLost, len(lost) > 0, fmt.Sprintf(
		"%d pods on lost nodes, %d on nodes without a preparer: %s",
		st.Lost, st.Unmanaged, field.Few(slices.Sorted(maps.Keys(lost)), maxNames, ", ")))
}

// unreadOperators returns texts about nodes whose operators' settings cannot be read, where that keeps a pod on a node
// or keeps a node without a pod.
func unreadOperators(f *Facts) (texts []string) {
	sel := f.rule.Selector
	if sel == nil {
		return nil
	}
	has := map[string]bool{}
	for p := range f.all() {
		v := f.Nodes[p.Node]
		has[p.Node] = true
		if v != nil && v.OpsUnread != "" && p.RunState == pod.Running && !v.Matches(sel) {
			texts = append(texts, fmt.Sprintf("%s; %s stays on %s", v.OpsUnread, name(p.Identity), p.Node))
		}
	}
	if f.each == nil {
		return texts
	}
	for _, name := range slices.Sorted(maps.Keys(f.Nodes)) {
		if v := f.Nodes[name]; v.OpsUnread != "" && v.Alive && !has[name] && v.Matches(sel) {
			texts = append(texts, fmt.Sprintf("%s; %s gets no pod", v.OpsUnread, name))
		}
	}
	return texts
}

// reportVoid shows void requests in the status for a while, because the operator may not have waited for the answer.
func (r report) reportVoid() {
	var reasons []string
	for _, v := range r.plan.Void {
		reasons = append(reasons, v.Reason)
	}
	if len(reasons) > 0 {
		r.plan.set(r.after.Now, rc.RequestVoid, true, Few(reasons))
	}
	i := slices.IndexFunc(r.plan.Status.Conditions, func(cond rc.Condition) bool {
		return cond.Type == rc.RequestVoid && cond.True
	})
	if i < 0 {
		return
	}
	if left := voidShown - r.after.Now.Sub(r.plan.Status.Conditions[i].Since); left > 0 {
		r.requeueAfter(left)
	} else if len(reasons) == 0 {
		r.plan.set(r.after.Now, rc.RequestVoid, false, "")
	}
}

func (r report) conditions(outdated, adopted, ended int, waitingFor *Pod) {
	s, st := r.after, &r.plan.Status
	set := func(t rc.ConditionType, isTrue bool, reason string) { r.plan.set(s.Now, t, isTrue, reason) }
	set(rc.Holding, r.waiting, s.Hold)
	set(rc.Blocked, r.blocked != "", r.blocked)
	set(rc.SchedulerFailing, false, "") // the scheduler was not asked yet
	set(rc.AwaitsStop, len(r.awaitsStop) > 0, Few(r.awaitsStop))
	set(rc.WaitsForService, r.awaitsService != "", r.awaitsService)
	crashes := crashLoops(r.after)
	set(rc.CrashLooping, crashes != "", crashes)
	misplaced := misplacements(r.after)
	set(rc.Misplaced, misplaced != "", misplaced)
	if ip := s.RC.InPlace; ip != nil {
		about := min(ip.Counted(s.RC.ReplicaGroups), st.Desired)
		gone := s.Rollout == "" && (ip.Limit < about || ip.Keep != nil && st.Placed > st.Desired)
		set(rc.RolloutGone, gone, fmt.Sprintf("%d of %d pods may run %s, and no rollout is in charge any more",
			ip.Limit, about, newManifests(s)))
	} else {
		set(rc.RolloutGone, false, "")
	}
	set(rc.RolloutTrouble, s.RolloutTrouble != "", s.RolloutTrouble)
	set(rc.RolloutStuck, s.RolloutStuck != "", s.RolloutStuck)
	set(rc.BreakerTripped, r.withheld > 0, s.Breaker)
	set(rc.Regressed, adopted > 0, fmt.Sprintf(
		"%d pods were found running and stay as they are until the controller is changed", adopted))
	if st.Placed >= st.Desired || s.RC.Disabled {
		set(rc.InsufficientNodes, false, "")
	}
	done := ""
	if ended > 0 {
		done = fmt.Sprintf(", %d ended with status 0", ended)
	}
	left, dead := unconfirmedStops(r.after)
	quiet := r.nothingFollows() && len(r.plan.Adds) == 0 && st.LastError == "" && r.blocked == "" && left == nil
	switch {
	case quiet && st.Placed == st.Desired && st.Available+ended == st.Desired && outdated == 0:
		reason := fmt.Sprintf("%d of %d replicas available%s", st.Available, st.Desired, done)
		if len(dead) > 0 {
			reason += "; nothing can confirm that copies have stopped on machines that are lost: " +
				field.Few(dead, maxNames, ", ")
		}
		set(rc.Converged, true, reason)
	case s.RC.Disabled:
		set(rc.Converged, false, "the controller is disabled: nothing is placed and nothing removed")
	default:
		reason := fmt.Sprintf("%d of %d replicas available%s, %d placed", st.Available, st.Desired, done, st.Placed)
		if st.Stopping > 0 {
			reason += fmt.Sprintf(", %d stopping", st.Stopping)
		}
		if r.later > 0 {
			reason += fmt.Sprintf(", %d come with later stages", r.later)
		}
		if outdated > 0 {
			reason += fmt.Sprintf(", %d with another manifest", outdated)
		}
		if waitingFor != nil {
			reason += fmt.Sprintf("; waiting for %s on %s (%s)",
				name(waitingFor.Identity), waitingFor.Node, describe(waitingFor.Reality))
			if before := tried(s, waitingFor); before != "" {
				reason += "; " + before
			}
		}
		if waitingFor == nil && left != nil {
			reason += fmt.Sprintf("; %s has not confirmed that %s stopped there", left.Name, name(left.Pod))
		}
		set(rc.Converged, false, reason)
	}
}

// nothingFollows reports whether no work is left for later plans: this plan changes nothing, or it only forgets pods,
// with no orphans to adopt and no role that lacks pods.
func (r report) nothingFollows() bool {
	forgotten := len(r.draft.f.Pods) - len(r.after.Pods)
	switch {
	case len(r.plan.Changes) > forgotten:
		return false
	case forgotten == 0:
		return true
	case len(r.after.Orphans) > 0:
		return false
	}
	placed := map[string]int{}
	for p := range r.after.running() {
		placed[p.Role]++
	}
	return !slices.ContainsFunc(r.after.RC.ReplicaGroups, func(g rc.ReplicaGroup) bool {
		return placed[g.Role] < r.after.RC.CountOf(g.Role)
	})
}

// crashLoops names the pods that end again and again, and how they ended last; "" for none. It leaves out the number of
// restarts, because the status must not change with each one.
func crashLoops(f *Facts) string {
	var pods []string
	for p := range f.running() {
		if r := p.Reality; r != nil && r.State == pod.StateCrashLooping && !f.machineLost(p.Node) {
			text := fmt.Sprintf("%s on %s", name(p.Identity), p.Node)
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
		return fmt.Sprintf("%d pods end again and again soon after their start: %s",
			len(pods), field.Few(pods, maxNames, ", "))
	}
}

// unconfirmedStop is a copy whose stop its node has not confirmed.
type unconfirmedStop struct {
	Name string // of the node
	Pod  pod.Identity
}

// unconfirmedStops returns the first copy whose stop is not confirmed, nil for none. dead names lost machines with such
// copies, which may be there for ever and only delay the end of a deleted controller (P5).
func unconfirmedStops(f *Facts) (left *unconfirmedStop, dead []string) {
	lost := map[string]bool{}
	note := func(p *Pod, name string) {
		switch {
		case f.machineLost(name) && f.RC.DeletedAt == nil:
			lost[name] = true
		case left == nil:
			left = &unconfirmedStop{name, p.Identity}
		}
	}
	for p := range f.all() {
		if p.RunState == pod.Stopped && !f.Vacant(p) {
			note(p, p.Node)
		}
		for _, g := range p.Placement.Ghosts {
			note(p, g.Node)
		}
	}
	return left, slices.Sorted(maps.Keys(lost))
}

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

// Limits of the texts in a status. A status is stored several times, in the same transaction as the changes.
const (
	maxNames      = 5
	maxErrors     = 5
	maxErrorBytes = 400 // of each, in JSON
)

// Few joins error texts to one text of limited length.
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

// progress sets the fields on which a rollout bases its decisions (ADR 16).
func (r report) progress(st *rc.Status) {
	if r.after.RC.Service != nil && r.allAdopted() {
		st.Epoch = r.after.Epoch
	}
	for p := range r.after.all() {
		for _, g := range p.Placement.Ghosts {
			if !r.after.machineLost(g.Node) {
				st.Ghosts++
			}
		}
		if p.RunState == pod.Stopped {
			if r.after.machineLost(p.Node) {
				st.StoppingLost++
			}
			continue
		}
		available, managed := r.after.available(p), r.after.aliveOn(p.Node)
		if available && !managed {
			st.UnmanagedAvailable++
		}
		if p.Reality != nil && p.Reality.Standby {
			st.StandingBy++
		}
		if !r.after.inRollout(p) {
			continue
		}
		st.Updated++
		if available && managed {
			st.UpdatedAvailable++
		}
		if !available {
			st.PullSeconds = max(st.PullSeconds, int64(pulledFor(p)/time.Second))
		}
	}
	r.secondNodes(st)
	if r.after.RC.Service != nil || rc.IsPreDeploy(r.after.RC.ID) { // rollouts use it
		st.Failing = failing(r.after)
	}
}

// secondNodes sets when a pod last began to leave a node where it never became available, and whether a hopeless pod
// gets no second node.
func (r report) secondNodes(st *rc.Status) {
	for p := range r.after.all() {
		a := p.Placement.Tried()
		if a != nil && r.after.inRollout(p) && (st.TriedElsewhere == nil || a.Since.After(*st.TriedElsewhere)) {
			st.TriedElsewhere = new(a.Since)
		}
		if left := r.after.evidence.secondNodeWait(p); left > 0 && r.after.evidence.failedToStart(p) {
			r.requeueAfter(left)
		}
		st.Hopeless = st.Hopeless ||
			p.RunState == pod.Running && r.after.current(p) && r.after.evidence.hopeless(p) && p.Reality.NeverAvailable
	}
}

// allAdopted reports whether the placements show all pods that are known to run.
func (d *draft) allAdopted() bool {
	return d.f.Hold == "" && !slices.ContainsFunc(d.plan.Changes, func(ch Change) bool { return ch.Action == Adopt })
}

func newManifests(f *Facts) string {
	roles := f.RC.InPlace.Roles
	if len(roles) == 0 {
		return fmt.Sprintf("manifest %.8s", f.RC.ManifestDigest)
	}
	return "the new manifest of " + field.Few(roles, maxNames, ", ")
}

func isUnhealthy(p *Pod) bool {
	r := p.Reality
	return r != nil && r.Revision >= p.Revision && r.Digest == p.Digest && r.State == pod.StateUnhealthy
}

// maxLogEnd limits the part of a log in a status, in bytes. Two pods with their logs fit into a rollout's reason.
const maxLogEnd = 250

// whyFailing returns why a pod is not available. How its process ended, and during a rollout the end of its log, are
// added if the report is about the pod's present version.
func whyFailing(f *Facts, p *Pod) string {
	r, why := p.Reality, field.Cut(describe(p.Reality), maxErrorBytes)
	if r.Digest != p.Digest {
		return why
	}
	runsAgain := r.Restarts > 0 && r.State != pod.StateFailed && r.State != pod.StateCrashLooping
	if exit := r.LastExit; exit != nil && runsAgain {
		why = fmt.Sprintf("%s; %s %s before", why, exit.Launchable, exit)
	}
	if text := r.LogTail; text != "" && f.Rollout != "" {
		if more := len(text) - maxLogEnd; more > 0 {
			text = "..." + strings.ToValidUTF8(text[more:], "")
		}
		why += "; its log ends: " + text
	}
	return field.Cut(why, rc.MaxReason)
}

// failing returns the first few updated pods that fail or are unhealthy, hopeless ones first. A failed stage keeps them
// in the rollout's record, because the pods may be gone when people look.
func failing(f *Facts) []rc.PodFailure {
	var found []rc.PodFailure
	for p := range f.running() {
		if !f.inRollout(p) || f.available(p) || !f.aliveOn(p.Node) || !hasFailed(p) && !isUnhealthy(p) {
			continue
		}
		found = append(found, rc.PodFailure{
			Pod: name(p.Identity), Node: p.Node, Reason: whyFailing(f, p), Hopeless: f.evidence.hopeless(p),
		})
	}
	slices.SortStableFunc(found, func(a, b rc.PodFailure) int { return boolFirst(a.Hopeless, b.Hopeless) })
	return found[:min(len(found), rc.MaxFailing)]
}
