package preparer

import (
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
)

// instant is one moment by two clocks.
type instant struct {
	wall time.Time   // by the wall clock, which people and NTP set
	up   proc.Moment // time since the machine's start; zero if that clock cannot be read
}

func thisInstant() instant {
	up, _ := proc.Now() // on an error only the wall clock is used
	return instant{time.Now(), up}
}

// plausible is earlier than the first stop of any pod. At an earlier time the clock was not set.
var plausible = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// settled is how long after the machine's start the wall clock can still be wrong.
const settled = time.Hour

func (r Record) stoppedAt(now instant) Record {
	wall := now.wall.UTC()
	r.StoppedAt, r.StoppedMoment = &wall, nil
	if now.up != (proc.Moment{}) {
		r.StoppedMoment = &now.up
	}
	return r
}

// stoppedFor returns how long a pod has been stopped. If the pod stopped after the machine's last start, the result
// comes from the clock since that start, else from the wall clock. The wall clock may be wrong for the first hour after
// the start, so for that hour the result is at most the time since the start. If the time of the stop is impossible,
// the result is 0.
func stoppedFor(rec *Record, now instant) time.Duration {
	if m := rec.StoppedMoment; m != nil {
		if stood := now.up.Since(*m); stood != proc.Never {
			return stood
		}
	}
	if wrongStop(rec, now) {
		return 0
	}
	stood := now.wall.Sub(*rec.StoppedAt)
	if now.up.Up < settled {
		stood = min(stood, now.up.Up)
	}
	return stood
}

// wrongStop reports whether the time of a stop is impossible: before plausible, or in the future. A stop after the
// machine's last start is never wrong, because its age comes from the other clock.
func wrongStop(rec *Record, now instant) bool {
	if rec.StoppedAt == nil || rec.StoppedMoment != nil && now.up.Since(*rec.StoppedMoment) != proc.Never {
		return false
	}
	at := *rec.StoppedAt
	return at.Before(plausible) || field.NotAhead(&at, now.wall)
}
