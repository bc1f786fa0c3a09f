package reconcile

import (
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// standsBy reports whether the controller's pods stay out of their service's name.
func (s *Snapshot) standsBy() bool { return s.RC.Service != nil && s.RC.Service.Standby }

// switchNames takes pods into their service's name or out of it, as the record says. Their nodes restart nothing for that. Who leaves
// the name is taken from the minimum as by a stop (P6); what was found running stays as it is.
func (c *computation) switchNames() {
	if c.s.Hold != "" {
		return
	}
	leaves := c.s.standsBy()
	spare := len(c.beside) - c.s.least()
	for i := range c.s.Pods {
		if p := &c.s.Pods[i]; c.s.counting(p) && !c.touched[p.Identity] {
			spare++
		}
	}
	for i := range c.s.Pods {
		p := &c.s.Pods[i]
		if p.RunState != pod.Running || p.Placement.Standby == leaves || c.touched[p.Identity] || c.stays(p) {
			continue
		}
		if c.s.counting(p) {
			if spare <= 0 {
				c.awaits(fmt.Sprintf("%s.%d stays in the service's name: %d pods in it must stay available", p.Role, p.Identity.Index, c.s.least()))
				continue
			}
			spare--
		}
		next := p.Placement
		next.Standby, next.Revision, next.ChangedAt = leaves, p.nextRevision(c.s.Now), c.s.Now
		in := next.Intent()
		reason := "it takes its service's name"
		if leaves {
			reason = "it leaves its service's name"
		}
		c.add(Change{
			Action: Switch, Identity: p.Identity, Index: p.Index, Placement: &next, Reason: reason, NeedsSchema: true, NeedsMinimum: leaves,
			Intents: []IntentChange{{Node: p.Node, Intent: &in}},
		})
	}
}
