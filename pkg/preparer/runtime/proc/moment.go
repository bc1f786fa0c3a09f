package proc

import (
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Moment is a time since the machine's boot. It does not depend on the wall clock or on the life of a daemon.
type Moment struct {
	Boot string        `json:"boot"` // id of the boot
	Up   time.Duration `json:"up"`   // since the boot, including time asleep
}

// Now reads CLOCK_BOOTTIME (clock_gettime(2)).
func Now() (Moment, error) {
	boot, err := BootID()
	if err != nil {
		return Moment{}, err
	}
	return At(boot)
}

// At is Now for a known id of the boot.
func At(boot string) (Moment, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return Moment{}, fmt.Errorf("read clock: %w", err)
	}
	return Moment{Boot: boot, Up: time.Duration(ts.Nano())}, nil
}

// Never stands for a time that never comes.
const Never = time.Duration(math.MaxInt64)

// Since returns Never if the moments are of different boots.
func (m Moment) Since(earlier Moment) time.Duration {
	if m.Boot != earlier.Boot {
		return Never
	}
	return max(0, m.Up-earlier.Up)
}
