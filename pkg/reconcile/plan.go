package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Action names what a change does, for logs and the audit trail.
type Action string

// The actions.
const (
	Adopt   Action = "adopt"   // take over a pod that runs without an intent
	Repair  Action = "repair"  // write an intent or a reservation again that is missing or differs
	Place   Action = "place"   // a new pod on a node
	Upgrade Action = "upgrade" // a new manifest, in place
	Stop    Action = "stop"    // ask for a stop
	Remove  Action = "remove"  // forget a pod whose stop is confirmed
	Expel   Action = "expel"   // stop a copy that the identity has elsewhere by now
	Shrink  Action = "shrink"  // give back what only the former version of a pod needed
	Mark    Action = "mark"    // note since when a node is lost, or that it is back
	Move    Action = "move"    // another node, the old copy runs on until the new one is available
	Return  Action = "return"  // back to a former node whose copy was left running
	Release Action = "release" // give back a share that nobody uses
)

// Change is what happens to one identity. All of it lands in one transaction or none.
type Change struct {
	Action    Action
	Identity  pod.Identity
	Reason    string
	Index     uint64          // of the placement that this replaces; zero creates it
	Placement *pod.Placement  // nil removes it
	Intents   []IntentChange  // one per node at the most
	Reserve   []ReserveChange // one per node at the most
	// NeedsBreaker: a `stopped` intent is written, so the breaker must not trip meanwhile.
	NeedsBreaker bool
	// NeedsBell: the change relies on pods being available (P6), so nothing may have been reported meanwhile.
	NeedsBell bool
	// NeedsDead: a node's preparer is taken to be dead, so it must not have come back meanwhile.
	NeedsDead *DeadNode
	// NeedsSchema: a pod is placed, so the cluster nonce must not change meanwhile (R1).
	NeedsSchema bool
	// Answers are the requests that are carried out with this change: they go with it or stay.
	Answers []string
}

// DeadNode is a node whose record nobody held when it was read, with the index that it had: holding it moves that.
type DeadNode struct {
	Name  string
	Index uint64 // zero: there was no record
}

// IntentChange writes, or with a nil Intent removes, what a node must do about the identity.
type IntentChange struct {
	Node   string
	Intent *pod.Intent
}

// ReserveChange sets, or with a nil Holder releases, the identity's share of a node.
type ReserveChange struct {
	Node   string
	Holder *node.Holder
	// Force reserves without asking whether it fits: the pod is running there already.
	Force bool
	// Dynamic names the ports of the holder's pod that get a number from the node's range; see Change.AssignPorts.
	Dynamic []string
	// Held are the numbers that ports of these names had on the node before, which they keep.
	Held map[string]int
	// Keep holds on to what the identity holds already, besides: the former version still runs (P5).
	Keep bool
}

// AssignPorts fills in the numbers that a node gives to dynamic ports, wherever the change speaks of them.
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
			told := *in.Intent
			told.Ports = next.Ports
			in.Intent = &told
		}
	}
}

// String describes the change on one line for the audit trail.
func (c *Change) String() string {
	where := ""
	if c.Placement != nil {
		where = " on " + c.Placement.Node
	} else if len(c.Intents) > 0 {
		where = " from " + c.Intents[0].Node
	}
	return fmt.Sprintf("%s %s.%d%s: %s", c.Action, c.Identity.Role, c.Identity.Index, where, c.Reason)
}

// Plan is what to do next.
type Plan struct {
	Changes []Change
	Adds    []pod.Identity // to be placed or, if they exist, moved, in this order, where nodes can be found
	// Marks note since when nodes are lost, for those of Adds whose move would: where no node is found they are written alone, for
	// whatever reason.
	Marks []Change
	// Answered are the requests that ask for nothing that is left to do. Others are with the changes; see Change.Answers.
	Answered []string
	Finish   bool          // the controller is deleted and nothing of it is left: remove its records
	Status   rc.Status     // as the snapshot shows it, before the changes; see Plan.Short
	Again    time.Duration // look again after this long even if nothing rings; zero: no need
}

// RoomRetry is how long after a pod found no room the nodes are asked again: nothing rings when another controller gives
// room back.
const RoomRetry = 15 * time.Second

func (p *Plan) lookAgain(after time.Duration) {
	if p.Again == 0 || after < p.Again {
		p.Again = after
	}
}

// Short completes the status with what could not be placed: how many replicas, of how many nodes, and why those take none.
func (p *Plan) Short(now time.Time, missing, nodes int, reasons string) {
	if missing == 0 {
		p.set(now, rc.InsufficientNodes, false, "")
		return
	}
	p.lookAgain(RoomRetry)
	p.set(now, rc.InsufficientNodes, true,
		fmt.Sprintf("%d of %d replicas have no node; of %d nodes, these take none: %s", missing, p.Status.Desired, nodes, reasons))
}

// Unscheduled says in the status that nothing could be placed because a scheduler failed. What would have come with a move is
// written alone: a successor counts from the same moment (P7).
func (p *Plan) Unscheduled(now time.Time, failure string) {
	p.Retry()
	p.Changes = append(p.Changes, p.Marks...)
	p.set(now, rc.InsufficientNodes, true,
		fmt.Sprintf("%d of %d replicas have no node: %s", len(p.Adds), p.Status.Desired, failure))
}

// Block says in the status that changes could not be applied and why.
func (p *Plan) Block(now time.Time, reason string) {
	p.lookAgain(RoomRetry)
	p.set(now, rc.Blocked, true, reason)
}

// Retry asks for another pass after something outside failed.
func (p *Plan) Retry() { p.lookAgain(RoomRetry) }

// BooksDiffer says in the status what differs between the placements and the books of an outside scheduler, "" for nothing.
func (p *Plan) BooksDiffer(now time.Time, reason string) {
	if reason != "" {
		p.Retry()
	}
	p.set(now, rc.BooksDiffer, reason != "", reason)
}

// Fail says in the status that something could not be done because of a record that cannot be read. The rest goes on.
func (p *Plan) Fail(text string) {
	p.lookAgain(RoomRetry)
	if p.Status.LastError != "" {
		text = p.Status.LastError + "; " + text
	}
	p.Status.LastError = text
}

func (p *Plan) set(now time.Time, t rc.ConditionType, isTrue bool, reason string) {
	p.Status.Conditions = rc.SetCondition(p.Status.Conditions, t, isTrue, reason, now)
}

// PlaceOn returns the change that places, or moves, one of the plan's adds to a node.
func PlaceOn(s *Snapshot, id pod.Identity, nodeName string) Change {
	if i := slices.IndexFunc(s.Pods, func(p Pod) bool { return p.Identity == id }); i >= 0 {
		return move(s, &s.Pods[i], nodeName)
	}
	m := s.Manifest
	p := pod.Placement{
		Identity: id, Node: nodeName, PodID: m.ID, Labels: s.RC.PodLabelSet(m.ID, m.Labels), Digest: s.RC.ManifestDigest,
		Ports: m.PortMap(), RunState: pod.Running, Revision: pod.NextRevision(s.Now, s.Stopped[id]), ChangedAt: s.Now,
	}
	in := p.Intent()
	holder := NewHolder(s, id)
	return Change{
		Action: Place, Identity: id, Placement: &p, NeedsSchema: true,
		Reason:  fmt.Sprintf("%d replicas desired", s.RC.Desired()),
		Intents: []IntentChange{{Node: nodeName, Intent: &in}},
		Reserve: []ReserveChange{{Node: nodeName, Holder: &holder, Dynamic: m.DynamicPorts()}},
	}
}

// NewHolder returns what a pod of the controller's manifest reserves besides its dynamic ports.
func NewHolder(s *Snapshot, id pod.Identity) node.Holder {
	res := s.Manifest.Resources()
	return node.NewHolder(id, s.Manifest.PortMap(), res.CPU, res.Memory)
}
