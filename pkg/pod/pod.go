// Package pod holds the records of one replica: where it is placed, what its node is told, what its node did.
package pod

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Labels that every pod carries besides those of its manifest and its replication controller.
const (
	RCIDLabel  = "replication_controller_id"
	PodIDLabel = "pod_id"
)

// IsReserved reports whether every pod has the label of a key from rcfarm, so that nobody else may set it.
func IsReserved(key string) bool { return key == RCIDLabel || key == PodIDLabel }

// ReservedAllowed says in words what IsReserved leaves.
const ReservedAllowed = "any other key; rcfarm sets this one"

// Identity names one replica for as long as its replication controller exists.
type Identity struct {
	RCID  string `json:"rc_id"`
	Role  string `json:"role"`
	Index int    `json:"index"`
}

// String is for people and for keys; nothing parses it.
func (id Identity) String() string { return id.RCID + "/" + id.Role + "." + strconv.Itoa(id.Index) }

// Compare orders identities by controller, role and index.
func (id Identity) Compare(other Identity) int {
	return cmp.Or(cmp.Compare(id.RCID, other.RCID), cmp.Compare(id.Role, other.Role), cmp.Compare(id.Index, other.Index))
}

// RunState is what an intent asks for.
type RunState string

// The run states. There is no third: a key that is missing asks for nothing at all.
const (
	Running RunState = "running"
	Stopped RunState = "stopped"
)

// Valid reports whether the state is one that this build knows.
func (s RunState) Valid() bool { return s == Running || s == Stopped }

// Placement is the owner farm's decision for one identity, at pods/<rc-id>/<role>.<index>.
type Placement struct {
	Identity
	Node   string            `json:"node"`
	PodID  string            `json:"pod_id"`
	Labels map[string]string `json:"labels"`
	// OwnLabels are those of Labels that people gave this pod alone. They win over its controller's and its manifest's,
	// stay while the pod is on its node, also through an upgrade in place, and go when it moves to another.
	OwnLabels map[string]string `json:"own_labels,omitempty" feature:"own-labels"`
	Digest    string            `json:"digest"` // of the manifest
	Ports     map[string]int    `json:"ports,omitempty"`
	RunState  RunState          `json:"run_state"`
	Revision  int64             `json:"revision"` // of the current intent; only grows (R3)
	// Switching: the node may still run the former version, whose claim is held until it says that it does not.
	Switching bool `json:"switching,omitempty"`
	// MayRun are other manifests that the node of a pod of an ordered group was told to run and may have begun with, since it last reported the one that it
	// was told; an empty one stands for those that there was no room for.
	MayRun []string `json:"may_run,omitempty" feature:"ordered"`
	// Epoch of the cluster in which it was made sure that no other node may run the pod; empty where its group is not ordered, or nobody was sure.
	Epoch    string `json:"epoch,omitempty" feature:"ordered"`
	Standby  bool   `json:"standby,omitempty"`                          // it stays out of its service's name, and counts for no minimum (ADR 16)
	Replicas int    `json:"replicas,omitempty" feature:"role-replicas"` // of its role, when it was placed or got its manifest; nothing changes where the count does

	Ghosts              []Ghost    `json:"ghosts,omitempty"` // former nodes that have not confirmed the stop
	StoppingSince       *time.Time `json:"stopping_since,omitempty"`
	LostSince           *time.Time `json:"lost_since,omitempty"`
	UnmanagedSince      *time.Time `json:"unmanaged_since,omitempty"`
	DeadIndex           uint64     `json:"dead_index,omitempty"`            // of the node's record: the death that the two above are about
	AdoptedAtGeneration int64      `json:"adopted_at_generation,omitempty"` // runs as found until the RC moves past this (R2)
	ChangedAt           time.Time  `json:"changed_at"`                      // when this revision was decided
	// Avoid are nodes that the pod left again because it did not become available there, the latest last. How
	// many there may be, and which of them count, is for the controller to say; see rc.RC.Avoided.
	Avoid []Avoided `json:"avoid,omitempty"`
}

// Avoided is a node on which a pod was tried in vain.
type Avoided struct {
	Node       string    `json:"node"`
	Since      time.Time `json:"since"`
	Generation int64     `json:"generation"`       // of the controller at that time
	Reason     string    `json:"reason,omitempty"` // what the node said, shortened
	// Digest is the manifest with which the pod never became available on the node that it was placed on first. Empty: it
	// was moved to the node from another one. For as long as the pod has this manifest, such an entry says that it has
	// had its second node.
	Digest string `json:"digest,omitempty" feature:"second-node"`
}

// Tried returns what the placement remembers of the node where the pod, with the manifest that it has, never became
// available; nil: it has not been tried on a second node.
func (p *Placement) Tried() *Avoided {
	return field.Find(p.Avoid, func(a *Avoided) bool { return a.Digest != "" && a.Digest == p.Digest })
}

// Leaves returns what the placement remembers of the node where the pod is, if it was asked to stop there to be tried
// on a second one; nil: it was not. A pod may come back to that node, and stop there for another reason: then it was
// asked at another time.
func (p *Placement) Leaves() *Avoided {
	a := p.Tried()
	if a == nil || a.Node != p.Node || p.RunState != Stopped || p.StoppingSince == nil || !p.StoppingSince.Equal(a.Since) {
		return nil
	}
	return a
}

// Bytes returns an upper bound of the placement's length as JSON.
func (p *Placement) Bytes() int {
	const rest = len(`{"rc_id":"","role":"","index":,"node":"","pod_id":"","labels":null,"digest":"","ports":{},"run_state":"",` +
		`"revision":,"switching":false,"standby":false,"replicas":,"ghosts":[],"stopping_since":,"lost_since":,"unmanaged_since":,"dead_index":,"adopted_at_generation":,"changed_at":}`)
	size := rest + p.Identity.bytes() + field.TextBytes(p.Node) + field.TextBytes(p.PodID) + field.TextBytes(p.Digest) +
		field.TextBytes(string(p.RunState)) + 4*field.NumberBytes + 4*field.TimeBytes + labelBytes(p.Labels) + portBytes(p.Ports)
	for _, g := range p.Ghosts {
		const ghost = len(`{"node":"","revision":,"lost":false,"gone":false,"dead_index":,"since":,"ports":{}},`)
		size += ghost + field.TextBytes(g.Node) + 2*field.NumberBytes + field.TimeBytes + portBytes(g.Ports)
	}
	if len(p.OwnLabels) > 0 {
		size += len(`"own_labels":,`) + labelBytes(p.OwnLabels)
	}
	for _, digest := range p.MayRun {
		size += len(`"may_run":[],,`) + field.TextBytes(digest)
	}
	if p.Epoch != "" {
		size += len(`"epoch":,`) + field.TextBytes(p.Epoch)
	}
	for _, a := range p.Avoid {
		const avoided = len(`"avoid":[],{"node":"","since":,"generation":,"reason":"","digest":""},`)
		size += avoided + field.TextBytes(a.Node) + field.TimeBytes + field.NumberBytes + field.TextBytes(a.Reason) + field.TextBytes(a.Digest)
	}
	return size
}

// Bytes returns an upper bound of the intent's length as JSON.
func (in *Intent) Bytes() int {
	const rest = len(`{"rc_id":"","role":"","index":,"pod_id":"","digest":"","labels":{},"ports":{},"state":"","revision":,"standby":false,"replicas":,"epoch":}`)
	return rest + field.TextBytes(in.Epoch) + in.Identity.bytes() + field.TextBytes(in.PodID) + field.TextBytes(in.Digest) + field.TextBytes(string(in.State)) +
		2*field.NumberBytes + labelBytes(in.Labels) + portBytes(in.Ports)
}

// Bytes returns an upper bound of the orphan's length as JSON.
func (o *Orphan) Bytes() int {
	const rest = len(`{"rc_id":"","role":"","index":,"pod_id":"","digest":"","revision":,"ports":{},"cpu":,"memory":,"reason":"","runs":false}`)
	return rest + o.Identity.bytes() + field.TextBytes(o.PodID) + field.TextBytes(o.Digest) + 3*field.NumberBytes + portBytes(o.Ports) + field.TextBytes(o.Reason)
}

func (id Identity) bytes() int {
	return field.TextBytes(id.RCID) + field.TextBytes(id.Role) + field.NumberBytes
}

func labelBytes(labels map[string]string) int {
	size := len(`{}`)
	for k, v := range labels {
		size += len(`"":"",`) + field.TextBytes(k) + field.TextBytes(v)
	}
	return size
}

func portBytes(ports map[string]int) int {
	size := 0
	for name := range ports {
		size += len(`"":,`) + field.TextBytes(name) + field.NumberBytes
	}
	return size
}

// Ghost is a copy of the pod on a node that it has left, until its stop is confirmed.
type Ghost struct {
	Node string `json:"node"`
	// Revision is that of the stop that the node must confirm. While it is zero the copy keeps running, until the
	// pod is available on its new node (R7).
	Revision        int64     `json:"revision,omitempty"`
	LeftBecauseLost bool      `json:"lost,omitempty"`       // it was left because its node was lost; if it returns in time it keeps the pod
	MachineLost     bool      `json:"gone,omitempty"`       // its machine is lost: what it reported last does not count
	DeadIndex       uint64    `json:"dead_index,omitempty"` // of the node's record: the death that MachineLost is about
	Since           time.Time `json:"since"`
	// Ports are the numbers that the copy has there: dynamic ones differ from node to node.
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
	Standby  bool              `json:"standby,omitempty"`                          // the pod is registered under its standby name
	Replicas int               `json:"replicas,omitempty" feature:"role-replicas"` // of its role, as processes see that are launched by this intent
	// Epoch is that of the placement. Of a pod that does not run, the node starts nothing in another epoch than that; empty: in any.
	Epoch string `json:"epoch,omitempty" feature:"ordered"`
}

// Intent returns the intent that belongs to the placement.
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

// PortsOf returns the ports of a former copy; one without any of its own has the pod's.
func (p *Placement) PortsOf(g Ghost) map[string]int {
	if g.Ports == nil {
		return p.Ports
	}
	return g.Ports
}

// State is where a pod is in its life on a node.
type State string

// The states of a pod on its node, in the order a pod usually passes them.
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
	// StateEnded: all its processes have ended well, and their restart policy leaves it at that. LastExit is the last of them.
	StateEnded  State = "ended"
	StateFailed State = "failed"
	// StateCrashLooping: one of its processes has ended CrashLoop times or more in a row, each time soon after its start. It stays so
	// until that process has run for long enough, whether it runs or waits meanwhile, and is not available.
	StateCrashLooping State = "crash-looping"
	StateOrphaned     State = "orphaned" // runs without an intent
)

// CrashLoop is how many short runs of a process in a row make its pod crash-looping.
const CrashLoop = 3

// Reality is what one node did about one identity, at reality/<node>/<rc-id>/<role>.<index>.
type Reality struct {
	Identity
	Kind      string `json:"kind,omitempty"` // KindLocal; empty: a controller's
	Node      string `json:"node"`
	Digest    string `json:"digest"`
	Revision  int64  `json:"revision"` // highest that the node has applied
	State     State  `json:"state"`
	Available bool   `json:"available"`
	Standby   bool   `json:"standby,omitempty"` // it is out of its service's name
	// Hopeless: trying again will not mend by itself what keeps the accepted version from running: its artifact is refused, say, or its
	// processes end again and again. An operator may, or another version.
	Hopeless bool `json:"hopeless,omitempty"`
	// NeverAvailable: the pod has not been available on the node since it was placed there, with whatever manifest.
	NeverAvailable bool `json:"never_available,omitempty" feature:"second-node"`
	// AllEnded: the pod has failed, all its processes have ended, and their restart policy leaves it at that.
	AllEnded bool `json:"all_ended,omitempty" feature:"all-ended"`
	// Restarts is how often the processes of the installed version were started again, all together, since the node started that version:
	// it begins with zero after a new version and after a stop, not with another preparer. Of a pod that stays crash-looping it is
	// reported every ten seconds at most (ADR 13).
	Restarts int       `json:"restarts"`
	LastExit *Exit     `json:"last_exit,omitempty"`
	Message  string    `json:"message,omitempty"`  // why, in one sentence; what to do where something can be done
	LogTail  string    `json:"log_tail,omitempty"` // of a pod that is not available: the end of the log of the process that ended badly last, as one line
	Since    time.Time `json:"since"`              // in this state, by the node's clock
}

// Drops reports whether a copy that counted as available, wherever it counts, may not do so any more once the next reality is
// reported: for its owner it counts at one digest only, and not while it stands by.
func (r *Reality) Drops(next *Reality) bool {
	return r.Counts() && !(next.Counts() && next.Digest == r.Digest)
}

// Ended reports whether all processes of the digest have ended for good. Where it runs once, no revision of the pod
// with this digest starts them again on the node.
func (r *Reality) Ended(digest string) bool {
	return r != nil && (r.State == StateEnded || r.State == StateFailed && r.AllEnded) && !r.Available && r.Digest == digest
}

// Counts reports whether the copy is available under its service's name.
func (r *Reality) Counts() bool { return r.Available && !r.Standby }

// Exit is how a process ended.
type Exit struct {
	Launchable string `json:"launchable"`
	Code       int    `json:"code"`             // exit status; -1 when a signal ended it or it is unknown
	Signal     string `json:"signal,omitempty"` // such as SIGKILL
	Unknown    bool   `json:"unknown,omitempty"`
	// OutOfMemory: the kernel killed in the process's cgroup for want of memory. MemoryLimit is the process's own
	// limit, in bytes, where that was reached; zero: the node, or all its pods together, had no more.
	OutOfMemory bool  `json:"out_of_memory,omitempty" feature:"out-of-memory"`
	MemoryLimit int64 `json:"memory_limit,omitempty" feature:"out-of-memory"`
	// Reason says why the node has ended the process to start it again; empty: it ended by itself, or was stopped.
	Reason string    `json:"reason,omitempty" feature:"restart-after"`
	At     time.Time `json:"at"`
}

// String says in a few words how the process ended.
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

// Orphan is a pod that runs on a node without a matching intent, as its node record lists it.
type Orphan struct {
	Identity
	PodID    string         `json:"pod_id"`
	Digest   string         `json:"digest"`
	Revision int64          `json:"revision"`
	Ports    map[string]int `json:"ports,omitempty"`
	CPU      int64          `json:"cpu,omitempty"`    // thousandths of a core
	Memory   int64          `json:"memory,omitempty"` // bytes
	Reason   string         `json:"reason"`           // ReasonOrphaned or ReasonAhead
	// Runs: something of it runs. What does not, as a pod with stop_after that is held back, starts when it is adopted; older preparers do not say.
	Runs bool `json:"runs,omitempty" feature:"ordered"`
}

// Why a pod runs without a matching intent.
const (
	ReasonOrphaned = "orphaned"  // there is no intent
	ReasonAhead    = "regressed" // the intent's revision is lower than what was applied
)

// MaxReported is the highest revision that is believed of a node which nobody has told one as high. Clocks give none like it, and from there on revisions can
// grow for as long as anybody cares.
const MaxReported = 1 << 53

// NextRevision returns the revision for a new decision about an identity: at least now in unix milliseconds, and
// higher than every revision seen anywhere for it (R3). There is none above MaxRevision, which no clock gives: the
// record then stays one that can be read, and nodes take no change of the pod.
func NextRevision(now time.Time, seen ...int64) int64 {
	next := now.UnixMilli()
	for _, rev := range seen {
		next = max(next, min(rev, MaxRevision-1)+1)
	}
	return next
}
