package farm

import (
	"context"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// decide computes the plan. If it needs the intents that nodes have for ordered replicas without a placement, decide
// reads them, and computes again if it found any.
func (p *pass) decide(ctx context.Context) (reconcile.Plan, error) {
	plan := reconcile.Compute(p.snapshot)
	for asked := []pod.Identity(nil); ; {
		ids := slices.DeleteFunc(plan.NeedIntents(), func(id pod.Identity) bool { return slices.Contains(asked, id) })
		if len(ids) == 0 {
			return plan, nil
		}
		asked = append(asked, ids...)
		found, unreadable, err := p.reader.readIntentsOf(ctx, ids)
		if err != nil {
			return plan, err
		}
		for at, in := range found {
			in.Identity = at.Identity
			p.snapshot.AddIntent(at.Node, &in)
		}
		if err := joined(unreadable); err != nil {
			p.snapshot.UnreadIntent = err.Error()
		}
		if len(found)+len(unreadable) > 0 {
			plan = reconcile.Compute(p.snapshot)
		}
	}
}
