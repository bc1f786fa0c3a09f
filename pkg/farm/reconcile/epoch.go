package reconcile

import (
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// What older records say of an ordered pod was true once. So its node starts it only by an intent of the present epoch, and such a one is written when
// no other node may run the pod (ADR 23).

// runsThere reports whether something of a pod surely runs on its node, so that nothing starts there whatever the node is told. What the node says of
// itself comes before what it reported of the pod: that may be older than the epoch.
func (s *Snapshot) runsThere(p *Pod) bool {
	if o := field.Find(s.Orphans, func(o *Orphan) bool { return o.Node == p.Node && o.Identity == p.Identity }); o != nil {
		return s.orphanRuns(o)
	}
	up := []pod.State{pod.StateRunning, pod.StateReady, pod.StateUnhealthy, pod.StateOrphaned}
	return p.Reality != nil && slices.Contains(up, p.Reality.State)
}

// orphanRuns reports whether a node says that it runs an orphan. What it said before the epoch, or before its preparer was started, does not count.
func (s *Snapshot) orphanRuns(o *Orphan) bool {
	v := s.Nodes[o.Node]
	return o.Runs && v != nil && v.Spoke(s.Epoch)
}

// mayStart returns why an ordered pod must not start on its node, "" where it may: another copy may live.
func (c *draft) mayStart(p *Pod) string {
	if len(p.Placement.Ghosts) > 0 || slices.ContainsFunc(c.s.Orphans, func(o Orphan) bool { return o.Identity == p.Identity && o.Node != p.Node }) {
		return "a copy of it has not confirmed its stop"
	}
	if p.Placement.Epoch == c.s.Epoch {
		return "" // that was made sure of, and nothing has gone back since
	}
	if where, why := c.mayLive(p.Identity, p.Node); where != "" {
		return c.helped(where, why)
	}
	return ""
}

// startsBeside reports, and says, whether to tell an ordered pod's node that it is to run may start it while another copy lives.
func (c *draft) startsBeside(p *Pod) bool {
	if !c.s.ordered(p.Role) || c.s.runsThere(p) {
		return false
	}
	why := c.mayStart(p)
	if why != "" {
		c.notStarted(p.Identity, p.Node, why)
	}
	return why != ""
}

// notStarted says what an ordered pod that does not run waits for.
func (c *draft) notStarted(id pod.Identity, on, why string) {
	text := fmt.Sprintf("%s.%d is not started on %s: %s", id.Role, id.Index, on, why)
	if !slices.Contains(c.awaitsStop, text) {
		c.awaitsStop = append(c.awaitsStop, text)
	}
}

// adoptSole adopts the only copy of an ordered pod that is known. One that does not run waits until no other may live.
func (c adoption) adoptSole(o *Orphan, p *Pod, reason string) {
	where, why := c.mayLive(o.Identity, o.Node)
	if where != "" && !c.s.orphanRuns(o) {
		c.notStarted(o.Identity, o.Node, c.helped(where, why))
		return
	}
	c.adoptAs(o, p, reason)
	if where == "" {
		ch := &c.plan.Changes[len(c.plan.Changes)-1]
		ch.Placement.Epoch, ch.Intents[0].Intent.Epoch, ch.NeedsSchema = c.s.Epoch, c.s.Epoch, true
	}
}

// renewals tell nodes anew what they run.
type renewals struct{ *draft }

// renew tells the nodes of ordered pods in the present epoch, once each, that they are to run them. Where a group is not ordered any more, its pods may
// start in any epoch.
func (c renewals) renew() {
	if c.s.Hold != "" || c.s.Epoch == "" || c.s.RC.DeletedAt != nil {
		return
	}
	for p := range c.openRunning() {
		ordered, v := c.s.ordered(p.Role), c.s.Nodes[p.Node]
		if p.Placement.Epoch == c.s.Epoch || !ordered && p.Placement.Epoch == "" || v == nil || !v.Alive || !v.Spoke(c.s.Epoch) {
			continue
		}
		next := p.Placement
		next.Epoch = ""
		if ordered {
			if why := c.mayStart(p); why != "" && !c.s.runsThere(p) {
				c.notStarted(p.Identity, p.Node, why)
				continue
			} else if why != "" {
				continue
			}
			next.Epoch = c.s.Epoch
		}
		next.Revision, next.ChangedAt = p.nextRevision(c.s.Now), c.s.Now
		in := next.Intent()
		c.add(Change{
			Action: Repair, Identity: p.Identity, Index: p.Index, Placement: &next, Reason: "its intent is older than the epoch", NeedsSchema: true,
			Intents: []IntentChange{{Node: p.Node, Intent: &in}},
		})
	}
}

// awaitsEpoch reports, and says, whether an ordered pod gets no other manifest yet: its node stops it for that, and starts it only by an intent of the
// present epoch.
func (c *draft) awaitsEpoch(p *Pod) bool {
	if !c.s.ordered(p.Role) || p.Placement.Epoch == c.s.Epoch {
		return c.startsBeside(p)
	}
	if why := c.mayStart(p); why != "" {
		c.block(fmt.Sprintf("%s.%d gets no other manifest until no other node may run it: %s", p.Role, p.Identity.Index, why))
	}
	return true
}
