package rollout

import (
	"fmt"
	"reflect"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

const recheckAfter = 5 * time.Second

// Decide returns the decision that follows from a record that has passed Check, and from what was read.
func Decide(rec Record, obs Observed) Decision {
	w := newWork(rec, obs)
	w.correctFutureTimes()
	if !w.Record.State.Ended() {
		w.handleRequest()
	}
	if !w.Record.State.Ended() && !w.isBlocked() {
		w.recount()
		w.setServiceFields()
		for range 32 { // several phases can follow at once
			if w.Record.State.Ended() || (stage{w}).advance() == halt {
				break
			}
		}
		if !w.Record.State.Ended() {
			w.setServiceFields()
		}
	}
	return w.finish(&rec)
}

func (w *Work) finish(read *Record) Decision {
	w.d.Record = *w.Record
	w.d.Ended = w.Record.State.Ended()
	w.d.Write = w.d.Ended || !reflect.DeepEqual(*read, *w.Record)
	if w.d.Ended && w.d.InEffect == 0 { // the controllers are not changed
		for _, m := range w.Members {
			m.Ctrl, m.bump = field.Copy(m.read), false
		}
	}
	w.d.RCs = w.changed()
	return w.d
}

// end ends the rollout. inEffect is the revision whose pods make up the service, 0 for none.
func (w *Work) end(s State, reason string, inEffect int64) {
	w.Record.State, w.Record.Reason, w.Record.Request, w.Record.Gate = s, reason, nil, nil
	w.d.InEffect = inEffect
	w.audit(": %s%s", s, prefixed(": ", reason))
	if w.Record.PreDeploy != nil {
		w.d.Delete = append(w.d.Delete, w.Record.PreDeploy.RC)
	}
	if s == Failed {
		w.alert("the rollout of %s has failed%s", w.Record.Service, prefixed(": ", reason))
	}
}

func prefixed(mark, text string) string {
	if text == "" {
		return ""
	}
	return mark + text
}

func (w *Work) alert(format string, args ...any) {
	if w.d.Alert != "" {
		w.d.Alert += "; "
	}
	w.d.Alert += fmt.Sprintf(format, args...)
}

func (w *Work) handleRequest() {
	q, r := w.Record.Request, w.Record
	if q == nil {
		return
	}
	r.Request = nil
	switch {
	case q.Verb == AbortVerb:
		w.end(Aborted, w.withCause("aborted by "+q.By), 0)
		return
	case q.Verb == PauseVerb && (r.State == Progressing || r.State == RollingBack || r.State == WaitingForPromote):
		w.pause("paused by " + q.By)
	case q.Verb == ResumeVerb && r.State == Paused:
		r.State, r.Resume, r.Reason, r.ProgressAt, r.Gate = r.Resume, "", "", w.Now(), nil
	case q.Verb == ResumeVerb && r.BlockedReason != "":
		w.acceptRestored()
	case q.Verb == PromoteVerb && r.State == WaitingForPromote:
		up, why := w.Upward(), "the new controller is gone, or cannot be read"
		if up != nil {
			why = up.waitsFor()
		}
		if why != "" && (up == nil || !q.Force) {
			w.audit(": %s asked to promote it, which is refused: %s", q.By, why)
			return
		}
		w.promote("promoted by " + q.By)
	// the unreadable controller may be of the revision to go back to
	case q.Verb == RollbackVerb && w.unreadable() != "":
		w.audit(": %s asked to %s it, which is refused: a controller cannot be read", q.By, q.Verb)
		return
	case q.Verb == RollbackVerb && r.State != RollingBack && r.Resume != RollingBack && r.BlockedReason == "":
		stage{w}.rollback(w.withCause("rolled back by " + q.By))
	default:
		w.audit(": %s asked to %s it, which is refused: it is %s", q.By, q.Verb, r.State)
		return
	}
	w.audit(": %s by %s", q.Verb, q.By)
}

func (w *Work) promote(why string) {
	r := w.Record
	r.State, r.Promoted, r.Reason, r.WaitingSince, r.ProgressAt, r.Stuck = Progressing, true, why, nil, w.Now(), ""
	r.Phase = Promoting
}

// acceptRestored lets the rollout continue after the store went back in time, with pods that were adopted. A new
// generation of their controllers ends the adoption.
func (w *Work) acceptRestored() {
	for _, m := range w.Members {
		if m.raw == nil || m.raw.Epoch != w.obs.Epoch || m.raw.Is(rc.Holding) {
			return
		}
	}
	for _, m := range w.Members {
		m.bump = m.raw.Is(rc.Regressed)
		if m.bump {
			m.Status, m.raw = nil, nil
		}
	}
	w.Record.Epoch = w.obs.Epoch
}

// isBlocked writes into the record why nothing may change although the rollout is not paused.
func (w *Work) isBlocked() bool {
	why := w.removeGone()
	r := w.Record
	if r.State.Ended() {
		return true
	}
	switch {
	case why != "":
		w.lookWithin(recheckAfter)
	case w.obs.Breaker != "":
		why = "the breaker is tripped: " + w.obs.Breaker
	case w.obs.Epoch != r.Epoch:
		why = w.whyNotRestored()
	}
	if why == "" && r.BlockedReason != "" {
		r.ProgressAt = w.Now() // the timeout of the stage starts again
	}
	r.BlockedReason = why
	return why != ""
}

func (w *Work) whyNotRestored() string {
	for _, m := range w.Members {
		switch {
		case m.raw == nil || m.raw.Epoch != w.obs.Epoch:
			return fmt.Sprintf("the store went back in time; waiting for the owner of %s to report", m.Name)
		case m.raw.Is(rc.Holding):
			return fmt.Sprintf("the store went back in time; the owner of %s waits for the nodes to report", m.Name)
		case m.raw.Is(rc.Regressed):
			return fmt.Sprintf("the store went back in time, and pods of %s run as they were found: "+
				"abort, or resume to treat them as its own", m.Name)
		}
	}
	w.Record.Epoch = w.obs.Epoch
	return ""
}

func (w *Work) unreadable() string {
	for i := range w.Record.Revisions {
		v := &w.Record.Revisions[i]
		if _, ok := w.obs.Revisions[v.RC]; !ok {
			return v.Name
		}
	}
	return ""
}

// removeGone removes the revisions whose controllers do not exist any more. It returns a reason to wait if one cannot
// be read.
func (w *Work) removeGone() string {
	var left []Revision
	for i := range w.Record.Revisions {
		v := w.Record.Revisions[i]
		seen, ok := w.obs.Revisions[v.RC]
		switch {
		case !ok:
			return fmt.Sprintf("the controller of %s cannot be read", v.Name)
		case seen.RC.ID != "":
			left = append(left, v)
		case v.Direction == Up:
			w.end(Failed, fmt.Sprintf("the controller of %s is gone", v.Name), 0)
			return ""
		}
	}
	if len(left) < len(w.Record.Revisions) {
		w.Record.Revisions = left
		w.match()
	}
	return ""
}
