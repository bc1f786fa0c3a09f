// Package node has the records of a node.
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

// Node is the preparer's record, at nodes/<s>/<node>. The preparer's session locks the key while it lives.
type Node struct {
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels,omitempty"`
	Capacity  Capacity          `json:"capacity"`
	PortRange PortRange         `json:"port_range,omitzero"`
	// Host is a random id of the preparer's data directory. It distinguishes machines with the same name.
	Host       string `json:"host,omitempty"`
	Address    string `json:"address"`     // given to pods as NODE_ADDRESS
	ConsulNode string `json:"consul_node"` // the node name of its Consul agent
	Version    string `json:"version"`     // of the preparer
	// EmulationVersion is the newest version whose records the preparer writes (ADR 28); empty: from before the gate.
	EmulationVersion string `json:"emulation_version,omitempty"`
	// API is the URL of the preparer's HTTP API; empty: none.
	API         string `json:"api,omitempty"`
	Incarnation string `json:"incarnation"` // of the preparer process
	Epoch       string `json:"nonce"`       // cluster epoch that it has seen (R1)
	// EnforcesStopAfter: even without a preparer, the node's supervisors stop pods with disconnect.stop_after. Else the
	// passing of time does not prove that ordered pods there have stopped (ADR 23).
	EnforcesStopAfter bool `json:"enforces_stop_after,omitempty" feature:"ordered"`
	// SupervisorSilent: the node starts and stops nothing.
	SupervisorSilent bool           `json:"supervisor_silent,omitempty" feature:"supervisor-silent"`
	TTL              field.Duration `json:"ttl,omitzero" feature:"ordered"`
	// Isolation is "none", or some of "users,cgroup,tmp"; "refused": no pod is started, because pods should have their
	// own users and cannot; empty: not reported.
	Isolation string `json:"isolation,omitempty"`
	// Containers is what the node can do with images; nil: not reported, so it runs none.
	Containers *Containers `json:"containers,omitempty" feature:"images"`
	// Anonymous is what requests without a token, which pods can make, can do at the machine's Consul agent; empty: not
	// asked.
	Anonymous string `json:"anonymous,omitempty"`
	// Shut: the preparer takes no new intents, because pods may be able to write them; see Anonymous.
	Shut bool `json:"shut,omitempty"`
	// Intents is how the node learns of its intents, if it does not watch them.
	Intents string `json:"intents,omitempty" feature:"push"`
	// PortsInUse are sorted. Pods do not get ports that other processes use.
	PortsInUse []int `json:"ports_in_use,omitempty" feature:"ports-in-use"`
	// WentBack is the epoch when the preparer saw the store go back in time. If the cluster's epoch is not newer, farms
	// renew it.
	WentBack string `json:"regressed,omitempty"`
	// OrphanPages leads to the pages with the orphans; nil: the preparer has not read its intents yet, or lists them in
	// Orphans, as older ones do.
	OrphanPages *OrphanPages `json:"orphan_pages,omitempty"`
	// Orphans are for a reader of the pages. Older preparers wrote as many as fitted, and the number of the others into
	// OrphansLeftOut.
	Orphans        []pod.Orphan `json:"orphans,omitempty"`
	OrphansLeftOut int          `json:"orphans_left_out,omitempty"`
	// OrphansRefused says why orphans of the pages are left out. OrphansLeftOut counts them, too.
	OrphansRefused []string `json:"-"`
}

// Containers is what a node can do with images.
type Containers struct {
	Runc     string   `json:"runc,omitempty"`     // its version; empty: no usable runc
	Idmapped bool     `json:"idmapped,omitempty"` // layers can have other owners in a container than on the disk
	Lacks    []string `json:"lacks,omitempty"`    // why the node runs no containers, each with its cure; empty: it does
}

// RunsContainers reports whether the node runs pods with images.
func (n *Node) RunsContainers() bool { return n.Containers != nil && len(n.Containers.Lacks) == 0 }

// WhyNoContainers returns in a few words why the node runs no pods with images; empty: it does.
func (n *Node) WhyNoContainers() string {
	if n.Containers == nil {
		return "not reported"
	}
	var short []string
	for _, lack := range n.Containers.Lacks {
		what, _, _ := strings.Cut(lack, ": ")
		short = append(short, what)
	}
	return strings.Join(short, ", ")
}

// MaxTTL is the longest liveness TTL.
const MaxTTL = time.Minute

// BelievesFor returns how long after the servers' last answer a preparer may think that it has contact: 1.5 TTL
// (consul.Session), or the longest if its TTL is not known.
func (n *Node) BelievesFor() time.Duration {
	ttl := time.Duration(n.TTL)
	if ttl <= 0 || ttl > MaxTTL {
		ttl = MaxTTL
	}
	return ttl * 3 / 2
}

// How a node learns of its intents.
const (
	IntentsPush    = "push"    // farms push (ADR 26)
	IntentsRefused = "refused" // it watches, although its operator wants pushes, because its API cannot receive them
)

// What requests without a token may do.
const (
	AnonymousSecured   = "closed"  // nothing harmful
	AnonymousUnsecured = "open"    // start programs, or keep the preparer from its work
	AnonymousUnknown   = "unknown" // Consul has not answered yet
)

// Capacity is what a node offers to pods. A zero CPU or Memory is not limited.
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

// Ops are the operators' settings for a node, at nodeops/<s>/<node>.
type Ops struct {
	Name          string            `json:"name"`
	Labels        map[string]string `json:"labels,omitempty"` // override the node's own
	Unschedulable bool              `json:"unschedulable,omitempty"`
	Drain         *Drain            `json:"drain,omitempty"`
	// HoldReleased is the cluster epoch for which farms do not wait for the node to speak (R1).
	HoldReleased string `json:"hold_released,omitempty"`
}

// Drain asks owners to move every pod off the node.
type Drain struct {
	Since    time.Time  `json:"since"`
	Deadline *time.Time `json:"deadline,omitempty"`
	Force    bool       `json:"force,omitempty"`
}

// View is all that is known about a node at one moment.
type View struct {
	Node
	Ops Ops
	// OpsUnread is why the operators' settings cannot be read; empty: they can be read. Such a node gets no new pods,
	// because it may be drained, and no pod leaves it because of its labels (P4).
	OpsUnread string
	Alive     bool // its preparer holds the lock on the record
	// FreeIndex is the index of the record while no preparer holds it, else zero. It identifies one death of the
	// preparer.
	FreeIndex uint64
	// MachineLost: the machine's Consul agent has failed, as well as the preparer. Pods of a dead node that is not lost
	// are assumed to run on, unless its machine was lost before.
	MachineLost bool
	// LostSeen is when this farm first saw that the machine is lost, by its own clock.
	LostSeen time.Time
	// AgentLives: the preparer is dead and, as of the last query since then, the agent has not failed. The preparer may
	// have contact without its lock.
	AgentLives bool
	// DeadSeen is when this farm first saw the death of the preparer or, if later, of its agent, by its own clock.
	DeadSeen time.Time
	// LabelVersions are empty in a view that NewView did not make.
	LabelVersions LabelVersions
	// OrphansUnread: the pages were not read yet. Until then, Orphans are from an earlier record.
	OrphansUnread bool
}

// AllLabels returns the node's labels. The operators' labels replace the preparer's.
func (v *View) AllLabels() map[string]string { return field.Merge(v.Labels, v.Ops.Labels) }

// Matches copies no labels, because a farm calls it for thousands of nodes.
func (v *View) Matches(sel labels.Selector) bool { return sel.Matches((*layered)(v)) }

// MayMatch is also true if the labels are not known, because a record that cannot be read must not stop a pod.
func (v *View) MayMatch(sel labels.Selector) bool { return v.OpsUnread != "" || v.Matches(sel) }

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

// MustLeave reports whether pods must move off the node.
func (v *View) MustLeave() bool { return v.Ops.Drain != nil }

// Eligible reports whether operators allow new pods on the node.
func (v *View) Eligible() bool { return !v.Ops.Unschedulable && v.Ops.Drain == nil }

// Reservation has the shares of a node, at reservations/<node>. A transaction that places a pod changes it on condition
// that its index is unchanged, so two farms cannot give away the same port or the last slot (P3).
type Reservation struct {
	Ineligible bool `json:"closed,omitempty"` // drained: no share may be added
	// Labels: a farm that has another version may add no share.
	Labels LabelVersions    `json:"labels,omitzero"`
	Claims map[string]Claim `json:"holders"` // by pod.Identity.String()
}

// Claim is the share of one identity.
type Claim struct {
	Pod    pod.Identity `json:"pod"`
	Ports  []int        `json:"ports,omitempty"`
	CPU    int64        `json:"cpu,omitempty"`    // thousandths of a core
	Memory int64        `json:"memory,omitempty"` // bytes
}

// NewClaim leaves out ports without a number.
func NewClaim(id pod.Identity, ports map[string]int, cpu, memory int64) Claim {
	numbers := slices.DeleteFunc(slices.Sorted(maps.Values(ports)), func(n int) bool { return n == 0 })
	return Claim{Pod: id, Ports: numbers, CPU: cpu, Memory: memory}
}

// With returns a share that is enough for either version of a pod.
func (c Claim) With(other Claim) Claim {
	c.Ports = slices.Concat(c.Ports, other.Ports)
	slices.Sort(c.Ports)
	c.Ports = slices.Compact(c.Ports)
	c.CPU, c.Memory = max(c.CPU, other.CPU), max(c.Memory, other.Memory)
	return c
}

// Clone returns a copy with its own map of shares.
func (r Reservation) Clone() Reservation {
	r.Claims = field.Merge(r.Claims)
	return r
}

// ParseCapacity checks the flags of a preparer.
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

// NameConflict reports whether the record belongs to another machine than the writer. The same host id with another
// Consul agent is a conflict, because the data directory may be a copy. A writer without a host id never conflicts.
func (n *Node) NameConflict(writer Node) bool {
	differ := func(a, b string) bool { return a != "" && b != "" && a != b }
	return writer.Host != "" && (differ(n.Host, writer.Host) || differ(n.ConsulNode, writer.ConsulNode))
}

// OrphanPages lead from a node's record to the pages with its orphans. The zero value means that there are none.
type OrphanPages struct {
	Edition string `json:"edition,omitempty"` // in every page; a new one whenever the list changes
	Count   int    `json:"count"`             // number of pages, which are numbered from zero
	Orphans int    `json:"orphans"`           // number of orphans on all of them
}

// OrphanPage is a part of the list of orphans, at orphans/<node>/<n>, because one record cannot contain all.
type OrphanPage struct {
	Node    string       `json:"node"`
	Page    int          `json:"page"`
	Edition string       `json:"edition"`
	Epoch   string       `json:"nonce"` // the preparer's epoch when it wrote the page
	Orphans []pod.Orphan `json:"orphans"`
	Refused []string     `json:"-"`
}

// Spoke reports whether the node has reported, under a cluster epoch, what it runs, and all of that was read (R1).
func (v *View) Spoke(epoch string) bool { return v.Epoch == epoch && !v.OrphansUnread }

// HoldsLimits reports whether pods of the node have cgroups, so that limits can change while they run.
func (n *Node) HoldsLimits() bool { return slices.Contains(strings.Split(n.Isolation, ","), "cgroup") }

// OrphanCount returns how many orphans the node has.
func (n *Node) OrphanCount() int {
	if n.OrphanPages != nil {
		return n.OrphanPages.Orphans
	}
	return len(n.Orphans) + n.OrphansLeftOut
}
