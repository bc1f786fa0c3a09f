package preparer

import (
	"context"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
)

// ReserveDir is the directory in a data directory that holds room for records.
const ReserveDir = "reserve"

// Between two looks at the reserve: while it is whole, and while it is not.
const (
	lookAtReserve = time.Minute
	fillReserve   = 5 * time.Second
)

// keepReserve keeps room for records set aside until ctx ends, so that a full disk keeps no pod from being stopped, and says
// when it cannot.
func (p *Preparer) keepReserve(ctx context.Context) {
	const key = "reserve"
	for ctx.Err() == nil {
		bytes, err := p.reserve.Fill()
		p.cfg.Metrics.reserve.Set(float64(bytes))
		wait := lookAtReserve
		if p.trouble.Failed(ctx, key, "no room for records can be set aside; make room on the disk: once what is left is used up, pods can neither be stopped nor changed", err) {
			wait = fillReserve
		}
		_, _ = loop.PauseUnless(ctx, p.spent, wait) // the loop sees the end of ctx
	}
}
