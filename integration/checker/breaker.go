package checker

import (
	"slices"
	"strings"
	"time"
)

// What trips the mass-stop breaker, as documented: more than half of the pods that a farm owns within a minute, and ten at least. A farm
// counts from when it first planned a stop, which may be some tries before the one that landed: the minute is a little shorter here.
const (
	massStopLeast  = 10
	massStopWindow = time.Minute - heardLate
)

// stopsBy are the stops that one farm asked for, by the session under which it did.
type stopsBy struct {
	at   map[string]int64 // by identity, when it decided that
	held map[string]int64 // by controller that it has handed over, until when it held that
}

func (j *judgement) stopsOf(session string) *stopsBy {
	if j.stopped[session] == nil {
		j.stopped[session] = &stopsBy{at: map[string]int64{}, held: map[string]int64{}}
	}
	return j.stopped[session]
}

// rememberHolder notes that a lock changed hands.
func (j *judgement) rememberHolder(c *Change, at int64) {
	if c.Before == nil || c.Before.Session == "" || c.After != nil && c.After.Session == c.Before.Session {
		return
	}
	if rcID, isLock := strings.CutPrefix(c.Key, prefix+"locks/"); isLock {
		j.stopsOf(c.Before.Session).held[rcID] = at
	}
}

// massStop: nobody stops most of what it owns at once, unless that was said to be meant.
func (j *judgement) massStop(w *Write) {
	sessions := map[string]bool{}
	for i := range w.Changes {
		before, after := w.Changes[i].Before.placement(), w.Changes[i].After.placement()
		if before == nil || after == nil || before.RunState != running || after.RunState != stopped || before.Node != after.Node || after.StoppingSince == nil {
			continue
		}
		rc := w.before(prefix + "rcs/" + after.RCID).controller()
		lock := w.before(prefix + "locks/" + after.RCID)
		if rc == nil || lock == nil || lock.Session == "" || rc.AllowMassStop != 0 && rc.AllowMassStop == rc.Generation {
			continue
		}
		sessions[lock.Session] = true
		j.stopsOf(lock.Session).at[after.id()] = after.StoppingSince.UnixNano()
	}
	for session := range sessions {
		j.looked("P4 mass stop")
		recent := j.stopsOf(session).recent()
		if owned := j.owns(w, session) + recent; recent >= massStopLeast && 2*recent > owned {
			j.violated("P4", "more stopped than the breaker lets pass", w.Index, "%d of the %d pods that session %.8s owned within %s, the last by %s",
				recent, owned, session, massStopWindow, w.summary())
		}
	}
}

// recent returns how many stops there were within the window before the last one.
func (s *stopsBy) recent() int {
	last := int64(0)
	for _, at := range s.at {
		last = max(last, at)
	}
	n := 0
	for id, at := range s.at {
		if last-at > int64(massStopWindow) {
			delete(s.at, id)
			continue
		}
		n++
	}
	return n
}

// owns returns how many pods are meant to run of the controllers that a session holds, or has a moment ago: its farm may not have
// heard yet that it holds them no more.
func (j *judgement) owns(w *Write, session string) int {
	var held []string
	for key, k := range w.state.groups["locks"] {
		if k.Session == session {
			held = append(held, strings.TrimPrefix(key, prefix+"locks/"))
		}
	}
	for rcID, at := range j.stopsOf(session).held {
		if j.recently(w, at) {
			held = append(held, rcID)
		}
	}
	n := 0
	for _, p := range w.state.placementsOf("") {
		if p.RunState == running && slices.Contains(held, p.RCID) {
			n++
		}
	}
	return n
}
