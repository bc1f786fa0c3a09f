package reconcile

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
)

// Action names what a change does, for logs and the audit trail.
type Action string

// The actions.
const (
	Adopt         Action = "adopt"          // take over a pod that runs without an intent
	Repair        Action = "repair"         // write an intent or a reservation again that is missing or differs
	Place         Action = "place"          // a new pod on a node
	Upgrade       Action = "upgrade"        // a new manifest, in place
	Stop          Action = "stop"           // ask for a stop
	Remove        Action = "remove"         // forget a pod whose stop is confirmed
	StopDuplicate Action = "stop-duplicate" // stop a copy that the identity has elsewhere by now
	FinishUpgrade Action = "finish-upgrade" // give back what only the former version of a pod needed
	Mark          Action = "mark"           // note since when a node is lost, or that it is back
	Move          Action = "move"           // another node, the old copy runs on until the new one is available
	Return        Action = "return"         // back to a former node whose copy was left running
	Switch        Action = "switch"         // into the service's name or out of it
	Relabel       Action = "relabel"        // the labels that its controller gives its pods now
	Release       Action = "release"        // give back a claim that nobody uses
)

// AllActions lists every action, for metrics.
var AllActions = []Action{Adopt, Repair, Place, Upgrade, Stop, Remove, StopDuplicate, Mark, Move, Return, Release, FinishUpgrade, Switch, Relabel}

// Label is the action as metrics have it: two of them keep the word that dashboards and alerts know.
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
	// NeedsMinimum: the change may land only while the minimum is left (P6): of Plan.Counting, less what has stopped counting
	// since and what changes of the plan that Take have taken, at least Plan.Minimum.
	NeedsMinimum bool
	// Takes: the pod counts as available and does not any more.
	Takes bool
	// NeedsReports are nodes whose realities of the pod must be as they were read: one that makes it count while another copy
	// stops, those that show that it does not count, or those that confirm a stop which the record does not know of.
	NeedsReports []string
	// NeedsDead: these nodes' preparers are taken to be dead, so none may have come back meanwhile. Each is named once.
	NeedsDead []DeadNode
	// NeedsSchema: a pod is placed, so the cluster epoch must not change meanwhile (R1).
	NeedsSchema bool
	// Answers are the requests that are carried out with this change: they go with it or stay.
	Answers []string
}

// DeadNode is a node whose record nobody held when it was read, with the index that it had: holding it moves that.
type DeadNode struct {
	Name  string
	Index uint64 // zero: there was no record
}

// needsDead makes the change depend on a node's staying dead, unless it does already.
func (c *Change) needsDead(n DeadNode) {
	if !slices.ContainsFunc(c.NeedsDead, func(other DeadNode) bool { return other.Name == n.Name }) {
		c.NeedsDead = append(c.NeedsDead, n)
	}
}

// IntentChange writes, or with a nil Intent removes, what a node must do about the identity.
type IntentChange struct {
	Node   string
	Intent *pod.Intent
}

// ReserveChange sets, or with a nil Claim releases, the identity's claim on a node.
type ReserveChange struct {
	Node  string
	Claim *node.Claim
	// Force reserves without asking whether it fits: the pod is running there already.
	Force bool
	// Dynamic names the ports of the claim's pod that get a number from the node's range; see Change.AssignPorts.
	Dynamic []string
	// KeepPorts are the numbers that ports of these names had on the node before, which they keep.
	KeepPorts map[string]int
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
	return fmt.Sprintf("%s %s.%d%s: %s", c.Action, c.Identity.Role, c.Identity.Index, where, c.Reason)
}

// left returns the nodes that the pod leaves, or has left, with this change while it is on another.
func (c *Change) left() []string {
	if c.Placement == nil {
		return nil
	}
	if ghosts := c.Placement.Ghosts; c.Action == Move && len(ghosts) > 0 {
		return []string{ghosts[len(ghosts)-1].Node} // see move
	}
	if c.Action != Move && c.Action != StopDuplicate && c.Action != Return && c.Action != Remove {
		return nil
	}
	var names []string
	for _, in := range c.Intents {
		if in.Node != c.Placement.Node {
			names = append(names, in.Node)
		}
	}
	return names
}

// Nodes returns every node that the change has to do with, for the audit trail.
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
	Adds    []pod.Identity // to be placed or, if they exist, moved, in this order, where nodes can be found
	// Marks note since when nodes are lost, for those of Adds whose move would: where no node is found they are written alone, for
	// whatever reason.
	Marks []Change
	// Answered are the requests that ask for nothing that is left to do. Others are with the changes; see Change.Answers.
	Answered []string
	// Void are those of Answered that are not carried out, because what they say is not so any more.
	Void   []Void
	Finish bool          // the controller is deleted and nothing of it is left: remove its records
	Status rc.Status     // as the snapshot shows it without the pods that the plan forgets; see Plan.Short
	Again  time.Duration // look again after this long even if nothing rings; zero: no need
	// Counting are the copies that count as available, one of each pod, those of companions included, without those that changes take which do not need the
	// minimum. Empty where no change needs it.
	Counting []Copy
	Minimum  int

	failures []string // that Status.LastError names the first few of
}

// Void is a request that is not carried out.
type Void struct {
	Request, Node string
	Reason        string // a sentence that names the request
}

// voidShown is for how long a status tells of requests that were void.
const voidShown = 10 * time.Minute

// Copy is a pod on one of its nodes.
type Copy struct {
	Node string
	pod.Identity
}

// RoomRetry is how long after something outside failed, or a change found no room where it must go, it is tried again: nothing rings
// when another controller gives room back.
const RoomRetry = 15 * time.Second

// MadeOnly says in the status that the other changes are left to the next pass.
func (p *Plan) MadeOnly(now time.Time, made int) {
	if p.Status.Is(rc.Converged) {
		p.set(now, rc.Converged, false, fmt.Sprintf("%d of %d changes are made", made, len(p.Changes)))
	}
}

// More asks for another look at once, as there are adds that no node was looked for yet.
func (p *Plan) More() { p.requeueAfter(time.Millisecond) }

func (p *Plan) requeueAfter(after time.Duration) {
	if p.Again != 0 {
		after = min(after, p.Again)
	}
	p.Again = after
}

// Short completes the status with those of the plan's adds that could not be placed, and why the nodes take none; and asks for
// another look when the nodes are to be asked again.
func (p *Plan) Short(s *Snapshot, left []pod.Identity, reasons string, again time.Duration) {
	if len(left) == 0 {
		p.set(s.Now, rc.InsufficientNodes, false, "")
		return
	}
	p.requeueAfter(again)
	p.set(s.Now, rc.InsufficientNodes, true,
		fmt.Sprintf("%s; of %d nodes, %s%s", p.lacking(s, left), len(s.Nodes), rc.TakeNone, reasons))
}

// Lacking returns why some of the adds that were looked for last have no node, "" where all have one.
func (p *Plan) Lacking() string {
	i := slices.IndexFunc(p.Status.Conditions, func(c rc.Condition) bool { return c.Type == rc.InsufficientNodes && c.True })
	if i < 0 {
		return ""
	}
	return p.Status.Conditions[i].Reason
}

// StillLacking says again that some adds have no node, where those that were looked for later have.
func (p *Plan) StillLacking(now time.Time, reason string) {
	if reason != "" {
		p.set(now, rc.InsufficientNodes, true, reason)
	}
}

// lacking says what has no node: so many new replicas, and pods that have to leave the node where they are.
func (p *Plan) lacking(s *Snapshot, left []pod.Identity) string {
	missing := 0
	var move []string
	for _, id := range left {
		at := s.find(id)
		if at == nil || at.RunState == pod.Stopped {
			missing++
			continue
		}
		text := fmt.Sprintf("%s.%d must leave %s and has no other node", id.Role, id.Index, at.Node)
		if tried := tried(s, at); tried != "" {
			text += " (" + tried + ")"
		}
		move = append(move, text)
	}
	if missing > 0 {
		move = append([]string{fmt.Sprintf("%d of %d replicas have no node", missing, p.Status.Desired)}, move...)
	}
	return Few(move)
}

// Unscheduled says in the status that nothing could be placed because a scheduler failed. What would have come with a move is
// written alone: a successor counts from the same moment (P7).
func (p *Plan) Unscheduled(s *Snapshot, failure string) {
	p.Changes = append(p.Changes, p.Marks...)
	p.SchedulerFails(s.Now, p.lacking(s, p.Adds)+": "+failure)
	p.set(s.Now, rc.InsufficientNodes, false, "") // nobody knows
}

// SchedulerFails says in the status that an outside scheduler is needed and fails.
func (p *Plan) SchedulerFails(now time.Time, reason string) {
	p.Retry()
	p.set(now, rc.SchedulerFailing, true, reason)
}

// Block says in the status that changes could not be applied and why.
func (p *Plan) Block(now time.Time, reason string) {
	p.requeueAfter(RoomRetry)
	p.set(now, rc.Blocked, true, reason)
}

// Retry asks for another pass after something outside failed.
func (p *Plan) Retry() { p.requeueAfter(RoomRetry) }

// BooksDiffer says in the status what differs between the placements and the books of an outside scheduler, "" for nothing.
func (p *Plan) BooksDiffer(now time.Time, reason string) {
	if reason != "" {
		p.Retry()
	}
	p.set(now, rc.BooksDiffer, reason != "", reason)
}

// Fail says in the status that something could not be done because of a record that cannot be read. The rest goes on.
func (p *Plan) Fail(text string) {
	p.requeueAfter(RoomRetry)
	p.failures = append(p.failures, text)
	p.Status.LastError = Few(p.failures)
}

func (p *Plan) set(now time.Time, t rc.ConditionType, isTrue bool, reason string) {
	p.Status.Conditions = rc.SetCondition(p.Status.Conditions, t, isTrue, reason, now)
}

// Placer makes the changes that place, or move, the adds of a plan that was computed from a snapshot. What new pods have in common it
// makes once: there may be thousands of them, which share its maps, and nobody changes those.
type Placer struct {
	s      *Snapshot
	alike  map[string]*alike // by digest
	reason string
}

// alike is what new pods with one manifest have in common.
type alike struct {
	pod     pod.Placement
	claim   node.Claim
	dynamic []string
}

// NewPlacer returns a placer. The snapshot must not change while it is used.
func NewPlacer(s *Snapshot) *Placer {
	return &Placer{s: s, alike: map[string]*alike{}, reason: fmt.Sprintf("%d replicas desired", s.RC.Desired())}
}

// On returns the change that places, or moves, one of the adds to a node.
func (pl *Placer) On(id pod.Identity, nodeName string) Change {
	s := pl.s
	if p := s.find(id); p != nil && p.RunState == pod.Stopped {
		return again(s, p, nodeName)
	} else if p != nil {
		return move(s, p, nodeName)
	}
	a := pl.like(s.DigestOf(id))
	made := &struct { // together: one piece of memory in place of five
		pod     pod.Placement
		intent  pod.Intent
		claim   node.Claim
		intents [1]IntentChange
		reserve [1]ReserveChange
	}{pod: a.pod, claim: a.claim}
	made.pod.Identity, made.pod.Node, made.claim.Pod = id, nodeName, id
	made.pod.Revision, made.pod.Replicas = pod.NextRevision(s.Now, s.Stopped[id]), s.RC.CountOf(id.Role)
	if s.ordered(id.Role) {
		made.pod.Epoch = s.Epoch
	}
	made.intent = made.pod.Intent()
	made.intents[0] = IntentChange{Node: nodeName, Intent: &made.intent}
	made.reserve[0] = ReserveChange{Node: nodeName, Claim: &made.claim, Dynamic: a.dynamic}
	return Change{
		Action: Place, Identity: id, Placement: &made.pod, NeedsSchema: true,
		Reason: pl.reason, Intents: made.intents[:1:1], Reserve: made.reserve[:1:1],
	}
}

// like returns what new pods with a digest have in common.
func (pl *Placer) like(digest string) *alike {
	a := pl.alike[digest]
	if a == nil {
		s, m := pl.s, pl.s.ManifestOf(digest)
		a = &alike{
			pod: pod.Placement{
				PodID: m.ID, Labels: s.RC.PodLabelSet(m.ID, m.Labels, nil), Digest: digest, Standby: s.standsBy(), Ports: m.PortMap(), RunState: pod.Running, ChangedAt: s.Now,
			},
			claim: claimOf(m, pod.Identity{}), dynamic: m.DynamicPorts(),
		}
		pl.alike[digest] = a
	}
	return a
}

// NewClaim returns what a pod that is to be placed reserves besides its dynamic ports; of no pod in particular, what one does that room
// is looked for (see LookFor).
func NewClaim(s *Snapshot, id pod.Identity) node.Claim {
	m := s.Placing()
	if id != (pod.Identity{}) {
		m = s.ManifestOf(s.DigestOf(id))
	}
	return claimOf(m, id)
}

func claimOf(m *manifest.Manifest, id pod.Identity) node.Claim {
	if m == nil {
		return node.NewClaim(id, nil, 0, 0) // it is not known
	}
	res := m.Resources()
	return node.NewClaim(id, m.PortMap(), res.CPU, res.Memory)
}
