package reconcile

import (
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// progress fills in what a rollout decides by (ADR 16).
func (c *computation) progress(st *rc.Status) {
	if c.s.RC.Service != nil && c.settled() {
		st.Nonce = c.s.Nonce
	}
	for i := range c.s.Pods {
		p := &c.s.Pods[i]
		for _, g := range p.Placement.Ghosts {
			if !c.s.gone(g.Node) {
				st.Ghosts++
			}
		}
		if p.RunState == pod.Stopped {
			if c.s.gone(p.Node) {
				st.StoppingLost++
			}
			continue
		}
		available, managed := c.s.available(p), c.s.aliveOn(p.Node)
		if available && !managed {
			st.UnmanagedAvailable++
		}
		if p.Reality != nil && p.Reality.Standby {
			st.StandingBy++
		}
		if p.Digest != c.s.RC.ManifestDigest {
			continue
		}
		st.Updated++
		if available && managed {
			st.UpdatedAvailable++
		}
	}
	if c.s.RC.Service != nil {
		st.Failing = c.failing()
	}
}

// settled reports whether the placements show all that is known to run: the nodes have spoken, and what they spoke of is adopted.
func (c *computation) settled() bool {
	return c.s.Hold == "" && !slices.ContainsFunc(c.plan.Changes, func(ch Change) bool { return ch.Action == Adopt })
}

// failing returns the first few pods at the controller's manifest that fail, those first for which there is no hope.
func (c *computation) failing() []rc.PodFailure {
	var found []rc.PodFailure
	for i := range c.s.Pods {
		p := &c.s.Pods[i]
		if p.RunState != pod.Running || p.Digest != c.s.RC.ManifestDigest || c.s.available(p) || !c.s.aliveOn(p.Node) || !hasFailed(p) {
			continue
		}
		found = append(found, rc.PodFailure{
			Pod: fmt.Sprintf("%s.%d", p.Role, p.Identity.Index), Node: p.Node, Reason: field.Cut(describe(p.Reality), maxErrorBytes),
			Hopeless: p.Reality.Hopeless,
		})
	}
	slices.SortStableFunc(found, func(a, b rc.PodFailure) int { return boolFirst(a.Hopeless, b.Hopeless) })
	return found[:min(len(found), rc.MaxFailing)]
}
