package reconcile

import (
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Records from before the present epoch may be out of date. So a node starts an ordered pod only because of an intent
// of this epoch, which the farm writes when no other node may run the pod (ADR 23).

// runsThere reports whether a process of the pod surely runs on its node; then an intent starts none. The node's list
// of orphans comes first, because its report about the pod may be older than the epoch.
func (s *Snapshot) runsThere(p *Pod) bool {
	isPod := func(o *Orphan) bool { return o.Node == p.Node && o.Identity == p.Identity }
	if o := field.Find(s.Orphans, isPod); o != nil {
		return s.orphanRuns(o)
	}
	up := []pod.State{pod.StateRunning, pod.StateReady, pod.StateUnhealthy, pod.StateOrphaned}
	return p.Reality != nil && slices.Contains(up, p.Reality.State)
}

// orphanRuns ignores reports from before the epoch, and from before the start of the node's preparer.
func (s *Snapshot) orphanRuns(o *Orphan) bool {
	v := s.Nodes[o.Node]
	return o.Runs && v != nil && v.Spoke(s.Epoch)
}

// mayStart returns why an ordered pod must not start on its node, because another copy may live; "" if it may start.
func (d *draft) mayStart(p *Pod) string {
	isCopy := func(o Orphan) bool { return o.Identity == p.Identity && o.Node != p.Node }
	if len(p.Placement.Ghosts) > 0 || slices.ContainsFunc(d.f.Orphans, isCopy) {
		return "a copy of it has not confirmed its stop"
	}
	if p.Placement.Epoch == d.f.Epoch {
		return "" // this was checked in this epoch, and the store has not gone back since
	}
	if where, why := d.mayLive(p.Identity, p.Node); where != "" {
		return d.withAdvice(where, why)
	}
	return ""
}

// startsBeside reports whether an intent may start an ordered pod while another copy lives. If so, the status shows it.
func (d *draft) startsBeside(p *Pod) bool {
	if !d.f.ordered(p.Role) || d.f.runsThere(p) {
		return false
	}
	why := d.mayStart(p)
	if why != "" {
		d.notStarted(p.Identity, p.Node, why)
	}
	return why != ""
}

func (d *draft) notStarted(id pod.Identity, on, why string) {
	text := fmt.Sprintf("%s is not started on %s: %s", name(id), on, why)
	if !slices.Contains(d.awaitsStop, text) {
		d.awaitsStop = append(d.awaitsStop, text)
	}
}

// adoptSole adopts the only known copy of an ordered pod. If it does not run, the adoption waits until no other copy
// may live.
func (a adoption) adoptSole(o *Orphan, p *Pod, reason string) {
	where, why := a.mayLive(o.Identity, o.Node)
	if where != "" && !a.f.orphanRuns(o) {
		a.notStarted(o.Identity, o.Node, a.withAdvice(where, why))
		return
	}
	a.adoptAs(o, p, reason)
	if where == "" {
		ch := &a.plan.Changes[len(a.plan.Changes)-1]
		ch.Placement.Epoch, ch.Intents[0].Intent.Epoch, ch.NeedsSchema = a.f.Epoch, a.f.Epoch, true
	}
}

type renewals struct{ *draft }

// renew writes the intents of ordered pods again in a new epoch. If a group is not ordered any more, its pods may start
// in any epoch.
func (r renewals) renew() {
	if r.f.Hold != "" || r.f.Epoch == "" || r.f.RC.DeletedAt != nil {
		return
	}
	for p := range r.openRunning() {
		ordered, v := r.f.ordered(p.Role), r.f.Nodes[p.Node]
		if p.Placement.Epoch == r.f.Epoch || !ordered && p.Placement.Epoch == "" {
			continue
		}
		if v == nil || !v.Alive || !v.Spoke(r.f.Epoch) {
			continue
		}
		next := p.Placement
		next.Epoch = ""
		if ordered {
			if why := r.mayStart(p); why != "" && !r.f.runsThere(p) {
				r.notStarted(p.Identity, p.Node, why)
				continue
			} else if why != "" {
				continue
			}
			next.Epoch = r.f.Epoch
		}
		next.Revision, next.ChangedAt = p.nextRevision(r.f.Now), r.f.Now
		ch := p.change(Repair, &next, "its intent is older than the epoch")
		ch.NeedsSchema = true
		ch.setIntent(p.Node, next.Intent())
		r.add(ch)
	}
}

// awaitsEpoch reports whether an ordered pod cannot be upgraded yet, because its node starts it again only with an
// intent of this epoch. If so, the status shows why.
func (d *draft) awaitsEpoch(p *Pod) bool {
	if !d.f.ordered(p.Role) || p.Placement.Epoch == d.f.Epoch {
		return d.startsBeside(p)
	}
	if why := d.mayStart(p); why != "" {
		d.block(fmt.Sprintf("%s is not upgraded while another node may run it: %s", name(p.Identity), why))
	}
	return true
}
