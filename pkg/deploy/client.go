// Package deploy carries plans of services out (ADR 16): it is what pkg/deploy/plan needs of a cluster, and finds out the digests of artifacts.
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

// lookEvery is how often Await looks.
const lookEvery = 250 * time.Millisecond

// Client is a plan.Client on a store.
type Client struct {
	Store *store.Store
	Who   string // for the records: who deploys
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

// Commit implements plan.Client. Besides plan.ErrChanged an error matches those of store.DeployDraft.
func (c *Client) Commit(ctx context.Context, d *record.Draft) error {
	d.Signatures = c.Signatures
	if d.Rollout != nil && d.Rollout.Epoch == "" { // the plan saw no cluster, or one without a first farm
		schema, err := c.Store.Operator.EnsureSchema(ctx)
		if err != nil {
			return fmt.Errorf("read schema: %w", err)
		}
		d.Rollout.Epoch = schema.Value.Epoch
	}
	lines := append([]string{fmt.Sprintf("service %s: revision %d", d.Service, d.Deployed.Revision)}, d.Audit...)
	err := c.Store.Deployments.DeployDraft(ctx, d, store.NewAudit(c.Who, cmp.Or(c.What, "deploy"), d.Deployed.RC, append(lines, d.Steps...)))
	if errors.Is(err, store.ErrConflict) {
		return fmt.Errorf("%w: %w", plan.ErrChanged, err)
	}
	return err
}

// Await implements plan.Client. A read that fails is tried again until ctx ends.
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
	end, err := c.Ended(ctx, g.Service, g.Rollout) // before what it left is read
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
	if end != nil || g.Rollout == "" { // no rollout is about to change the count: somebody else may have, since the plan was made
		pods = st.Value.Desired
	}
	switch g.Reached {
	case plan.Available:
		return st.Value.Available >= min(g.Pods, pods), nil
	case plan.Left:
		return st.Value.Placed+st.Value.Stopping <= max(g.Pods, pods), nil
	default: // plan.Gone: a controller that the rollout has left stays for good
		return end != nil && r.Value.DeletedAt == nil, nil
	}
}

// Ended returns how a rollout ended; nil while it is under way. One that ended before anybody looked is found in the history. What is of
// another rollout by now was replaced, and counts as aborted.
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
	reason := "its record is gone, and the history does not say how it ended"
	if replaced {
		reason = fmt.Sprintf("%s started another rollout in its place", rec.Value.By)
	}
	return &plan.RolloutError{Service: service, State: rollout.Aborted, Reason: reason}, nil
}

// State reads what a plan needs to see whether there is room. Records that cannot be read count as if they were not there, and are returned.
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
			// Whole or not: what the pages say by now is what counts against the node's room.
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
