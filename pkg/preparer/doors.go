package preparer

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
)

// Doors says what a pod may do at Consul that would have something started on the node, or keep the preparer from its work. *store.Store is
// one.
type Doors interface {
	OpenDoors(ctx context.Context, node string) ([]string, error)
}

var errOpen = errors.New("requests without a token may")

// watchDoors asks at the start and from time to time what pods may do at Consul. What was answered last holds until there is another answer.
func (p *Preparer) watchDoors(ctx context.Context) {
	if p.cfg.Doors == nil {
		return
	}
	for {
		open, err := p.cfg.Doors.OpenDoors(ctx, p.cfg.Node.Name)
		if ctx.Err() != nil || pause(ctx, p.sawDoors(open, err)) != nil {
			return
		}
	}
}

// sawDoors takes an answer in, and returns when to ask again.
func (p *Preparer) sawDoors(open []string, err error) time.Duration {
	const asking, doors = "question what pods may do at Consul", "what pods may do at Consul"
	if err != nil {
		p.trouble.report(asking, "cannot be told what pods may do at Consul without a token", err)
		return p.cfg.AskAgain
	}
	p.trouble.over(asking)
	next := p.cfg.AskDoors
	if len(open) == 0 {
		p.setDoors(node.AnonymousClosed)
		p.trouble.over(doors)
		return next
	}
	message := "pods can reach Consul and need no token to have any program started on this node, as any user; see docs/security.md"
	if p.cfg.Strict {
		message += "; no new intents are taken"
		next = p.cfg.AskAgain
	}
	p.setDoors(node.AnonymousOpen)
	p.trouble.report(doors, message, errors.Join(errOpen, errors.New(strings.Join(open, ", "))))
	return next
}

func (p *Preparer) setDoors(doors string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cfg.Metrics.opened(doors == node.AnonymousOpen)
	if p.doors == doors {
		return
	}
	p.doors = doors
	p.decide()
	p.record.raise()
}

// shut reports whether no new intents are taken for what pods may do. The caller holds p.mu.
func (p *Preparer) shut() bool {
	return p.cfg.Strict && p.cfg.Doors != nil && p.doors != node.AnonymousClosed
}
