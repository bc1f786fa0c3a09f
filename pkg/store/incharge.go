package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// InCharge is a rollout as owners see it.
type InCharge struct {
	Index uint64 // of its record; zero: there is none
	Term  string // as in the records of its controllers; empty: it cannot be read
	State string
}

// RolloutInCharge reads which rollout a service has.
func (t *Passes) RolloutInCharge(ctx context.Context, service string, consistent bool) (InCharge, error) {
	key := t.keys.Rollouts.Key(service)
	found, _, err := t.merged.Read(ctx, consul.Reading{Keys: []string{key}}, levelOf(consistent))
	if err != nil {
		return InCharge{}, fmt.Errorf("read the rollout of %s: %w", service, err)
	}
	return t.inChargeOf(service, found), nil
}

// inChargeOf picks the rollout of a service out of what was read.
func (s *db) inChargeOf(service string, found map[string]consul.Pair) InCharge {
	pair, ok := found[s.keys.Rollouts.Key(service)]
	if !ok {
		return InCharge{}
	}
	now := InCharge{Index: pair.ModifyIndex}
	var rec struct{ ID, Service, State string }
	if json.Unmarshal(pair.Value, &rec) == nil && rec.ID != "" && rec.Service == service {
		now.Term, now.State = service+"/"+rec.ID, rec.State
	}
	return now
}

// ReleaseMutator takes a controller away from a rollout of a service that is not in charge any more: it is as was read.
// Nothing else of the record changes, nor does its generation: what was found running stays as it is (R2). A controller
// without a service is that of a pre_deploy: it is disabled, so that its program, which may have run, does not run
// again; one that runs goes on to its end. It returns like Commit.
func (t *Owners) ReleaseMutator(ctx context.Context, f Fence, rec Rec[rc.RC], service string, was InCharge, schemaIndex uint64, a Audit) error {
	next := rec.Value
	next.Mutator, next.Disabled = "", next.Disabled || next.Service == nil
	ops := append(f.Ops(), consul.CheckIndex(t.keys.Schema.Key(), schemaIndex), sameRecord(t.keys.Rollouts.Key(service), was.Index))
	return t.fenced(ctx, append(ops, t.casRC(ctx, next, rec.Index), t.audit(a), t.ring(next.ID)))
}
