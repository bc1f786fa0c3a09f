package plan

import (
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// withheld reports whether the mass-stop breaker keeps pods of a controller running.
func withheld(c *record.Controller) bool { return c.Status != nil && c.Status.Is(rc.BreakerTripped) }

// leaves reports whether a controller asks for no pods and has some only because the breaker withholds their stops.
// They need no rollout.
func leaves(c *record.Controller) bool { return c.RC.Desired() == 0 && withheld(c) }

func allowed(r *rc.RC) bool { return r.AllowMassStop == r.Generation }

// allowances makes the breaker ignore the stops of every revision with pods. Document and history do not change.
func (p *planner) allowances() []*Operation {
	var ids []string
	var stops []*Operation
	for i := range p.svc.Controllers {
		c := &p.svc.Controllers[i]
		if allowed(&c.RC) || !c.HasPods() {
			continue
		}
		r := c.RC
		r.Generation++
		r.AllowMassStop = r.Generation
		p.draft.Change = append(p.draft.Change, r)
		ids = append(ids, r.ID)
		if c.Status != nil && c.Status.Placed > r.Asks() && !r.EachNode() {
			n := c.Status.Placed - r.Asks()
			// the plan does not wait for these stops, because farms wait for rcctl farm resume
			stops = append(stops, ofPods(Removed, "stop", r.ID, n, p.surplus(r.ID, n)))
		}
	}
	p.fillRecords(p.base.ID, p.base.Revision, &p.current.RC)
	p.draft.Deployed, p.draft.Forget = p.svc.Deployed, nil
	if e := p.svc.Entry(p.svc.Deployed.Revision); e != nil {
		p.draft.Entry = *e
	}
	allow := p.draft.allowStops(ids)
	p.draft.Audit = append(p.draft.Audit, allow.Text(p.names()))
	return append([]*Operation{allow}, stops...)
}
