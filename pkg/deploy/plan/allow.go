package plan

import (
	"context"
	"fmt"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
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
	var names []string
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
		names = append(names, r.Name)
		if c.Status != nil && c.Status.Placed > r.Asks() && !r.EachNode() {
			text := "stop " + field.Count(c.Status.Placed-r.Asks(), "pod") + " of " + r.Name
			stops = append(stops, &step{sign: Removed, text: text, forecast: true}) // farms wait for farm resume
		}
	}
	p.record(p.base.ID, p.base.Revision, &p.current.RC)
	p.draft.Deployed, p.draft.Forget = p.svc.Deployed, nil
	if e := p.svc.Entry(p.svc.Deployed.Revision); e != nil {
		p.draft.Entry = *e
	}
	text := fmt.Sprintf("let the mass-stop breaker pass %s; what it withholds stops after rcctl farm resume", strings.Join(names, ", "))
	p.draft.Audit = append(p.draft.Audit, text)
	return append([]Operation{&step{sign: Changed, text: text, execute: func(ctx context.Context, client Client) error {
		return client.Commit(ctx, &p.draft.Draft)
	}}}, stops...)
}
