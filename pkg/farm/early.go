package farm

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/reconcile"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// EarlyReads is how a pass reads all that it expects to need in one round trip.
type EarlyReads interface {
	ReadEarly(ctx context.Context, e store.Expected) *store.Early
}

// expects is what the last look of a controller tells of what the next one reads: a guess, which costs a round trip where it is wrong.
type expects struct {
	service string     // whose rollout was in charge
	at      []store.At // where pods are, those of companions that it read among them
	nodes   bool       // it waits for reports of its own nodes, whatever companions do
}

// readEarly reads what the last look of the controller tells that this one will need. While nodes have still to say what they run it
// reads nothing: then realities must be newer than the end of the hold.
func (c *ReplicationController) readEarly(ctx context.Context, v *view) {
	f := c.farm
	if c.claimed != nil || c.consistent || c.phantom || f.hold(v.schema.Value.Nonce) != "" {
		return
	}
	v.nodesBefore, v.nodesVersion = f.world.nodesAt()
	e := store.Expected{RCID: c.ID, CountDrops: c.relied, Service: c.expects.service, Realities: c.expects.at}
	if !c.expects.nodes {
		e.Companions = f.kin.companions(c.ID)
	}
	v.early = f.cfg.Store.ReadEarly(ctx, e)
}

// asked reports whether a plan did all that it should by asking nodes: until they report nothing follows, whatever companions do.
func (v *view) asked(plan *reconcile.Plan, wrote int) bool {
	return wrote > 0 && wrote == len(plan.Changes) && onlyAsks(plan.Changes) && plan.Unhampered() && v.head.RC.Value.InPlace == nil && len(v.snapshot.Requests) == 0
}

// gather returns how long a look should wait for more reports of nodes, where these are all that is waited for.
func (c *ReplicationController) gather(busy int64) time.Duration {
	if !c.expects.nodes {
		return 0
	}
	return c.looks.gather(busy)
}

// expect notes what a pass tells of what the next one will need.
func (c *ReplicationController) expect(v *view, plan *reconcile.Plan, wrote int) {
	c.expects = expects{
		service: v.head.RC.Value.Rollout(),
		nodes:   plan.Unaided && !plan.Alone || v.asked(plan, wrote),
	}
	note := func(pods []reconcile.Pod) {
		for i := range pods {
			c.expects.at = append(c.expects.at, at(&pods[i])...)
		}
	}
	note(v.snapshot.Pods)
	if !c.expects.nodes {
		for i := range v.snapshot.Companions {
			note(v.snapshot.Companions[i].Pods)
		}
	}
	for i := range plan.Changes {
		if p := plan.Changes[i].Placement; p != nil {
			where := store.At{Node: p.Node, Identity: p.Identity}
			if !slices.Contains(c.expects.at, where) {
				c.expects.at = append(c.expects.at, where)
			}
		}
	}
}

// readDrops counts the drops of a controller without companions, where the last pass needed the minimum and so this one may.
func (c *ReplicationController) readDrops(ctx context.Context, v *view) (err error) {
	switch {
	case !c.relied || len(v.companions) > 0 || v.snapshot.CompanionsUnread:
	case v.early != nil && (v.early.CountDrops || len(v.early.Expected.Companions) > 0):
		v.drops = store.DropsBy{c.ID: v.early.Drops}
	default:
		v.early = nil
		v.drops, err = c.farm.cfg.Store.DropsOf(ctx, []string{c.ID})
	}
	return err
}

// detailsOf reads what is wanted, as far as it was not read early.
func (c *ReplicationController) detailsOf(ctx context.Context, v *view, w store.Wanted) (store.Details, error) {
	if v.early == nil {
		return c.farm.cfg.Store.ReadDetails(ctx, w, c.consistent)
	}
	var early store.Details
	if early, w.Realities = v.early.RealitiesOf(w.Realities); w.Empty() {
		return early, nil
	}
	d, err := c.farm.cfg.Store.ReadDetails(ctx, w, c.consistent)
	if err != nil {
		return d, err
	}
	maps.Copy(d.Realities, early.Realities)
	maps.Copy(d.Reported, early.Reported)
	d.Corrupt = append(d.Corrupt, early.Corrupt...)
	return d, nil
}
