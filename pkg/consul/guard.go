package consul

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Guard is asked about each transaction that writes below a prefix. The client has one place that sends transactions, so that nobody who
// writes one can forget to ask.
type Guard interface {
	// Condition returns what the transaction depends on besides its own conditions, or why it must not be sent: an error that does not
	// match ErrUnknown is final. ok is false when it depends on nothing else.
	Condition(ctx context.Context, ops []Op) (condition Op, ok bool, err error)
	// Refused hears that Consul refused the condition. The next call of Condition is to find out what is true by now.
	Refused(f Failure)
}

// guards are those of a client, by prefix.
type guards struct {
	mu sync.RWMutex
	by map[string]Guard
}

// Guard has a guard asked about what is written below a prefix from now on, and returns it: the one that is there already, if there is one.
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

// of returns the guard of a transaction, nil where none is asked about it. All of a transaction is below one prefix.
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

// guardTries is how often a transaction is sent anew because the guard's condition did not hold.
const guardTries = 5

// errGuarded is why a transaction was given up that was refused each time on the guard's condition.
var errGuarded = errors.New("what it depends on besides changes without end")

// send carries out a transaction without a check whether it may be sent. A blind one has no answer but that it was carried out. The guard's
// condition comes first, and no caller sees it: a transaction that was refused on it was not written, and is sent again.
func (c *Client) send(ctx context.Context, ops []Op, blind bool) (*answer, error) {
	guard := c.guards.of(ops)
	if guard == nil {
		return c.sendOnce(ctx, ops, blind)
	}
	for range guardTries {
		condition, ok, err := guard.Condition(ctx, ops)
		if err != nil {
			return nil, fmt.Errorf("transaction on %s: %w", ops[0].Key(), err)
		}
		if !ok {
			return c.sendOnce(ctx, ops, blind)
		}
		got, err := c.sendOnce(ctx, append([]Op{condition}, ops...), blind)
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

// Unsent returns an error that says that a transaction was not sent, for now.
func Unsent(err error) error { return &unsentError{err} }

// Needs returns the operation with what its record needs, which only a guard reads.
func (o Op) Needs(need any) Op {
	o.need = need
	return o
}

// Need returns what was said with Needs.
func (o Op) Need() any { return o.need }
