package plan

import (
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// withheld reports whether the mass-stop breaker keeps pods of a controller running, as its owner says.
func withheld(c *record.Controller) bool { return c.Status != nil && c.Status.Is(rc.BreakerTripped) }

// leaves reports whether a controller asks for no pods, and has some only because the breaker withholds their stops: no
// rollout is needed to replace them.
func leaves(c *record.Controller) bool { return c.RC.Desired() == 0 && withheld(c) }

// allowed reports whether the breaker lets the stops of a controller pass already.
func allowed(r *rc.RC) bool { return r.AllowMassStop == r.Generation }

// allowances has the breaker pass every revision that has pods. The document and the history stay as they are.
func (p *planner) allowances() []Operation {
	allow := &AllowStopsOperation{draft: p.draft}
	var stops []Operation
	for i := range p.svc.Controllers {
		c := &p.svc.Controllers[i]
		if allowed(&c.RC) || !c.HasPods() {
			continue
		}
		r := c.RC
		r.Generation++
		r.AllowMassStop = r.Generation
		p.draft.Change = append(p.draft.Change, r)
		allow.RCs = append(allow.RCs, r.ID)
		if c.Status != nil && c.Status.Placed > r.Asks() && !r.EachNode() {
			n := c.Status.Placed - r.Asks()
			stops = append(stops, &StopPodsOperation{pods{RC: r.ID, Pods: n, Where: p.surplus(r.ID, n)}}) // farms wait for farm resume
		}
	}
	p.record(p.base.ID, p.base.Revision, &p.current.RC)
	p.draft.Deployed, p.draft.Forget = p.svc.Deployed, nil
	if e := p.svc.Entry(p.svc.Deployed.Revision); e != nil {
		p.draft.Entry = *e
	}
	p.draft.Audit = append(p.draft.Audit, allow.text(p.names()))
	return append([]Operation{allow}, stops...)
}
