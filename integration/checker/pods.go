package checker

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// places returns a placement that puts a pod on another node, or gives it other ports. An adoption does not count.
func (c *Change) places() *placement {
	after, before := c.After.placement(), c.Before.placement()
	if after == nil || after.RunState != running || adopts(before, after) {
		return nil
	}
	if before == nil {
		return after
	}
	if _, returns := before.ghostOn(after.Node); returns ||
		before.Node == after.Node && maps.Equal(before.Ports, after.Ports) {
		return nil
	}
	return after
}

// news returns a placement that puts a pod on a node where it was not.
func (c *Change) news() *placement {
	p := c.places()
	if before := c.Before.placement(); p != nil && before != nil && before.Node == p.Node {
		return nil
	}
	return p
}

// left reports whether a listed orphan without a controller's record is placed: if an operator asked for a sweep, its
// owner stops it next.
func (w *Write) left(p *placement) bool {
	return w.before(prefix+"rcs/"+p.RCID) == nil && w.state.lists(p.Node, p.id())
}

func adopts(before, after *placement) bool {
	return after.AdoptedAtGeneration != 0 &&
		(before == nil || before.AdoptedAtGeneration != after.AdoptedAtGeneration ||
			before.Node != after.Node || after.Revision > before.Revision)
}

// stops judges P4 for farms: a stop is ordered because somebody wants it, never because a record was not found.
func (j *judgement) stops(w *Write) {
	for i := range w.Changes {
		c := &w.Changes[i]
		in, was := c.After.intent(), c.Before.intent()
		if in == nil {
			continue
		}
		node := nodeOfIntent(c.Key)
		if was != nil && (in.Revision < was.Revision || in.Revision == was.Revision && in.State != was.State) {
			j.violated("P4", "revision not higher", w.Index, "%s on %s: %s at %d after %s at %d", in.id(), node,
				in.State, in.Revision, was.State, was.Revision)
		}
		if in.State != stopped {
			continue
		}
		j.looked("P4 stop")
		if !w.has(keyBreaker, "check-index") {
			j.violated("P4", "stop without the breaker", w.Index, "%s on %s", in.id(), node)
		}
		if isNew := was == nil || was.State != stopped; isNew && w.before(keyBreaker).tripped() {
			j.violated("P4", "stop while the breaker is tripped", w.Index, "%s on %s", in.id(), node)
		}
		if why := j.unasked(w, in, node); why != "" {
			j.violated("P4", "stop that nobody asked for", w.Index, "%s on %s: %s", in.id(), node, why)
		}
	}
}

// unasked returns why a stop is not justified, or "".
func (j *judgement) unasked(w *Write, in *intent, node string) string {
	key := prefix + "pods/" + in.id()
	after, before := w.after(key).placement(), w.before(key).placement()
	rc := w.before(prefix + "rcs/" + in.RCID).controller()
	switch {
	case rc == nil && w.has(prefix+"rcs/"+in.RCID, "check-not-exists") && j.swept[in.RCID]:
		return "" // an operator asked to stop an orphan, so everything that its controller left may stop
	case rc == nil:
		return "its controller does not exist"
	case after == nil:
		return "there is no placement"
	case after.Node != node && !after.isGhostOn(node):
		return fmt.Sprintf("it is placed on %s, %s, without a ghost here", after.Node, after.RunState)
	case after.Node != node && after.RunState == running:
		return ""
	case before != nil && before.RunState == stopped:
		return "" // the stop is repeated
	case rc.DeletedAt != nil:
		return ""
	case j.hasStopped(w, node, in.id()):
		return "" // the node has stopped the pod already
	case before != nil && w.forgotten(before.Node, before.id()):
		return "" // only a former copy is left
	case rc.ordered(in.Role) && before != nil && before.LostSince != nil:
		return "" // its machine is lost, and its index is placed again once it has stopped
	case before != nil && before.AdoptedAtGeneration != 0 && before.AdoptedAtGeneration == rc.Generation &&
		!j.forcedSince(w, node, before.ChangedAt):
		return "it was adopted at the present generation and must stay"
	case j.forced(w, node):
		return ""
	case j.getsSecondNode(w, before, after):
		return ""
	case rc.eachNode() && j.asksFor(w, rc, node) && !w.othersOn(rc.ID, node, in.id()):
		return node + " asks for it"
	case rc.eachNode():
		return ""
	case rc.ordered(in.Role) && (in.Index >= rc.wanted(in.Role) || w.state.anyLists(in.id())):
		return "" // the index is not desired any more, or another copy runs
	case !rc.staysPut() && (!w.state.mayStay(rc, node) || j.drained(w, node) || j.unselected(w, rc, node)):
		return ""
	}
	n := 0
	for _, p := range w.placementsBefore(in.RCID) {
		if p.Role == in.Role && p.RunState == running {
			n++
		}
	}
	if want := rc.wanted(in.Role); n <= want {
		return fmt.Sprintf("%d replicas of role %s were placed, %d desired", n, in.Role, want)
	}
	return ""
}

// hasStopped needs the node's report and its events, because a restored store may have an old report.
func (j *judgement) hasStopped(w *Write, node, id string) bool {
	_, runs := j.nodes.runs(node, id)
	return w.before(realityKey(node, id)).reality().stopped(0) && !runs
}

func (w *Write) placementsBefore(rcID string) []*placement {
	changed := map[string]bool{}
	var out []*placement
	for i := range w.Changes {
		if group(w.Changes[i].Key) != "pods" {
			continue
		}
		changed[w.Changes[i].Key] = true
		if p := w.Changes[i].Before.placement(); p != nil && p.RCID == rcID {
			out = append(out, p)
		}
	}
	for _, p := range w.state.placementsOf(rcID) {
		if !changed[prefix+"pods/"+p.id()] {
			out = append(out, p)
		}
	}
	return out
}

// confirmed judges P5: identity, node and claim are given up only after the node confirmed the stop.
func (j *judgement) confirmed(w *Write) {
	for i := range w.Changes {
		c := &w.Changes[i]
		if before := c.Before.placement(); before != nil {
			j.leaves(w, before, c.After.placement())
		}
		if group(c.Key) == "reservations" {
			j.freed(w, c)
		}
	}
}

func (j *judgement) leaves(w *Write, before, after *placement) {
	id := before.id()
	gone := func(node string, revision int64) {
		if w.forgotten(node, id) {
			j.forgets(w, node, id)
			return
		}
		if before.Node == node && j.stoppedItself(w, before) {
			j.looked(GivenUpByTime)
			if ran, ok := j.nodes.runs(node, id); ok {
				j.violated("P5", "given up while it runs", w.Index,
					"%s on %s runs at revision %d, and has not stopped by itself", id, node, ran.Revision)
			}
			return
		}
		j.looked("P5 given up")
		r := w.before(realityKey(node, id)).reality()
		if !r.stopped(revision) && !j.hadStopped(node, id, revision) {
			j.violated("P5", "given up before the stop was confirmed", w.Index,
				"%s on %s: stop at revision %d, the node reports %+v", id, node, revision, r)
		}
		if ran, ok := j.nodes.runs(node, id); ok {
			j.violated("P5", "given up while it runs", w.Index, "%s on %s runs at revision %d", id, node, ran.Revision)
		}
	}
	if after == nil || after.Node != before.Node {
		_, ghost := int64(0), false
		if after != nil {
			_, ghost = after.ghostOn(before.Node)
		}
		if !ghost {
			gone(before.Node, before.Revision)
		}
	}
	for _, g := range before.Ghosts {
		if after != nil {
			if _, still := after.ghostOn(g.Node); still || after.Node == g.Node {
				continue
			}
		}
		gone(g.Node, g.Revision)
	}
}

func (r *reality) stopped(revision int64) bool {
	return r != nil && r.State == stopped && r.Revision >= revision
}

// hadStopped reports whether the node had confirmed a stop in the history that a restore took back. The node remembers
// it, and a farm that had read it need not read it again.
func (j *judgement) hadStopped(node, id string, revision int64) bool {
	return j.undone != nil && j.undone.get(realityKey(node, id)).reality().stopped(revision)
}

func (j *judgement) freed(w *Write, c *Change) {
	node := nodeBelow(c.Key, "reservations/")
	before, after := c.Before.reservation(), c.After.reservation()
	if before == nil {
		return
	}
	for id := range before.Claims {
		if after != nil {
			if _, still := after.Claims[id]; still {
				continue
			}
		}
		j.looked("P5 freed")
		p := w.after(prefix + "pods/" + id).placement()
		if p == nil {
			continue
		}
		if _, ghost := p.ghostOn(node); ghost || p.Node == node {
			j.violated("P5", "share freed under a pod", w.Index, "%s is still placed on %s", id, node)
		}
	}
}

// speak removes nodes for which farms need not wait: a node that has echoed the epoch, or whose check did not pass for
// a moment. A farm may have read the checks at that moment.
func (j *judgement) speak() {
	if len(j.silent) == 0 {
		return
	}
	epoch := j.state.get(keySchema).schema().Epoch
	for check, name := range j.silent {
		if n, _ := j.state.node(name); !j.state.passing(check) || n != nil && n.Epoch == epoch {
			delete(j.silent, check)
		}
	}
}

// elsewhere judges a new placement: a pod that runs on another living node is adopted there, unless the node's record
// was free a moment ago, because farms may not have read its orphans.
func (j *judgement) elsewhere(w *Write, p *placement) {
	j.looked("R1 adopted")
	for node := range j.nodes.run {
		ran, runs := j.nodes.runs(node, p.id())
		if !runs || node == p.Node || !w.state.alive(node) ||
			j.recently(w, j.away.dead[node]) || w.forgotten(node, p.id()) {
			continue
		}
		j.violated("R1", "placed although it runs", w.Index, "%s on %s; it has run on %s since %d ms, at revision %d",
			p.id(), p.Node, node, (w.At-ran.At)/1e6, ran.Revision)
	}
}

// onItsWay is how long after a restore an older placement may land, because it was under way, or decided on before the
// farm knew. Consul accepts it if its conditions hold in the snapshot.
const onItsWay = 500 * time.Millisecond

// synced judges R1: after the store went back in time, nothing is placed before the epoch is new and each node that was
// alive then has reported under it. One report is enough, even if the preparer restarts.
func (j *judgement) synced(w *Write) {
	for i := range w.Changes {
		p := w.Changes[i].news()
		if p == nil || w.left(p) {
			continue
		}
		if w.Changes[i].Before == nil {
			j.elsewhere(w, p)
		}
		j.looked("R1 placed")
		if j.restoredAt > 0 {
			j.looked("R1 placed after a restore")
		}
		if !w.has(keySchema, "check-index") {
			j.violated("R1", "placed without the epoch", w.Index, "%s on %s", p.id(), p.Node)
		}
		if j.restoredAt > j.epochAt && w.At-j.rewound[len(j.rewound)-1].to <= int64(onItsWay) {
			continue
		}
		if j.restoredAt > j.epochAt {
			j.violated("R1", "placed before the epoch was renewed", w.Index,
				"%s on %s; a snapshot was restored at index %d", p.id(), p.Node, j.restoredAt)
			continue
		}
		for _, name := range slices.Sorted(maps.Values(j.silent)) {
			j.violated("R1", "placed before every node has spoken", w.Index,
				"%s on %s; %s has not echoed the epoch made at index %d", p.id(), p.Node, name, j.epochAt)
		}
	}
}
