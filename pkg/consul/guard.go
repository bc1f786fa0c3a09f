package consul

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Guard is asked before each transaction that writes below a prefix. The client sends all transactions in one place, so
// no caller can forget to ask.
type Guard interface {
	// Condition returns a further condition; ok is false if there is none. After an error the transaction is not sent.
	// An error that does not match ErrUnknown is final.
	Condition(ctx context.Context, ops []Op) (condition Op, ok bool, err error)
	// Refused is called when Consul refused the condition. The next call of Condition must read the
	// record again.
	Refused(f Failure)
}

type guards struct {
	mu sync.RWMutex
	by map[string]Guard
}

// Guard installs a guard for writes below a prefix and returns it. An earlier guard of the prefix stays.
func (c *Client) Guard(prefix string, made func() Guard) Guard {
	c.guards.mu.Lock()
	defer c.guards.mu.Unlock()
	if c.guards.by == nil {
		c.guards.by = map[string]Guard{}
	}
	if c.guards.by[prefix] == nil {
		c.guards.by[prefix] = made()
	}
	return c.guards.by[prefix]
}

// of returns the guard of a transaction, or nil. All keys of a transaction are below one prefix.
func (g *guards) of(ops []Op) Guard {
	if !slices.ContainsFunc(ops, Op.writes) {
		return nil
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	for prefix, guard := range g.by {
		if strings.HasPrefix(ops[0].Key(), prefix) {
			return guard
		}
	}
	return nil
}

const guardTries = 5

var errGuarded = errors.New("what it depends on besides changes without end")

// send carries out checked operations. The guard's condition comes first, and callers do not see it: if Consul refuses
// it, nothing was written, and send tries again.
func (c *Client) send(ctx context.Context, ops []Op) (*answer, error) {
	guard := c.guards.of(ops)
	if guard == nil {
		return c.sendOnce(ctx, ops)
	}
	for range guardTries {
		condition, ok, err := guard.Condition(ctx, ops)
		if err != nil {
			return nil, fmt.Errorf("transaction on %s: %w", ops[0].Key(), err)
		}
		if !ok {
			return c.sendOnce(ctx, ops)
		}
		got, err := c.sendOnce(ctx, append([]Op{condition}, ops...))
		refused, is := errors.AsType[*RefusedError](err)
		if !is {
			return got, err
		}
		if at := slices.IndexFunc(refused.Failures, func(f Failure) bool { return f.Op == 0 }); at >= 0 {
			guard.Refused(refused.Failures[at])
			continue
		}
		for i := range refused.Failures {
			refused.Failures[i].Op--
		}
		return nil, refused
	}
	return nil, &unsentError{errGuarded}
}

// Unsent wraps what kept a transaction from being sent. The result matches ErrUnsent and ErrUnknown.
func Unsent(err error) error { return &unsentError{err} }

// Needs adds the feature that the operation's record needs, for the guard.
func (o Op) Needs(need any) Op {
	o.need = need
	return o
}

// Need returns the argument of Needs.
func (o Op) Need() any { return o.need }
