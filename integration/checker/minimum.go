package checker

// minimum is P6: as last reported, no act of the farm's takes a controller below its minimum, or above its surge.
func (j *judgement) minimum(w *Write) {
	for id := range w.owned() {
		rc := w.before(prefix + "rcs/" + id).controller()
		if rc == nil {
			continue
		}
		var taken []*placement
		placed := false
		for i := range w.Changes {
			c := &w.Changes[i]
			if c.controllerOf() != id {
				continue
			}
			placed = placed || c.news() != nil
			if before := c.Before.placement(); before != nil && c.takes() && !w.remains(c.After.placement()) && !j.mayTake(w, before) {
				taken = append(taken, before)
			}
		}
		if rc.DeletedAt == nil {
			j.aboveMinimum(w, rc, taken)
		}
		if placed {
			j.belowSurge(w, rc)
		}
	}
}

// mayTake reports whether operators said that the copy goes, whatever is left: by a forced drain, or as one that is gone.
func (j *judgement) mayTake(w *Write, p *placement) bool {
	if j.forced(w, p.Node) {
		j.looked("P6 forced")
		return true
	}
	return w.forgotten(p.Node, p.id())
}

// takes reports whether the change ends a copy that was meant to run, or gives it another manifest.
func (c *Change) takes() bool {
	before, after := c.Before.placement(), c.After.placement()
	switch {
	case after == nil, after.RunState != running:
		return true
	case adopts(before, after):
		return false
	case after.Node == before.Node:
		return after.Digest != before.Digest
	default:
		revision, ghost := after.ghostOn(before.Node)
		return !ghost || revision != 0
	}
}

// remains reports whether a pod is as available after the change as it was before, as where it is given back to the node that it
// came from, whose copy has been running all the time.
func (w *Write) remains(after *placement) bool {
	return after != nil && w.available(after, true)
}

// available reports whether a pod counted as available when the transaction was carried out: where it was placed, or while
// it moved where it came from. Nothing is available on a machine that is gone, if that is known.
func (w *Write) available(p *placement, knowsGone bool) bool {
	if p.RunState != running {
		return false
	}
	at := func(node, digest string) bool {
		r := w.before(realityKey(node, p.id())).reality()
		return r != nil && r.Available && (digest == "" || r.Digest == digest) && !(knowsGone && w.state.gone(node))
	}
	if at(p.Node, p.Digest) {
		return true
	}
	for _, g := range p.Ghosts {
		if g.Revision == 0 && at(g.Node, "") {
			return true
		}
	}
	return false
}

// aboveMinimum counts twice: a farm learns a little later than Consul that a machine is gone, and may not know it yet.
func (j *judgement) aboveMinimum(w *Write, rc *controller, taken []*placement) {
	least := 0
	for _, knowsGone := range []bool{false, true} {
		available, lost := 0, 0
		for _, p := range w.placementsBefore(rc.ID) {
			if w.available(p, knowsGone) {
				available++
			}
		}
		for _, p := range taken {
			if w.available(p, knowsGone) {
				lost++
			}
		}
		if lost == 0 || available-lost >= rc.minimum() {
			if lost > 0 {
				j.looked("P6 minimum")
			}
			return
		}
		least = available - lost
	}
	j.violated("P6", "below the minimum", w.Index, "controller %s: %d available are left by %s, minimum %d", rc.Name, least, w.summary(), rc.minimum())
}

// belowSurge counts every copy that takes up a living node, also one that was asked to stop and is not confirmed, and those of
// nodes that only lack a preparer, which count as they last reported. Lost ones do not count.
func (j *judgement) belowSurge(w *Write, rc *controller) {
	n := 0
	for _, p := range w.state.placementsOf(rc.ID) {
		n += w.state.standing(p)
	}
	j.looked("P6 surge")
	if most := rc.desired() + rc.surge(); n > most {
		j.violated("P6", "above the surge", w.Index, "controller %s: %d placed, desired %d and surge %d", rc.Name, n, rc.desired(), rc.surge())
	}
}

// standing returns how many copies of a pod count against desired + surge.
func (s *state) standing(p *placement) int {
	n := 0
	if p.RunState == running && !s.gone(p.Node) || p.RunState == stopped && s.alive(p.Node) {
		n++
	}
	for _, g := range p.Ghosts {
		if !g.Lost && s.alive(g.Node) {
			n++
		}
	}
	return n
}
