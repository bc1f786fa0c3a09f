//go:build clockjump

package e2e

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// This sets the clock of the machine, so it runs on its own and only where it is asked for: `make faults`.
func init() { scenarios = map[string]func(*env){"clock-jump": clockJump} }

// clockJump: the clock of the machine is set forward by ten minutes, back to before, and right again. No pod is touched, and
// changes are carried out in each time.
func clockJump(e *env) {
	e.startConsul("")
	for n := range 3 {
		e.preparer(n + 1)
	}
	e.farm("f1", "")
	h := e.hello(2, nil)
	e.applied(h)
	id := e.rcID("hello")
	right := setsClock(e.t)
	for i, offset := range []time.Duration{10 * time.Minute, -10 * time.Minute, 0} {
		before := e.processes()
		right(offset)
		// What is desired changes in the other time, and what runs stays.
		h.Replicas = 2 + (i+1)%2
		e.applied(h)
		e.within(limit, func() error { return e.converged(id, h.Replicas) })
		after := e.processes()
		for key, pid := range before {
			if now, runs := after[key]; runs && now != pid {
				e.t.Errorf("offset %s: %s was restarted", offset, key)
			}
		}
		if len(after) != h.Replicas {
			e.t.Errorf("offset %s: processes %v, want %d", offset, after, h.Replicas)
		}
	}
	right(10 * time.Minute)
	e.applied(e.hello(2, map[string]string{"HELLO_VERSION": "later"})) // with revisions of the future
	right(0)
	e.applied(e.hello(2, map[string]string{"HELLO_VERSION": "sooner"}))
	e.oneCopyEach()
}

// setsClock returns a function that sets the machine's clock to an offset from the right time. The test leaves it right.
func setsClock(t *testing.T) func(offset time.Duration) {
	t.Helper()
	began := time.Now()
	set := func(offset time.Duration) error {
		// By the monotonic clock, which nobody sets.
		now := began.Round(0).Add(time.Since(began) + offset)
		ts := unix.NsecToTimespec(now.UnixNano())
		if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
			return fmt.Errorf("set the clock; this needs root: %w", err)
		}
		return nil
	}
	t.Cleanup(func() {
		if err := set(0); err != nil {
			t.Error(err)
		}
	})
	return func(offset time.Duration) {
		t.Helper()
		if err := set(offset); err != nil {
			t.Fatal(err)
		}
	}
}
