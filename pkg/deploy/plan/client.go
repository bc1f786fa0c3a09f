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
	// Service reads a service; nil where there is none of that name.
	Service(ctx context.Context, name string) (*record.Service, error)
	// Commit writes a draft in one transaction. The error matches ErrChanged where a record is not as the draft saw it.
	Commit(ctx context.Context, d *record.Draft) error
	// Await waits until owners have reached a goal. The error is a *RolloutError where the rollout ends otherwise.
	Await(ctx context.Context, g Goal) error
	// NewID returns an id that nothing else has.
	NewID() string
}

// ErrChanged says that somebody else changed a record since it was read. Nothing was written.
var ErrChanged = errors.New("changed since it was read")

// Goal is what a forecast waits for.
type Goal struct {
	Service string
	Rollout string // id of the rollout that leads there; empty: none
	RC      string // id of the controller
	Reached Reached
	Pods    int // for the first two
}

// Reached says when a goal is reached.
type Reached string

// The goals.
const (
	Available Reached = "available" // at least so many pods of the controller are
	Left      Reached = "left"      // the controller has no more pods than so many, those that stop included
	Gone      Reached = "gone"      // the controller's record is
)

// RolloutError says that a rollout did not lead to its goal.
type RolloutError struct {
	Service string
	State   rollout.State
	Reason  string
}

// Error says how it ended, and why.
func (e *RolloutError) Error() string {
	text := fmt.Sprintf("the rollout of %s is %s", e.Service, e.State)
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// draft is what a plan writes, and how its rollout begins.
type draft struct {
	record.Draft
	allows bool // nothing changes, but the breaker lets pass what it withholds
	start  func(ctx context.Context) (rollout.Started, error)
}

// RefusedError is a plan that the present state forbids, or a strategy that cannot work. Nothing was written.
type RefusedError struct {
	Service string
	Reason  string
	Do      string // what to do about it
	lead    string // begins what to do where ways help
	ways    []way  // that may help; advise tries them
}

// Error says why, and what to do.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("service %s: %s; %s", e.Service, e.Reason, e.Do)
}

// StaleError is a plan that was made of what is not so any more. Nothing was written.
type StaleError struct {
	Service string
	Changes []string // what is different, a line each
}

// Error says how much is different.
func (e *StaleError) Error() string {
	return fmt.Sprintf("service %s: the plan is stale, %s changed since it was made; plan again", e.Service, field.Count(len(e.Changes), "field"))
}
