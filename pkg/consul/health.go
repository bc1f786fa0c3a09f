package consul

import (
	"context"
	"fmt"

	"github.com/hashicorp/consul/api"
)

// Catalog is the servers' view of machines and services.
type Catalog struct{ c *Client }

// AgentGone reports whether a machine's agent has failed or left, or is not in the catalog.
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

// agents returns the machines whose agent has a state. The answer is not older than the call.
func (h *Catalog) agents(ctx context.Context, are, state string) (map[string]bool, error) {
	ctx, cancel := h.c.call(ctx)
	defer cancel()
	opts := Consistent.options(ctx)
	opts.Filter = `CheckID == "serfHealth"`
	checks, meta, err := h.c.api.Health().State(state, opts)
	if err := h.c.unread(err, meta); err != nil {
		return nil, fmt.Errorf("read %s agents: %w", are, err)
	}
	names := make(map[string]bool, len(checks))
	for _, check := range checks {
		names[check.Node] = true
	}
	return names, nil
}

// FailedNodes returns the machines with a failed agent. The answer is not older than the call.
func (h *Catalog) FailedNodes(ctx context.Context) (map[string]bool, error) {
	return h.agents(ctx, "failed", api.HealthCritical)
}

// fewNodes is up to how many machines one request each is cheaper than one about all machines.
const fewNodes = 16

// LivingNodes returns which machines have a known agent that has not failed. For many names, the answer may include
// other machines.
func (h *Catalog) LivingNodes(ctx context.Context, names []string) (map[string]bool, error) {
	if len(names) > fewNodes {
		return h.agents(ctx, "living", api.HealthPassing)
	}
	living := make(map[string]bool, len(names))
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

// Passing returns the meta of each passing instance of a service that has metaValue under metaKey in its meta.
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
