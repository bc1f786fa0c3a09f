package checker

import "time"

// What trips the mass-stop breaker, as documented: more than half of the pods that a farm owns within a minute, and ten at least. A farm
// counts from when it last planned a stop, which may be some time before that landed: the minute is a little shorter here.
const (
	massStopLeast  = 10
	massStopWindow = time.Minute - heardLate
)

// stopsBy are the stops that one farm asked for, by the session under which it did.
type stopsBy struct {
	at    map[string]int64     // by identity, when it decided that
	held  map[string]int64     // by lock that it has given up, until when it held that
	meant map[string]*meantFor // by controller, what it stopped because that was said to be meant
}

// meantFor are the stops of one controller that were said to be meant.
type meantFor struct {
	generation int64    // that said so last
	begun      int64    // when the first stop that it asked for had landed
	landed     []landed // all of them
}

// landed is when the stop of a pod of some role was in Consul.
type landed struct {
	role string
	at   int64
}

func (j *judgement) stopsOf(session string) *stopsBy {
	if j.stopped[session] == nil {
		j.stopped[session] = &stopsBy{at: map[string]int64{}, held: map[string]int64{}, meant: map[string]*meantFor{}}
	}
	return j.stopped[session]
}

// rememberHolder notes that a lock changed hands.
func (j *judgement) rememberOwner(c *Change, at int64) {
	if c.Before == nil || c.Before.Session == "" || c.After != nil && c.After.Session == c.Before.Session {
		return
	}
	if group(c.Key) == "locks" {
		j.stopsOf(c.Before.Session).held[c.Key] = at
	}
}

// meansStops reports whether the last change of a controller says that many stops are meant.
func (c *controller) meansStops() bool {
	return c != nil && c.AllowMassStop != 0 && c.AllowMassStop == c.Generation
}

// massStop: nobody stops most of what it owns at once, unless that was said to be meant.
func (j *judgement) massStop(w *Write) {
	decided := map[string]int64{} // by session, when the first of these stops was
	for i := range w.Changes {
		before, after := w.Changes[i].Before.placement(), w.Changes[i].After.placement()
		if before == nil || after == nil || before.RunState != running || after.RunState != stopped || before.Node != after.Node || after.StoppingSince == nil ||
			j.getsSecondNode(w, before, after) {
			continue
		}
		rc := w.before(prefix + "rcs/" + after.RCID).controller()
		lock := w.before(lockOf(after.RCID))
		if rc == nil || lock == nil || lock.Session == "" {
			continue
		}
		by := j.stopsOf(lock.Session)
		if rc.meansStops() {
			by.mean(rc, landed{after.Role, w.At})
			continue
		}
		at := after.StoppingSince.UnixNano()
		by.at[after.id()] = at
		if first, known := decided[lock.Session]; !known || at < first {
			decided[lock.Session] = at
		}
	}
	for session, since := range decided {
		j.looked("P4 mass stop")
		recent := j.stopsOf(session).recent()
		if owned := j.owns(w, session, since) + recent; recent >= massStopLeast && 2*recent > owned {
			j.violated("P4", "more stopped than the breaker lets pass", w.Index, "%d of the %d pods that session %.8s owned within %s, the last by %s",
				recent, owned, session, massStopWindow, w.summary())
		}
	}
}

// mean notes a stop that was said to be meant.
func (s *stopsBy) mean(rc *controller, stop landed) {
	m := s.meant[rc.ID]
	if m == nil {
		m = &meantFor{}
		s.meant[rc.ID] = m
	}
	if m.generation != rc.Generation {
		m.generation, m.begun = rc.Generation, stop.at
	}
	m.landed = append(m.landed, stop)
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

// owns returns how many pods are meant to run, and to stay, of the controllers that a session holds, or has a moment ago: its farm may
// not have heard yet that it holds them no more. It is what the farm knew when it decided on a stop.
func (j *judgement) owns(w *Write, session string, decided int64) int {
	by := j.stopsOf(session)
	owned := map[string]bool{} // by the key of the lock
	for key, k := range w.state.groups["locks"] {
		owned[key] = k.Session == session
	}
	for key, at := range by.held {
		owned[key] = owned[key] || j.recently(w, at)
	}
	pods := map[string]map[string]int{} // by controller and role
	asFound := 0
	for _, p := range w.state.placementsOf("") {
		rc := w.state.get(prefix + "rcs/" + p.RCID).controller()
		switch {
		case p.RunState != running || !owned[lockOf(p.RCID)]:
		case rc != nil && rc.DeletedAt == nil && p.AdoptedAtGeneration != 0 && p.AdoptedAtGeneration == rc.Generation:
			asFound++
		default:
			if pods[p.RCID] == nil {
				pods[p.RCID] = map[string]int{}
			}
			pods[p.RCID][p.Role]++
		}
	}
	for rcID, m := range by.meant {
		for _, stop := range m.landed {
			if stop.at > decided && owned[lockOf(rcID)] {
				if pods[rcID] == nil {
					pods[rcID] = map[string]int{}
				}
				pods[rcID][stop.role]++
			}
		}
	}
	return asFound + j.staying(w, by, pods, decided)
}

// staying counts pods, of each controller those that are desired at the most where its farm had begun to stop what is too many, as was
// meant, when it decided on a stop of another.
func (j *judgement) staying(w *Write, by *stopsBy, pods map[string]map[string]int, decided int64) int {
	n := 0
	for rcID, roles := range pods {
		rc, m := w.state.get(prefix+"rcs/"+rcID).controller(), by.meant[rcID]
		begun := rc.meansStops() && m != nil && m.generation == rc.Generation && m.begun <= decided
		for role, running := range roles {
			switch {
			case begun && rc.DeletedAt != nil:
				running = 0
			case begun && !rc.Disabled && !rc.eachNode():
				running = min(running, rc.wanted(role))
			}
			n += running
		}
	}
	return n
}
