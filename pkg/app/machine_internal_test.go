package app

import (
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/preparer/machine"
)

// The capacity that a node offers, and the bound of its pods together, follow from the machine and the flags.
func TestOfferAndCaps(t *testing.T) {
	t.Parallel()
	has := machine.Total{CPU: 4000, Memory: 1 << 30}
	for name, tt := range map[string]struct {
		cfg   PreparerConfig
		total machine.Total
		offer node.Capacity
		caps  machine.Total
		wrong string // part of the mistake; empty: none
	}{
		"nothing said": {
			PreparerConfig{CPU: Detect, Memory: Detect, Slots: 7},
			has,
			node.Capacity{Slots: 7, CPU: 4000, Memory: 1 << 30},
			machine.Total{},
			"",
		},
		"no limit": {PreparerConfig{}, has, node.Capacity{}, machine.Total{}, ""},
		"flags win": {
			PreparerConfig{CPU: 9000, Memory: 1, ReserveCPU: 250},
			has,
			node.Capacity{CPU: 9000, Memory: 1},
			machine.Total{CPU: 3750},
			"",
		},
		"a reserve": {
			PreparerConfig{CPU: Detect, Memory: Detect, ReserveCPU: 250, ReserveMemory: 1 << 20},
			has,
			node.Capacity{CPU: 3750, Memory: 1<<30 - 1<<20},
			machine.Total{
				CPU: 3750, Memory: 1<<30 - 1<<20,
			},
			"",
		},
		"nothing is known": {
			PreparerConfig{CPU: Detect, Memory: Detect},
			machine.Total{},
			node.Capacity{},
			machine.Total{},
			"",
		},
		"all is reserved": {
			PreparerConfig{ReserveCPU: 4000},
			has,
			node.Capacity{},
			machine.Total{},
			"reserve-cpu: 4000 is not valid; allowed: thousandths of a core: zero (pods may take all), or less than " +
				"the 4000 of this machine",
		},
		"a cgroup leaves less": {
			PreparerConfig{CPU: Detect, Memory: Detect, ReserveCPU: 1000, ReserveMemory: 1 << 20},
			machine.Total{CPU: 1000, Memory: 1 << 10},
			node.Capacity{CPU: 1, Memory: 1},
			machine.Total{
				CPU: 3000, Memory: 1<<30 - 1<<20,
			},
			"",
		},
		"less than nothing": {
			PreparerConfig{ReserveCPU: -1},
			has,
			node.Capacity{},
			machine.Total{},
			"reserve-cpu: -1",
		},
		"more than there is": {
			PreparerConfig{ReserveMemory: 1 << 60},
			has,
			node.Capacity{},
			machine.Total{},
			"reserve-memory: ",
		},
		"nothing is known, reserved": {
			PreparerConfig{CPU: Detect, Memory: Detect, ReserveCPU: 250, ReserveMemory: 1},
			machine.Total{},
			node.Capacity{},
			machine.Total{},
			"",
		},
		"less than none of nothing": {
			PreparerConfig{ReserveMemory: -1},
			machine.Total{},
			node.Capacity{},
			machine.Total{},
			"reserve-memory: -1",
		},
		"reserved of what is hidden": {
			PreparerConfig{ReserveMemory: 1},
			machine.Total{CPU: 1},
			node.Capacity{},
			machine.Total{},
			"",
		},
	} {
		caps, err := tt.cfg.caps(has) // cgroups can leave less than the machine has; caps ignores them
		if tt.total.CPU == 0 || tt.total.Memory == 0 {
			caps, err = tt.cfg.caps(tt.total)
		}
		if (err == nil) != (tt.wrong == "") || err != nil && !strings.Contains(err.Error(), tt.wrong) ||
			err == nil && caps != tt.caps {
			t.Errorf("%s: caps %+v, %v; want %+v, %q", name, caps, err, tt.caps, tt.wrong)
		}
		if got := tt.cfg.offer(tt.total); err == nil && got != tt.offer {
			t.Errorf("%s: offers %+v, want %+v", name, got, tt.offer)
		}
	}
}

func TestAReserveNeedsCgroups(t *testing.T) {
	t.Parallel()
	_, err := (&PreparerConfig{ReserveMemory: 1, Isolation: IsolationOff}).record()
	if err == nil ||
		!strings.Contains(err.Error(), `isolation: "off" is not valid; allowed: auto or on, with --reserve-cpu`) {
		t.Errorf("%v", err)
	}
}
