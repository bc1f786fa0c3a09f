package checker

import (
	"path"
	"strings"
	"time"
)

// forgotten reports whether operators declared a copy gone: its stop counts as confirmed (P5). The request stays until
// the owner has carried it out.
func (w *Write) forgotten(node, id string) bool {
	below := prefix + "requests/" + rcOf(id) + "/"
	declares := func(k *Key) bool {
		r := k.request()
		return r != nil && strings.HasPrefix(k.Name, below) && r.Kind == forgetPod && r.Node == node && r.Pod.id() == id
	}
	for i := range w.Changes {
		if declares(w.Changes[i].Before) {
			return true
		}
	}
	for _, k := range w.state.groups["requests"] {
		if k.Index < w.Index && declares(k) {
			return true
		}
	}
	return false
}

// Operators may declare copies gone only on nodes that cannot report.
func (j *judgement) forgets(w *Write, node, id string) {
	j.looked("P5 forgotten")
	if ran, ok := j.nodes.runs(node, id); ok && w.state.alive(node) {
		j.violated("P5", "forgotten on a living node", w.Index, "%s on %s runs there at revision %d", id, node,
			ran.Revision)
	}
}

type drained struct {
	drain
	at int64
}

// heardLate is how much later than Consul a farm may read that a drain has ended or a node is back: if it reads nothing
// for 10 s in these runs, it has lost its session. An act that was right during the drain does no harm a moment later.
const heardLate = 10 * time.Second

func (j *judgement) rememberDrain(c *Change, at int64) {
	before, after := c.Before.nodeOps(), c.After.nodeOps()
	if before != nil && before.Drain != nil && (after == nil || after.Drain == nil) {
		j.drains[path.Base(c.Key)] = drained{drain: *before.Drain, at: at}
	}
}

func (j *judgement) drainsTakenBack(at int64) {
	for key, k := range j.undone.groups["nodeops"] {
		name := path.Base(key)
		if o := k.nodeOps(); o != nil && o.Drain != nil && j.state.ops(name).Drain == nil {
			j.drains[name] = drained{drain: *o.Drain, at: at}
		}
	}
}

func (j *judgement) drained(w *Write, node string) bool {
	d, ended := j.drains[node]
	return ended && w.At-d.at <= int64(heardLate)
}

// forced reports whether a forced drain has passed its deadline, also if it ended a moment ago. Farms then stop pods
// that could not move, even below the minimum (P6).
func (j *judgement) forced(w *Write, node string) bool {
	d := j.drains[node]
	return w.state.ops(node).Drain.stops(w.At) || j.drained(w, node) && d.stops(d.at)
}

// forcedSince is like forced, but only for a drain that began after a pod was found. An older drain does not apply to
// the pod (ADR 5).
func (j *judgement) forcedSince(w *Write, node string, found time.Time) bool {
	d := w.state.ops(node).Drain
	if d == nil {
		ended := j.drains[node].drain
		d = &ended
	}
	return j.forced(w, node) && d.Since.After(found)
}

// disabled judges that the owner places and removes nothing. Adoptions, repairs and confirmations are allowed, because
// they do not change how many pods are desired. Operators may declare copies gone.
func (j *judgement) disabled(w *Write) {
	for i := range w.Changes {
		c := &w.Changes[i]
		rc := w.before(prefix + "rcs/" + c.controllerOf()).controller()
		if rc == nil || !rc.Disabled || rc.DeletedAt != nil || group(c.Key) != "pods" {
			continue
		}
		j.looked("P2 disabled")
		before, after := c.Before.placement(), c.After.placement()
		switch {
		case c.places() != nil:
			j.violated("P2", "placed while disabled", w.Index, "%s on %s", after.id(), after.Node)
		case before == nil || before.RunState != running || w.forgotten(before.Node, before.id()):
		case w.confirmedStop(before) && (after == nil || w.hasStopped(after)):
		case after == nil || after.RunState != running:
			j.violated("P2", "removed while disabled", w.Index, "%s from %s", before.id(), before.Node)
		}
	}
}

// static judges that a pod of a static controller keeps its node until it is stopped there. If the pod is found running
// on another node, the owner may write that node into the placement. Other rules judge why a pod is stopped.
func (j *judgement) static(w *Write) {
	for i := range w.Changes {
		c := &w.Changes[i]
		before := c.Before.placement()
		if before == nil || before.RunState != running {
			continue
		}
		rc := w.before(prefix + "rcs/" + before.RCID).controller()
		if rc == nil || !rc.staysPut() {
			continue
		}
		j.looked("R7 static")
		if p := c.news(); p != nil {
			j.violated("R7", "static pod moved", w.Index, "%s from %s to %s", p.id(), before.Node, p.Node)
		}
	}
}

// hasStopped reports whether the node of a placement reports that it has stopped the pod. If the former copy has
// stopped too, and the placement returns to it, nothing is taken away.
func (w *Write) hasStopped(p *placement) bool {
	r := w.before(realityKey(p.Node, p.id())).reality()
	return r != nil && r.State == stopped
}

// confirmedStop reports whether the node has reported the stop at a higher revision, as after a restore. It does not
// start the pod again.
func (w *Write) confirmedStop(p *placement) bool {
	r := w.before(realityKey(p.Node, p.id())).reality()
	return r != nil && r.State == stopped && r.Revision > p.Revision
}
