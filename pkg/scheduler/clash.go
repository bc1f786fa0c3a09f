package scheduler

import (
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Clash is why a node refuses a claim for Ports.
type Clash struct {
	Port    int            // static, which is not free; zero: too few numbers are left for dynamic ones
	Machine bool           // something on the machine has it that is none of the node's pods
	Pod     pod.Identity   // that has it, where the machine has not
	Range   node.PortRange // for dynamic ones
}

// ClashOf returns what is in the way of a claim that a node refuses for Ports.
func ClashOf(v *node.View, res node.Reservation, want node.Claim) Clash {
	others := slices.SortedFunc(Others(v, res, want.Pod), func(a, b node.Claim) int { return a.Pod.Compare(b.Pod) })
	for _, port := range want.Ports {
		for _, h := range others {
			if slices.Contains(h.Ports, port) {
				return Clash{Port: port, Pod: h.Pod}
			}
		}
		if inUse(v, res, want.Pod, port) {
			return Clash{Port: port, Machine: true}
		}
	}
	return Clash{Range: v.PortRange}
}

// String says it for people, such as "port 80 is taken by web/main.0".
func (c Clash) String() string {
	switch {
	case c.Port == 0:
		return fmt.Sprintf("its range of dynamic ports, %d to %d, has too few numbers left", c.Range.Min, c.Range.Max)
	case c.Machine:
		return fmt.Sprintf("port %d is held by something else on the machine", c.Port)
	default:
		return fmt.Sprintf("port %d is taken by %s", c.Port, c.Pod)
	}
}
