package checker

import "strings"

func (w *Write) before(key string) *Key {
	for i := range w.Changes {
		if w.Changes[i].Key == key {
			return w.Changes[i].Before
		}
	}
	return w.state.get(key)
}

func (w *Write) after(key string) *Key { return w.state.get(key) }

func (w *Write) touches() bool {
	for i := range w.Changes {
		switch group(w.Changes[i].Key) {
		case "pods", "intent", "status", "reservations", "schema":
			return true
		}
	}
	return false
}

func (w *Write) has(key string, verbs ...string) bool {
	for i := range w.Ops {
		for _, verb := range verbs {
			if w.Ops[i].Verb == verb && w.Ops[i].DirEnt.Key == key {
				return true
			}
		}
	}
	return false
}

func (c *Change) controllerOf() string {
	for _, k := range []*Key{c.After, c.Before} {
		switch {
		case k.placement() != nil:
			return k.placement().RCID
		case k.intent() != nil:
			return k.intent().RCID
		case k.status() != nil:
			return k.status().RCID
		}
	}
	return ""
}

func (w *Write) owned() map[string]bool {
	out := map[string]bool{}
	for i := range w.Changes {
		if id := w.Changes[i].controllerOf(); id != "" {
			out[id] = true
		}
	}
	return out
}

func (w *Write) authors() map[string]string {
	out := map[string]string{}
	for i := range w.Changes {
		k := w.Changes[i].After
		if a := k.audit(); a != nil && a.RCID != "" {
			out[a.RCID] = a.Who
		}
		if s := k.status(); s != nil && s.Owner != "" {
			out[s.RCID] = s.Owner
		}
	}
	return out
}

// single judges P1: only the holder of a controller's lock changes its pods. The named writer was the holder at that
// index, and the transaction has the fence, because without the fence only luck kept other writers out. A farm may send
// small writes of several controllers in one transaction.
func (j *judgement) single(w *Write) {
	authors := w.authors()
	owned := w.owned()
	for id := range owned {
		lock := lockOf(id)
		if w.speaksForNobody(id) {
			j.looked("P1 unclaimed")
			continue
		}
		if who, known := authors[id]; known {
			j.looked("P1 author")
			if owner, _ := w.ownerAt(id); owner != who {
				j.violated("P1", ruleOwner, w.Index,
					"%s wrote %s of controller %s, whose lock was held by %q", who, w.summary(), id, owner)
			}
		}
		j.looked("P1 fence")
		if !w.has(lock, "check-session") || !w.has(lock, "check-index") {
			j.violated("P1", "without a fence", w.Index,
				"%s of controller %s was written by a transaction that does not check its lock", w.summary(), id)
		}
	}
	for i := range w.Changes {
		j.claimants(w, &w.Changes[i], owned)
	}
}

// speaksForNobody reports whether the transaction writes only the status of a controller without an owner, on condition
// that it still has none.
func (w *Write) speaksForNobody(id string) bool {
	for i := range w.Changes {
		if c := &w.Changes[i]; c.controllerOf() == id && c.Key != prefix+"status/"+id {
			return false
		}
	}
	lock := w.before(lockOf(id))
	return (lock == nil || lock.Session == "") && w.has(lockOf(id), "check-index", "check-not-exists")
}

// An owner must not change the claims of other controllers.
func (j *judgement) claimants(w *Write, c *Change, owned map[string]bool) {
	for _, id := range j.claims(c) {
		rcID := rcOf(id)
		j.looked("P1 shares")
		if !owned[rcID] && !w.has(lockOf(rcID), "check-session") {
			j.violated("P1", "share changed by another", w.Index,
				"the share of %s in %s changed in a transaction of %v", id, c.Key, owned)
		}
	}
}

func (w *Write) summary() string {
	var parts []string
	for i := range w.Changes {
		switch g := group(w.Changes[i].Key); g {
		case "pods", "intent", "status", "rollouts":
			parts = append(parts, strings.TrimPrefix(w.Changes[i].Key, prefix))
		}
	}
	const show = 4
	if len(parts) > show {
		parts = append(parts[:show], "and more")
	}
	return strings.Join(parts, ", ")
}

// fresh judges P2: each write has a condition on the controller's present version. A status must have its generation,
// unless it repeats (see repeats). A new placement that is not adopted must have a manifest of that version.
func (j *judgement) fresh(w *Write) {
	for id := range w.owned() {
		key := prefix + "rcs/" + id
		j.looked("P2 version")
		if !w.has(key, "check-index", "check-not-exists") {
			j.violated("P2", "without the controller's version", w.Index, "%s of controller %s", w.summary(), id)
		}
		rc := w.before(key).controller()
		if rc == nil && w.has(key, "check-not-exists") {
			continue // a status without an owner
		}
		if rc == nil {
			j.violated("P2", "no such controller", w.Index, "%s was written while controller %s did not exist",
				w.summary(), id)
			continue
		}
		j.frozen(w, id)
		for i := range w.Changes {
			c := &w.Changes[i]
			if s := c.After.status(); s != nil && s.RCID == id &&
				s.ObservedGeneration != rc.Generation && !c.repeats() {
				j.violated("P2", "superseded generation", w.Index,
					"status of %s speaks of generation %d, the controller is at %d", id,
					s.ObservedGeneration, rc.Generation)
			}
			if p := c.After.placement(); p != nil && p.RCID == id && c.Before == nil &&
				p.RunState == running && p.AdoptedAtGeneration == 0 {
				j.looked("P2 manifest")
				if asked := rc.manifestOf(p.Role); p.Digest != asked &&
					(rc.InPlace == nil || p.Digest != rc.InPlace.formerOf(p.Role)) {
					j.violated("P2", "superseded manifest", w.Index,
						"%s was placed with manifest %.8s, the controller asks for %.8s", p.id(), p.Digest, asked)
				}
			}
		}
	}
}
