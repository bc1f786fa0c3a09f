package consul

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/wait"
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
	for pace := wait.NewPace(5*time.Millisecond, 200*time.Millisecond); ; {
		sent := time.Now()
		id, _, err := create(entry, new(api.WriteOptions).WithContext(ctx))
		if err == nil {
			s.Confirm(sent)
			return id, nil
		}
		if wait.Pause(ctx, pace.NextBackOff()) != nil {
			return "", fmt.Errorf("create session %s: %w", entry.Name, err)
		}
	}
}

// readCreated asks when the session was made, before anything depends on it: once it has vanished nobody can tell which others of its
// name are older.
func (c *Client) readCreated(ctx context.Context, s *Session) error {
	ctx, cancel := c.call(ctx)
	defer cancel()
	for pace := wait.NewPace(5*time.Millisecond, 200*time.Millisecond); ; {
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
		if wait.Pause(ctx, pace.NextBackOff()) != nil {
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

// SessionMode says who vouches for a daemon.
type SessionMode string

const (
	// ByCheck ties the sessions to a TTL check of the daemon's own at the local agent, and to that agent's health. They
	// die exactly with the check. It is the default, and the only mode for preparers.
	ByCheck SessionMode = "check"
	// ByTTL gives the sessions a TTL of their own, renewed at the servers, for daemons without an agent on their machine.
	// Consul takes 10 s at the least, and lets a session that is not renewed live for up to twice its TTL:
	// https://developer.hashicorp.com/consul/docs/dynamic-app-config/sessions
	// Nothing is registered in the catalog.
	ByTTL SessionMode = "ttl"
)

// MinSessionTTL is the shortest TTL that Consul takes for a session.
const MinSessionTTL = 10 * time.Second

// renew keeps both sessions alive at the servers until ctx ends. What the servers answer confirms the session; one that
// they do not know any more is found out by confirm, whose query ends when it vanishes.
func (c *Client) renew(ctx context.Context, cfg SessionConfig, s *Session) {
	every := cfg.renewEvery()
	next := min(every/4, time.Second)
	for wait.Pause(ctx, next) == nil {
		next = every
		if err := c.renewBoth(ctx, cfg, s); err != nil {
			next = every / 4
			if ctx.Err() == nil && !errors.Is(err, ErrRefused) {
				cfg.OnEvent("renewing the session failed", s, err)
			}
		}
	}
}

func (c *Client) renewBoth(ctx context.Context, cfg SessionConfig, s *Session) error {
	var group errgroup.Group
	for _, id := range []string{s.Releasing, s.Deleting} {
		group.Go(func() error { return c.renewOne(ctx, cfg, s, id) })
	}
	if err := group.Wait(); err != nil || cfg.OnRenewed == nil {
		return err
	}
	return cfg.OnRenewed(ctx, s, cfg.renewEvery())
}

func (c *Client) renewOne(ctx context.Context, cfg SessionConfig, s *Session, id string) error {
	ctx, cancel := context.WithTimeout(ctx, min(c.timeout, cfg.renewEvery()))
	defer cancel()
	client := c.api // a renewal that waits for the servers must not keep a heartbeat waiting
	if cfg.Mode == ByTTL {
		client = c.live
	}
	sent := time.Now()
	entry, _, err := client.Session().Renew(id, new(api.WriteOptions).WithContext(ctx))
	switch {
	case err != nil:
		return fmt.Errorf("renew session %s: %w", id, err)
	case entry == nil:
		return fmt.Errorf("renew session %s: %w", id, ErrLost)
	case id == s.Releasing:
		s.Confirm(sent)
	}
	return nil
}

// retireTTL ends the sessions of earlier runs of this daemon: nothing else would for up to twice their TTL. (What a run in
// the other mode left behind ends with its check.)
func (c *Client) retireTTL(ctx context.Context, cfg SessionConfig, incarnations []string) error {
	if len(incarnations) == 0 {
		return nil
	}
	ours := map[string]bool{}
	for _, incarnation := range incarnations {
		ours[sessionName(cfg)+"/"+incarnation] = true
	}
	err := c.destroySessions(ctx, func(entry *api.SessionEntry) bool { return ours[entry.Name] })
	if err != nil {
		return err
	}
	for _, incarnation := range incarnations {
		if err := cfg.Journal.Remove(incarnation); err != nil {
			return &journalError{err}
		}
	}
	return nil
}

// destroySessions destroys every session that is chosen.
func (c *Client) destroySessions(ctx context.Context, chosen func(*api.SessionEntry) bool) error {
	ctx, cancel := c.call(ctx)
	defer cancel()
	sessions, _, err := c.live.Session().List(Consistent.options(ctx))
	if err != nil {
		return fmt.Errorf("list sessions: %w", err)
	}
	for _, entry := range sessions {
		if !chosen(entry) {
			continue
		}
		if _, err := c.live.Session().Destroy(entry.ID, new(api.WriteOptions).WithContext(ctx)); err != nil {
			return fmt.Errorf("destroy session %s: %w", entry.ID, err)
		}
	}
	return nil
}

// errMode is what RunSession returns for a mode that does not exist.
var errMode = errors.New("unknown session mode")
