package consul

import (
	"context"
	"fmt"

	"github.com/hashicorp/consul/api"
)

// AgentGone reports whether a machine's agent has failed or left, or is not known in the catalog.
func (c *Client) AgentGone(ctx context.Context, name string) (bool, error) {
	ctx, cancel := c.call(ctx)
	defer cancel()
	checks, meta, err := c.api.Health().Node(name, Consistent.options(ctx))
	if err != nil {
		return false, fmt.Errorf("read health of agent %s: %w", name, readError(err))
	}
	if c.hidden(meta) {
		return false, fmt.Errorf("read health of agent %s: %w", name, ErrFiltered)
	}
	for _, check := range checks {
		if check.CheckID == "serfHealth" {
			return check.Status == api.HealthCritical, nil
		}
	}
	return len(checks) == 0, nil
}

// FailedNodes returns the names of the machines whose agents the cluster considers failed at a moment after it was called: the
// leader makes sure that it still is one.
func (c *Client) FailedNodes(ctx context.Context) (map[string]bool, error) {
	ctx, cancel := c.call(ctx)
	defer cancel()
	opts := Consistent.options(ctx)
	opts.Filter = `CheckID == "serfHealth"`
	checks, meta, err := c.api.Health().State(api.HealthCritical, opts)
	if err != nil {
		return nil, fmt.Errorf("read failed agents: %w", readError(err))
	}
	if c.hidden(meta) {
		return nil, fmt.Errorf("read failed agents: %w", ErrFiltered)
	}
	failed := make(map[string]bool, len(checks))
	for _, check := range checks {
		failed[check.Node] = true
	}
	return failed, nil
}
