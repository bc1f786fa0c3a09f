package consul

import (
	"context"
	"fmt"
)

// Passing returns the meta of every passing instance of a service in the servers' catalog whose meta has the given value
// under the given key.
func (c *Client) Passing(ctx context.Context, service, metaKey, metaValue string) ([]map[string]string, error) {
	ctx, cancel := c.call(ctx)
	defer cancel()
	entries, meta, err := c.api.Health().Service(service, "", true, Default.options(ctx))
	if err != nil {
		return nil, fmt.Errorf("read passing instances of %s: %w", service, readError(err))
	}
	if c.hidden(meta) {
		return nil, fmt.Errorf("read passing instances of %s: %w", service, ErrFiltered)
	}
	var found []map[string]string
	for _, e := range entries {
		if e.Service.Meta[metaKey] == metaValue {
			found = append(found, e.Service.Meta)
		}
	}
	return found, nil
}
