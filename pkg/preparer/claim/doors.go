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

// Doors says what a pod may do at Consul that would have something started on the node, or keep the preparer from its work. *store.Store is
// one.
type Doors interface {
	OpenDoors(ctx context.Context, node string) ([]string, error)
}

var errUnsecured = errors.New("requests without a token may")

// Exposure is what pods may do at Consul without a token, as was answered last.
type Exposure struct {
	Node      string
	Doors     Doors // nil: nobody asks
	Strict    bool  // no new intents while pods may do anything, or nobody knows
	Limiter   *loop.LogLimiter
	Every     time.Duration // between two questions
	Again     time.Duration // between two while nobody knows, or nothing is taken because of it
	Unsecured func(bool)    // is told each answer

	mu   sync.Mutex
	said string // as in the node's record; empty: nobody has answered
}

// Said is what was answered last, as the node's record has it, and whether no new intents are taken for it.
func (x *Exposure) Said() (anonymous string, shut bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.Doors == nil {
		return "", false
	}
	return cmp.Or(x.said, node.AnonymousUnknown), x.Strict && x.said != node.AnonymousSecured
}

// Watch asks at the start and from time to time until ctx ends, and calls changed when the answer is another. What was answered last holds
// until there is another answer.
func (x *Exposure) Watch(ctx context.Context, changed func()) {
	if x.Doors == nil {
		return
	}
	wait.Each(ctx, nil, func() time.Duration {
		open, err := x.Doors.OpenDoors(ctx, x.Node)
		if ctx.Err() != nil {
			return 0
		}
		said, next := x.answered(open, err)
		if said != "" && x.set(said) {
			changed()
		}
		return next
	})
}

// answered takes an answer in, and returns what it says, empty for nothing, and when to ask again.
func (x *Exposure) answered(open []string, err error) (said string, next time.Duration) {
	const asking, doors = "question what pods may do at Consul", "what pods may do at Consul"
	if err != nil {
		x.Limiter.Report(asking, "cannot be told what pods may do at Consul without a token", err)
		return "", x.Again
	}
	x.Limiter.Over(asking)
	if len(open) == 0 {
		x.Limiter.Over(doors)
		return node.AnonymousSecured, x.Every
	}
	message, next := "pods can reach Consul and need no token to have any program started on this node, as any user; see docs/security.md", x.Every
	if x.Strict {
		message += "; no new intents are taken"
		next = x.Again
	}
	x.Limiter.Report(doors, message, errors.Join(errUnsecured, errors.New(strings.Join(open, ", "))))
	return node.AnonymousUnsecured, next
}

func (x *Exposure) set(said string) (changed bool) {
	x.Unsecured(said == node.AnonymousUnsecured)
	x.mu.Lock()
	defer x.mu.Unlock()
	changed, x.said = x.said != said, said
	return changed
}
