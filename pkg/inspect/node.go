package inspect

import (
	"cmp"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// NodeView is one machine.
type NodeView struct {
	Name  string `json:"name"`
	Alive bool   `json:"alive"` // its preparer lives
	State string `json:"state"` // alive, away, unmanaged or lost
	Hearing
	Address    string `json:"address"`
	ConsulNode string `json:"consul_node"`
	// in effect: an operator's label replaces the node's own
	Labels         map[string]string `json:"labels"`
	OperatorLabels map[string]string `json:"operator_labels,omitempty"` // labels that operators set
	Open           bool              `json:"open"`                      // takes new pods
	Cordoned       bool              `json:"cordoned"`                  // by operators: nothing new is placed
	Drain          *node.Drain       `json:"drain,omitempty"`           // by operators: its pods are moved off
	UnmanagedSince *time.Time        `json:"unmanaged_since,omitempty"` // its preparer is gone, its machine is not
	// since when its machine is gone; missing if no owner of a pod has written it
	LostSince  *time.Time `json:"lost_since,omitempty"`
	Capacity   Usage      `json:"capacity"`
	Used       Usage      `json:"used"`                   // reserved
	Free       Usage      `json:"free"`                   // of limited resources
	PortsInUse []int      `json:"ports_in_use,omitempty"` // by programs other than its pods
	Orphans    int        `json:"orphans"`
	// how far its pods are isolated; see docs/running.md
	Isolation string `json:"isolation,omitempty"`
	// what it can do with images; missing: not reported
	Containers *node.Containers `json:"containers,omitempty"`
	// what its pods may do at Consul without a token: node.AnonymousSecured and so on
	Anonymous string `json:"anonymous,omitempty"`
	// how it learns of its intents, if it does not watch: node.IntentsPush and so on
	Intents     string     `json:"intents,omitempty"`
	UntoldSince *time.Time `json:"untold_since,omitempty"` // farms have failed to push to it since
	Shut        bool       `json:"shut,omitempty"`         // it takes no new intents because of Anonymous
	// its supervisor does not answer, so no process is started or stopped there
	SupervisorSilent bool   `json:"supervisor_silent,omitempty"`
	Version          string `json:"version"`
}

// Usage is an amount of resources. In a capacity, zero CPU or memory means no limit.
type Usage struct {
	Slots  int   `json:"slots"`
	CPU    int64 `json:"cpu"`    // thousandths of a core
	Memory int64 `json:"memory"` // bytes
	Ports  int   `json:"ports"`  // of the range for dynamic ports
}

func capacityOf(v *node.View) Usage {
	ports := 0
	if r := v.PortRange; r.Min > 0 {
		ports = max(0, r.Max-r.Min+1)
	}
	return Usage{Slots: v.Capacity.Slots, CPU: v.Capacity.CPU, Memory: v.Capacity.Memory, Ports: ports}
}

// usageOf includes ports that other programs on the machine use.
func usageOf(v *node.View, used scheduler.Usage) Usage {
	return Usage{Slots: used.Slots, CPU: used.CPU, Memory: used.Memory, Ports: used.DynamicTaken(v)}
}

// less is at least zero. An unlimited amount, which is zero, remains zero.
func (u Usage) less(used Usage) Usage {
	return Usage{
		Slots: max(0, u.Slots-used.Slots), CPU: max(0, u.CPU-used.CPU), Memory: max(0, u.Memory-used.Memory),
		Ports: max(0, u.Ports-used.Ports),
	}
}

// Hearing is the last sign of life of a daemon.
type Hearing struct {
	Heard  *time.Time `json:"heard,omitempty"`  // last write by the node's clock; earlier versions lack it
	Silent bool       `json:"silent,omitempty"` // the next sign is overdue, although its session lives
}

// HearingOf returns the hearing of a daemon.
func HearingOf(heard map[string]store.Heard, name string, alive bool, now time.Time) Hearing {
	h, has := heard[name]
	if !has {
		return Hearing{}
	}
	return Hearing{Heard: &h.At, Silent: alive && h.Silent(now)}
}

func earlier(a, b *time.Time) *time.Time {
	if a == nil || b != nil && b.Before(*a) {
		return b
	}
	return a
}

// AliveText is one word about State and Silent.
func (n *NodeView) AliveText() string {
	switch {
	case n.Silent:
		return "silent"
	case n.State == Alive:
		return "yes"
	case n.State == Away:
		return "no"
	default:
		return n.State
	}
}

// ConsulText is one word about Shut and Anonymous.
func (n *NodeView) ConsulText() string {
	if n.Shut {
		return "shut"
	}
	return n.Anonymous
}

// IntentsText is a few words about Intents and UntoldSince.
func (n *NodeView) IntentsText() string {
	switch {
	case n.UntoldSince != nil:
		return "untold"
	case n.Intents == node.IntentsPush:
		return "push"
	case n.Intents == node.IntentsRefused:
		return "watch (refused)"
	default:
		return "watch"
	}
}

// AddUntold sets UntoldSince.
func AddUntold(views []NodeView, farms map[string]store.Heard) {
	since := map[string]*time.Time{}
	for _, h := range farms {
		if h.Untold == nil {
			continue
		}
		for i := range h.Untold.Nodes {
			n := &h.Untold.Nodes[i]
			since[n.Node] = earlier(since[n.Node], &n.Since)
		}
	}
	for i := range views {
		views[i].UntoldSince = since[views[i].Name]
	}
}

// OpenText is one word about Drain, Cordoned and Open.
func (n *NodeView) OpenText() string {
	switch {
	case n.Drain != nil:
		return "drained"
	case n.Cordoned:
		return "cordoned"
	case n.Open:
		return "yes"
	default:
		return "no" // its reservation is ineligible without a drain
	}
}

// JoinNodes joins the records of each node, sorted by name.
func JoinNodes(recs []store.Rec[node.Node], ops []node.Ops, taken map[string]node.Reservation) []NodeView {
	byName := make(map[string]node.Ops, len(ops))
	for _, o := range ops {
		byName[o.Name] = o
	}
	views := make([]NodeView, 0, len(recs))
	for _, rec := range recs {
		view := node.NewView(rec.Value, byName[rec.Value.Name], rec.Session != "")
		n := NodeView{
			Name: view.Name, Alive: view.Alive, State: Away, Address: view.Address, ConsulNode: view.ConsulNode,
			Labels: view.AllLabels(), OperatorLabels: view.Ops.Labels,
			Open:  !scheduler.Ineligible(view, taken[view.Name]),
			Drain: view.Ops.Drain, Cordoned: view.Ops.Unschedulable,
			Capacity: capacityOf(view), PortsInUse: view.PortsInUse,
			Orphans: view.OrphanCount(), Version: view.Version, Isolation: view.Isolation, Anonymous: view.Anonymous,
			Containers: view.Containers,
			Intents:    view.Intents, Shut: view.Shut, SupervisorSilent: view.SupervisorSilent,
		}
		if view.Alive {
			n.State = Alive
		}
		n.Used = usageOf(view, scheduler.UsageOf(view, taken[view.Name]))
		n.Free = n.Capacity.less(n.Used)
		views = append(views, n)
	}
	slices.SortFunc(views, func(a, b NodeView) int { return cmp.Compare(a.Name, b.Name) })
	return views
}

// AddLosses adds what is known about dead nodes.
func AddLosses(views []NodeView, losses Losses) {
	for i := range views {
		if loss, dead := losses[views[i].Name]; dead {
			views[i].State = loss.state
			views[i].LostSince, views[i].UnmanagedSince = loss.lostSince, loss.unmanagedSince
		}
	}
}
