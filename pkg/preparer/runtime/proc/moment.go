package proc

import (
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Moment is a time that restarts of a daemon and set clocks do not change: since the machine's start.
type Moment struct {
	Boot string        `json:"boot"` // which start of the machine
	Up   time.Duration `json:"up"`   // since then, time asleep included
}

// Now reads the machine's clock since its start (clock_gettime(2), CLOCK_BOOTTIME).
func Now() (Moment, error) {
	boot, err := BootID()
	if err != nil {
		return Moment{}, err
	}
	return At(boot)
}

// At is Now for who knows which start of the machine this is.
func At(boot string) (Moment, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return Moment{}, fmt.Errorf("read clock: %w", err)
	}
	return Moment{Boot: boot, Up: time.Duration(ts.Nano())}, nil
}

// Never is longer than anything that is waited for.
const Never = time.Duration(math.MaxInt64)

// Since returns the time from an earlier moment to m, and Never when they are of different starts of the machine.
func (m Moment) Since(earlier Moment) time.Duration {
	if m.Boot != earlier.Boot {
		return Never
	}
	return max(0, m.Up-earlier.Up)
}
