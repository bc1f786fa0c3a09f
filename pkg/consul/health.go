package consul

import (
	"context"
	"fmt"

	"github.com/hashicorp/consul/api"
)

// Catalog is what the servers know of machines and services.
type Catalog struct{ c *Client }

// AgentGone reports whether a machine's agent has failed or left, or is not known in the catalog.
func (h *Catalog) AgentGone(ctx context.Context, name string) (bool, error) {
	ctx, cancel := h.c.call(ctx)
	defer cancel()
	checks, meta, err := h.c.api.Health().Node(name, Consistent.options(ctx))
	if err := h.c.unread(err, meta); err != nil {
		return false, fmt.Errorf("read health of agent %s: %w", name, err)
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
func (h *Catalog) FailedNodes(ctx context.Context) (map[string]bool, error) {
	ctx, cancel := h.c.call(ctx)
	defer cancel()
	opts := Consistent.options(ctx)
	opts.Filter = `CheckID == "serfHealth"`
	checks, meta, err := h.c.api.Health().State(api.HealthCritical, opts)
	if err := h.c.unread(err, meta); err != nil {
		return nil, fmt.Errorf("read failed agents: %w", err)
	}
	failed := make(map[string]bool, len(checks))
	for _, check := range checks {
		failed[check.Node] = true
	}
	return failed, nil
}

// fewNodes is for how many machines it is cheaper to ask one by one than for all at once.
const fewNodes = 16

// LivingNodes returns which of some machines have an agent that is known and has not failed. Where there are many, agents that are not among them
// may be in the answer too.
func (h *Catalog) LivingNodes(ctx context.Context, names []string) (map[string]bool, error) {
	living := make(map[string]bool, len(names))
	if len(names) <= fewNodes {
		for _, name := range names {
			if name == "" {
				continue
			}
			gone, err := h.AgentGone(ctx, name)
			if err != nil {
				return nil, err
			}
			living[name] = !gone
		}
		return living, nil
	}
	ctx, cancel := h.c.call(ctx)
	defer cancel()
	opts := Consistent.options(ctx)
	opts.Filter = `CheckID == "serfHealth"`
	checks, meta, err := h.c.api.Health().State(api.HealthPassing, opts)
	if err := h.c.unread(err, meta); err != nil {
		return nil, fmt.Errorf("read living agents: %w", err)
	}
	for _, check := range checks {
		living[check.Node] = true
	}
	return living, nil
}

// Passing returns the meta of every passing instance of a service in the servers' catalog whose meta has the given value
// under the given key.
func (h *Catalog) Passing(ctx context.Context, service, metaKey, metaValue string) ([]map[string]string, error) {
	ctx, cancel := h.c.call(ctx)
	defer cancel()
	entries, meta, err := h.c.api.Health().Service(service, "", true, Default.options(ctx))
	if err := h.c.unread(err, meta); err != nil {
		return nil, fmt.Errorf("read passing instances of %s: %w", service, err)
	}
	var found []map[string]string
	for _, e := range entries {
		if e.Service.Meta[metaKey] == metaValue {
			found = append(found, e.Service.Meta)
		}
	}
	return found, nil
}
