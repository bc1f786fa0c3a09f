package simnode

import (
	"context"
	"time"

	"github.com/rcfarm/rcfarm/pkg/wait"
)

// lookAtGate is how often a node looks at the version gate.
const lookAtGate = 5 * time.Second

// followGate writes the node's record again when the version gate has moved, as a preparer does, because the record may
// have lacked fields.
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
