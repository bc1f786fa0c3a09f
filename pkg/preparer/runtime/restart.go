package runtime

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Again reports whether an end like this one is followed by a start. One that was asked for by Restart counts as a failure. An end that nobody was told of, because the
// supervisor or the whole node was down, counts as a failure. A program that could not be started at all has not ended:
// that is tried again under every policy.
func (r Restart) Again(e pod.Exit) bool {
	switch r.Policy {
	case Never:
		return false
	case OnFailure:
		return e.Reason != "" || e.Unknown || e.Signal != "" || e.Code != 0
	default:
		return true
	}
}

// Delay returns the pause before the next start after so many short runs in a row, none before the first. lo and hi
// are what a runtime does where the spec says nothing.
func (r Restart) Delay(shortRuns int, lo, hi time.Duration) time.Duration {
	if shortRuns == 0 {
		return 0
	}
	if r.Min > 0 {
		lo, hi = r.Min, max(hi, r.Min)
	}
	if r.Max > 0 {
		hi = r.Max
	}
	for range shortRuns - 1 {
		if lo >= hi {
			break
		}
		lo *= 2
	}
	return min(lo, hi)
}

// Signal returns what asks the process to end; false when its name is not known.
func (p Process) Signal() (unix.Signal, bool) {
	if p.StopSignal == "" {
		return unix.SIGTERM, true
	}
	sig := unix.SignalNum(p.StopSignal)
	return sig, sig != 0
}
