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
	return after != nil && w.available(after, w.state.lost)
}

// available reports whether a pod counted as available when the transaction was carried out: where it was placed, or while
// it moved where it came from. Nothing is available on a machine of which lost says that it is.
func (w *Write) available(p *placement, lost func(node string, marked bool) bool) bool {
	if p.RunState != running {
		return false
	}
	at := func(node, digest string, marked bool) bool {
		r := w.before(realityKey(node, p.id())).reality()
		return r != nil && r.Available && (digest == "" || r.Digest == digest) && !lost(node, marked)
	}
	if at(p.Node, p.Digest, p.LostSince != nil) {
		return true
	}
	for _, g := range p.Ghosts {
		if g.Revision == 0 && at(g.Node, "", g.Gone) {
			return true
		}
	}
	return false
}

// aboveMinimum counts twice. A farm learns a little later than Consul that a machine is gone: for that time, and no longer, it may count
// what was available there, or not. Where the placements say that the machine is gone everybody knows.
func (j *judgement) aboveMinimum(w *Write, rc *controller, taken []*placement) {
	least := 0
	knowsNot := func(node string, marked bool) bool {
		since, gone := j.away.lost[node]
		return w.state.lost(node, marked) && (marked || gone && w.At-since > int64(heardLate))
	}
	for _, isLost := range []func(string, bool) bool{knowsNot, w.state.lost} {
		available, lost := 0, 0
		for _, p := range w.placementsBefore(rc.ID) {
			if w.available(p, isLost) {
				available++
			}
		}
		for _, p := range taken {
			if w.available(p, isLost) {
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
		n += j.standing(w, p)
	}
	j.looked("P6 surge")
	if most := rc.desired() + rc.surge(); n > most {
		j.violated("P6", "above the surge", w.Index, "controller %s: %d placed, desired %d and surge %d", rc.Name, n, rc.desired(), rc.surge())
	}
}

// standing returns how many copies of a pod count against desired + surge. A node that came back a moment ago may still be away
// for the farm: nothing tells it sooner, and where it is wrong it only places what it would have placed anyway.
func (j *judgement) standing(w *Write, p *placement) int {
	lives := func(node string) bool { return w.state.alive(node) && !j.recently(w, j.away.dead[node]) }
	n := 0
	if p.RunState == running && !j.recently(w, j.away.gone[p.Node]) && !w.state.lost(p.Node, p.LostSince != nil) || p.RunState == stopped && lives(p.Node) {
		n++
	}
	for _, g := range p.Ghosts {
		if !g.Lost && lives(g.Node) {
			n++
		}
	}
	return n
}

// recently reports whether something was so a moment before the transaction, zero for never.
func (j *judgement) recently(w *Write, at int64) bool { return at != 0 && w.At-at <= int64(heardLate) }
