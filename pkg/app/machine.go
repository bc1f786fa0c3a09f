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

// Detect as CPU or Memory: the node offers what its machine has, minus the reserve.
const Detect = -1

// detect returns what this machine has (whole), and what cgroups leave of it to pods (total). cgroup is the parent of
// the pods' cgroups; empty: pods get none.
func (p *PreparerConfig) detect(cgroup string, log obs.Logger) (whole, total machine.Total) {
	if cgroup != "" {
		cgroup = filepath.Dir(cgroup) // the limit of the parent itself is set from the result
	}
	files := os.DirFS("/")
	whole = machine.Whole(files)
	total, err := machine.Detect(files, cgroup)
	if err != nil {
		log.WithField(obs.Error, err).
			Warn("not all limits of this machine can be read; the node may offer more to pods than there is")
	}
	if total.CPU == 0 || total.Memory == 0 {
		log.WithFields(obs.Fields{"cpu": total.CPU, "memory": total.Memory}).
			Warn("how much this machine has cannot be read; an amount of 0 is not limited")
	}
	if total.CPU > 0 && p.ReserveCPU >= total.CPU || total.Memory > 0 && p.ReserveMemory >= total.Memory {
		log.WithFields(obs.Fields{
			"cpu": total.CPU, "memory": total.Memory, "reserve_cpu": p.ReserveCPU, "reserve_memory": p.ReserveMemory,
		}).
			Warn("the reserve leaves nothing to pods that ask for CPU or memory; reserve less here, or set what pods " +
				"get with --cpu and --memory")
	}
	return whole, total
}

// caps returns the limits for all pods together, with hooks and commands: the machine's total minus the reserves. Zero:
// no limit, without a reserve or with an unknown total.
func (p *PreparerConfig) caps(whole machine.Total) (caps machine.Total, err error) {
	var errs field.Errors
	caps.CPU = capOf(&errs, "reserve-cpu", "thousandths of a core", p.ReserveCPU, whole.CPU)
	caps.Memory = capOf(&errs, "reserve-memory", "bytes", p.ReserveMemory, whole.Memory)
	return caps, errs.Err()
}

// offer returns the flags, or the detected total minus the reserve.
func (p *PreparerConfig) offer(total machine.Total) node.Capacity {
	offered := node.Capacity{Slots: p.Slots, CPU: p.CPU, Memory: p.Memory}
	if p.CPU == Detect {
		offered.CPU = without(total.CPU, p.ReserveCPU)
	}
	if p.Memory == Detect {
		offered.Memory = without(total.Memory, p.ReserveMemory)
	}
	return offered
}

// without returns at least 1, because zero would mean no limit. An unknown total is zero, and so is the result.
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
		errs.Add(flag, reserve,
			fmt.Sprintf("%s: zero (pods may take all), or less than the %d of this machine", unit, total))
		return 0
	default:
		return total - reserve
	}
}

func (p *PreparerConfig) inUse(pods map[int]bool) ([]int, error) {
	files := os.DirFS("/")
	sockets, err := machine.Sockets(files)
	if err != nil {
		return nil, err
	}
	address, _ := netip.ParseAddr(p.Address) // checkAddress has checked it
	view := machine.View{
		Address: address.Unmap(), Dynamic: node.PortRange{Min: p.PortsMin, Max: p.PortsMax},
		Ephemeral: machine.Ephemeral(files),
	}
	return view.InUse(sockets, pods), nil
}
