package consul

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sync/errgroup"
)

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
	wait := min(every/4, time.Second)
	for pause(ctx, wait) == nil {
		wait = every
		if err := c.renewBoth(ctx, cfg, s); err != nil {
			wait = every / 4
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
