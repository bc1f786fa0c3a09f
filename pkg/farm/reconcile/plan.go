package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Action names what a change does, for logs and the audit trail.
type Action string

// The actions.
const (
	Adopt         Action = "adopt"          // give a pod that runs without an intent a placement
	Repair        Action = "repair"         // write an intent or a reservation again that is missing or differs
	Place         Action = "place"          // place a new pod on a node
	Upgrade       Action = "upgrade"        // give a pod a new manifest, in place
	Stop          Action = "stop"           // ask for a stop
	Remove        Action = "remove"         // forget a pod whose stop is confirmed
	StopDuplicate Action = "stop-duplicate" // stop a second copy of the identity
	FinishUpgrade Action = "finish-upgrade" // give back what only the former version of a pod needed
	Mark          Action = "mark"           // write the time at which a node was lost, or that it is back
	Move          Action = "move"           // to another node; the old copy runs until the new one is available
	Return        Action = "return"         // back to a former node, where a copy still runs
	Switch        Action = "switch"         // take a pod into the service's name in Consul, or out of it
	Relabel       Action = "relabel"        // give a pod other labels
	Release       Action = "release"        // give back a share that no pod uses
)

// AllActions lists every action, for metrics.
var AllActions = []Action{
	Adopt, Repair, Place, Upgrade, Stop, Remove, StopDuplicate, Mark, Move, Return, Release, FinishUpgrade, Switch,
	Relabel,
}

// Label returns the action's name in metrics. Two differ, because dashboards and alerts use the former names.
func (a Action) Label() string {
	switch a {
	case StopDuplicate:
		return "expel"
	case FinishUpgrade:
		return "shrink"
	default:
		return string(a)
	}
}

// Change is what happens to one identity. One transaction writes all of it or nothing.
type Change struct {
	Action    Action
	Identity  pod.Identity
	Reason    string
	Index     uint64          // of the placement that is replaced; zero: there is none yet
	Placement *pod.Placement  // nil removes it
	Intents   []IntentChange  // one per node at the most
	Reserve   []ReserveChange // one per node at the most
	// NeedsBreaker: a `stopped` intent is written, so the breaker must not have tripped.
	NeedsBreaker bool
	// NeedsMinimum: the change may land only while at least Plan.Minimum of the copies in Plan.Available are left (P6).
	// A copy is not left if it is not available any more, or if a change with TakesAvailable is about its pod.
	NeedsMinimum bool
	// TakesAvailable: the pod is available for the minimum now, and after the change it is not.
	TakesAvailable bool
	// NeedsReports are the nodes whose reports about the pod must be unchanged since they were read. Such a report
	// shows that the pod is available there while another copy stops, that it is not available, or a stop that the
	// record does not have.
	NeedsReports []string
	// NeedsDead are nodes whose preparers were dead. The change lands only if none has come back. Each node is in the
	// list once.
	NeedsDead []DeadNode
	// NeedsSchema: a pod is placed, so the cluster epoch must not change before the write (R1).
	NeedsSchema bool
	// Answers are the requests that this change carries out. They are removed if the change lands.
	Answers []string
}

// DeadNode is a node whose record no preparer held when it was read. Index is the record's index; it changes when a
// preparer takes the lock.
type DeadNode struct {
	Name  string
	Index uint64 // zero: there was no record
}

func (c *Change) needsDead(n DeadNode) {
	if !slices.ContainsFunc(c.NeedsDead, func(other DeadNode) bool { return other.Name == n.Name }) {
		c.NeedsDead = append(c.NeedsDead, n)
	}
}

func (p *Pod) change(action Action, next *pod.Placement, reason string) Change {
	return Change{Action: action, Identity: p.Identity, Index: p.Index, Placement: next, Reason: reason}
}

func (c *Change) setIntent(nodeName string, in pod.Intent) {
	c.Intents = append(c.Intents, IntentChange{Node: nodeName, Intent: &in})
}

func (c *Change) reserveRunning(nodeName string, claim node.Claim) {
	c.Reserve = append(c.Reserve, ReserveChange{Node: nodeName, Claim: &claim, Force: true})
}

func (c *Change) release(nodeName string) {
	c.Intents = append(c.Intents, IntentChange{Node: nodeName})
	c.Reserve = append(c.Reserve, ReserveChange{Node: nodeName})
}

// IntentChange writes the identity's intent for a node; a nil Intent removes it.
type IntentChange struct {
	Node   string
	Intent *pod.Intent
}

// ReserveChange sets the identity's share of a node; a nil Claim gives it back.
type ReserveChange struct {
	Node  string
	Claim *node.Claim
	// Force reserves without a check that the share fits, because the pod runs there already.
	Force bool
	// Dynamic names the ports of the pod that get a number from the node's range; see Change.AssignPorts.
	Dynamic []string
	// KeepPorts has the pod's former ports on the node, by name; a port with one of these names keeps its number.
	KeepPorts map[string]int
	// Keep adds to the identity's present share instead of replacing it, because the former version still runs (P5).
	Keep bool
}

// AssignPorts sets the numbers of dynamic ports, in the placement and in the intents of that node. It copies what it
// changes.
func (c *Change) AssignPorts(nodeName string, numbers map[string]int) {
	if len(numbers) == 0 || c.Placement == nil || c.Placement.Node != nodeName {
		return
	}
	next := *c.Placement
	next.Ports = maps.Clone(next.Ports)
	maps.Copy(next.Ports, numbers)
	c.Placement = &next
	for i := range c.Intents {
		if in := &c.Intents[i]; in.Node == nodeName && in.Intent != nil {
			changed := *in.Intent
			changed.Ports = next.Ports
			in.Intent = &changed
		}
	}
}

// String is one line for the audit trail.
func (c *Change) String() string {
	where, left := "", strings.Join(c.left(), ", ")
	switch {
	case c.Action != Move && c.Action != Return && left != "":
		where = " from " + left
	case c.Placement != nil && left != "":
		where = " from " + left + " to " + c.Placement.Node
	case c.Placement != nil:
		where = " on " + c.Placement.Node
	case len(c.Intents) > 0:
		where = " from " + c.Intents[0].Node
	}
	return fmt.Sprintf("%s %s%s: %s", c.Action, name(c.Identity), where, c.Reason)
}

// left returns the nodes that the pod leaves, or has left; none if the change removes the placement.
func (c *Change) left() []string {
	if c.Placement == nil {
		return nil
	}
	ghosts := c.Placement.Ghosts
	var names []string
	switch {
	case c.Action == Move && len(ghosts) > 0:
		names = append(names, ghosts[len(ghosts)-1].Node) // moveChange puts the former node last
	case slices.Contains([]Action{Move, StopDuplicate, Return, Remove}, c.Action):
		// A pod that is placed again has no former copy, but an intent on its former node.
		for _, in := range c.Intents {
			if in.Node != c.Placement.Node {
				names = append(names, in.Node)
			}
		}
	}
	return names
}

// Nodes returns the names of all nodes of the change.
func (c *Change) Nodes() []string {
	names := append(make([]string, 0, 4), c.left()...)
	if c.Placement != nil {
		names = append(names, c.Placement.Node)
	}
	for _, in := range c.Intents {
		names = append(names, in.Node)
	}
	for _, r := range c.Reserve {
		names = append(names, r.Node)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Plan is what to do next.
type Plan struct {
	Changes []Change
	Adds    []pod.Identity // need a node, in this order: new pods are placed, existing pods move
	// LossRecords are changes for pods of Adds. Each writes the time at which the pod's node was lost. A move writes
	// this time too, so they are written alone if no node is found.
	LossRecords []Change
	// Answered are the requests for which nothing is left to do. Change.Answers has the others.
	Answered []string
	// Void are the requests of Answered whose facts have changed, so they are not carried out.
	Void   []Void
	Finish bool          // the controller is deleted and nothing of it is left: remove its records
	Status rc.Status     // without the pods that the plan forgets; SetUnplaced completes it
	Again  time.Duration // look again after this time even if no bell rings; zero: only when a bell rings
	// Available are the available copies, one of each pod, also of companions, without those that a change without
	// NeedsMinimum stops. It is empty if no change needs the minimum.
	Available []Copy
	Minimum   int

	facts    *Facts                  // the plan's input
	digests  map[pod.Identity]string // of new replicas among Adds
	nodes    []string                // see WantedNodes
	failures []string                // Status.LastError has the first few
}

// Void is a request that is not carried out.
type Void struct {
	Request, Node string
	Reason        string // a sentence that names the request
}

// voidShown is how long a status shows void requests.
const voidShown = 10 * time.Minute

// Copy is a pod on one of its nodes.
type Copy struct {
	Node string
	pod.Identity
}

// RetryAfter is the wait before another try after a failure outside the farm, or if a node had no capacity: no bell
// rings when another controller frees capacity.
const RetryAfter = 15 * time.Second

// SetPartial corrects the status if only some changes were made: the controller has not converged.
func (p *Plan) SetPartial(now time.Time, made int) {
	if p.Status.Is(rc.Converged) {
		p.set(now, rc.Converged, false, fmt.Sprintf("%d of %d changes are made", made, len(p.Changes)))
	}
}

// More asks for another look at once, because some adds were not searched for yet.
func (p *Plan) More() { p.requeueAfter(time.Millisecond) }

func (p *Plan) requeueAfter(after time.Duration) {
	if p.Again != 0 {
		after = min(after, p.Again)
	}
	p.Again = after
}

// SetUnplaced writes into the status which adds have no node (left), and why the nodes do not take them (reasons). It
// asks for another look after the given time (again).
func (p *Plan) SetUnplaced(left []pod.Identity, reasons string, again time.Duration) {
	if len(left) == 0 {
		p.set(p.facts.Now, rc.InsufficientNodes, false, "")
		return
	}
	p.requeueAfter(again)
	p.set(p.facts.Now, rc.InsufficientNodes, true,
		fmt.Sprintf("%s; of %d nodes, %s%s", p.lacking(left), len(p.facts.Nodes), rc.TakeNone, reasons))
}

// UnplacedReason returns why the last search found no node for some adds, "" if it found all.
func (p *Plan) UnplacedReason() string {
	i := slices.IndexFunc(p.Status.Conditions, func(c rc.Condition) bool {
		return c.Type == rc.InsufficientNodes && c.True
	})
	if i < 0 {
		return ""
	}
	return p.Status.Conditions[i].Reason
}

// StillLacking writes the reason of an earlier search into the status again, because a later search for other adds
// cleared it.
func (p *Plan) StillLacking(now time.Time, reason string) {
	if reason != "" {
		p.set(now, rc.InsufficientNodes, true, reason)
	}
}

func (p *Plan) lacking(left []pod.Identity) string {
	missing := 0
	var move []string
	for _, id := range left {
		at := p.facts.find(id)
		if at == nil || at.RunState == pod.Stopped {
			missing++
			continue
		}
		text := fmt.Sprintf("%s must leave %s and has no other node", name(id), at.Node)
		if tried := tried(p.facts, at); tried != "" {
			text += " (" + tried + ")"
		}
		move = append(move, text)
	}
	if missing > 0 {
		move = append([]string{fmt.Sprintf("%d of %d replicas have no node", missing, p.Status.Desired)}, move...)
	}
	return Few(move)
}

// Unscheduled writes into the status that some adds were not placed because a scheduler failed. It also adds the
// records of these pods' losses to the plan, because the next owner must measure from the same moment (P7).
func (p *Plan) Unscheduled(failure string) {
	unplaced := field.Set(p.Adds)
	for _, mark := range p.LossRecords {
		if unplaced[mark.Identity] {
			p.Changes = append(p.Changes, mark)
		}
	}
	p.SchedulerFails(p.facts.Now, p.lacking(p.Adds)+": "+failure)
	p.set(p.facts.Now, rc.InsufficientNodes, false, "") // whether nodes would take the adds is not known
}

// SchedulerFails sets in the status that an outside scheduler is needed and fails.
func (p *Plan) SchedulerFails(now time.Time, reason string) {
	p.Retry()
	p.set(now, rc.SchedulerFailing, true, reason)
}

// Block sets in the status why changes could not be applied.
func (p *Plan) Block(now time.Time, reason string) {
	p.requeueAfter(RetryAfter)
	p.set(now, rc.Blocked, true, reason)
}

// Retry asks for another pass after something outside failed.
func (p *Plan) Retry() { p.requeueAfter(RetryAfter) }

// BooksDiffer writes into the status how the placements differ from an outside scheduler's books, "" for no difference.
func (p *Plan) BooksDiffer(now time.Time, reason string) {
	if reason != "" {
		p.Retry()
	}
	p.set(now, rc.BooksDiffer, reason != "", reason)
}

// Fail sets in the status what could not be done because a record cannot be read. The other work continues.
func (p *Plan) Fail(text string) {
	p.requeueAfter(RetryAfter)
	p.failures = append(p.failures, text)
	p.Status.LastError = Few(p.failures)
}

func (p *Plan) set(now time.Time, t rc.ConditionType, isTrue bool, reason string) {
	p.Status.Conditions = rc.SetCondition(p.Status.Conditions, t, isTrue, reason, now)
}

// Facts returns the plan's input.
func (p *Plan) Facts() *Facts { return p.facts }

// Unobstructed reports whether no condition keeps the plan from its goal. Then its changes and the next reports of
// nodes are enough.
func (p *Plan) Unobstructed() bool {
	return !slices.ContainsFunc(p.Status.Conditions, func(cond rc.Condition) bool {
		return cond.True && cond.Type != rc.Converged && !cond.Type.IsAboutRollout()
	})
}
