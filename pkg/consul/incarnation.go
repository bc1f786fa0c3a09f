package consul

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/wait"
)

func (c *SessionConfig) serviceID(incarnation string) string {
	return fmt.Sprintf("rcfarm-%s-%s-%s", c.Kind, c.Name, incarnation)
}

// ServiceName returns the Consul service under which daemons of a kind are registered.
func ServiceName(kind string) string { return "rcfarm-" + kind }

func (c *SessionConfig) checkID(incarnation string) string {
	return c.serviceID(incarnation) + "-ttl"
}

// sessionName is no beginning of another daemon's followed by a slash: a scope ends with one slash, and has no two in a
// row.
func (c *SessionConfig) sessionName() string {
	name := fmt.Sprintf("rcfarm/%s/%s", c.Kind, c.Name)
	if c.Scope != "" {
		name += "@" + c.Scope
	}
	return name
}

// openSession registers the incarnation, where an agent vouches for it, and takes both sessions. The agent passes a new check on to the servers in its
// own time, so that the first tries may find it missing.
func (d *daemon) openSession(ctx context.Context, s *Session) (err error) {
	ctx, cancel := d.call(ctx)
	defer cancel()
	if d.Mode == ByCheck {
		if s.ConsulNode, err = d.AgentNode(ctx); err != nil {
			return err
		}
		if err := d.vouch(ctx, s); err != nil {
			return err
		}
	}
	if s.Releasing, err = d.createSession(ctx, s, api.SessionBehaviorRelease); err != nil {
		return err
	}
	s.Deleting, err = d.createSession(ctx, s, api.SessionBehaviorDelete)
	return err
}

// vouch registers the incarnation, unless that is done: the agent uses the token of the registration to tell the servers about the check,
// so that another token needs another one. Under the same ids within the TTL it leaves check and sessions as they are.
func (d *daemon) vouch(ctx context.Context, s *Session) error {
	token := d.TokenID()
	if s.vouched == token {
		return nil
	}
	reg := &api.AgentServiceRegistration{
		ID: d.serviceID(s.Incarnation), Name: ServiceName(d.Kind), Meta: d.Meta,
		Check: &api.AgentServiceCheck{
			CheckID: d.checkID(s.Incarnation), Name: "liveness of " + d.Kind + " " + d.Name,
			TTL: d.TTL.String(), Status: api.HealthPassing,
			DeregisterCriticalServiceAfter: "1m",
		},
	}
	if err := d.live.Agent().ServiceRegisterOpts(reg, api.ServiceRegisterOpts{}.WithContext(ctx)); err != nil {
		return fmt.Errorf("register %s: %w", reg.ID, err)
	}
	if s.vouched != "" {
		d.OnEvent("registered with another token", s, nil)
	}
	s.vouched = token
	return nil
}

// createSession makes a session without checks where no agent vouches for it: that of the machine that happens to answer would say nothing
// about us. Its name bears the incarnation then, so that the next start finds exactly its own (R11).
func (d *daemon) createSession(ctx context.Context, s *Session, behavior string) (string, error) {
	entry := &api.SessionEntry{Name: d.sessionName(), Behavior: behavior, LockDelay: lockDelay, TTL: d.SessionTTL.String()}
	create := d.live.Session().CreateNoChecks
	if d.Mode == ByTTL {
		entry.Name += "/" + s.Incarnation
	} else {
		entry.Node, entry.NodeChecks, entry.ServiceChecks = s.ConsulNode, []string{"serfHealth"}, []api.ServiceCheck{{ID: d.checkID(s.Incarnation)}}
		create = d.live.Session().Create
	}
	for pace := wait.NewPace(5*time.Millisecond, 200*time.Millisecond); ; {
		sent := time.Now()
		id, _, err := create(entry, new(api.WriteOptions).WithContext(ctx))
		if err == nil {
			s.Confirm(sent)
			return id, nil
		}
		if TokenRefused(err) || wait.Pause(ctx, pace.NextBackOff()) != nil {
			return "", fmt.Errorf("create session %s: %w", entry.Name, err)
		}
	}
}

// readCreated asks when the session was made, before anything depends on it: once it has vanished nobody can tell which others of its
// name are older.
func (d *daemon) readCreated(ctx context.Context, s *Session) error {
	ctx, cancel := d.call(ctx)
	defer cancel()
	for pace := wait.NewPace(5*time.Millisecond, 200*time.Millisecond); ; {
		sent := time.Now()
		entry, meta, err := d.live.Session().Info(s.Releasing, new(api.QueryOptions).WithContext(ctx))
		switch {
		case err == nil && entry == nil && d.hidden(meta):
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
func (d *daemon) retire(ctx context.Context, s *Session) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(d.timeout, d.TTL))
	defer cancel()
	opts := new(api.WriteOptions).WithContext(ctx)
	destroyed := true
	for _, id := range []string{s.Releasing, s.Deleting} {
		if id == "" {
			continue
		}
		if _, err := d.live.Session().Destroy(id, opts); err != nil {
			destroyed = false
			d.OnEvent("destroy session failed", s, err)
		}
	}
	if d.Mode == ByTTL && !destroyed {
		return // the next start finds them by the journal
	}
	if err := d.forget(ctx, s.Incarnation); err != nil {
		d.OnEvent("forget incarnation failed", s, err)
	}
}

// retireIncarnations ends what earlier runs of this daemon left behind. Where they are registered, their sessions die with their checks, so
// that a daemon that was killed and restarted within the TTL gets its locks back at once. Sessions with a TTL of their own are destroyed: nothing else
// would end them for up to twice that. (What a run in the other mode left behind ends with its check.)
func (d *daemon) retireIncarnations(ctx context.Context) error {
	earlier, err := d.Journal.Incarnations()
	if err != nil {
		return &journalError{err}
	}
	if d.Mode == ByTTL && len(earlier) > 0 {
		ours := func(entry *api.SessionEntry) bool {
			incarnation, is := strings.CutPrefix(entry.Name, d.sessionName()+"/")
			return is && slices.Contains(earlier, incarnation)
		}
		if err := d.destroySessions(ctx, ours); err != nil {
			return err
		}
	}
	ctx, cancel := d.call(ctx)
	defer cancel()
	for _, incarnation := range earlier {
		if err := d.forget(ctx, incarnation); err != nil {
			return err
		}
	}
	return nil
}

// forget deregisters an incarnation, where an agent vouches for it, and takes it out of the journal.
func (d *daemon) forget(ctx context.Context, incarnation string) error {
	if d.Mode == ByCheck {
		if err := deregister(ctx, d.live, d.serviceID(incarnation)); err != nil {
			return err
		}
	}
	if err := d.Journal.Remove(incarnation); err != nil {
		return &journalError{err}
	}
	return nil
}

// destroyNamed destroys every session that bears the daemon's name, in either mode, and was created before the index, whichever
// incarnation made it.
func (d *daemon) destroyNamed(ctx context.Context, before uint64) error {
	name := d.sessionName()
	return d.destroySessions(ctx, func(entry *api.SessionEntry) bool {
		return (entry.Name == name || strings.HasPrefix(entry.Name, name+"/")) && entry.CreateIndex < before
	})
}

// sessionExists asks the servers, consistently.
func (l *Locks) sessionExists(ctx context.Context, id string) (bool, error) {
	ctx, cancel := l.c.call(ctx)
	defer cancel()
	entry, meta, err := l.c.api.Session().Info(id, Consistent.options(ctx))
	if err == nil && entry != nil {
		return true, nil
	}
	if err := l.c.unread(err, meta); err != nil {
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
func (d *daemon) renew(ctx context.Context, s *Session) {
	every := d.renewEvery()
	next := min(every/4, time.Second)
	for wait.Pause(ctx, next) == nil {
		next = every
		if err := d.renewBoth(ctx, s); err != nil {
			next = every / 4
			if ctx.Err() == nil && !errors.Is(err, ErrRefused) {
				d.OnEvent("renewing the session failed", s, err)
			}
		}
	}
}

func (d *daemon) renewBoth(ctx context.Context, s *Session) error {
	var group errgroup.Group
	for _, id := range []string{s.Releasing, s.Deleting} {
		group.Go(func() error { return d.renewOne(ctx, s, id) })
	}
	if err := group.Wait(); err != nil || d.OnRenewed == nil {
		return err
	}
	return d.OnRenewed(ctx, s, d.renewEvery())
}

func (d *daemon) renewOne(ctx context.Context, s *Session, id string) error {
	ctx, cancel := context.WithTimeout(ctx, min(d.timeout, d.renewEvery()))
	defer cancel()
	client := d.api // a renewal that waits for the servers must not keep a heartbeat waiting
	if d.Mode == ByTTL {
		client = d.live
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

// destroySessions destroys every session that is chosen.
func (d *daemon) destroySessions(ctx context.Context, chosen func(*api.SessionEntry) bool) error {
	ctx, cancel := d.call(ctx)
	defer cancel()
	sessions, _, err := d.live.Session().List(Consistent.options(ctx))
	if err != nil {
		return fmt.Errorf("list sessions: %w", err)
	}
	for _, entry := range sessions {
		if !chosen(entry) {
			continue
		}
		if _, err := d.live.Session().Destroy(entry.ID, new(api.WriteOptions).WithContext(ctx)); err != nil {
			return fmt.Errorf("destroy session %s: %w", entry.ID, err)
		}
	}
	return nil
}

// errMode is what RunSession returns for a mode that does not exist.
var errMode = errors.New("unknown session mode")
