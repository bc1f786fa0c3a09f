package checker

import (
	"maps"
	"slices"
	"strings"
)

// ownerAt returns the farm that held a controller's lock, and its session, or "".
func (w *Write) ownerAt(rcID string) (farm, sessionID string) { return w.holderOf(lockOf(rcID)) }

// holderOf is ownerAt for any lock. A session's name has the farm's name, the key prefix and, if the session lives by
// its own TTL, the incarnation.
func (w *Write) holderOf(key string) (farm, sessionID string) {
	lock := w.before(key)
	if lock == nil || lock.Session == "" || lock.lockValue() == nil {
		return "", ""
	}
	farm = lock.lockValue().Farm
	s, alive := w.state.sessions[lock.Session]
	name, ours := strings.CutPrefix(s.name, "rcfarm/farm/")
	if stable, rest, _ := strings.Cut(name, "@"); !alive || !ours ||
		stable != farm || !strings.HasPrefix(rest, prefix) {
		return "", ""
	}
	return farm, lock.Session
}

// locked judges P1 by the locks alone: a controller's placements, intents and claims change only while a farm's session
// holds its lock. One session must hold all locks of a transaction.
func (j *judgement) locked(w *Write) {
	written := j.written(w)
	sessions := map[string]bool{}
	for id := range written {
		j.looked("P1 held")
		farm, sessionID := w.ownerAt(id)
		if farm == "" {
			j.violated("P1", ruleNotLocked, w.Index, "%s of controller %s was written while no farm held its lock",
				w.summary(), id)
			continue
		}
		sessions[sessionID] = true
	}
	if len(written) > 1 {
		j.looked("P1 merged")
	}
	if len(sessions) > 1 {
		j.violated("P1", ruleTwoSessions, w.Index, "%s: controllers %v, whose locks are held by %v",
			w.summary(), slices.Sorted(maps.Keys(written)), slices.Sorted(maps.Keys(sessions)))
	}
}

func (j *judgement) written(w *Write) map[string]bool {
	out := map[string]bool{}
	for i := range w.Changes {
		c := &w.Changes[i]
		for _, id := range j.claims(c) {
			out[rcOf(id)] = true
		}
		if g := group(c.Key); g != "pods" && g != "intent" {
			continue
		}
		if id := c.controllerOf(); id != "" {
			out[id] = true
		}
	}
	return out
}

// claims returns the identities whose claim a change adds, removes or alters, except by the run itself.
func (j *judgement) claims(c *Change) []string {
	if group(c.Key) != "reservations" {
		return nil
	}
	before, after := c.Before.reservation(), c.After.reservation()
	var out []string
	for id, ports := range after.ports() {
		had, known := before.ports()[id]
		switch {
		case !known && j.leaked[nodeBelow(c.Key, "reservations/")+"|"+id]:
		case !known, !slices.Equal(had, ports):
			out = append(out, id)
		}
	}
	for id := range before.ports() {
		if _, has := after.ports()[id]; !has {
			out = append(out, id)
		}
	}
	return out
}

// leaks returns the claims that the run leaked for sweeps, by node and identity.
func leaks(events []Event) map[string]bool {
	out := map[string]bool{}
	for _, e := range ofKind(events, EventLeak) {
		out[e.Node+"|"+e.ID] = true
	}
	return out
}
