package preparer

import (
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
)

// instant is one moment by two clocks.
type instant struct {
	wall time.Time   // by the clock that is set
	up   proc.Moment // since the machine's start; the zero value when that clock cannot be read
}

func thisInstant() instant {
	up, _ := proc.Now() // without it the clock that is set counts
	return instant{time.Now(), up}
}

// plausible is before any pod was stopped. A clock that says less had not been set.
var plausible = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// settled is how long after its start a machine's clock may not have been set yet.
const settled = time.Hour

// stoppedAt returns the record with the time of its stop.
func (r Record) stoppedAt(now instant) Record {
	wall := now.wall.UTC()
	r.StoppedAt, r.StoppedMoment = &wall, nil
	if now.up != (proc.Moment{}) {
		r.StoppedMoment = &now.up
	}
	return r
}

// stoppedFor returns for how long a pod has been stopped: by the machine's clock since its start, where it was stopped
// since then, whatever the other clock said or says. Else that one counts, which nobody may have set yet on a machine
// that was started lately. A wrong time counts as now.
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

// wrongStop reports whether a pod cannot have been stopped when its record says: before any was, or in the future. A
// clock was wrong.
func wrongStop(rec *Record, now instant) bool {
	if rec.StoppedAt == nil || rec.StoppedMoment != nil && now.up.Since(*rec.StoppedMoment) != proc.Never {
		return false
	}
	at := *rec.StoppedAt
	return at.Before(plausible) || field.NotAhead(&at, now.wall)
}
