package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// ErrSlow is what a server matches that sends next to nothing. It is not final.
var ErrSlow = errors.New("the server is too slow")

// minProgress is how many bytes must arrive within Config.StallTimeout.
const minProgress = 64 << 10

// patience is what a server sends. It ends with a server that sends next to nothing while it is waited for, be it before or after the
// first byte.
type patience struct {
	io.Reader
	ctx   context.Context //nolint:containedctx // of one request, which this lives for
	end   context.CancelCauseFunc
	every time.Duration

	timer *time.Timer
	since time.Time     // it is waited for
	left  time.Duration // in which the rest of minProgress must arrive
	bytes int           // that have arrived of it
}

// newPatience returns one that waits for nothing yet, and a context for the request, which ends with it.
func newPatience(ctx context.Context, every time.Duration) (context.Context, *patience) {
	ctx, end := context.WithCancelCause(ctx)
	p := &patience{ctx: ctx, end: end, every: every, left: every}
	p.timer = time.AfterFunc(every, func() { end(ErrSlow) })
	p.timer.Stop()
	return ctx, p
}

func (p *patience) stop() {
	p.timer.Stop()
	p.end(nil)
}

func (p *patience) await() {
	p.since = time.Now()
	p.timer.Reset(p.left)
}

func (p *patience) got(bytes int) {
	p.timer.Stop()
	p.left -= time.Since(p.since)
	if p.bytes += bytes; p.bytes >= minProgress {
		p.bytes, p.left = 0, p.every
	}
}

// Read implements io.Reader.
func (p *patience) Read(into []byte) (int, error) {
	p.await()
	n, err := p.Reader.Read(into)
	p.got(n)
	if err != nil {
		err = p.orCause(err)
	}
	return n, err
}

// orCause returns why the request was cancelled, if it was, else the error. The end of a body is no better: net/http may say that of one
// that is cancelled in its middle.
func (p *patience) orCause(err error) error {
	switch {
	case p.ctx.Err() == nil:
		return err
	case errors.Is(context.Cause(p.ctx), ErrSlow):
		return fmt.Errorf("%w: it sent %d bytes in %s; allowed: at least %d", ErrSlow, p.bytes, p.every, minProgress)
	}
	return ended(p.ctx)
}
