package checker

import (
	"fmt"
	"slices"
)

// minimum judges P6 by the nodes' last reports: no act of a farm takes a controller below its minimum, or above its
// surge.
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
			if before := c.Before.placement(); before != nil && c.takes() &&
				!w.remains(c.After.placement()) && !j.mayTake(w, before) {
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

// adds reports whether the change adds a counted copy. A copy that replaces one on an unmanaged node adds none.
func (j *judgement) adds(w *Write, rc *controller, c *Change) bool {
	counted := j.inUse
	if j.bounded(w, rc) {
		counted = j.mayRun
	}
	before, after := c.Before.placement(), c.news()
	return after != nil && (before == nil || counted(w, after) > counted(w, before))
}

func (j *judgement) bounded(w *Write, rc *controller) bool {
	if !j.inService(w, rc) {
		return false
	}
	_, most := j.said(w, rc)
	return most > 0
}

// mayTake reports whether a forced drain or a forget allows the copy's end even below the minimum.
func (j *judgement) mayTake(w *Write, p *placement) bool {
	if j.forced(w, p.Node) {
		j.looked("P6 forced")
		return true
	}
	return w.forgotten(p.Node, p.id())
}

// takes reports whether the change ends a copy, gives it another manifest, or makes it a standby.
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

// remains reports whether the pod is available where the change puts it, for example on its former node, where its copy
// has run all the time.
func (w *Write) remains(after *placement) bool {
	return after != nil && w.available(after, w.state.lost)
}

// available reports whether a pod was available: on its node, or on its former node while it moves. A pod on a lost
// machine is not available.
func (w *Write) available(p *placement, lost func(node string, marked bool) bool) bool {
	if p.RunState != running || p.Standby {
		return false
	}
	at := func(node, digest string, marked bool) bool {
		key := w.before(realityKey(node, p.id()))
		if key != nil && key.hostile() {
			return false // an unreadable report makes no copy available
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

// aboveMinimum counts twice: without the machines whose loss every farm must know, and without all lost machines. One
// count must keep the minimum, because a farm learns of a loss later than Consul. All farms know a loss that has
// `lost_since`.
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
		j.violated("P6", ruleServiceMinimum, w.Index, "%s of service %s: %s; by %s", rc.Name,
			rc.Service.Name, lacks, w.summary())
		return
	}
	j.violated("P6", "below the minimum", w.Index, "controller %s: %s; by %s", rc.Name, lacks, w.summary())
}

// leaves returns how many pods are available besides those in taken, and how many of taken were.
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

// belowSurge counts every copy on a living node until its stop is confirmed, and those on unmanaged nodes by their last
// report, but none on lost machines.
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
		j.violated("P6", "above the surge", w.Index, "controller %s: %d placed, desired %d and surge %d",
			rc.Name, n, rc.desired(), rc.surge())
	}
}

// inUse returns how many copies of a pod count towards desired + surge. Farms leave out a node that is away, or whose
// record cannot be read. They may still leave it out a moment after it came back: they place only the pods that they
// would have placed anyway.
func (j *judgement) inUse(w *Write, p *placement) int {
	lives := func(node string) bool {
		return w.state.alive(node) && !j.recently(w, j.away.dead[node]) && !j.recently(w, j.away.unread[node])
	}
	n := 0
	if p.RunState == running && !j.recently(w, j.away.gone[p.Node]) && !w.state.lost(p.Node, p.LostSince != nil) ||
		p.RunState == stopped && lives(p.Node) && !j.vacant(w, p) {
		n++
	}
	for _, g := range p.Ghosts {
		if !g.Lost && lives(g.Node) {
			n++
		}
	}
	return n
}

// vacant reports whether a pod has stopped to get its second node, and so takes no capacity.
func (j *judgement) vacant(w *Write, p *placement) bool {
	return p.leaves() && w.before(realityKey(p.Node, p.id())).reality().stopped(p.Revision)
}

// recently reports whether at, if not zero, was within heardLate of the transaction.
func (j *judgement) recently(w *Write, at int64) bool { return at != 0 && w.At-at <= int64(heardLate) }
