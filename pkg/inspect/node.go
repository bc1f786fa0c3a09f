package inspect

import (
	"cmp"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// NodeView is one machine: what its preparer says, what operators say, what is reserved.
type NodeView struct {
	Name  string `json:"name"`
	Alive bool   `json:"alive"` // its preparer lives
	State string `json:"state"` // alive, away, unmanaged or lost
	Hearing
	Address          string            `json:"address"`
	ConsulNode       string            `json:"consul_node"`
	Labels           map[string]string `json:"labels"`                    // in effect: the node's own, operators' on top
	OperatorLabels   map[string]string `json:"operator_labels,omitempty"` // those that operators set
	Open             bool              `json:"open"`                      // takes new pods
	Cordoned         bool              `json:"cordoned"`                  // by operators: nothing new is placed
	Drain            *node.Drain       `json:"drain,omitempty"`           // by operators: its pods are moved away
	UnmanagedSince   *time.Time        `json:"unmanaged_since,omitempty"` // its preparer is gone, its machine is not
	LostSince        *time.Time        `json:"lost_since,omitempty"`      // its machine is gone; nothing where no owner of a pod has noted when
	Capacity         Usage             `json:"capacity"`
	Used             Usage             `json:"used"`                   // reserved
	Free             Usage             `json:"free"`                   // of what is limited
	PortsInUse       []int             `json:"ports_in_use,omitempty"` // by something else than its pods
	Orphans          int               `json:"orphans"`
	Isolation        string            `json:"isolation,omitempty"`         // what its pods have of their own; see docs/running.md
	Anonymous        string            `json:"anonymous,omitempty"`         // what its pods may do at Consul without a token: node.AnonymousSecured and so on
	Intents          string            `json:"intents,omitempty"`           // how it learns of them, if it does not watch: node.IntentsPush and so on
	UntoldSince      *time.Time        `json:"untold_since,omitempty"`      // farms could not tell it since
	Shut             bool              `json:"shut,omitempty"`              // it takes no new intents because of that
	SupervisorSilent bool              `json:"supervisor_silent,omitempty"` // its supervisor does not answer: nothing is started or stopped there
	Version          string            `json:"version"`
}

// Usage is an amount of what nodes have. In a capacity a zero CPU or memory means that it is not limited.
type Usage struct {
	Slots  int   `json:"slots"`
	CPU    int64 `json:"cpu"`    // thousandths of a core
	Memory int64 `json:"memory"` // bytes
	Ports  int   `json:"ports"`  // of the range for dynamic ports
}

// capacityOf returns what a node offers.
func capacityOf(v *node.View) Usage {
	ports := 0
	if r := v.PortRange; r.Min > 0 {
		ports = max(0, r.Max-r.Min+1)
	}
	return Usage{Slots: v.Capacity.Slots, CPU: v.Capacity.CPU, Memory: v.Capacity.Memory, Ports: ports}
}

// usageOf returns what is taken of that. Ports that something else on the machine holds are taken, too.
func usageOf(v *node.View, used scheduler.Usage) Usage {
	return Usage{Slots: used.Slots, CPU: used.CPU, Memory: used.Memory, Ports: used.DynamicTaken(v)}
}

// less returns what is left of an amount, at least nothing. What is not limited stays zero.
func (u Usage) less(used Usage) Usage {
	return Usage{Slots: max(0, u.Slots-used.Slots), CPU: max(0, u.CPU-used.CPU), Memory: max(0, u.Memory-used.Memory), Ports: max(0, u.Ports-used.Ports)}
}

// Hearing is what a daemon tells by writing now and then.
type Hearing struct {
	Heard  *time.Time `json:"heard,omitempty"`  // when it last wrote, by its own clock; an older one does not say
	Silent bool       `json:"silent,omitempty"` // it should have written since, and Consul takes it for alive
}

// HearingOf returns that of a daemon.
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

// AliveText says in one word whether the node lives.
func (v *NodeView) AliveText() string {
	switch {
	case v.Silent:
		return "silent"
	case v.State == Alive:
		return "yes"
	case v.State == Away:
		return "no"
	default:
		return v.State
	}
}

// ConsulText says in one word what pods of the node may do at Consul without a token.
func (v *NodeView) ConsulText() string {
	if v.Shut {
		return "shut"
	}
	return v.Anonymous
}

// IntentsText says in a few words how the node learns of its intents.
func (v *NodeView) IntentsText() string {
	switch {
	case v.UntoldSince != nil:
		return "untold"
	case v.Intents == node.IntentsPush:
		return "push"
	case v.Intents == node.IntentsRefused:
		return "watch (refused)"
	default:
		return "watch"
	}
}

// AddUntold adds since when farms could not tell nodes of their intents.
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

// OpenText says in one word whether operators let pods onto the node.
func (v *NodeView) OpenText() string {
	switch {
	case v.Drain != nil:
		return "drained"
	case v.Cordoned:
		return "cordoned"
	case v.Open:
		return "yes"
	default:
		return "no" // its reservation is ineligible without a drain
	}
}

// JoinNodes joins the three records of each node. The result is sorted by name.
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
			Labels: view.AllLabels(), OperatorLabels: view.Ops.Labels, Open: !scheduler.Ineligible(view, taken[view.Name]), Drain: view.Ops.Drain, Cordoned: view.Ops.Unschedulable,
			Capacity: capacityOf(view), PortsInUse: view.PortsInUse,
			Orphans: view.OrphanCount(), Version: view.Version, Isolation: view.Isolation, Anonymous: view.Anonymous, Intents: view.Intents, Shut: view.Shut, SupervisorSilent: view.SupervisorSilent,
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

// AddLosses adds what is known of nodes that are not alive.
func AddLosses(views []NodeView, losses Losses) {
	for i := range views {
		if loss, dead := losses[views[i].Name]; dead {
			views[i].State, views[i].LostSince, views[i].UnmanagedSince = loss.state, loss.lostSince, loss.unmanagedSince
		}
	}
}
