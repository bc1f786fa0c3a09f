//go:build clockstep

package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/store"
)

// This scenario sets the machine's clock, so only `make faults` runs it.
func init() { scenarios = map[string]func(*env){"clock-step": clockStep} }

// clockStep: the machine's clock, which farms and preparers use, is an hour ahead and then corrected, and an hour
// behind and then corrected. No pod is touched. Changes and stops are carried out each time. The breaker does not trip,
// because too few pods are stopped.
func clockStep(e *env) {
	e.startConsul("")
	for n := range 3 {
		e.preparer(n + 1)
	}
	e.farm("f1", "")
	e.farm("f2", "")
	h := e.hello(2, nil)
	e.applied(h)
	id := e.rcID("hello")
	right := setsClock(e.t)
	for i, offset := range []time.Duration{time.Hour, 0, -time.Hour, 0} {
		before := e.processes()
		right(offset)
		began := time.Now()
		h.Replicas = 3 - 2*(i%2)
		e.applied(h)
		e.within(limit, func() error { return e.converged(id, h.Replicas) })
		if took := time.Since(began); took > time.Minute {
			e.t.Errorf("offset %s: the change took %s", offset, took)
		}
		after := e.processes()
		for key, pid := range before {
			if now, runs := after[key]; runs && now != pid {
				e.t.Errorf("offset %s: %s was restarted", offset, key)
			}
		}
		if len(after) != h.Replicas {
			e.t.Errorf("offset %s: processes %v, want %d", offset, after, h.Replicas)
		}
		e.t.Logf("offset %s: %d replicas after %s", offset, h.Replicas, time.Since(began).Round(time.Millisecond))
	}
	right(time.Hour)
	e.applied(e.hello(2, map[string]string{"HELLO_VERSION": "later"})) // with revisions from the future
	e.rcctl("", "rc", "scale", "hello", "3")
	e.within(limit, func() error { return e.converged(id, 3) })
	e.rcctl("", "rc", "scale", "hello", "2") // stops that were ordered in the future
	e.within(limit, func() error { return e.converged(id, 2) })
	right(0)
	corrected := time.Now()
	e.applied(e.hello(2, map[string]string{"HELLO_VERSION": "sooner"}))
	e.rcctl("", "rc", "scale", "hello", "1")
	e.within(limit, func() error { return e.converged(id, 1) })
	if took := time.Since(corrected); took > time.Minute {
		e.t.Errorf("after the correction an upgrade and a stop took %s", took)
	}
	e.t.Logf("after the correction an upgrade and a stop took %s", time.Since(corrected).Round(time.Millisecond))
	e.oneCopyEach()
	acts, corrupt, err := e.store.ListAudit(e.t.Context(), store.AuditFilter{})
	if err := errors.Join(append(corrupt, err)...); err != nil {
		e.t.Fatal(err)
	}
	for i := range acts {
		if text := fmt.Sprint(acts[i]); strings.Contains(text, "breaker") || strings.Contains(text, "went back") {
			e.t.Errorf("the audit log says %s", text)
		}
	}
}

// setsClock returns a function that sets the machine's clock to an offset. When the test ends, the clock is right.
func setsClock(t *testing.T) func(offset time.Duration) {
	t.Helper()
	began := time.Now()
	set := func(offset time.Duration) error {
		// The monotonic clock gives the right time, because no program can set it.
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
