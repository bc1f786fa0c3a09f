package app

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// caps returns what all pods may take of this machine together, hooks and commands included: what is there without the reserves, in
// thousandths of a core and in bytes. Zero: not bounded, because nothing is reserved.
func (c *PreparerConfig) caps(errs *field.Errors) (cpu, memory int64) {
	var info unix.Sysinfo_t
	var total int64
	if err := unix.Sysinfo(&info); err == nil {
		total = int64(info.Totalram) * int64(info.Unit) //nolint:unconvert // they differ between architectures
	}
	cpu = capOf(errs, "reserve-cpu", "thousandths of a core", c.ReserveCPU, int64(runtime.NumCPU())*1000)
	memory = capOf(errs, "reserve-memory", "bytes", c.ReserveMemory, total)
	if c.Isolation == IsolationOff && c.ReserveCPU+c.ReserveMemory > 0 {
		errs.Add("isolation", c.Isolation, "auto or on, with --reserve-cpu or --reserve-memory: pods are bounded by their cgroups")
	}
	return cpu, memory
}

func capOf(errs *field.Errors, flag, unit string, reserve, total int64) int64 {
	switch {
	case reserve == 0:
		return 0
	case reserve < 0 || reserve >= total:
		errs.Add(flag, reserve, fmt.Sprintf("%s: zero (pods may take all), or less than the %d of this machine", unit, total))
		return 0
	default:
		return total - reserve
	}
}
