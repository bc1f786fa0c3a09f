package rcctl

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Explanation is why a controller is as it is, in sentences.
type Explanation struct {
	RCID    string  `json:"rc_id"`
	Name    string  `json:"name"`
	State   string  `json:"state"`
	Summary string  `json:"summary"`
	Causes  []Cause `json:"causes"` // the one to look at first, first
}

// Cause is one thing that keeps a controller from being as it should, and what to do about it.
type Cause struct {
	What string `json:"what"`
	Next string `json:"next,omitempty"`
}

// situation is everything that an explanation follows from.
type situation struct {
	now        time.Time
	rc         rc.RC
	status     *rc.Status
	manifest   *manifest.Manifest // nil: missing or unreadable
	placements []pod.Placement
	realities  map[store.At]pod.Reality
	nodes      map[string]*node.View
	taken      map[string]node.Reservation
	nonce      string // of the cluster
	farms      []store.Member
	owner      string         // farm that holds the lock; empty: none
	breaker    *store.Breaker // nil: missing or unreadable
}

// explainRC says why a controller is not converged, and what to do. It is computed without I/O.
func explainRC(s *situation) Explanation {
	e := Explanation{RCID: s.rc.ID, Name: s.rc.Name, State: stateOf(&s.rc, s.status, s.farms), Causes: []Cause{}}
	e.Summary = s.summary(e.State)
	for _, look := range []func(*situation) []Cause{
		(*situation).ownership, (*situation).records, (*situation).intended, (*situation).held, (*situation).shortage,
		(*situation).upgrade, (*situation).troubledPods,
	} {
		e.Causes = append(e.Causes, look(s)...)
	}
	if len(e.Causes) == 0 && e.State != string(rc.Converged) {
		e.Causes = append(e.Causes, s.otherwise())
	}
	return e
}

func (s *situation) summary(state string) string {
	available := 0
	if s.status != nil {
		available = s.status.Available
	}
	asItShould := state == string(rc.Converged) || s.is(rc.Converged) && (state == string(rc.Misplaced) || state == string(rc.RequestVoid))
	if asItShould {
		return fmt.Sprintf("It has converged: %d of %s available.", available, replicas(s.rc.Desired()))
	}
	return fmt.Sprintf("It has not converged (%s): %d of %s available, %d placed.", state, available, replicas(s.rc.Desired()), s.running())
}

func (s *situation) running() int {
	n := 0
	for i := range s.placements {
		if s.placements[i].RunState == pod.Running {
			n++
		}
	}
	return n
}

// otherwise is the farm's own reason where none of ours applies.
func (s *situation) otherwise() Cause {
	for _, c := range s.status.Conditions {
		if c.Type == rc.Converged && c.Reason != "" {
			return Cause{What: "Its farm says: " + c.Reason + ".", Next: "Wait: rcctl rc status " + s.rc.Name + " --watch --until Converged"}
		}
	}
	return Cause{What: "Nothing is in its way.", Next: "Wait: rcctl rc status " + s.rc.Name + " --watch --until Converged"}
}

// ownership looks for a farm that works on it.
func (s *situation) ownership() []Cause {
	switch {
	case len(s.farms) == 0:
		return []Cause{{"No farm is running, so nobody works on it. Its pods run on.", "Start a farm: farm --id farm-1"}}
	case unclaimed(&s.rc, s.farms):
		return []Cause{{
			fmt.Sprintf("No running farm selects it: its labels are %s, the farms select %s.", orWord(labelText(s.rc.Labels), "none"), s.selectors()),
			"Change its labels and apply it again, or start a farm whose --rc-selector matches it.",
		}}
	case s.owner == "":
		return []Cause{{"No farm owns it at this moment, though one should.", "Wait a few seconds; if it stays so, look at the logs of the farms (rcctl farms)."}}
	case s.status == nil || s.status.ObservedGeneration < s.rc.Generation:
		seen := int64(0)
		if s.status != nil {
			seen = s.status.ObservedGeneration
		}
		return []Cause{{
			fmt.Sprintf("Farm %s owns it and has not reported on generation %d yet (it has seen %d).", s.owner, s.rc.Generation, seen),
			"Wait a few seconds; if it stays so, look at the log of farm " + s.owner + s.at(s.owner) + ".",
		}}
	}
	return nil
}

func (s *situation) selectors() string {
	var parts []string
	for _, m := range s.farms {
		parts = append(parts, fmt.Sprintf("%s (%s)", m.RCSelector, m.ID))
	}
	return strings.Join(parts, ", ")
}

// at says where a farm's debug server is.
func (s *situation) at(farm string) string {
	for _, m := range s.farms {
		if m.ID == farm && m.Address != "" {
			return ", or at its debug server " + m.Address
		}
	}
	return ""
}

func orWord(text, empty string) string {
	if text == "" {
		return empty
	}
	return text
}

// records looks for what cannot be read.
func (s *situation) records() []Cause {
	var causes []Cause
	if s.manifest == nil {
		causes = append(causes, Cause{
			fmt.Sprintf("The manifest %s that it asks for is missing or unreadable, so that no pod can be added.", short(s.rc.ManifestDigest)),
			"Apply its document again: rcctl apply -f FILE",
		})
	}
	if s.status != nil && s.status.LastError != "" && s.manifest != nil {
		causes = append(causes, Cause{"Its farm could not read all of it: " + s.status.LastError + ".", "Mend or remove the record that is named, or restore it."})
	}
	return causes
}

// intended looks at what it was asked to be.
func (s *situation) intended() []Cause {
	switch {
	case s.rc.DeletedAt != nil:
		return []Cause{{
			fmt.Sprintf("It is marked for deletion since %s; %s left, and it goes when the last one's stop is confirmed.", s.rc.DeletedAt.UTC().Format(time.RFC3339), podsAre(len(s.placements))),
			"Watch: rcctl rc status " + s.rc.Name + " --watch --until Gone",
		}}
	case s.rc.Disabled:
		return []Cause{{"It is disabled: nothing is placed and nothing is removed.", "When that is over: rcctl rc enable " + s.rc.Name}}
	}
	return nil
}

func podsAre(n int) string {
	if n == 1 {
		return "1 pod is"
	}
	return fmt.Sprintf("%d pods are", n)
}

// held looks at what keeps farms from acting at all.
func (s *situation) held() []Cause {
	var causes []Cause
	if s.breaker == nil {
		causes = append(causes, Cause{"The record of the mass-stop breaker is missing or unreadable, so that nothing is stopped.", "A running farm makes a missing one; where it is unreadable: rcctl farm resume"})
	} else if s.breaker.Tripped && (s.is(rc.BreakerTripped) || s.rc.DeletedAt != nil || s.running() > s.rc.Desired()) {
		causes = append(causes, Cause{
			fmt.Sprintf("The mass-stop breaker was tripped by %s at %s (%s), so that nothing is stopped.", s.breaker.By, s.breaker.Since.UTC().Format(time.RFC3339), s.breaker.Reason),
			"Find out why (rcctl audit --since 1h). Ask again for what is meant, with --allow-mass-stop, take back what is not; then: rcctl farm resume",
		})
	}
	if s.is(rc.Holding) {
		causes = append(causes, Cause{"Nothing is added for now: " + s.why(rc.Holding) + ".", "Wait; if a node is named for long, look at its preparer's log, or stop its Consul service if it is gone for good. Where it cannot answer: rcctl farm release-hold NODE"})
	}
	if s.is(rc.BooksDiffer) {
		causes = append(causes, Cause{"The scheduler's books differ from what is placed: " + s.why(rc.BooksDiffer) + ".", "Look at the scheduler; its farm asks it again by itself."})
	}
	if s.is(rc.Misplaced) {
		causes = append(causes, Cause{
			"Pods stay on nodes that its selector does not match: " + s.why(rc.Misplaced) + ".",
			"Label the nodes as they were, or change node_selector. A pod of a static controller leaves with: rcctl node drain NODE --deadline 0s --force",
		})
	}
	if s.is(rc.RequestVoid) {
		causes = append(causes, Cause{
			"What an operator asked for was not carried out: " + s.why(rc.RequestVoid) + ".",
			"Look at its pods (rcctl pods --rc " + s.rc.Name + "). If one is gone for good all the same, ask again: rcctl pod forget POD --node NODE",
		})
	}
	if s.is(rc.WaitsForService) {
		causes = append(causes, Cause{"It waits for the other revisions of its service: " + s.why(rc.WaitsForService) + ".", "Wait; if one of them holds or has pods that were found running, look at that one: rcctl rc explain REF"})
	}
	if s.is(rc.RolloutGone) {
		causes = append(causes, Cause{"Its upgrade in place has stopped midway: " + s.why(rc.RolloutGone) + ".", "Deploy the service again."})
	}
	if s.is(rc.Regressed) {
		causes = append(causes, Cause{"Pods were found running that the records did not know, and stay as they are: " + s.why(rc.Regressed) + ".", "Say what is wanted: rcctl apply -f FILE"})
	}
	return causes
}

func (s *situation) is(t rc.ConditionType) bool { return s.status != nil && s.status.Is(t) }

func (s *situation) why(t rc.ConditionType) string {
	for _, c := range s.status.Conditions {
		if c.Type == t {
			return strings.TrimSuffix(c.Reason, ".")
		}
	}
	return ""
}

// upgrade looks at a new manifest that does not get through.
func (s *situation) upgrade() []Cause {
	var causes []Cause
	if s.is(rc.Blocked) {
		causes = append(causes, Cause{"It is blocked: " + s.why(rc.Blocked) + ".", s.unblock()})
	}
	outdated := 0
	for i := range s.placements {
		if p := &s.placements[i]; p.RunState == pod.Running && p.Digest != s.rc.ManifestDigest {
			outdated++
		}
	}
	switch {
	case outdated > 0 && s.rc.Mutator != "":
		causes = append(causes, Cause{fmt.Sprintf("%s on another manifest; rollout %s is in charge of that.", podsAre(outdated), s.rc.Mutator), "Look at the rollout."})
	case outdated > 0 && !s.is(rc.Blocked) && !s.is(rc.Regressed):
		causes = append(causes, Cause{fmt.Sprintf("%s still on another manifest; they are upgraded one at a time.", podsAre(outdated)), "Wait: rcctl rc status " + s.rc.Name + " --watch"})
	}
	return causes
}

// unblock says what helps where something is blocked: what only another manifest mends is said to need one.
func (s *situation) unblock() string {
	if p, r := failing(s.placements, s.realities, s.rc.ManifestDigest); p != nil {
		next := "Apply a manifest that works"
		if severity(&r) <= sick {
			next += ", or give it more time with progress_deadline"
		}
		return next + "; what it wrote: " + logsOf(p)
	}
	switch mover := s.mover(); {
	case mover != nil && s.rc.Strategy == rc.Static:
		return fmt.Sprintf("rcctl node undrain %s, or stop it at a deadline: rcctl node drain %s --deadline 0s --force", mover.Node, mover.Node)
	case mover != nil && len(mover.Avoid) > 0:
		return fmt.Sprintf("Look at the nodes that are named, add one, or let it stay: rcctl node undrain %s", mover.Node)
	case mover != nil:
		return fmt.Sprintf("Lower min_available, allow a max_surge, or let it stay: rcctl node undrain %s", mover.Node)
	case s.status.Available-1 < s.rc.MinimumAvailable():
		return "Lower min_available, or add replicas."
	default:
		return "Free room where it is wanted: rcctl pods --node NODE"
	}
}

// How bad a report about a pod is that is not available.
const (
	onItsWay = iota
	sick     // its check does not pass
	ended    // one of its processes has ended since it was started first
	failed
	crashLooping
)

func severity(r *pod.Reality) int {
	switch {
	case r.State == pod.StateCrashLooping:
		return crashLooping
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

// failing returns the pod that is worst off of those that are to run a manifest and are not available, nil for none.
func failing(placements []pod.Placement, realities map[store.At]pod.Reality, digest string) (worst *pod.Placement, says pod.Reality) {
	for i := range placements {
		p := &placements[i]
		r, reported := realities[store.At{Identity: p.Identity, Node: p.Node}]
		if !reported || p.RunState != pod.Running || p.Digest != digest || r.Revision < p.Revision || r.Available && r.Digest == digest {
			continue
		}
		if worst == nil || severity(&r) > severity(&says) {
			worst, says = p, r
		}
	}
	return worst, says
}

// logsOf is the command that shows what a pod wrote.
func logsOf(p *pod.Placement) string { return "rcctl logs " + podName(p.PodID, p.Identity) }

// deadline is how long a pod may take to become available, min_ready included.
func (s *situation) deadline() time.Duration {
	if s.manifest == nil {
		return s.rc.Deadline()
	}
	return s.rc.Deadline() + s.manifest.ReadyAfter()
}

// mover returns the first pod that has to leave its node, nil where there is none or where others have none at all.
func (s *situation) mover() *pod.Placement {
	sel, err := s.rc.Selector()
	if err != nil || s.running() < s.rc.Desired() {
		return nil
	}
	for i := range s.placements {
		p := &s.placements[i]
		if v := s.nodes[p.Node]; p.RunState == pod.Running && (p.LostSince != nil || p.UnmanagedSince != nil || v != nil && (v.MustLeave() || !v.Matches(sel))) {
			return p
		}
	}
	return nil
}

// avoids returns the nodes that a pod must not be moved to.
func (s *situation) avoids(p *pod.Placement) map[string]bool {
	names := map[string]bool{}
	if p == nil {
		return names
	}
	names[p.Node] = true
	for _, g := range p.Ghosts {
		names[g.Node] = true
	}
	for _, a := range s.rc.Avoided(p, s.now) {
		names[a.Node] = true
	}
	return names
}

// refusals returns, by reason, the nodes that would not take one more pod, or the one that has to move.
func (s *situation) refusals(mover *pod.Placement) (reasons map[scheduler.Reason][]string, takes []string) {
	reasons = map[scheduler.Reason][]string{}
	sel, err := s.rc.Selector()
	if err != nil {
		return reasons, nil
	}
	next := pod.Identity{RCID: s.rc.ID}
	rule := scheduler.Rule{Selector: sel, Nonce: s.nonce, MaxPerNode: s.rc.MaxPerNode, Share: node.Holder{Pod: next}}
	if s.manifest != nil {
		res := s.manifest.Resources()
		rule.Share = node.NewHolder(next, s.manifest.PortMap(), res.CPU, res.Memory)
		rule.Dynamic = s.manifest.DynamicPorts()
	}
	avoids := s.avoids(mover)
	if mover != nil {
		next = mover.Identity
	}
	perNode := map[string]int{}
	for i := range s.placements {
		perNode[s.placements[i].Node]++
	}
	for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
		at := scheduler.Candidate{View: s.nodes[name], Reservation: s.taken[name], Pods: perNode[name], Avoid: avoids[name]}
		if reason := rule.Check(at, next); reason != "" {
			reasons[reason] = append(reasons[reason], name)
		} else {
			takes = append(takes, name)
		}
	}
	return reasons, takes
}

// advice says, for each reason, why nodes take no pod and what to do.
var advice = []struct {
	reason scheduler.Reason
	what   string // after the names of nodes
	next   string
}{
	{scheduler.Selector, "have labels that its selector %q does not match", "Change the selector, or label a node: rcctl node label NODE KEY=VALUE"},
	{scheduler.NotAlive, "have no living preparer", "Start the preparer there."},
	{scheduler.NotSettled, "have not yet said what they run, since the store was new or went back", "Wait; if it stays so, look at the preparer there."},
	{scheduler.Drained, "are drained or cordoned", "When they are wanted again: rcctl node undrain NODE, rcctl node uncordon NODE"},
	{scheduler.Relabelled, "have labels that are not those that placing counts on there", "Wait: a farm mends that within a minute."},
	{scheduler.Avoided, "are where it is or was, or did not become available when it was moved there", "Look at them: rcctl pods; or add a node."},
	{scheduler.Resources, "have no slot, CPU or memory left for it", "Add a node, or free room: rcctl pods --node NODE"},
	{scheduler.Ports, "have its port in use already", "Add a node: two pods cannot share a static port on one node."},
	{scheduler.MaxPerNode, "have as many of its pods as max_per_node allows", "Add a node, or raise max_per_node."},
}

// shortage looks for nodes, where replicas lack them.
func (s *situation) shortage() []Cause {
	if !s.is(rc.InsufficientNodes) {
		return nil
	}
	if len(s.nodes) == 0 {
		return []Cause{{"There is no node at all.", "Start a preparer on each machine."}}
	}
	what := replicasHave(s.rc.Desired()-s.running()) + " no node"
	mover := s.mover()
	if s.running() >= s.rc.Desired() && mover != nil {
		what = podName(mover.PodID, mover.Identity) + " has to leave its node, and no other takes it"
	}
	causes := []Cause{{What: what + ": " + s.why(rc.InsufficientNodes) + "."}}
	reasons, takes := s.refusals(mover)
	for _, a := range advice {
		names := reasons[a.reason]
		if len(names) == 0 {
			continue
		}
		what := a.what
		if a.reason == scheduler.Selector {
			what = fmt.Sprintf(a.what, s.rc.NodeSelector)
		}
		causes = append(causes, Cause{fmt.Sprintf("These nodes (%d of %d) %s: %s.", len(names), len(s.nodes), what, someOf(names)), a.next})
	}
	if len(takes) > 0 {
		causes = append(causes, Cause{"By now there is room on " + someOf(takes) + ".", "Wait: its farm looks again when a node changes."})
	}
	return causes
}

func replicasHave(n int) string {
	if n == 1 {
		return "1 replica has"
	}
	return fmt.Sprintf("%d replicas have", max(0, n))
}

// someOf names a few.
func someOf(names []string) string {
	if len(names) <= maxNamed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
}
