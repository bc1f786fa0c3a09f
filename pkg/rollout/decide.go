package rollout

import (
	"fmt"
	"reflect"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// patience is how long what cannot be read, or is asked again, waits for the next look.
const patience = 5 * time.Second

// Decide returns what follows from a record and what was read. It asks for nothing twice: given the outcome of its own decision it changes nothing
// until something else has changed. The record must have passed Check.
func Decide(rec Record, obs Observed) Decision {
	w := newWork(rec, obs)
	w.readRight()
	if !w.Record.State.Ended() {
		w.answer()
	}
	if !w.Record.State.Ended() && !w.isBlocked() {
		w.recount()
		w.dress()
		for range 32 { // phases that follow each other at once
			if w.Record.State.Ended() || !(stage{w}.advance()) {
				break
			}
		}
		if !w.Record.State.Ended() {
			w.dress()
		}
	}
	return w.finish(&rec)
}

// finish collects the decision.
func (w *Work) finish(read *Record) Decision {
	w.d.Record = *w.Record
	w.d.Ended = w.Record.State.Ended()
	w.d.Write = w.d.Ended || !reflect.DeepEqual(*read, *w.Record)
	if w.d.Ended && w.d.InEffect == 0 { // the controllers stay as they are
		for _, m := range w.Members {
			m.Ctrl, m.bump = field.Copy(m.read), false
		}
	}
	w.d.RCs = w.changed()
	return w.d
}

// end ends the rollout. inEffect is the revision whose pods make the service now, 0 for none.
func (w *Work) end(s State, reason string, inEffect int64) {
	w.Record.State, w.Record.Reason, w.Record.Request, w.Record.Gate = s, reason, nil, nil
	w.d.InEffect = inEffect
	w.audit("rollout %s of %s: %s%s", w.Record.ID, w.Record.Service, s, after(": ", reason))
	if w.Record.PreDeploy != nil {
		w.d.Delete = append(w.d.Delete, w.Record.PreDeploy.RC)
	}
	if s == Failed {
		w.alert("the rollout of %s has failed%s", w.Record.Service, after(": ", reason))
	}
}

func after(mark, text string) string {
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

// answer carries out what an operator asks for.
func (w *Work) answer() {
	q, r := w.Record.Request, w.Record
	if q == nil {
		return
	}
	r.Request = nil
	switch {
	case q.Verb == AbortVerb:
		w.end(Aborted, w.because("aborted by "+q.By), 0)
		return
	case q.Verb == PauseVerb && (r.State == Progressing || r.State == RollingBack || r.State == WaitingForPromote):
		w.pause("paused by " + q.By)
	case q.Verb == ResumeVerb && r.State == Paused:
		r.State, r.Resume, r.Reason, r.ProgressAt, r.Gate = r.Resume, "", "", w.Now(), nil
	case q.Verb == ResumeVerb && r.BlockedReason != "":
		w.adopt()
	case q.Verb == PromoteVerb && r.State == WaitingForPromote:
		up, why := w.Upward(), "the new controller is gone, or cannot be read"
		if up != nil {
			why = up.lacks()
		}
		if why != "" && (up == nil || !q.Force) {
			w.audit("rollout %s of %s: %s asked to promote it, which is refused: %s", r.ID, r.Service, q.By, why)
			return
		}
		w.promote("promoted by " + q.By)
	case q.Verb == RollbackVerb && w.unread() != "": // it may be that to go back to
		w.audit("rollout %s of %s: %s asked to %s it, which cannot be while a controller cannot be read", r.ID, r.Service, q.By, q.Verb)
		return
	case q.Verb == RollbackVerb && r.State != RollingBack && r.Resume != RollingBack && r.BlockedReason == "":
		stage{w}.rollback(w.because("rolled back by " + q.By))
	default:
		w.audit("rollout %s of %s: %s asked to %s it, which means nothing while it is %s", r.ID, r.Service, q.By, q.Verb, r.State)
		return
	}
	w.audit("rollout %s of %s: %s by %s", r.ID, r.Service, q.Verb, q.By)
}

func (w *Work) promote(why string) {
	r := w.Record
	r.State, r.Promoted, r.Reason, r.WaitingSince, r.ProgressAt, r.Stuck = Progressing, true, why, nil, w.Now(), ""
	r.Phase = Promoting
}

// adopt goes on in a world that has come back, although pods run as they were found: each controller gets another generation, which lets its owner treat them
// as its own again.
func (w *Work) adopt() {
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

// isBlocked reports whether nothing moves now although nobody has paused the rollout, and says why in the record.
func (w *Work) isBlocked() bool {
	why := w.leaveOutGone()
	r := w.Record
	if r.State.Ended() {
		return true
	}
	switch {
	case why != "":
		w.look(patience)
	case w.obs.Breaker != "":
		why = "the breaker is tripped: " + w.obs.Breaker
	case w.obs.Epoch != r.Epoch:
		why = w.otherWorld()
	}
	if why == "" && r.BlockedReason != "" {
		r.ProgressAt = w.Now() // what was lost of the timeout is given back
	}
	r.BlockedReason = why
	return why != ""
}

// otherWorld says why the store, which went back in time, cannot be trusted yet; "" once it can. Then the counts of the record are written again.
func (w *Work) otherWorld() string {
	for _, m := range w.Members {
		switch {
		case m.raw == nil || m.raw.Epoch != w.obs.Epoch:
			return fmt.Sprintf("the store went back in time; waiting for the owner of %s to report", m.Name)
		case m.raw.Is(rc.Holding):
			return fmt.Sprintf("the store went back in time; the owner of %s waits for the nodes to speak", m.Name)
		case m.raw.Is(rc.Regressed):
			return fmt.Sprintf("the store went back in time, and pods of %s run as they were found: abort, or resume to treat them as its own", m.Name)
		}
	}
	w.Record.Epoch = w.obs.Epoch
	return ""
}

// unread returns the name of the first revision whose controller cannot be read, "" for none.
func (w *Work) unread() string {
	for i := range w.Record.Revisions {
		v := &w.Record.Revisions[i]
		if _, ok := w.obs.Revisions[v.RC]; !ok {
			return v.Name
		}
	}
	return ""
}

// leaveOutGone leaves out revisions whose controllers do not exist any more, and names the first that cannot be read.
func (w *Work) leaveOutGone() string {
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
		*w = Work{Record: w.Record, obs: w.obs, d: w.d}
		again := newWork(*w.Record, w.obs)
		w.Record, w.Members = again.Record, again.Members
	}
	return ""
}
