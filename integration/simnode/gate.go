package simnode

import (
	"context"
	"time"

	"github.com/rcfarm/rcfarm/pkg/wait"
)

// lookAtGate is how often a node looks at the version gate, while that allows less than it knows.
const lookAtGate = 5 * time.Second

// followGate writes the record again when the gate has moved, as a preparer does: something may have been left out of it.
func (t *session) followGate(ctx context.Context, known string) error {
	for {
		if err := wait.Pause(ctx, lookAtGate); err != nil {
			return err
		}
		version := t.out.GateVersion(ctx)
		if version != known {
			if err := t.acquire(ctx); err != nil {
				return err
			}
		}
		known = version
	}
}
