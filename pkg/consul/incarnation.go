package consul

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

func serviceID(cfg SessionConfig, incarnation string) string {
	return fmt.Sprintf("rcfarm-%s-%s-%s", cfg.Kind, cfg.Name, incarnation)
}

// ServiceName returns the Consul service under which daemons of a kind are registered.
func ServiceName(kind string) string { return "rcfarm-" + kind }

func checkID(cfg SessionConfig, incarnation string) string {
	return serviceID(cfg, incarnation) + "-ttl"
}

func sessionName(cfg SessionConfig) string { return fmt.Sprintf("rcfarm/%s/%s", cfg.Kind, cfg.Name) }

// openSession registers the incarnation, where an agent vouches for it, and takes both sessions. The agent passes a new check on to the servers in its
// own time, so that the first tries may find it missing.
func (c *Client) openSession(ctx context.Context, cfg SessionConfig, s *Session) (err error) {
	ctx, cancel := c.call(ctx)
	defer cancel()
	if cfg.Mode == ByCheck {
		if s.ConsulNode, err = c.AgentNode(ctx); err != nil {
			return err
		}
		if err := c.vouch(ctx, cfg, s); err != nil {
			return err
		}
	}
	if s.Releasing, err = c.createSession(ctx, cfg, s, api.SessionBehaviorRelease); err != nil {
		return err
	}
	s.Deleting, err = c.createSession(ctx, cfg, s, api.SessionBehaviorDelete)
	return err
}

// vouch registers the incarnation, unless that is done: the agent uses the token of the registration to tell the servers about the check,
// so that another token needs another one. Under the same ids within the TTL it leaves check and sessions as they are.
func (c *Client) vouch(ctx context.Context, cfg SessionConfig, s *Session) error {
	token := c.TokenID()
	if s.vouched == token {
		return nil
	}
	reg := &api.AgentServiceRegistration{
		ID: serviceID(cfg, s.Incarnation), Name: ServiceName(cfg.Kind), Meta: cfg.Meta,
		Check: &api.AgentServiceCheck{
			CheckID: checkID(cfg, s.Incarnation), Name: "liveness of " + cfg.Kind + " " + cfg.Name,
			TTL: cfg.TTL.String(), Status: api.HealthPassing,
			DeregisterCriticalServiceAfter: "1m",
		},
	}
	if err := c.live.Agent().ServiceRegisterOpts(reg, api.ServiceRegisterOpts{}.WithContext(ctx)); err != nil {
		return fmt.Errorf("register %s: %w", reg.ID, err)
	}
	if s.vouched != "" {
		cfg.OnEvent("registered with another token", s, nil)
	}
	s.vouched = token
	return nil
}

// createSession makes a session without checks where no agent vouches for it: that of the machine that happens to answer would say nothing
// about us. Its name bears the incarnation then, so that the next start finds exactly its own (R11).
func (c *Client) createSession(ctx context.Context, cfg SessionConfig, s *Session, behavior string) (string, error) {
	entry := &api.SessionEntry{Name: sessionName(cfg), Behavior: behavior, LockDelay: lockDelay, TTL: cfg.SessionTTL.String()}
	create := c.live.Session().CreateNoChecks
	if cfg.Mode == ByTTL {
		entry.Name += "/" + s.Incarnation
	} else {
		entry.Node, entry.NodeChecks, entry.ServiceChecks = s.ConsulNode, []string{"serfHealth"}, []api.ServiceCheck{{ID: checkID(cfg, s.Incarnation)}}
		create = c.live.Session().Create
	}
	for pace := newPace(5*time.Millisecond, 200*time.Millisecond); ; {
		sent := time.Now()
		id, _, err := create(entry, new(api.WriteOptions).WithContext(ctx))
		if err == nil {
			s.Confirm(sent)
			return id, nil
		}
		if pause(ctx, pace.NextBackOff()) != nil {
			return "", fmt.Errorf("create session %s: %w", entry.Name, err)
		}
	}
}

// readCreated asks when the session was made, before anything depends on it: once it has vanished nobody can tell which others of its
// name are older.
func (c *Client) readCreated(ctx context.Context, s *Session) error {
	ctx, cancel := c.call(ctx)
	defer cancel()
	for pace := newPace(5*time.Millisecond, 200*time.Millisecond); ; {
		sent := time.Now()
		entry, meta, err := c.live.Session().Info(s.Releasing, new(api.QueryOptions).WithContext(ctx))
		switch {
		case err == nil && entry == nil && c.hidden(meta):
			return fmt.Errorf("%w: read session %s: %w", ErrLost, s.Releasing, ErrFiltered)
		case err == nil && entry == nil:
			return &vanishedError{session: s.Releasing}
		case err == nil:
			s.Confirm(sent)
			s.created = entry.CreateIndex
			return nil
		}
		if pause(ctx, pace.NextBackOff()) != nil {
			return fmt.Errorf("read session %s: %w", s.Releasing, err)
		}
	}
}

// retire ends an incarnation: sessions first, so that locks are free at once, then the service. It works when ctx has
// ended, for a bounded time; what is left over is retired by the next start from the journal.
func (c *Client) retire(ctx context.Context, cfg SessionConfig, s *Session) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(c.timeout, cfg.TTL))
	defer cancel()
	opts := new(api.WriteOptions).WithContext(ctx)
	destroyed := true
	for _, id := range []string{s.Releasing, s.Deleting} {
		if id == "" {
			continue
		}
		if _, err := c.live.Session().Destroy(id, opts); err != nil {
			destroyed = false
			cfg.OnEvent("destroy session failed", s, err)
		}
	}
	if cfg.Mode == ByTTL { // nothing is registered
		if !destroyed {
			return // the next start finds them by the journal
		}
		if err := cfg.Journal.Remove(s.Incarnation); err != nil {
			cfg.OnEvent("incarnation journal failed", s, err)
		}
		return
	}
	if err := c.deregister(ctx, cfg, s.Incarnation); err != nil {
		cfg.OnEvent("deregister incarnation failed", s, err)
	}
}

// retireIncarnations deregisters what earlier runs of this daemon left behind. Their sessions die with their checks, so
// a daemon that was killed and restarted within the TTL gets its locks back at once.
func (c *Client) retireIncarnations(ctx context.Context, cfg SessionConfig) error {
	earlier, err := cfg.Journal.Incarnations()
	if err != nil {
		return &journalError{err}
	}
	if cfg.Mode == ByTTL {
		return c.retireTTL(ctx, cfg, earlier)
	}
	ctx, cancel := c.call(ctx)
	defer cancel()
	for _, incarnation := range earlier {
		if err := c.deregister(ctx, cfg, incarnation); err != nil {
			return err
		}
	}
	return nil
}

func (c *Client) deregister(ctx context.Context, cfg SessionConfig, incarnation string) error {
	if err := deregister(ctx, c.live, serviceID(cfg, incarnation)); err != nil {
		return err
	}
	if err := cfg.Journal.Remove(incarnation); err != nil {
		return &journalError{err}
	}
	return nil
}

// destroyNamed destroys every session that bears the daemon's name, in either mode, and was created before the index, whichever
// incarnation made it.
func (c *Client) destroyNamed(ctx context.Context, cfg SessionConfig, before uint64) error {
	name := sessionName(cfg)
	return c.destroySessions(ctx, func(entry *api.SessionEntry) bool {
		return (entry.Name == name || strings.HasPrefix(entry.Name, name+"/")) && entry.CreateIndex < before
	})
}

// sessionExists asks the servers, consistently.
func (c *Client) sessionExists(ctx context.Context, id string) (bool, error) {
	ctx, cancel := c.call(ctx)
	defer cancel()
	entry, meta, err := c.api.Session().Info(id, Consistent.options(ctx))
	if err == nil && entry != nil {
		return true, nil
	}
	if err := c.unread(err, meta); err != nil {
		return false, fmt.Errorf("read session %s: %w", id, err)
	}
	return false, nil
}
