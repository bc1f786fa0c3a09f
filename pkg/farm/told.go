package farm

import (
	"context"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// decide computes the plan. Where ordered pods that have no placement are to get one, what nodes were told about them
// is read first.
func (ps *pass) decide(ctx context.Context) (reconcile.Plan, error) {
	return ps.settle(ctx, reconcile.Compute(ps.snapshot))
}

// settle reads what nodes were told about ordered pods that a plan gives a placement, and plans anew where there is
// anything.
func (ps *pass) settle(ctx context.Context, plan reconcile.Plan) (reconcile.Plan, error) {
	for asked := []pod.Identity(nil); ; {
		ids := slices.DeleteFunc(ps.snapshot.Unsettled(&plan), func(id pod.Identity) bool { return slices.Contains(asked, id) })
		if len(ids) == 0 {
			return plan, nil
		}
		asked = append(asked, ids...)
		switch told, err := ps.reader.readTold(ctx, ids); {
		case err != nil:
			return plan, err
		case told:
			plan = reconcile.Compute(ps.snapshot)
		}
	}
}

// readTold reads what all nodes were told about some identities that have no placement, and reports whether there is
// anything. The owner alone writes intents, so that none comes up before the plan lands.
func (ps *reader) readTold(ctx context.Context, ids []pod.Identity) (told bool, err error) {
	var w store.Wanted
	for _, id := range ids {
		for name := range ps.snapshot.Nodes {
			w.Intents = append(w.Intents, store.At{Node: name, Identity: id})
		}
	}
	if len(w.Intents) == 0 {
		return false, nil
	}
	d, err := ps.kit.reads.ReadDetails(ctx, w, true)
	if err != nil {
		return false, err
	}
	for at, in := range d.Intents {
		in.Identity = at.Identity
		ps.snapshot.Tell(at.Node, &in)
	}
	if unread := joined(d.Corrupt); unread != nil {
		ps.snapshot.Unsure = unread.Error()
	}
	return len(d.Intents)+len(d.Corrupt) > 0, nil
}
