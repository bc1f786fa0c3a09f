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

func (s *SessionConfig) serviceID(incarnation string) string {
	return fmt.Sprintf("rcfarm-%s-%s-%s", s.Kind, s.Name, incarnation)
}

// ServiceName returns the Consul service of daemons of a kind.
func ServiceName(kind string) string { return "rcfarm-" + kind }

func (s *SessionConfig) checkID(incarnation string) string {
	return s.serviceID(incarnation) + "-ttl"
}

// sessionName names the daemon's sessions. No other daemon's session name begins with this name and a slash, because a
// scope ends with one slash and has no two in a row.
func (s *SessionConfig) sessionName() string {
	name := fmt.Sprintf("rcfarm/%s/%s", s.Kind, s.Name)
	if s.Scope != "" {
		name += "@" + s.Scope
	}
	return name
}

// openSession registers the incarnation, unless the daemon has no agent, and creates both sessions. First tries can
// fail, because the agent syncs a new check a little later.
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

// vouch registers the incarnation at the agent. A new token needs a new registration, because the agent syncs the check
// with the token of its registration. Within the TTL this does not change the check and the sessions.
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

// createSession creates a session. Without an agent it has no checks, because the agent that answers is on another
// machine. Then its name contains the incarnation, so that the next start finds exactly this incarnation's sessions
// (R11).
func (d *daemon) createSession(ctx context.Context, s *Session, behavior string) (string, error) {
	entry := &api.SessionEntry{
		Name: d.sessionName(), Behavior: behavior, LockDelay: lockDelay,
		TTL: d.SessionTTL.String(),
	}
	create := d.live.Session().CreateNoChecks
	if d.Mode == ByTTL {
		entry.Name += "/" + s.Incarnation
	} else {
		entry.Node, entry.NodeChecks = s.ConsulNode, []string{"serfHealth"}
		entry.ServiceChecks = []api.ServiceCheck{{ID: d.checkID(s.Incarnation)}}
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

// readCreated reads the session's creation index before the role runs, because it cannot be read after the session has
// vanished. Sessions of the same name with a lower index are older.
func (d *daemon) readCreated(ctx context.Context, s *Session) error {
	ctx, cancel := d.call(ctx)
	defer cancel()
	for pace := wait.NewPace(5*time.Millisecond, 200*time.Millisecond); ; {
		entry, _, err := d.info(ctx, s, new(api.QueryOptions))
		switch {
		case err == nil:
			s.created = entry.CreateIndex
			return nil
		case errors.Is(err, ErrLost):
			return err
		case wait.Pause(ctx, pace.NextBackOff()) != nil:
			return fmt.Errorf("read session %s: %w", s.Releasing, err)
		}
	}
}

// info reads and confirms the session. ErrLost: the servers do not know it, or hide it. Any other error: they did not
// answer.
func (d *daemon) info(ctx context.Context, s *Session, opts *api.QueryOptions) (*api.SessionEntry, uint64, error) {
	sent := time.Now()
	entry, meta, err := d.live.Session().Info(s.Releasing, opts.WithContext(ctx))
	switch {
	case err != nil:
		return nil, 0, err
	case entry == nil && d.hidden(meta):
		return nil, 0, fmt.Errorf("%w: read session %s: %w", ErrLost, s.Releasing, ErrFiltered)
	case entry == nil:
		return nil, 0, &vanishedError{session: s.Releasing, created: s.created}
	}
	s.Confirm(sent)
	return entry, meta.LastIndex, nil
}

// retire ends an incarnation: the sessions first, because then the locks are free at once. It works for a bounded time,
// even if ctx has ended. The next start retires what is left.
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
		return // the next start finds them in the journal
	}
	if err := d.forget(ctx, s.Incarnation); err != nil {
		d.OnEvent("forget incarnation failed", s, err)
	}
}

// retireIncarnations ends the sessions of earlier runs, so that a restarted daemon gets its locks back at once.
// Sessions with a check end when it is removed. Sessions with their own TTL are destroyed, because otherwise they would
// live for up to twice the TTL.
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

// destroyNamed destroys all sessions with the daemon's name that are older than the index, in both modes.
func (d *daemon) destroyNamed(ctx context.Context, before uint64) error {
	name := d.sessionName()
	return d.destroySessions(ctx, func(entry *api.SessionEntry) bool {
		return (entry.Name == name || strings.HasPrefix(entry.Name, name+"/")) && entry.CreateIndex < before
	})
}

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

// SessionMode is how a daemon's liveness is established.
type SessionMode string

const (
	// ByCheck ties the sessions to a TTL check at the local agent, and to the agent's health. It is the default, and
	// the only mode for preparers.
	ByCheck SessionMode = "check"
	// ByTTL gives the sessions their own TTL, renewed at the servers, for daemons without an agent on their machine.
	// Nothing is registered in the catalog. Consul may keep a session for up to twice its TTL:
	// https://developer.hashicorp.com/consul/docs/dynamic-app-config/sessions
	ByTTL SessionMode = "ttl"
)

// MinSessionTTL is the shortest TTL that Consul accepts for a session.
const MinSessionTTL = 10 * time.Second

// renew renews both sessions at the servers until ctx ends. If the servers do not know a session any more, renew only
// tries again: confirm notices it.
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
	client := d.api // not live, because a slow renewal must not delay a heartbeat
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

var errMode = errors.New("unknown session mode")
