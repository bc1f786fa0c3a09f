package claim

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Doors finds out what pods can do in Consul to start a program on the node, or to hinder the preparer.
type Doors interface {
	OpenDoors(ctx context.Context, node string) ([]string, error)
}

var errUnsecured = errors.New("requests without a token may")

// Exposure checks regularly what pods can do in Consul without a token.
type Exposure struct {
	Node      string
	Doors     Doors // nil: do not ask
	Strict    bool  // accept no new intents unless the last answer was that pods can do nothing
	Limiter   *loop.LogLimiter
	Every     time.Duration // time between two checks
	Again     time.Duration // the same, while the answer is unknown or no intents are accepted
	Unsecured func(bool)    // called with each answer

	mu     sync.Mutex
	answer string // the last answer, as in the node's record; empty: none yet
}

// Answer returns the last answer for the node's record, and whether the node accepts no new intents because of it.
func (e *Exposure) Answer() (anonymous string, shut bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.Doors == nil {
		return "", false
	}
	return cmp.Or(e.answer, node.AnonymousUnknown), e.Strict && e.answer != node.AnonymousSecured
}

// Watch checks until ctx ends, and calls changed when the answer changes. If a check fails, the last answer stays
// valid.
func (e *Exposure) Watch(ctx context.Context, changed func()) {
	if e.Doors == nil {
		return
	}
	wait.Each(ctx, nil, func() time.Duration {
		open, err := e.Doors.OpenDoors(ctx, e.Node)
		if ctx.Err() != nil {
			return 0
		}
		answer, next := e.answered(open, err)
		if answer != "" && e.set(answer) {
			changed()
		}
		return next
	})
}

// answered returns answer "" if the check failed, and the time until the next check.
func (e *Exposure) answered(open []string, err error) (answer string, next time.Duration) {
	const asking, doors = "question what pods may do at Consul", "what pods may do at Consul"
	if err != nil {
		e.Limiter.Report(asking, "cannot find out what pods may do at Consul without a token", err)
		return "", e.Again
	}
	e.Limiter.Over(asking)
	if len(open) == 0 {
		e.Limiter.Over(doors)
		return node.AnonymousSecured, e.Every
	}
	message, next := "pods can reach Consul and need no token to have any program started on this node, as any user; "+
		"see docs/security.md", e.Every
	if e.Strict {
		message += "; no new intents are taken"
		next = e.Again
	}
	e.Limiter.Report(doors, message, errors.Join(errUnsecured, errors.New(strings.Join(open, ", "))))
	return node.AnonymousUnsecured, next
}

func (e *Exposure) set(answer string) (changed bool) {
	e.Unsecured(answer == node.AnonymousUnsecured)
	e.mu.Lock()
	defer e.mu.Unlock()
	changed, e.answer = e.answer != answer, answer
	return changed
}
