package consul

import (
	"context"
	"fmt"

	"github.com/hashicorp/consul/api"
)

// FailedNodes returns the names of the machines whose agents the cluster considers failed.
func (c *Client) FailedNodes(ctx context.Context) (map[string]bool, error) {
	ctx, cancel := c.call(ctx)
	defer cancel()
	opts := Default.options(ctx)
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
