package checker

import (
	"fmt"
	"slices"
)

// minimum is P6: as last reported, no act of the farm's takes a controller below its minimum, or above its surge.
func (j *judgement) minimum(w *Write) {
	for id := range w.owned() {
		rc := w.before(prefix + "rcs/" + id).controller()
		if rc == nil {
			continue
		}
		var taken []*placement // of all revisions of the service
		own, placed := false, false
		for i := range w.Changes {
			c := &w.Changes[i]
			mine := c.controllerOf() == id
			if !mine && !rc.isBeside(c.controllerOf()) {
				continue
			}
			placed = placed || mine && j.adds(w, rc, c)
			if before := c.Before.placement(); before != nil && c.takes() && !w.remains(c.After.placement()) && !j.mayTake(w, before) {
				taken = append(taken, before)
				own = own || mine
			}
		}
		if rc.DeletedAt == nil && own {
			j.aboveMinimum(w, rc, taken)
		}
		if placed && !rc.eachNode() {
			j.belowSurge(w, rc)
		}
	}
}

// adds reports whether the change puts a pod on a node where it was not, so that more copies of it count. Its new copy may stand in place of
// one on a node that only lacks a preparer, which counts no more then.
func (j *judgement) adds(w *Write, rc *controller, c *Change) bool {
	counted := j.inUse
	if j.bounded(w, rc) {
		counted = j.mayRun
	}
	before, after := c.Before.placement(), c.news()
	return after != nil && (before == nil || counted(w, after) > counted(w, before))
}

// bounded reports whether the bound of the service is in force, in place of the controller's surge.
func (j *judgement) bounded(w *Write, rc *controller) bool {
	if !j.inService(w, rc) {
		return false
	}
	_, most := j.said(w, rc)
	return most > 0
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
		return after.Digest != before.Digest || after.Standby && !before.Standby
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
	if p.RunState != running || p.Standby {
		return false
	}
	at := func(node, digest string, marked bool) bool {
		key := w.before(realityKey(node, p.id()))
		if key != nil && key.hostile() {
			return false // what cannot be read says of no copy that it is available
		}
		r := key.reality()
		return r != nil && r.Available && !r.Standby && (digest == "" || r.Digest == digest) && !lost(node, marked)
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
	knowsNot := func(node string, marked bool) bool {
		since, gone := j.away.lost[node]
		return w.state.lost(node, marked) && (marked || gone && w.At-since > int64(heardLate))
	}
	lacks, limit := "", j.limit(w, rc)
	for _, isLost := range []func(string, bool) bool{knowsNot, w.state.lost} {
		left, lost := w.leaves(limit.rcs, taken, isLost)
		if lost == 0 {
			return
		}
		if left >= limit.least {
			j.looked(limit.group("P6 minimum"))
			return
		}
		lacks = fmt.Sprintf("%d available are left, minimum %d, of controllers %v", left, limit.least, limit.rcs)
	}
	if limit.service {
		j.violated("P6", ruleServiceMinimum, w.Index, "%s of service %s: %s; by %s", rc.Name, rc.Service.Name, lacks, w.summary())
		return
	}
	j.violated("P6", "below the minimum", w.Index, "controller %s: %s; by %s", rc.Name, lacks, w.summary())
}

// leaves counts what is available of some controllers after some of their pods were taken, and how many of those were available.
func (w *Write) leaves(rcs []string, taken []*placement, isLost func(string, bool) bool) (left, lost int) {
	for _, id := range rcs {
		for _, p := range w.placementsBefore(id) {
			if w.available(p, isLost) {
				left++
			}
		}
	}
	for _, p := range taken {
		if slices.Contains(rcs, p.RCID) && w.available(p, isLost) {
			lost++
		}
	}
	return left - lost, lost
}

// belowSurge counts every copy that takes up a living node, also one that was asked to stop and is not confirmed, and those of
// nodes that only lack a preparer, which count as they last reported. Lost ones do not count.
func (j *judgement) belowSurge(w *Write, rc *controller) {
	if j.bounded(w, rc) {
		j.withinBound(w, rc)
		return
	}
	n := 0
	for _, p := range w.state.placementsOf(rc.ID) {
		n += j.inUse(w, p)
	}
	j.looked("P6 surge")
	if most := rc.desired() + rc.surge(); n > most {
		j.violated("P6", "above the surge", w.Index, "controller %s: %d placed, desired %d and surge %d", rc.Name, n, rc.desired(), rc.surge())
	}
}

// inUse returns how many copies of a pod count against desired + surge. A node whose record cannot be read is left out by farms, like one
// that is away. One that came back a moment ago may still be away for the farm: nothing tells it sooner, and where it is wrong it only places what it would have placed anyway.
func (j *judgement) inUse(w *Write, p *placement) int {
	lives := func(node string) bool {
		return w.state.alive(node) && !j.recently(w, j.away.dead[node]) && !j.recently(w, j.away.unread[node])
	}
	n := 0
	if p.RunState == running && !j.recently(w, j.away.gone[p.Node]) && !w.state.lost(p.Node, p.LostSince != nil) || p.RunState == stopped && lives(p.Node) && !j.vacant(w, p) {
		n++
	}
	for _, g := range p.Ghosts {
		if !g.Lost && lives(g.Node) {
			n++
		}
	}
	return n
}

// vacant reports whether a pod has stopped to be placed again on a second node: it takes no room until then.
func (j *judgement) vacant(w *Write, p *placement) bool {
	return p.leaves() && w.before(realityKey(p.Node, p.id())).reality().stopped(p.Revision)
}

// recently reports whether something was so a moment before the transaction, zero for never.
func (j *judgement) recently(w *Write, at int64) bool { return at != 0 && w.At-at <= int64(heardLate) }
