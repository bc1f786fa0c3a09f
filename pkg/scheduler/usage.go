package scheduler

import (
	"slices"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Usage is what is taken on a node: its reservation, and orphans without a claim.
type Usage struct {
	Slots  int   `json:"slots"`
	CPU    int64 `json:"cpu"`    // thousandths of a core
	Memory int64 `json:"memory"` // bytes
	Ports  []int `json:"ports,omitempty"`
}

// UsageOf leaves out ports of other programs on the machine, which the node's record has.
func UsageOf(v *node.View, res node.Reservation) Usage {
	var u Usage
	for h := range Others(v, res, pod.Identity{}) {
		u.Add(h)
	}
	slices.Sort(u.Ports)
	u.Ports = slices.Compact(u.Ports)
	return u
}

// Add adds a claim that is not in the sum yet. It does not sort the ports.
func (u *Usage) Add(h node.Claim) {
	u.Slots++
	u.CPU, u.Memory = field.Sum(u.CPU, h.CPU), field.Sum(u.Memory, h.Memory)
	u.Ports = append(u.Ports, h.Ports...)
}

func (u *Usage) within(limit node.Capacity) bool {
	return u.Slots <= limit.Slots && (limit.CPU == 0 || u.CPU <= limit.CPU) &&
		(limit.Memory == 0 || u.Memory <= limit.Memory)
}

// DynamicTaken returns how many dynamic ports are taken, by pods or other programs.
func (u *Usage) DynamicTaken(v *node.View) int {
	n := 0
	for _, port := range u.Ports {
		if inRange(v.PortRange, port) {
			n++
		}
	}
	for _, port := range v.PortsInUse {
		if inRange(v.PortRange, port) && !slices.Contains(u.Ports, port) {
			n++
		}
	}
	return n
}

// Whole is the load of a full node.
const Whole = 1000

// Load returns, in thousandths, how full a node would be with some more pods: the largest of the loads of slots, CPU,
// memory and, if wanted, dynamic ports. It ignores resources without a limit.
func (u *Usage) Load(v *node.View, want node.Claim, dynamic, pods int) int {
	load := int64(0)
	count := func(taken, each, limit int64) {
		if limit > 0 {
			load = max(load, (taken+int64(pods)*each)*Whole/limit)
		}
	}
	count(int64(u.Slots), 1, int64(v.Capacity.Slots))
	count(u.CPU, want.CPU, v.Capacity.CPU)
	count(u.Memory, want.Memory, v.Capacity.Memory)
	if dynamic > 0 {
		count(int64(u.DynamicTaken(v)), int64(dynamic), int64(sizeOf(v.PortRange)))
	}
	return int(load)
}

// Refuses returns why the node has no capacity for a new pod; "": it has. It agrees with Rule.Refuses, but ignores
// labels, drains, and the controller's pods.
func (u *Usage) Refuses(v *node.View, want node.Claim, dynamic int) Reason {
	for _, port := range want.Ports {
		if _, taken := slices.BinarySearch(u.Ports, port); taken || slices.Contains(v.PortsInUse, port) {
			return Ports
		}
	}
	with := *u
	with.Slots, with.CPU, with.Memory = with.Slots+1, field.Sum(with.CPU, want.CPU), field.Sum(with.Memory, want.Memory)
	if !with.within(v.Capacity) {
		return Resources
	}
	static := 0
	for _, port := range want.Ports {
		if inRange(v.PortRange, port) {
			static++
		}
	}
	if dynamic > 0 && sizeOf(v.PortRange)-u.DynamicTaken(v)-static < dynamic {
		return Ports
	}
	return ""
}
