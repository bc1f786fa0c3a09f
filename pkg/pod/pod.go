// Package pod has the records of one replica.
package pod

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Labels that every pod has.
const (
	RCIDLabel  = "replication_controller_id"
	PodIDLabel = "pod_id"
)

// IsReserved reports whether rcfarm sets this label on every pod. No document may set it.
func IsReserved(key string) bool { return key == RCIDLabel || key == PodIDLabel }

// ReservedAllowed is for messages.
const ReservedAllowed = "any other key; rcfarm sets this one"

// Identity names one replica for as long as its replication controller exists.
type Identity struct {
	RCID  string `json:"rc_id"`
	Role  string `json:"role"`
	Index int    `json:"index"`
}

// String is for people and for keys. No program parses it.
func (i Identity) String() string { return i.RCID + "/" + i.Role + "." + strconv.Itoa(i.Index) }

// Compare orders identities by controller, role and index.
func (i Identity) Compare(other Identity) int {
	return cmp.Or(cmp.Compare(i.RCID, other.RCID), cmp.Compare(i.Role, other.Role), cmp.Compare(i.Index, other.Index))
}

// RunState is the desired state in an intent.
type RunState string

// The run states. There is no third state: without an intent, the node does nothing.
const (
	Running RunState = "running"
	Stopped RunState = "stopped"
)

// Valid reports whether this build knows the state.
func (r RunState) Valid() bool { return r == Running || r == Stopped }

// Placement is the owner's decision for one identity, at pods/<rc-id>/<role>.<index>.
type Placement struct {
	Identity
	Node   string            `json:"node"`
	PodID  string            `json:"pod_id"`
	Labels map[string]string `json:"labels"`
	// OwnLabels are in Labels, too, instead of the controller's and the manifest's. An upgrade in place keeps them; a
	// move drops them.
	OwnLabels map[string]string `json:"own_labels,omitempty" feature:"own-labels"`
	Digest    string            `json:"digest"` // of the manifest
	Ports     map[string]int    `json:"ports,omitempty"`
	RunState  RunState          `json:"run_state"`
	Revision  int64             `json:"revision"` // of the current intent; only grows (R3)
	// Switching: the share of the former version is kept until the node reports the new one.
	Switching bool `json:"switching,omitempty"`
	// MayRun, for ordered groups, has the digests of former intents that the node may still run, because it has not
	// reported the present version yet; empty: unknown ones.
	MayRun []string `json:"may_run,omitempty" feature:"ordered"`
	// Epoch, for ordered groups, is the epoch in which the owner made sure that no other node may run the pod; else
	// empty.
	Epoch string `json:"epoch,omitempty" feature:"ordered"`
	// Standby: the pod is not registered under its service's name, and not available for the minimum (ADR 16).
	Standby bool `json:"standby,omitempty"`
	// Replicas is the count of the role when the pod was placed or got its manifest.
	Replicas int `json:"replicas,omitempty" feature:"role-replicas"`

	Ghosts         []Ghost    `json:"ghosts,omitempty"` // former nodes that have not confirmed the stop
	StoppingSince  *time.Time `json:"stopping_since,omitempty"`
	LostSince      *time.Time `json:"lost_since,omitempty"`
	UnmanagedSince *time.Time `json:"unmanaged_since,omitempty"`
	// DeadIndex, an index of the node's record, identifies the death to which LostSince and UnmanagedSince belong.
	DeadIndex uint64 `json:"dead_index,omitempty"`
	// AdoptedAtGeneration: the pod is kept as adopted until the controller's generation is higher (R2).
	AdoptedAtGeneration int64     `json:"adopted_at_generation,omitempty"`
	ChangedAt           time.Time `json:"changed_at"` // when this revision was decided
	// Avoid are nodes on which the pod did not become available, the latest last; see rc.RC.Avoided.
	Avoid []Avoided `json:"avoid,omitempty"`
}

// Avoided is a node that the pod moved off again.
type Avoided struct {
	Node       string    `json:"node"`
	Since      time.Time `json:"since"`
	Generation int64     `json:"generation"`       // of the controller at that time
	Reason     string    `json:"reason,omitempty"` // the node's message, shortened
	// Digest is the pod's manifest, if the pod never became available on its first node. With this manifest it gets no
	// further second node. Empty: the pod had moved to the node.
	Digest string `json:"digest,omitempty" feature:"second-node"`
}

// Tried returns the entry for the node where the pod, with its present manifest, never became available, or nil.
func (p *Placement) Tried() *Avoided {
	return field.Find(p.Avoid, func(a *Avoided) bool { return a.Digest != "" && a.Digest == p.Digest })
}

// Leaves returns the entry for the pod's present node if the pod was asked to stop there to be tried on a second node,
// or nil. It compares the times, because a pod can return and stop there later for another reason.
func (p *Placement) Leaves() *Avoided {
	a := p.Tried()
	if a == nil || a.Node != p.Node || p.RunState != Stopped || p.StoppingSince == nil ||
		!p.StoppingSince.Equal(a.Since) {
		return nil
	}
	return a
}

// Ghost is a copy of the pod on a node that it moved off, until its stop is confirmed.
type Ghost struct {
	Node string `json:"node"`
	// Revision is of the stop that the node must confirm. Zero: the copy runs until the pod is available on its new
	// node (R7).
	Revision int64 `json:"revision,omitempty"`
	// LeftBecauseLost: if the node returns in time, it keeps the pod.
	LeftBecauseLost bool `json:"lost,omitempty"`
	MachineLost     bool `json:"gone,omitempty"` // its machine is lost: ignore its last report
	// DeadIndex, an index of the node's record, identifies the death to which MachineLost belongs.
	DeadIndex uint64    `json:"dead_index,omitempty"`
	Since     time.Time `json:"since"`
	// Ports: dynamic ones differ from node to node.
	Ports map[string]int `json:"ports,omitempty"`
}

// Intent is what one node must do about one identity, at intent/<node>/<rc-id>/<role>.<index>.
type Intent struct {
	Identity
	PodID    string            `json:"pod_id"`
	Digest   string            `json:"digest"`
	Labels   map[string]string `json:"labels,omitempty"`
	Ports    map[string]int    `json:"ports,omitempty"`
	State    RunState          `json:"state"`
	Revision int64             `json:"revision"`
	// the pod is registered under its standby name
	Standby bool `json:"standby,omitempty"`
	// Replicas is for processes that start under this intent.
	Replicas int `json:"replicas,omitempty" feature:"role-replicas"`
	// Epoch: the node starts the pod only in this epoch; empty: in any epoch.
	Epoch string `json:"epoch,omitempty" feature:"ordered"`
}

// Intent returns the intent of the placement.
func (p *Placement) Intent() Intent {
	return Intent{
		Identity: p.Identity, PodID: p.PodID, Digest: p.Digest, Labels: p.Labels, Ports: p.Ports,
		State: p.RunState, Revision: p.Revision, Standby: p.Standby, Replicas: p.Replicas, Epoch: p.Epoch,
	}
}

// GhostIntent returns the stop that a ghost's node must carry out.
func (p *Placement) GhostIntent(g Ghost) Intent {
	in := p.Intent()
	in.State, in.Revision, in.Ports = Stopped, g.Revision, p.PortsOf(g)
	return in
}

// PortsOf returns the pod's ports if the copy has none of its own.
func (p *Placement) PortsOf(g Ghost) map[string]int {
	if g.Ports == nil {
		return p.Ports
	}
	return g.Ports
}

// State is the state of a pod on its node.
type State string

// The states, in the usual order.
const (
	StatePending    State = "pending"
	StateFetching   State = "fetching"
	StateInstalling State = "installing"
	StateStarting   State = "starting"
	StateRunning    State = "running"   // processes run, health not known yet
	StateReady      State = "ready"     // available
	StateUnhealthy  State = "unhealthy" // processes run, health check does not pass
	StateStopping   State = "stopping"
	StateStopped    State = "stopped"
	// StateEnded: all its processes have ended well, and are not restarted. LastExit is the last of their ends.
	StateEnded  State = "ended"
	StateFailed State = "failed"
	// StateCrashLooping lasts until the process with at least CrashLoop short runs in a row has run long enough. The
	// pod is not available.
	StateCrashLooping State = "crash-looping"
	StateOrphaned     State = "orphaned" // runs without an intent
)

// CrashLoop is how many short runs in a row make a pod crash-looping.
const CrashLoop = 3

// Reality is a node's report of one identity, at reality/<node>/<rc-id>/<role>.<index>.
type Reality struct {
	Identity
	Kind      string `json:"kind,omitempty"` // KindLocal; empty: a controller's
	Node      string `json:"node"`
	Digest    string `json:"digest"`
	Revision  int64  `json:"revision"` // highest that the node has applied
	State     State  `json:"state"`
	Available bool   `json:"available"`
	Standby   bool   `json:"standby,omitempty"` // it is out of its service's name
	// Hopeless: only an operator or another version can help, for example because the artifact is refused, or the
	// processes end again and again.
	Hopeless bool `json:"hopeless,omitempty"`
	// NeverAvailable: since the pod was placed on the node, with any manifest.
	NeverAvailable bool `json:"never_available,omitempty" feature:"second-node"`
	// AllEnded: the pod has failed, and all its processes have ended and are not restarted.
	AllEnded bool `json:"all_ended,omitempty" feature:"all-ended"`
	// Restarts counts restarts of all processes since the node started this version. A stop resets it. While a pod is
	// crash-looping, it is reported at most every ten seconds.
	Restarts int    `json:"restarts"`
	LastExit *Exit  `json:"last_exit,omitempty"`
	Message  string `json:"message,omitempty"` // why, in one sentence; and what to do, if anything
	// PullSeconds is for how long images of this revision have arrived. The pod has so much more time to become
	// available.
	PullSeconds int64 `json:"pull_seconds,omitempty" feature:"images"`
	// LogTail, for a pod that is not available, is the end of the log of the process that failed last, as one line.
	LogTail string    `json:"log_tail,omitempty"`
	Since   time.Time `json:"since"` // in this state, by the node's clock
}

// PullTime is for how long images of the revision have arrived.
func (r *Reality) PullTime() time.Duration { return time.Duration(r.PullSeconds) * time.Second }

// Drops reports whether an available copy may not be available any more according to the node's next report. For its
// owner a copy is available only at one digest, and not as a standby pod.
func (r *Reality) Drops(next *Reality) bool {
	return r.Counts() && !(next.Counts() && next.Digest == r.Digest)
}

// Ended reports whether all processes of the digest have ended and are not restarted. If the pod runs once, no revision
// with this digest starts them again on the node.
func (r *Reality) Ended(digest string) bool {
	return r != nil && (r.State == StateEnded || r.State == StateFailed && r.AllEnded) && !r.Available &&
		r.Digest == digest
}

// Counts reports whether the copy is available under its service's name.
func (r *Reality) Counts() bool { return r.Available && !r.Standby }

// Exit is how a process ended.
type Exit struct {
	Launchable string `json:"launchable"`
	Code       int    `json:"code"`             // exit status; -1 when a signal ended it or it is unknown
	Signal     string `json:"signal,omitempty"` // such as SIGKILL
	Unknown    bool   `json:"unknown,omitempty"`
	// OutOfMemory: the kernel killed processes because memory ran out. MemoryLimit is the process's own limit, in
	// bytes; zero: the node, or all its pods together, had no more.
	OutOfMemory bool  `json:"out_of_memory,omitempty" feature:"out-of-memory"`
	MemoryLimit int64 `json:"memory_limit,omitempty" feature:"out-of-memory"`
	// Reason is why the node restarted the process; empty: it ended by itself, or was stopped.
	Reason string    `json:"reason,omitempty" feature:"restart-after"`
	At     time.Time `json:"at"`
}

// String is for messages.
func (e Exit) String() string {
	switch {
	case e.Reason != "":
		return "was ended because " + e.Reason
	case e.OutOfMemory && e.MemoryLimit > 0:
		return fmt.Sprintf("was killed by the kernel at its memory limit of %d bytes", e.MemoryLimit)
	case e.OutOfMemory:
		return "was killed by the kernel for want of memory"
	case e.Unknown:
		return "ended; how is not known, because an earlier supervisor had started it"
	case e.Signal != "":
		return "ended by " + e.Signal
	default:
		return fmt.Sprintf("ended with exit status %d", e.Code)
	}
}

// Orphan is a pod that runs on a node without a matching intent.
type Orphan struct {
	Identity
	PodID    string         `json:"pod_id"`
	Digest   string         `json:"digest"`
	Revision int64          `json:"revision"`
	Ports    map[string]int `json:"ports,omitempty"`
	CPU      int64          `json:"cpu,omitempty"`    // thousandths of a core
	Memory   int64          `json:"memory,omitempty"` // bytes
	Reason   string         `json:"reason"`           // ReasonOrphaned or ReasonAhead
	// Runs: a process of the pod runs. If none runs, for example because of stop_after, adoption starts the pod.
	Runs bool `json:"runs,omitempty" feature:"ordered"`
}

// Why a pod runs without a matching intent.
const (
	ReasonOrphaned = "orphaned"  // there is no intent
	ReasonAhead    = "regressed" // the intent's revision is lower than the revision that the node applied
)

// MaxReported is the highest revision that a farm believes if only a node's report has it. No clock gives such a
// number, and enough higher revisions are left.
const MaxReported = 1 << 53

// NextRevision returns a revision for a new decision: at least now in unix milliseconds, higher than every revision
// seen for the identity (R3), and at most MaxRevision, with which nodes accept no further change of the pod.
func NextRevision(now time.Time, seen ...int64) int64 {
	next := now.UnixMilli()
	for _, rev := range seen {
		next = max(next, min(rev, MaxRevision-1)+1)
	}
	return next
}
