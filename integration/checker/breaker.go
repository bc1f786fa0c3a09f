package checker

import "time"

// The documented limits of the mass-stop breaker: within a minute, more than half of a farm's pods, and at least ten. A
// farm's minute ends at its plan, perhaps before the write, so the checker's window is a little shorter.
const (
	massStopLeast  = 10
	massStopWindow = time.Minute - heardLate
)

type stopsBy struct {
	at    map[string]int64     // by identity: when the farm decided on the stop
	held  map[string]int64     // by lock that the session has lost: until when it held the lock
	meant map[string]*meantFor // by controller: the stops that an operator allowed
}

type meantFor struct {
	generation int64    // the last generation that allowed many stops
	begun      int64    // when the first stop under this generation landed
	landed     []landed // all allowed stops
}

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

func (j *judgement) rememberOwner(c *Change, at int64) {
	if c.Before == nil || c.Before.Session == "" || c.After != nil && c.After.Session == c.Before.Session {
		return
	}
	if group(c.Key) == "locks" {
		j.stopsOf(c.Before.Session).held[c.Key] = at
	}
}

func (c *controller) meansStops() bool {
	return c != nil && c.AllowMassStop != 0 && c.AllowMassStop == c.Generation
}

// massStop judges that no farm stops most of its pods at once, unless an operator allowed these stops.
func (j *judgement) massStop(w *Write) {
	decided := map[string]int64{} // by session: when its farm decided on the first of these stops
	for i := range w.Changes {
		before, after := w.Changes[i].Before.placement(), w.Changes[i].After.placement()
		if before == nil || after == nil || before.RunState != running || after.RunState != stopped ||
			before.Node != after.Node || after.StoppingSince == nil ||
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
			j.violated("P4", "more stopped than the breaker lets pass", w.Index,
				"%d of the %d pods that session %.8s owned within %s, the last by %s",
				recent, owned, session, massStopWindow, w.summary())
		}
	}
}

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

// recent counts the stops within the window before the last one, and forgets earlier ones.
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

// owns returns how many of the pods that must run belonged to a farm, as far as it knew when it decided on a stop. It
// includes the controllers whose locks the session held a moment ago, because the farm may not know the loss.
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

// staying counts all pods. The exception is a controller whose many stops an operator allowed, if the farm had begun
// with these before it decided on the judged stop: then only its desired pods count.
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
