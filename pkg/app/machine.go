package app

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/preparer/machine"
)

// Detect as CPU or Memory has a node offer what its machine has, without the reserve.
const Detect = -1

// detect finds out what this machine has, and what of it cgroups leave to pods. cgroup is the parent of their cgroups; empty: they get none.
func (c *PreparerConfig) detect(cgroup string, log obs.Logger) (whole, total machine.Total) {
	if cgroup != "" {
		cgroup = filepath.Dir(cgroup) // the parent itself is bounded by what comes of this
	}
	files := os.DirFS("/")
	whole = machine.Whole(files)
	total, err := machine.Detect(files, cgroup)
	if err != nil {
		log.WithField(obs.Error, err).Warn("not all limits of this machine can be read; what pods are offered may be more than there is")
	}
	if total.CPU == 0 || total.Memory == 0 {
		log.WithFields(obs.Fields{"cpu": total.CPU, "memory": total.Memory}).Warn("this machine does not say how much it has; what it does not say is not limited")
	}
	if total.CPU > 0 && c.ReserveCPU >= total.CPU || total.Memory > 0 && c.ReserveMemory >= total.Memory {
		log.WithFields(obs.Fields{"cpu": total.CPU, "memory": total.Memory, "reserve_cpu": c.ReserveCPU, "reserve_memory": c.ReserveMemory}).
			Warn("the reserve leaves nothing to pods that ask for it; reserve less here, or say what they get with --cpu and --memory")
	}
	return whole, total
}

// caps returns what all pods may take of this machine together, hooks and commands included: what the machine has without the reserves. Limits
// of cgroups above hold besides. Zero: not bounded, because nothing is reserved, or the machine does not say what it has.
func (c *PreparerConfig) caps(whole machine.Total) (caps machine.Total, err error) {
	var errs field.Errors
	caps.CPU = capOf(&errs, "reserve-cpu", "thousandths of a core", c.ReserveCPU, whole.CPU)
	caps.Memory = capOf(&errs, "reserve-memory", "bytes", c.ReserveMemory, whole.Memory)
	return caps, errs.Err()
}

// offer returns what the node offers to pods: what flags say, and otherwise what was detected, without the reserve. Where the reserve leaves nothing it is the least
// that is a limit: zero would be none.
func (c *PreparerConfig) offer(total machine.Total) node.Capacity {
	offered := node.Capacity{Slots: c.Slots, CPU: c.CPU, Memory: c.Memory}
	if c.CPU == Detect {
		offered.CPU = without(total.CPU, c.ReserveCPU)
	}
	if c.Memory == Detect {
		offered.Memory = without(total.Memory, c.ReserveMemory)
	}
	return offered
}

// without returns what a reserve leaves of a total; zero: nothing is known.
func without(total, reserve int64) int64 {
	if total == 0 {
		return 0
	}
	return max(1, total-reserve)
}

func capOf(errs *field.Errors, flag, unit string, reserve, total int64) int64 {
	switch {
	case reserve == 0 || reserve > 0 && total == 0:
		return 0
	case reserve < 0 || reserve >= total:
		errs.Add(flag, reserve, fmt.Sprintf("%s: zero (pods may take all), or less than the %d of this machine", unit, total))
		return 0
	default:
		return total - reserve
	}
}

// inUse returns the ports that something on this machine holds besides those of pods.
func (c *PreparerConfig) inUse(pods map[int]bool) ([]int, error) {
	files := os.DirFS("/")
	sockets, err := machine.Sockets(files)
	if err != nil {
		return nil, err
	}
	address, _ := netip.ParseAddr(c.Address) // it was checked
	view := machine.View{Address: address.Unmap(), Dynamic: node.PortRange{Min: c.PortsMin, Max: c.PortsMax}, Ephemeral: machine.Ephemeral(files)}
	return view.InUse(sockets, pods), nil
}
