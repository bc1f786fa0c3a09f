package runtime

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Again reports whether the runtime starts the process again after this end. Two ends count as failures for OnFailure:
// an end that Restart caused, and an end that no supervisor saw.
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

// Delay returns the pause before the next start, after shortRuns short runs in a row. lo and hi are defaults for Min
// and Max.
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

// Signal returns false if the name in StopSignal is not known.
func (p Process) Signal() (unix.Signal, bool) {
	if p.StopSignal == "" {
		return unix.SIGTERM, true
	}
	sig := unix.SignalNum(p.StopSignal)
	return sig, sig != 0
}
