// Package node holds the records of a machine: what its preparer says about it, what operators say about it, and
// what is reserved on it.
package node

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Node is what the preparer says, at nodes/<s>/<node>. The key is locked by the preparer's session while it lives.
type Node struct {
	Name             string            `json:"name"`
	Labels           map[string]string `json:"labels,omitempty"`
	Capacity         Capacity          `json:"capacity"`
	PortRange        PortRange         `json:"port_range,omitzero"`
	Host             string            `json:"host,omitempty"`              // random, of the preparer's data directory; tells machines with one name apart
	Address          string            `json:"address"`                     // given to pods as NODE_ADDRESS
	ConsulNode       string            `json:"consul_node"`                 // the node name of its Consul agent
	Version          string            `json:"version"`                     // of the preparer
	EmulationVersion string            `json:"emulation_version,omitempty"` // the newest whose records the preparer writes (ADR 28); empty: one from before the gate
	API              string            `json:"api,omitempty"`               // URL of the preparer's HTTP API (logs, commands); empty: none
	Incarnation      string            `json:"incarnation"`                 // of the preparer process
	Epoch            string            `json:"nonce"`                       // cluster epoch that it has seen (R1)
	// EnforcesStopAfter: every supervisor of the node that runs a pod with disconnect.stop_after stops it by itself, whatever becomes of the
	// preparer. Without it time alone says nothing of ordered pods there (ADR 23).
	EnforcesStopAfter bool `json:"enforces_stop_after,omitempty" feature:"ordered"`
	// SupervisorSilent: what keeps the node's pods running does not answer the preparer, so that nothing is started or
	// stopped there.
	SupervisorSilent bool `json:"supervisor_silent,omitempty" feature:"supervisor-silent"`
	// TTL is the preparer's liveness TTL; see BelievesFor.
	TTL field.Duration `json:"ttl,omitzero" feature:"ordered"`
	// Isolation is what pods of the node have of their own: "none", or some of "users,cgroup,tmp"; "refused": they should have
	// users and cannot, so that none is started. Empty: an older preparer, which does not say.
	Isolation string `json:"isolation,omitempty"`
	// Anonymous says what requests without a token, which pods can make, may do at the machine's Consul agent: one of the constants.
	// Empty: nobody asked.
	Anonymous string `json:"anonymous,omitempty"`
	// Shut: the preparer takes no new intents because of that.
	Shut bool `json:"shut,omitempty"`
	// Intents says how the node learns of its intents, if it does not watch them: one of the constants.
	Intents string `json:"intents,omitempty" feature:"push"`
	// PortsInUse are numbers, sorted, that something on the machine holds which is none of the node's pods: pods are not given them.
	PortsInUse []int `json:"ports_in_use,omitempty" feature:"ports-in-use"`
	// WentBack is the epoch that was current when the preparer saw the store go back in time. Farms that find it at or
	// after the cluster's epoch renew that.
	WentBack string `json:"regressed,omitempty"`
	// OrphanPages says where the pods are listed that run without a matching intent. Without it the record does not say, as
	// when the preparer has not read its intents yet; or it is of an older preparer, which listed them in Orphans.
	OrphanPages *OrphanPages `json:"orphan_pages,omitempty"`
	// Orphans are the pods that run without a matching intent, for those who have read the pages. In the record itself older
	// preparers wrote as many as fitted, and in OrphansLeftOut how many did not.
	Orphans        []pod.Orphan `json:"orphans,omitempty"`
	OrphansLeftOut int          `json:"orphans_left_out,omitempty"`
	// OrphansRefused says why orphans on the pages are left out that no farm could take over, for those who have read
	// them; OrphansLeftOut counts these, too.
	OrphansRefused []string `json:"-"`
}

// MaxTTL is the longest liveness TTL.
const MaxTTL = time.Minute

// BelievesFor returns for how long a preparer may think that it is in touch after the servers' last answer: 1.5 TTL (consul.Session). One that
// does not say its TTL may have the longest.
func (n *Node) BelievesFor() time.Duration {
	ttl := time.Duration(n.TTL)
	if ttl <= 0 || ttl > MaxTTL {
		ttl = MaxTTL
	}
	return ttl * 3 / 2
}

// How a node learns of its intents.
const (
	IntentsPush    = "push"    // farms tell it of them (ADR 26)
	IntentsRefused = "refused" // it watches, though its operator wants farms to tell it: its API does not allow that
)

// What requests without a token may do.
const (
	AnonymousSecured   = "closed"  // nothing that matters
	AnonymousUnsecured = "open"    // have programs started, or keep the preparer from its work
	AnonymousUnknown   = "unknown" // Consul has not said yet
)

// Capacity is what a node offers to pods. A zero CPU or Memory means that it is not limited.
type Capacity struct {
	Slots  int   `json:"slots"`
	CPU    int64 `json:"cpu,omitempty"`    // thousandths of a core
	Memory int64 `json:"memory,omitempty"` // bytes
}

// PortRange is the range for dynamic ports, both ends included.
type PortRange struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

// Ops is what operators say, at nodeops/<s>/<node>.
type Ops struct {
	Name          string            `json:"name"`
	Labels        map[string]string `json:"labels,omitempty"` // override the node's own
	Unschedulable bool              `json:"unschedulable,omitempty"`
	Drain         *Drain            `json:"drain,omitempty"`
	// HoldReleased is the cluster epoch for which farms do not wait until the node has said what it runs (R1).
	HoldReleased string `json:"hold_released,omitempty"`
}

// Drain asks owners to move every pod off the node.
type Drain struct {
	Since    time.Time  `json:"since"`
	Deadline *time.Time `json:"deadline,omitempty"`
	Force    bool       `json:"force,omitempty"`
}

// View is everything known about a node at one moment.
type View struct {
	Node
	Ops Ops
	// OpsUnread is why the operators' record cannot be read, where nothing is known of it; empty: it can be read, or there is none. Whether the node is
	// cordoned or drained and which labels it has is not known then: it takes no new pods, and loses none for its labels (P4).
	OpsUnread string
	Alive     bool // its preparer holds the lock on the record
	// FreeIndex is the index of the record while nobody holds it, else zero. It names one death of the preparer: whoever holds the
	// record moves it.
	FreeIndex uint64
	// MachineLost means that the machine's Consul agent has failed, besides the preparer. A node that is neither alive nor lost is
	// unmanaged: its pods are assumed to run on, unless its machine was lost before; see reconcile.Snapshot.
	MachineLost bool
	// LostSeen is when this farm first saw that, by its own clock.
	LostSeen time.Time
	// AgentLives: the preparer is dead and, as far as Consul was asked in this death, the machine's agent has not failed, and is not unknown. Its
	// pods may run, and its preparer may be in touch without its lock.
	AgentLives bool
	// DeadSeen is when this farm first saw the present death of the preparer, by its own clock or, if that was later, when its agent ceased to live.
	DeadSeen time.Time
	// LabelVersions are those of the labels, made once for many questions; empty in a view that was not made by NewView.
	LabelVersions LabelVersions
	// OrphansUnread: the record speaks of pages that have not been read. Until they are, Orphans are those of an earlier record.
	OrphansUnread bool
}

// AllLabels returns the node's labels with the operators' on top.
func (v *View) AllLabels() map[string]string { return field.Merge(v.Labels, v.Ops.Labels) }

// Matches reports whether the node's labels, with the operators' on top, match a selector. It copies none of them: a farm asks this of
// thousands of nodes.
func (v *View) Matches(sel labels.Selector) bool { return sel.Matches((*layered)(v)) }

// MayMatch reports whether the node's labels match a selector as far as they are known: who asks whether a pod may stay must not stop it for what
// cannot be read.
func (v *View) MayMatch(sel labels.Selector) bool { return v.OpsUnread != "" || v.Matches(sel) }

// layered shows both layers of a node's labels as labels.Labels.
type layered View

// Has implements labels.Labels.
func (l *layered) Has(key string) bool { _, ok := l.Lookup(key); return ok }

// Get implements labels.Labels.
func (l *layered) Get(key string) string { value, _ := l.Lookup(key); return value }

// Lookup implements labels.Labels.
func (l *layered) Lookup(key string) (value string, exists bool) {
	if value, exists = l.Ops.Labels[key]; exists {
		return value, true
	}
	value, exists = l.Labels[key]
	return value, exists
}

// MustLeave reports whether pods have to leave the node as far as its operators are concerned.
func (v *View) MustLeave() bool { return v.Ops.Drain != nil }

// Eligible reports whether new pods may be placed on the node as far as its operators are concerned.
func (v *View) Eligible() bool { return !v.Ops.Unschedulable && v.Ops.Drain == nil }

// Reservation is what is taken on a node, at reservations/<node>. Every placing transaction changes it by CAS, so
// two farms cannot hand out the same port or the last slot twice (P3).
type Reservation struct {
	Ineligible bool             `json:"closed,omitempty"` // drained: nothing may be added
	Labels     LabelVersions    `json:"labels,omitzero"`  // of the node's labels: nothing may be added by whoever knows others
	Claims     map[string]Claim `json:"holders"`          // by pod.Identity.String()
}

// Claim is what one identity takes of a node.
type Claim struct {
	Pod    pod.Identity `json:"pod"`
	Ports  []int        `json:"ports,omitempty"`
	CPU    int64        `json:"cpu,omitempty"`    // thousandths of a core
	Memory int64        `json:"memory,omitempty"` // bytes
}

// NewClaim returns the claim that a pod with these ports and resources takes. A port without a number takes none.
func NewClaim(id pod.Identity, ports map[string]int, cpu, memory int64) Claim {
	numbers := slices.DeleteFunc(slices.Sorted(maps.Values(ports)), func(n int) bool { return n == 0 })
	return Claim{Pod: id, Ports: numbers, CPU: cpu, Memory: memory}
}

// With returns a claim that is enough for either of two of the same pod.
func (h Claim) With(other Claim) Claim {
	h.Ports = slices.Concat(h.Ports, other.Ports)
	slices.Sort(h.Ports)
	h.Ports = slices.Compact(h.Ports)
	h.CPU, h.Memory = max(h.CPU, other.CPU), max(h.Memory, other.Memory)
	return h
}

// Bytes returns an upper bound of the reservation's length as JSON. Encoding it for each pod that it is for would be a good part
// of placing thousands.
func (r Reservation) Bytes() int {
	const number, rest = 21, len(`{"closed":true,"labels":{"own":"","operators":""},"holders":{}}`) + 2*labelVersionBytes
	size := rest
	for key, h := range r.Claims {
		const names = len(`"":{"pod":{"rc_id":"","role":"","index":},"ports":[],"cpu":,"memory":},`)
		size += names + field.TextBytes(key) + field.TextBytes(h.Pod.RCID) + field.TextBytes(h.Pod.Role) + (3+len(h.Ports))*number
	}
	return size
}

// Clone returns a copy that can be changed without touching the original.
func (r Reservation) Clone() Reservation {
	r.Claims = field.Merge(r.Claims)
	return r
}

// ParseCapacity reads the slots, CPU and memory flags of a preparer.
func ParseCapacity(slots int, cpu, memory int64) (Capacity, error) {
	var errs field.Errors
	if slots < 1 || slots > MaxSlots {
		errs.Add("slots", strconv.Itoa(slots), fmt.Sprintf("how many pods the node takes, 1 to %d", MaxSlots))
	}
	if cpu < 0 || cpu > MaxCPU {
		errs.Add("cpu", cpu, fmt.Sprintf("thousandths of a core, zero (not limited) to %d", int64(MaxCPU)))
	}
	if memory < 0 || memory > MaxMemory {
		errs.Add("memory", memory, fmt.Sprintf("bytes, zero (not limited) to %d", int64(MaxMemory)))
	}
	return Capacity{Slots: slots, CPU: cpu, Memory: memory}, errs.Err()
}

// NameConflict reports whether the record is another machine's than that of who would write it now. A data directory with the
// same host id beside another agent may be a copy, so that it conflicts too. A writer without a host id compares
// nothing.
func (n *Node) NameConflict(writer Node) bool {
	differ := func(a, b string) bool { return a != "" && b != "" && a != b }
	// Records of versions without host ids tell only their agent.
	return writer.Host != "" && (differ(n.Host, writer.Host) || differ(n.ConsulNode, writer.ConsulNode))
}

// OrphanPages says, in a node's record, where the pods are listed that run there without a matching intent. The zero value
// says that there are none.
type OrphanPages struct {
	Edition string `json:"edition,omitempty"` // that every page bears; another one whenever the list changes
	Count   int    `json:"count"`             // of the pages, which are numbered from zero
	Orphans int    `json:"orphans"`           // on all of them
}

// OrphanPage is a part of that list, at orphans/<node>/<n>: one record could not hold all that a machine may run.
type OrphanPage struct {
	Node    string       `json:"node"`
	Page    int          `json:"page"`
	Edition string       `json:"edition"`
	Epoch   string       `json:"nonce"` // that the preparer had seen when it wrote the page
	Orphans []pod.Orphan `json:"orphans"`
	// Refused says which orphans of the page are left out because no farm could take them over, and why.
	Refused []string `json:"-"`
}

// Spoke reports whether the node has said, under a cluster epoch, what it runs, and all of that is known (R1).
func (v *View) Spoke(epoch string) bool { return v.Epoch == epoch && !v.OrphansUnread }

// HoldsLimits reports whether pods of the node have cgroups, so that their limits can change while they run.
func (n *Node) HoldsLimits() bool { return slices.Contains(strings.Split(n.Isolation, ","), "cgroup") }

// OrphanCount is how many pods the record says run without a matching intent.
func (n *Node) OrphanCount() int {
	if n.OrphanPages != nil {
		return n.OrphanPages.Orphans
	}
	return len(n.Orphans) + n.OrphansLeftOut
}
