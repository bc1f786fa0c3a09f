package plan

import (
	"context"
	"errors"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// Client is what plans need of a cluster.
type Client interface {
	// Service returns nil if there is no service of that name.
	Service(ctx context.Context, name string) (*record.Service, error)
	// Commit writes a draft in one transaction. The error matches ErrChanged if a record has changed since.
	Commit(ctx context.Context, d *record.Draft) error
	// Await waits for a goal. The error is a *RolloutError if the rollout ends before.
	Await(ctx context.Context, g Goal) error
	// NewID returns a new unique id.
	NewID() string
}

// ErrChanged means that somebody changed a record since it was read. Nothing was written.
var ErrChanged = errors.New("changed since it was read")

// Goal is what a forecast waits for.
type Goal struct {
	Service string
	Rollout string // id of the rollout that leads there; empty: none
	RC      string // id of the controller
	Reached Reached
	Pods    int // for Available and Left
}

// Reached is the condition of a goal.
type Reached string

// The goals.
const (
	Available Reached = "available" // at least Pods of the controller's pods are available
	Left      Reached = "left"      // the controller has at most Pods pods, including pods that stop
	Gone      Reached = "gone"      // the controller's record is gone
)

// RolloutError means that a rollout did not reach its goal.
type RolloutError struct {
	Service string
	State   rollout.State
	Reason  string
}

// Error names the end of the rollout, and the reason.
func (r *RolloutError) Error() string {
	text := fmt.Sprintf("the rollout of %s is %s", r.Service, r.State)
	if r.Reason != "" {
		text += ": " + r.Reason
	}
	return text
}

type draft struct {
	record.Draft
	allows bool // the plan changes no pods, and only makes the breaker ignore the stops that it withholds
	start  func(ctx context.Context) (rollout.Started, error)
}

// RefusedError is a plan that the present state forbids, or a strategy that cannot work. Nothing was written.
type RefusedError struct {
	Service string
	Reason  string
	Do      string // what to do
	lead    string // begins Do if ways help
	ways    []way  // other ways that may help; advise tries them
}

// Error names the reason, and what to do.
func (r *RefusedError) Error() string {
	return fmt.Sprintf("service %s: %s; %s", r.Service, r.Reason, r.Do)
}

// StaleError is a plan whose records have changed since. Nothing was written.
type StaleError struct {
	Service string
	Changes []string // the differences, one a line
}

// Error names the number of differences.
func (s *StaleError) Error() string {
	return fmt.Sprintf("service %s: the plan is stale, %s changed since it was made; plan again",
		s.Service, field.Count(len(s.Changes), "field"))
}
