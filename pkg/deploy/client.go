// Package deploy carries out plans of services (ADR 16) on a store, and computes the digests of artifacts.
package deploy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

const lookEvery = 250 * time.Millisecond

// Client is a plan.Client on a store.
type Client struct {
	Store *store.Store
	Who   string // author of the records and of the audit record
	What  string // for the audit record; empty: "deploy"
	// Signatures of manifests, by digest; nil: none.
	Signatures map[string]string
}

var _ plan.Client = (*Client)(nil)

// NewID implements plan.Client.
func (*Client) NewID() string { return store.NewID() }

// Service implements plan.Client.
func (c *Client) Service(ctx context.Context, name string) (*record.Service, error) {
	svc, err := c.Store.Deployments.Service(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return svc, err
}

// Commit implements plan.Client. An error matches plan.ErrChanged and the errors of store.DeployDraft.
func (c *Client) Commit(ctx context.Context, d *record.Draft) error {
	d.Signatures = c.Signatures
	if d.Rollout != nil && d.Rollout.Epoch == "" { // the plan was made without a cluster, or before the first farm ran
		schema, err := c.Store.Operator.EnsureSchema(ctx)
		if err != nil {
			return fmt.Errorf("read schema: %w", err)
		}
		d.Rollout.Epoch = schema.Value.Epoch
	}
	lines := append([]string{fmt.Sprintf("service %s: revision %d", d.Service, d.Deployed.Revision)}, d.Audit...)
	err := c.Store.Deployments.DeployDraft(ctx, d,
		store.NewAudit(c.Who, cmp.Or(c.What, "deploy"), d.Deployed.RC, append(lines, d.Steps...)))
	if errors.Is(err, store.ErrConflict) {
		return fmt.Errorf("%w: %w", plan.ErrChanged, err)
	}
	return err
}

// Await implements plan.Client. It repeats a read that fails until ctx ends.
func (c *Client) Await(ctx context.Context, g plan.Goal) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, lookEvery, true, func(ctx context.Context) (reached bool, _ error) {
		var ended *plan.RolloutError
		reached, last = c.reached(ctx, g)
		return reached || errors.As(last, &ended), nil
	})
	if err != nil {
		return errors.Join(context.Cause(ctx), last)
	}
	return last
}

func (c *Client) reached(ctx context.Context, g plan.Goal) (bool, error) {
	end, err := c.Ended(ctx, g.Service, g.Rollout) // read first, because the end of a rollout changes the records below
	if err != nil {
		return false, err
	}
	if end != nil && end.State != rollout.Done {
		return false, end
	}
	r, err := c.Store.RCs.Get(ctx, store.Default, g.RC)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return g.Reached != plan.Available, nil
	case err != nil:
		return false, err
	}
	st, err := c.Store.Statuses.Get(ctx, store.Default, g.RC)
	if err != nil || st.Value.ObservedGeneration != r.Value.Generation {
		if errors.Is(err, store.ErrNotFound) {
			err = nil
		}
		return false, err
	}
	pods := g.Pods
	if end != nil || g.Rollout == "" {
		pods = st.Value.Desired
	}
	switch g.Reached {
	case plan.Available:
		return st.Value.Available >= min(g.Pods, pods), nil
	case plan.Left:
		return st.Value.Placed+st.Value.Stopping <= max(g.Pods, pods), nil
	default: // plan.Gone: the rollout has ended, and will not remove the controller any more
		return end != nil && r.Value.DeletedAt == nil, nil
	}
}

// Ended returns how a rollout ended, nil while it is under way. If neither record nor history has the outcome, for
// example because another rollout was started in its place, it is aborted.
func (c *Client) Ended(ctx context.Context, service, id string) (*plan.RolloutError, error) {
	if id == "" {
		return nil, nil
	}
	rec, err := c.Store.Deployments.RolloutOf(ctx, service)
	switch {
	case err == nil && rec.Value.ID == id && !rec.Value.State.Ended():
		return nil, nil
	case err == nil && rec.Value.ID == id:
		return &plan.RolloutError{Service: service, State: rec.Value.State, Reason: rec.Value.Reason}, nil
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return nil, err
	}
	replaced := err == nil
	entries, _, err := c.Store.Deployments.History(ctx, service)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Value.Rollout == id && e.Value.Outcome != "" {
			return &plan.RolloutError{Service: service, State: e.Value.Outcome, Reason: e.Value.Reason}, nil
		}
	}
	reason := "its record is gone, and the history does not have its outcome"
	if replaced {
		reason = fmt.Sprintf("%s started another rollout in its place", rec.Value.By)
	}
	return &plan.RolloutError{Service: service, State: rollout.Aborted, Reason: reason}, nil
}

// State reads the records from which a plan computes the capacity of the nodes. corrupt has an error for each record
// that cannot be read; State continues as if it did not exist.
func State(ctx context.Context, s *store.Store) (state *plan.State, corrupt []error, err error) {
	schema, err := s.Schema.Get(ctx, store.Default)
	if _, unreadable := errors.AsType[*store.CorruptError](err); unreadable {
		corrupt = append(corrupt, err)
	} else if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, nil, fmt.Errorf("read schema: %w", err)
	}
	recs, badNodes, err := s.Nodes.List(ctx, store.Default)
	if err != nil {
		return nil, nil, err
	}
	ops, bad, err := s.NodeOps.List(ctx, store.Default)
	if err != nil {
		return nil, nil, err
	}
	corrupt = slices.Concat(corrupt, badNodes, bad)
	byName, unread := map[string]node.Ops{}, store.CorruptAt(bad)
	for _, o := range ops {
		byName[o.Value.Name] = o.Value
	}
	state = &plan.State{Epoch: schema.Value.Epoch, Nodes: map[string]*node.View{}}
	for _, rec := range recs {
		if pages := rec.Value.OrphanPages; pages != nil && pages.Count > 0 {
			if listed, _, err := s.NodeOrphans(ctx, rec.Value.Name); err == nil {
				rec.Value.Orphans = listed.Value.Orphans
			} else {
				corrupt = append(corrupt, err)
			}
		}
		view := node.NewView(rec.Value, byName[rec.Value.Name], rec.Session != "")
		view.OpsUnread = unread[rec.Value.Name]
		state.Nodes[rec.Value.Name] = view
	}
	if state.Names, err = s.ListRCNames(ctx); err != nil {
		return nil, nil, err
	}
	if state.Elsewhere, err = s.AskOutside(ctx); err != nil {
		return nil, nil, err
	}
	state.Taken, bad, err = s.ListReservations(ctx)
	return state, append(corrupt, bad...), err
}
