// Package reconcile decides what the owner of a replication controller does next. Compute is a pure function of a
// Snapshot: no I/O, no clock, no randomness. The farm reads the snapshot, applies the plan and looks again.
package reconcile

import (
	"iter"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// Snapshot is all that a decision about one controller depends on.
type Snapshot struct {
	Now time.Time
	// Steady is the same moment by the clock that nobody sets: what this farm has seen itself is measured by it. Zero: Now.
	Steady   time.Time
	Owner    string // farm id, for the status
	RC       rc.RC
	Manifest *manifest.Manifest // of RC.ManifestDigest; nil while it cannot be read: then no pod is given it
	Pods     []Pod
	Orphans  []Orphan              // of this controller, on nodes whose preparer is alive
	Nodes    map[string]*node.View // by name
	Epoch    string                // of the cluster: nodes that have not seen it take no pods (R1)
	Hold     string                // why nothing may be added yet (R1); empty when it may
	Breaker  string                // why nothing may be stopped (mass-stop breaker); empty when it may
	Requests []Request             // what operators ask of the owner
	Leaks    []Leak                // reservations of this controller, on nodes that somebody asks to be looked at
	// Leftovers are those of a controller without a record whose end somebody asks for.
	Leftovers []Leftover
	// EpochSince is when the epoch began. Slack is what passes, besides what its manifest and its node say, before a pod that nobody hears of
	// has surely stopped by itself; see SurelyStopped.
	EpochSince time.Time
	Slack      time.Duration
	// WentBack: the epoch began because the store went back in time. Nodes that have been silent since may run later versions than the records say.
	WentBack bool
	// Newer: the controller was made in this epoch, so that no node that has been silent since can run its pods.
	Newer bool
	// Unsure is what cannot be read of what nodes were told about ordered pods without a placement, "" for nothing: such pods get none.
	Unsure string
	// Stopped are the highest revisions at which nodes are known to have stopped replicas that have no placement. A clock that
	// was ahead leaves ones that are above the present time, and nodes refuse what is not higher (R3).
	Stopped  map[pod.Identity]int64
	Previous *rc.Status
	Errors   []string // what could not be read, for the status
	// Companions are the other revisions of the service that have a record. Empty: minimum and surge are the controller's own.
	Companions []Companion
	// Manifests are those of other digests that pods have or may be placed with, by digest; see OtherDigests.
	Manifests map[string]*manifest.Manifest
	// Rollout names the rollout in charge of the controller, "" for none.
	Rollout string
	// RolloutIdle: the rollout in charge is paused, waits for promote or is stuck, so that pods may leave their nodes.
	RolloutIdle bool
	// RolloutTrouble says why the rollout needs people. RolloutStuck says what it waits for although its stage_timeout has
	// passed. "" is nothing. The farm fills them in for one controller of the service, so that it alerts people once.
	RolloutTrouble, RolloutStuck string

	lost    map[DeadNode]time.Time  // deaths of nodes whose machines were lost when they were looked at last, as the placements say, and since when
	each    *eachNode               // of a controller with a pod on every matching node; nil: of another, or not yet counted
	rule    *scheduler.Rule         // made when it is first needed
	ruleErr error                   // of the selector
	told    *experience             // nil: not yet reckoned
	lot     Lot                     // pods that room is looked for; zero: any of the controller's
	chosen  map[pod.Identity]string // digests of new replicas
}

// Request asks the owner for something about one node, and for ForgetPod and LabelPod about one identity.
type Request struct {
	ID     string
	Forget bool    // the pod's copy on the node counts as stopped
	Label  *Labels // the pod on the node gets other labels of its own
	Node   string
	Pod    pod.Identity
	// Alive: the node's record was held when it was read for this. NodeIndex is that of the record, zero where there was none;
	// Declared the one that it had when the operator said that the pod there is gone for good.
	Alive               bool
	NodeIndex, Declared uint64
	Waits               string // what it needs that cannot be read now; the status says so
}

// Labels is a change of a pod's own labels.
type Labels struct {
	Set    map[string]string
	Remove []string
}

// Leak is a claim on a node that an identity holds without being there.
type Leak struct {
	Node string
	Pod  pod.Identity
}

// Pod is one placement with what its nodes report.
type Pod struct {
	pod.Placement
	Index   uint64                  // Consul's modify index of the placement
	Reality *pod.Reality            // of Placement.Node; nil when there is none
	Ghosts  map[string]*pod.Reality // of former nodes, by name
	// Intents are those of Placement.Node and of the ghosts' nodes, by node; nil when they were not read. They are
	// read after a claim, where a node lists the pod as an orphan, and by the slow resync.
	Intents map[string]*pod.Intent
	// Claims is the pod's claim in the reservations of the same nodes, nil where there is none; a node whose reservation cannot
	// be read is absent. It is nil when they were not read: only the slow resync, and the first pass after a claim, do.
	Claims map[string]*node.Claim

	timesAhead bool // the placement in Consul has times in the future; see clocks
}

// Orphan is a pod that a living node runs without a matching intent, or one that a node was told about and that has no placement; see Tell.
type Orphan struct {
	Node string
	pod.Orphan
	toldStop bool
}

// arrived reports whether the pod is available where it is placed: what the node reports is about the digest that the
// placement asks for. (The revision may lag: a revision without a new digest restarts nothing.)
func (p *Pod) arrived() bool {
	return p.RunState == pod.Running && p.Reality != nil && p.Reality.Available && p.Reality.Digest == p.Digest
}

// availableHere reports whether the pod counts as available where it is placed, so that its former copies may go.
func (s *Snapshot) availableHere(p *Pod) bool { return p.arrived() && !s.machineLost(p.Node) }

// available reports whether the pod counts as available: where it is placed, or while it moves where it comes from. On a
// node that is gone nothing is available, whatever was reported last; on one without a preparer the last report counts.
func (s *Snapshot) available(p *Pod) bool {
	return s.availableHere(p) || slices.ContainsFunc(p.Placement.Ghosts, func(g pod.Ghost) bool { return s.counts(p, g) })
}

// counts reports whether a pod that is to run counts as available because of a former copy.
func (s *Snapshot) counts(p *Pod, g pod.Ghost) bool {
	r := p.Ghosts[g.Node]
	return p.RunState == pod.Running && g.Revision == 0 && r != nil && r.Available && !s.machineLost(g.Node)
}

// machineLost reports whether the machine is known to be lost. That stays so until a preparer holds the node again: Consul forgets a
// failed agent some day, and then knows no more of the machine than of one whose agent left in order. What placements say of an
// earlier death does not count, though nobody may have seen the node alive in between. A node without a record is not lost:
// records can vanish.
func (s *Snapshot) machineLost(name string) bool {
	v := s.Nodes[name]
	if v == nil || v.Alive {
		return false
	}
	_, said := s.lost[s.death(name)]
	return v.MachineLost || said
}

// death names the present death of a node that has a record, and whose preparer is not alive.
func (s *Snapshot) death(name string) DeadNode {
	return DeadNode{Name: name, Index: s.Nodes[name].FreeIndex}
}

// sinceDeath reports whether what a placement says about the loss of its node, which has a record, is about the node's present death.
func (s *Snapshot) sinceDeath(p *pod.Placement) bool { return s.Nodes[p.Node].FreeIndex == p.DeadIndex }

// lostMachines returns which machines were lost, as the placements say, and since when at the latest; zero where no placement says that.
func lostMachines(s *Snapshot) map[DeadNode]time.Time {
	lost := map[DeadNode]time.Time{}
	note := func(death DeadNode, since time.Time) {
		if known, is := lost[death]; !is || since.After(known) {
			lost[death] = since
		}
	}
	remember := func(pods []Pod) {
		for i := range pods {
			p := &pods[i]
			if p.LostSince != nil && (p.RunState == pod.Running || s.ordered(p.Role)) {
				note(DeadNode{Name: p.Node, Index: p.DeadIndex}, *p.LostSince)
			}
			for _, g := range p.Placement.Ghosts {
				if g.MachineLost {
					note(DeadNode{Name: g.Node, Index: g.DeadIndex}, time.Time{})
				}
			}
		}
	}
	remember(s.Pods)
	for i := range s.Companions {
		remember(s.Companions[i].Pods)
	}
	return lost
}

// runs reports whether the node says that it runs the pod, in whatever way.
func (p *Pod) runs() bool { return p.Reality != nil && p.Reality.State != pod.StateStopped }

// runsOn is runs for a former copy.
func (p *Pod) runsOn(g pod.Ghost) bool {
	r := p.Ghosts[g.Node]
	return r != nil && r.State != pod.StateStopped
}

// confirmed reports whether a node's reality proves that a stop of at least this revision was carried out (P5).
func confirmed(r *pod.Reality, revision int64) bool {
	return r != nil && r.State == pod.StateStopped && r.Revision >= revision
}

// hasStopped reports whether a former copy's node has confirmed its stop: the one that was asked for or, for a copy that is to run on,
// one that a newer store asked for than this (R1). Its intent is at a lower revision than the pod, and would start it again.
func (p *Pod) hasStopped(g pod.Ghost) bool {
	r := p.Ghosts[g.Node]
	if g.Revision != 0 {
		return confirmed(r, g.Revision)
	}
	in := p.Intents[g.Node]
	return confirmed(r, p.Revision+1) || in != nil && in.State == pod.Running && confirmed(r, in.Revision+1)
}

// SteadyNow returns the moment of the snapshot by the clock that is never set.
func (s *Snapshot) SteadyNow() time.Time {
	if s.Steady.IsZero() {
		return s.Now
	}
	return s.Steady
}

// saysNow reports whether what a node reported is of now. Where the store went back in time, the reports are those of then until the node has spoken: it may have
// been told since to run what it had stopped. So it is while holding, as whoever began the epoch may have said no more than that it is new.
func (s *Snapshot) saysNow(name string) bool {
	v := s.Nodes[name]
	if v == nil {
		return s.Hold == ""
	}
	return v.Spoke(s.Epoch) || s.Hold == "" && !s.WentBack
}

// nextRevision returns a revision higher than all that the snapshot shows for the pod, and than those given.
func (p *Pod) nextRevision(now time.Time, more ...int64) int64 {
	seen := append(more, p.Revision)
	if p.Reality != nil {
		seen = append(seen, p.Reality.Revision)
	}
	for _, g := range p.Placement.Ghosts {
		seen = append(seen, g.Revision)
	}
	for _, r := range p.Ghosts {
		if r != nil {
			seen = append(seen, r.Revision)
		}
	}
	for _, in := range p.Intents {
		if in != nil {
			seen = append(seen, in.Revision)
		}
	}
	return pod.NextRevision(now, seen...)
}

// all yields the controller's pods.
func (s *Snapshot) all() iter.Seq[*Pod] {
	return func(yield func(*Pod) bool) {
		for i := range s.Pods {
			if !yield(&s.Pods[i]) {
				return
			}
		}
	}
}

// running yields the pods that are meant to run.
func (s *Snapshot) running() iter.Seq[*Pod] {
	return where(s.all(), func(p *Pod) bool { return p.RunState == pod.Running })
}

// where yields those of some pods that are as they should be at that moment.
func where(pods iter.Seq[*Pod], is func(*Pod) bool) iter.Seq[*Pod] {
	return func(yield func(*Pod) bool) {
		for p := range pods {
			if is(p) && !yield(p) {
				return
			}
		}
	}
}

// aliveOn reports whether the node's preparer is alive.
func (s *Snapshot) aliveOn(name string) bool {
	v := s.Nodes[name]
	return v != nil && v.Alive
}

// Rule returns which nodes may take pods of the controller. The error is that of its selector.
func (s *Snapshot) Rule() (*scheduler.Rule, error) {
	if s.rule == nil {
		s.rule = &scheduler.Rule{Epoch: s.Epoch, MaxPerNode: s.RC.MaxPerNode}
		s.rule.Selector, s.ruleErr = s.RC.Selector()
		if m := s.Placing(); m != nil {
			s.rule.Ask, s.rule.Dynamic = NewClaim(s, pod.Identity{}), m.DynamicPorts()
		}
	}
	return s.rule, s.ruleErr
}

// eligible reports whether the node may still take pods of the controller, whatever is taken there.
func (s *Snapshot) eligible(name string) bool {
	v := s.Nodes[name]
	rule, err := s.Rule()
	return v != nil && err == nil && rule.Excludes(v) == ""
}

// matches reports whether the controller selects the node, or may for all that is known. A selector that cannot be read selects none.
func (s *Snapshot) matches(v *node.View) bool {
	rule, err := s.Rule()
	return err == nil && rule.Selector != nil && v.MayMatch(rule.Selector)
}

// find returns the placement of an identity, nil when there is none. The pods are in order once Compute has begun.
func (s *Snapshot) find(id pod.Identity) *Pod {
	i, ok := slices.BinarySearchFunc(s.Pods, id, func(p Pod, id pod.Identity) int { return p.Identity.Compare(id) })
	if !ok {
		return nil
	}
	return &s.Pods[i]
}
