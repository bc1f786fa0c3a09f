package reconcile

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// drains moves pods off nodes that they must leave.
type drains struct {
	moves
	awaited *string // see unconfirmed; nil: not yet computed
}

// evictAll stops the pods that are still on nodes with a forced drain after its deadline. A forced drain overrides the
// minimum, the strategy and a rollout, and needs no manifest.
func (d *drains) evictAll() {
	for p := range d.openRunning() {
		due := func(nodeName string) bool { return d.evictionDue(p, nodeName) }
		if !d.f.finished(p) && due(p.Node) {
			d.evict(p, due, "the drain of "+p.Node+" is forced", unconditionally)
			continue
		}
		d.stopFormerCopies(p, due, "the drain of the node that it leaves is forced", unconditionally)
	}
}

// evict stops a pod where it is placed. If a former copy runs on a node that pods need not leave, the pod is that copy
// again (P4, P6).
func (d *drains) evict(p *Pod, left func(nodeName string) bool, reason string, on stopCondition) {
	others := slices.DeleteFunc(slices.Clone(p.Placement.Ghosts), func(g pod.Ghost) bool { return left(g.Node) })
	if g, runs := formerCopy(d.f, p, others); runs {
		d.returnTo(p, g, p.Avoid, reason, on)
		return
	}
	d.stop(p, reason, on)
}

// evictionDue reports whether a forced drain stops the pod's copy on a node now. Before the deadline, it asks for a
// look at that time.
func (d *drains) evictionDue(p *Pod, nodeName string) bool {
	drain := evictionBy(d.f, p, nodeName)
	if drain == nil {
		return false
	}
	if drain.Deadline != nil && d.f.Now.Before(*drain.Deadline) {
		d.requeueAfter(drain.Deadline.Sub(d.f.Now))
		return false
	}
	return true
}

// evictionBy returns the forced drain of the copy's living node, nil for none. A pod that is kept as adopted obeys only
// a drain that began after the adoption: an older one may have come back with a restored store (P4, R2).
func evictionBy(f *Facts, p *Pod, nodeName string) *node.Drain {
	v := f.Nodes[nodeName]
	if v == nil || !v.Alive || v.Ops.Drain == nil || !v.Ops.Drain.Force {
		return nil
	}
	if f.keptAsAdopted(p) && !v.Ops.Drain.Since.After(p.ChangedAt) {
		return nil
	}
	return v.Ops.Drain
}

// transfer moves pods of dynamic controllers off nodes that may not keep them, one at a time. If one more copy is
// allowed, the new copy is placed first; otherwise the pod stops first, and the minimum must stay available.
func (d *drains) transfer() {
	available, availableNow, inUse, busy := 0, len(d.companionPods), 0, false
	var leaving []*Pod
	for p := range d.f.all() {
		inUse += copies(d.f, p)
		_, occupied := d.blocksMoves(p)
		busy = busy || occupied
		if p.RunState != pod.Running || d.changed[p.Identity] {
			continue
		}
		if d.f.available(p) || d.f.endedWell(p) {
			available++
		}
		if d.f.availableForMinimum(p) {
			availableNow++
		}
		if d.f.each == nil && mustMove(d.f, p) && whyNotMoved(d.f, p) == "" && !d.triedEnough(p) {
			leaving = append(leaving, p)
		}
	}
	if len(leaving) == 0 || busy {
		return
	}
	if d.f.Hold != "" {
		d.waiting = true
		return
	}
	if !d.mayAdd() {
		return
	}
	if leaving = slices.DeleteFunc(leaving, d.waitsForGroup); len(leaving) == 0 {
		return
	}
	// Pods whose moves have failed come last, because the cause may not concern the others.
	avoided := func(p *Pod) int { return len(d.f.RC.Avoided(&p.Placement, d.f.Now)) }
	p := slices.MinFunc(leaving, func(a, b *Pod) int {
		return cmp.Or(
			cmp.Compare(avoided(a), avoided(b)),
			boolFirst(!d.f.available(a), !d.f.available(b)),
			a.Identity.Compare(b.Identity),
		)
	})
	if d.f.ordered(p.Role) {
		d.leaveFirst(p, availableNow)
		return
	}
	hasSlot := inUse+d.adoptedCopies()+len(d.plan.Adds) < d.maxCopies()
	// The old copy stops when the new one is available.
	nothingLost := available >= d.f.RC.Desired() && hasSlot
	switch {
	case d.f.availableForMinimum(p) && availableNow-1 < d.limits.minimum && !nothingLost:
		d.block(fmt.Sprintf("%s must leave %s, but %d available replicas and a minimum of %d leave no spare pod",
			name(p.Identity), p.Node, availableNow, d.limits.minimum))
	case hasSlot:
		d.placeElsewhere(p.Identity)
	default:
		d.evict(p, d.f.drained, "it must leave "+p.Node+", and there is no room for a second copy", keepingMinimum)
	}
}

func mustMove(f *Facts, p *Pod) bool {
	v := f.Nodes[p.Node]
	return v != nil && v.Alive && (v.MustLeave() || !f.matches(v)) && !f.finished(p)
}

// delaysMoves reports whether the moves of other pods wait for a former copy. They do not wait for a copy on a lost
// machine, or for a copy that was left because its node was dead.
func delaysMoves(f *Facts, g pod.Ghost) bool {
	return f.aliveOn(g.Node) || !g.LeftBecauseLost && !f.machineLost(g.Node)
}

// whyNotMoved returns why a pod that must leave its node is not moved, "" if it can be moved.
func whyNotMoved(f *Facts, p *Pod) string {
	switch {
	case f.RC.Disabled:
		return "its controller is disabled: nothing is placed and nothing removed"
	case f.keptAsAdopted(p):
		return "it was found running and stays as it is until the controller is changed"
	case f.each != nil:
		if v := f.Nodes[p.Node]; v != nil && !f.matches(v) && !v.MustLeave() {
			return f.whyUnmatchedStay()
		}
		return ""
	case f.RC.Strategy == rc.Static:
		return "its controller is static"
	case f.Rollout != "" && !f.RolloutIdle:
		return "rollout " + f.Rollout + " is in charge of its controller"
	case f.ManifestOf(f.digestFor(&p.Placement)) == nil:
		return "the manifest that it would be placed with cannot be read"
	}
	return ""
}

// drainsWait writes into the status why pods that must leave their nodes do not, except pods that are moving.
func (d *drains) drainsWait() {
	for p := range d.openRunning() {
		if state, _, why := d.moveOf(p); state == stuck {
			d.block(why)
			continue
		}
		if !mustMove(d.f, p) {
			continue
		}
		if d.f.Rollout != "" && !d.f.RolloutIdle {
			d.requeueAfter(RetryAfter) // the rollout may be idle by then
		}
		mayMove := whyNotMoved(d.f, p) == ""
		if (d.f.drained(p.Node) || mayMove) && (d.f.each == nil || !mayMove) {
			if why := d.waitsFor(p); why != "" {
				d.block(fmt.Sprintf("%s must leave %s: %s", name(p.Identity), p.Node, why))
			}
		}
	}
}

// misplacements returns which pods stay on nodes that the selector does not match, and why; "" for none.
func misplacements(f *Facts) string {
	if f.RC.Disabled || f.RC.DeletedAt != nil {
		return ""
	}
	var stay []string
	for p := range f.running() {
		if v := f.Nodes[p.Node]; v == nil || !v.Alive || f.matches(v) || f.finished(p) {
			continue
		}
		if why := whyNotMoved(f, p); why != "" {
			stay = append(stay, fmt.Sprintf("%s stays on %s, whose labels %q does not match: %s",
				name(p.Identity), p.Node, f.RC.NodeSelector, why))
		}
	}
	return Few(stay)
}

// waitsFor returns why a pod does not leave its node, "" if it only waits for its turn.
func (d *drains) waitsFor(p *Pod) string {
	why, drain := whyNotMoved(d.f, p), evictionBy(d.f, p, p.Node)
	switch {
	case why == "" && d.triedEnough(p):
		again := d.f.RC.AvoidedUntil(d.f.RC.Avoided(&p.Placement, d.f.Now)[0])
		return fmt.Sprintf("%s; it is tried again at %s", tried(d.f, p), again.UTC().Format(time.RFC3339))
	case why == "":
		return d.unconfirmed()
	case d.f.RC.Strategy == rc.Static && drain == nil:
		why += "; end the drain, or drain with --deadline and --force"
	case drain != nil && !d.f.RC.Disabled && drain.Deadline != nil && drain.Deadline.After(d.f.Now):
		why += "; it is stopped at " + drain.Deadline.UTC().Format(time.RFC3339)
	}
	return why
}

// unconfirmed names the former copy that delays other moves because its node has no preparer to confirm its stop; ""
// for none.
func (d *drains) unconfirmed() string {
	if d.awaited == nil {
		d.awaited = new(string)
		for p := range d.f.all() {
			if g, occupied := d.blocksMoves(p); occupied && !d.f.aliveOn(g.Node) {
				*d.awaited = fmt.Sprintf(
					"one pod moves at a time, and %s, which has no preparer, has not confirmed that %s stopped there",
					g.Node, name(p.Identity))
				break
			}
		}
	}
	return *d.awaited
}
