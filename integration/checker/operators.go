package checker

import (
	"path"
	"strings"
	"time"
)

// What operators do allows some of what is forbidden otherwise, and forbids some of what is allowed.

// forgotten reports whether operators had declared a copy gone when the transaction was carried out: its stop counts as
// confirmed (P5). The request stays until its owner has carried it out.
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

// forgets judges that a copy was given up because operators said so: that is for nodes that cannot speak for themselves.
func (j *judgement) forgets(w *Write, node, id string) {
	j.looked("P5 forgotten")
	if ran, ok := j.nodes.runs(node, id); ok && w.state.alive(node) {
		j.violated("P5", "forgotten on a living node", w.Index, "%s on %s runs there at revision %d", id, node, ran.Revision)
	}
}

// drained is a drain that was ended.
type drained struct {
	drain
	at int64
}

// heardLate is how much later than Consul a farm may hear that a drain has ended or a node is back: one that hears nothing for longer than its
// session lasts, 10 s at the most in these runs, has lost it. What it does until then is done in good faith, as the end of a
// drain makes nothing wrong that was right a moment ago.
const heardLate = 10 * time.Second

func (j *judgement) rememberDrain(c *Change, at int64) {
	before, after := c.Before.nodeOps(), c.After.nodeOps()
	if before != nil && before.Drain != nil && (after == nil || after.Drain == nil) {
		j.drains[path.Base(c.Key)] = drained{drain: *before.Drain, at: at}
	}
}

// drainsTakenBack ends the drains that a restored snapshot does not know: farms hear of that as late as of any other end.
func (j *judgement) drainsTakenBack(at int64) {
	for key, k := range j.undone.groups["nodeops"] {
		name := path.Base(key)
		if o := k.nodeOps(); o != nil && o.Drain != nil && j.state.ops(name).Drain == nil {
			j.drains[name] = drained{drain: *o.Drain, at: at}
		}
	}
}

// drained reports whether a node was drained a moment ago.
func (j *judgement) drained(w *Write, node string) bool {
	d, ended := j.drains[node]
	return ended && w.At-d.at <= int64(heardLate)
}

// forced reports whether the drain of a node was forced and its deadline had passed: what could not be moved is stopped
// then, also below the minimum (P6).
func (j *judgement) forced(w *Write, node string) bool {
	d := j.drains[node]
	return w.state.ops(node).Drain.stops(w.At) || j.drained(w, node) && d.stops(d.at)
}

// forcedSince is forced by a drain that was begun after some time: an older one is not meant for what has been found since (ADR 5).
func (j *judgement) forcedSince(w *Write, node string, found time.Time) bool {
	d := w.state.ops(node).Drain
	if d == nil {
		ended := j.drains[node].drain
		d = &ended
	}
	return j.forced(w, node) && d.Since.After(found)
}

// disabled: of a disabled controller nothing is placed and nothing removed. What is adopted, mended and confirmed is no
// decision about how many there shall be, and neither is what operators declare.
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

// static: a pod of a static controller stays on its node until it is stopped there; a node that is lost, drained or not
// selected any more gives it to no other. What is found running elsewhere is only taken note of. That it is not stopped for
// such a reason either is among the rules about stops.
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

// hasStopped reports whether the node that a placement names says that it does not run the pod: what is handed on to a former copy
// that has stopped too takes nothing away.
func (w *Write) hasStopped(p *placement) bool {
	r := w.before(realityKey(p.Node, p.id())).reality()
	return r != nil && r.State == stopped
}

// confirmedStop reports whether the node of a placement says that it has stopped the pod at a higher revision, as where the
// store is an older one: the pod is not started again where it was.
func (w *Write) confirmedStop(p *placement) bool {
	r := w.before(realityKey(p.Node, p.id())).reality()
	return r != nil && r.State == stopped && r.Revision > p.Revision
}
