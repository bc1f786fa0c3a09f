package reconcile

import (
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Snapshot is all that a decision about one controller depends on. In this package only AddIntent changes it.
type Snapshot struct {
	Now time.Time
	// Steady is Now by the monotonic clock, for measuring how long this farm itself has seen a loss. Zero: Now is used.
	Steady       time.Time
	Owner        string // farm id, for the status
	RC           rc.RC
	Manifest     *manifest.Manifest // of RC.ManifestDigest; nil if it cannot be read, and then no pod gets it
	Pods         []Pod
	Orphans      []Orphan              // of this controller, on nodes whose preparer is alive
	Nodes        map[string]*node.View // by name
	Epoch        string                // of the cluster; a node that has not spoken in this epoch takes no pods (R1)
	Hold         string                // why no pod may start, move or stop yet (R1); empty: there is no hold
	Breaker      string                // why no pod may be stopped (mass-stop breaker); empty: pods may be stopped
	Requests     []Request             // what operators ask of the owner
	UnusedShares []UnusedShare         // on the nodes whose reservations a request asks to repair
	// Leftovers are pods of a controller without a record. An operator asked for their stop.
	Leftovers []Leftover
	// EpochSince is when the epoch began. Slack is part of the time after which a silent pod has surely stopped by
	// itself; see SurelyStopped.
	EpochSince time.Time
	Slack      time.Duration
	// WentBack: the epoch began because the store went back in time. Nodes that have been silent since then may run
	// later versions than the records have.
	WentBack bool
	// Newer: the controller was made in this epoch, so a node that has not spoken in this epoch cannot run its pods.
	Newer bool
	// UnreadIntent names an intent that cannot be read and may be for an ordered pod without a placement, "" for none.
	// While it is set, no such pod gets a placement.
	UnreadIntent string
	// Stopped has the replicas that have no placement, and whose stop a node has reported, with the highest revision of
	// such a stop. The next intent needs a higher one (R3). If a clock was ahead, the revision can be above the present
	// time.
	Stopped  map[pod.Identity]int64
	Previous *rc.Status
	Errors   []string // what could not be read, for the status
	// Companions are the service's other revisions that have a record. Empty: minimum and surge are the controller's
	// own.
	Companions []Companion
	// Manifests has the other manifests that pods have or may get, by digest; see OtherDigests.
	Manifests map[string]*manifest.Manifest
	// Rollout is the rollout in charge of the controller, "" for none.
	Rollout string
	// RolloutIdle: the rollout in charge is paused, waits for promote or is stuck, so pods may leave their nodes.
	RolloutIdle bool
	// RolloutTrouble is why the rollout needs people, RolloutStuck what it waits for beyond its stage_timeout; "" for
	// none. The farm sets both for only one controller of the service, so that people are alerted once.
	RolloutTrouble, RolloutStuck string
}

// Request asks the owner for an act on one node, perhaps about one identity (Pod).
type Request struct {
	ID     string
	Forget bool    // an operator declared the pod's copy on the node gone: forget it
	Label  *Labels // change the own labels of the pod on the node
	Node   string
	Pod    pod.Identity
	// Alive and NodeIndex are of the node's record when it was read for this request: whether a preparer held it, and
	// its index, zero without a record. Declared is its index when the operator declared the pod gone.
	Alive               bool
	NodeIndex, Declared uint64
	Waits               string // names a record that the request needs and that cannot be read now; for the status
}

// Labels changes a pod's own labels.
type Labels struct {
	Set    map[string]string
	Remove []string
}

// UnusedShare is a share of a node that is reserved for an identity without a copy there.
type UnusedShare struct {
	Node string
	Pod  pod.Identity
}

// Pod is one placement with what its nodes report.
type Pod struct {
	pod.Placement
	Index   uint64                  // Consul's modify index of the placement
	Reality *pod.Reality            // of Placement.Node; nil when there is none
	Ghosts  map[string]*pod.Reality // of former nodes, by name
	// Intents are the intents for Placement.Node and the ghosts' nodes, by node; nil if they were not read. They are
	// read in a resync, if a node lists the pod as an orphan, and if the report of the pod's node has a higher revision
	// than the placement.
	Intents map[string]*pod.Intent
	// Claims are the pod's shares on the same nodes, nil for none. A node whose reservation cannot be read is absent.
	// The map is filled only in a resync; otherwise it is nil.
	Claims map[string]*node.Claim

	timesInFuture bool // the placement in Consul has times in the future; see clocks
}

// Orphan is a pod that a living node runs without a matching intent, or an intent whose pod has no placement; see
// AddIntent.
type Orphan struct {
	Node string
	pod.Orphan
	intentStops bool
}

func name(id pod.Identity) string { return fmt.Sprintf("%s.%d", id.Role, id.Index) }

func without(ghosts []pod.Ghost, nodeName string) []pod.Ghost {
	return slices.DeleteFunc(slices.Clone(ghosts), func(g pod.Ghost) bool { return g.Node == nodeName })
}

func (o *Orphan) claim() node.Claim { return node.NewClaim(o.Identity, o.Ports, o.CPU, o.Memory) }

// arrived reports whether the pod is available where it is placed, with the placement's digest. The reported revision
// may be lower, because a new revision with the same digest restarts nothing.
func (p *Pod) arrived() bool {
	return p.RunState == pod.Running && p.Reality != nil && p.Reality.Available && p.Reality.Digest == p.Digest
}

func (p *Pod) runs() bool { return p.Reality != nil && p.Reality.State != pod.StateStopped }

func (p *Pod) runsOn(g pod.Ghost) bool {
	r := p.Ghosts[g.Node]
	return r != nil && r.State != pod.StateStopped
}

// confirmed reports whether a report proves a stop of at least this revision (P5).
func confirmed(r *pod.Reality, revision int64) bool {
	return r != nil && r.State == pod.StateStopped && r.Revision >= revision
}

// hasStopped reports whether a former copy's node has confirmed its stop. If an owner asked for the stop, the report
// needs at least that revision. Otherwise an intent that the store has lost may have stopped the copy (R1). Then the
// report needs a higher revision than the pod, or than the copy's intent.
func (p *Pod) hasStopped(g pod.Ghost) bool {
	r := p.Ghosts[g.Node]
	if g.Revision != 0 {
		return confirmed(r, g.Revision)
	}
	in := p.Intents[g.Node]
	return confirmed(r, p.Revision+1) || in != nil && in.State == pod.Running && confirmed(r, in.Revision+1)
}

// SteadyNow is Steady or, if that is zero, Now.
func (s *Snapshot) SteadyNow() time.Time {
	if s.Steady.IsZero() {
		return s.Now
	}
	return s.Steady
}

// reportIsCurrent reports whether a node's report is valid now. After the store went back in time, and during a hold,
// it is valid only if the node has spoken in this epoch: an intent since then may have started the stopped pod again.
func (s *Snapshot) reportIsCurrent(name string) bool {
	v := s.Nodes[name]
	if v == nil {
		return s.Hold == ""
	}
	return v.Spoke(s.Epoch) || s.Hold == "" && !s.WentBack
}

// nextRevision returns a revision above the given ones and all of the pod in the snapshot (R3).
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

func (s *Snapshot) all() iter.Seq[*Pod] {
	return func(yield func(*Pod) bool) {
		for i := range s.Pods {
			if !yield(&s.Pods[i]) {
				return
			}
		}
	}
}

func (s *Snapshot) running() iter.Seq[*Pod] {
	return where(s.all(), func(p *Pod) bool { return p.RunState == pod.Running })
}

// where yields the pods for which is returns true. It asks just before it yields, because the loop may change the
// answer for later pods.
func where(pods iter.Seq[*Pod], is func(*Pod) bool) iter.Seq[*Pod] {
	return func(yield func(*Pod) bool) {
		for p := range pods {
			if is(p) && !yield(p) {
				return
			}
		}
	}
}
