package scheduler

import (
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Clash is why a node refuses a claim with the reason Ports.
type Clash struct {
	Port    int            // the static port that is not free; zero: the range has too few free numbers
	Machine bool           // a program on the machine has the port, and it is not a pod of the node
	Pod     pod.Identity   // the pod that has the port, unless Machine is set
	Range   node.PortRange // the node's range of dynamic ports
}

// ClashOf finds the clash.
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

// String is for people, such as "port 80 is taken by web/main.0".
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
