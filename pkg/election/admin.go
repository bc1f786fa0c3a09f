package election

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/election/ballot"
	"github.com/rcfarm/rcfarm/pkg/field"
)

// State is an election at one moment, for programs that show or operate it.
type State struct {
	Name       string
	Lease      ballot.Lease
	Candidates []ballot.Candidate // sorted by id
	// Verdict is what a candidate would decide. The time for answers is over if the round is older than
	// DefaultPatience.
	Verdict ballot.Verdict

	keys
}

// List returns the names of the elections below a prefix, in order.
func List(ctx context.Context, c *consul.Client, prefix string) ([]string, error) {
	children, err := c.Children(ctx, KeyPrefix(prefix))
	var names []string
	for _, child := range children {
		if name := strings.TrimSuffix(strings.TrimPrefix(child, KeyPrefix(prefix)), "/"); name != "" {
			names = append(names, name)
		}
	}
	return names, err
}

// Read returns consul.ErrNotFound if there is no election of that name.
func Read(ctx context.Context, c *consul.Client, prefix, lease string) (*State, error) {
	var errs field.Errors
	if errs.CheckName("lease", lease); errs != nil {
		return nil, errs
	}
	s := &State{Name: lease, keys: keysOf(prefix, lease)}
	_, pairs, err := c.Read(ctx, consul.Reading{Prefixes: []string{s.keys.lease(), s.keys.candidates()}},
		consul.Consistent)
	if err != nil {
		return nil, err
	}
	if len(pairs) == 0 {
		return nil, fmt.Errorf("election %s: %w", lease, consul.ErrNotFound)
	}
	s.Lease = s.leaseOf(pairs)
	s.Candidates = candidatesOf(s.recordsOf(pairs))
	age := time.Since(s.Lease.Round.At.Time)
	// If the local clock is behind, age is negative, and must not hide that no candidate answers.
	p := s.Lease.Pings(lease, "", age.Abs() > DefaultPatience)
	p.Round = s.Lease.Round.Nonce
	s.Verdict = ballot.Elect(s.Candidates, p)
	return s, nil
}

// Leader returns the id of the leader, and its session. Both are empty if there is no leader; the id also if a program
// took the lock without a name.
func (s *State) Leader() (id, session string) {
	if !s.Lease.Held() {
		return "", ""
	}
	return s.Lease.Holder.ID, s.Lease.Session
}

// Yield returns operations that put the leader behind all other candidates until it restarts, and the leader's id.
//
// The operations of Yield, Pin and Unpin open a round. Commit them in one transaction. If another round was opened
// meanwhile, Consul refuses it. Then compute them again from a newer state.
func (s *State) Yield(by string) (ops []consul.Op, leader string, err error) {
	leader, session := s.Leader()
	c := s.candidate(leader)
	switch {
	case session == "":
		return nil, "", fmt.Errorf("%w: nobody leads %s", ErrPointless, s.Name)
	case c == nil:
		return nil, "", fmt.Errorf("%w: who leads %s is no candidate, and asks nobody", ErrPointless, s.Name)
	case s.Lease.Round.Pin == leader:
		return nil, "", fmt.Errorf("%w: %s is pinned", ErrPointless, leader)
	case len(s.Candidates)-len(s.Verdict.Excluded) < 2:
		return nil, "", fmt.Errorf("%w: nobody else can lead %s", ErrPointless, s.Name)
	}
	return s.change(by, "yield", func(r *ballot.Round) { r.Put(*c) }), leader, nil
}

// Pin returns operations that put a candidate before all others, as long as it lives and answers.
func (s *State) Pin(by, id string) ([]consul.Op, error) {
	if s.candidate(id) == nil {
		return nil, fmt.Errorf("%w: %s is no candidate of %s that lives", ErrPointless, id, s.Name)
	}
	return s.change(by, "pin", func(r *ballot.Round) { r.PinTo(id) }), nil
}

// Unpin returns operations that let the strategy decide again; none if no candidate is pinned.
func (s *State) Unpin(by string) []consul.Op {
	if s.Lease.Round.Pin == "" {
		return nil
	}
	return s.change(by, "unpin", func(r *ballot.Round) { r.PinTo("") })
}

// ErrPointless means that an operator's request would change nothing.
var ErrPointless = errors.New("that changes nothing")

// candidate returns the living candidate with an id, or nil.
func (s *State) candidate(id string) *ballot.Candidate {
	return field.Find(s.Candidates, func(c *ballot.Candidate) bool { return c.ID == id && c.Session != "" })
}

func (s *State) change(by, why string, what func(*ballot.Round)) []consul.Op {
	next := s.Lease.Next(nonce(), by, why, ballot.Time{Time: time.Now()}, s.Candidates)
	what(&next)
	return []consul.Op{consul.CAS(s.round(), encode(next), s.Lease.RoundIndex)}
}
