package plan

import (
	"context"
	"errors"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// Client is what plans need of a cluster.
type Client interface {
	// Service reads a service; nil where there is none of that name.
	Service(ctx context.Context, name string) (*Service, error)
	// Commit writes a draft in one transaction. The error matches ErrChanged where a record is not as the draft saw it.
	Commit(ctx context.Context, d *Draft) error
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

// Draft is all that a plan writes, in one transaction.
type Draft struct {
	Service string
	Seen    *Service // what it was made from, with the indices that are its conditions; nil: there must be no such service
	// Manifests are the new ones, in canonical JSON by digest.
	Manifests  map[string][]byte
	Signatures map[string]string // of those, where there are any
	Create     []rc.RC           // new controllers
	Change     []rc.RC           // controllers that are there, each with its next generation where that moves
	Delete     []string
	// Rollout is the record of the rollout; nil: none is needed.
	Rollout  *rollout.Record
	Deployed Deployed
	Entry    Entry
	// Forget are the revisions whose history goes.
	Forget []int64
	Audit  []string // what changes in the document
	Steps  []string // what the rollout begins with

	start func(ctx context.Context) (rollout.Started, error)
}

// RefusedError is a plan that the present state forbids, or a strategy that cannot work. Nothing was written.
type RefusedError struct {
	Service string
	Reason  string
	Do      string // what to do about it
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
	fields := fmt.Sprintf("%d fields", len(e.Changes))
	if len(e.Changes) == 1 {
		fields = "1 field"
	}
	return fmt.Sprintf("service %s: the plan is stale, %s changed since it was made; plan again", e.Service, fields)
}
