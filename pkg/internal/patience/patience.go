// Package patience reads from servers that may be slow, and from readers whose work may be cancelled.
package patience

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// ErrSlow means that a server sends almost no data. It is not final.
var ErrSlow = errors.New("the server is too slow")

// MinProgress is how many bytes must arrive within the time that New gets.
const MinProgress = 64 << 10

// Reader reads a server's answer. It cancels the request if less than MinProgress arrives within every, which includes
// only the time in which the caller waits for the server.
type Reader struct {
	io.Reader
	ctx   context.Context //nolint:containedctx // of the one request that this reads
	end   context.CancelCauseFunc
	every time.Duration

	timer *time.Timer
	since time.Time     // when the wait began
	left  time.Duration // time in which the rest of MinProgress must arrive
	bytes int           // how many of MinProgress have arrived
}

// New returns a Reader whose time does not run yet, and the context for the request, which it can cancel. The caller
// sets the field Reader to the body of the answer, and calls Stop at the end. It may call Await before the request and
// Got after it.
func New(ctx context.Context, every time.Duration) (context.Context, *Reader) {
	ctx, end := context.WithCancelCause(ctx)
	p := &Reader{ctx: ctx, end: end, every: every, left: every}
	p.timer = time.AfterFunc(every, func() { end(ErrSlow) })
	p.timer.Stop()
	return ctx, p
}

// Stop ends the request and the time.
func (p *Reader) Stop() {
	p.timer.Stop()
	p.end(nil)
}

// Await begins to wait for the server.
func (p *Reader) Await() {
	p.since = time.Now()
	p.timer.Reset(p.left)
}

// Got ends the wait. The server has sent this many bytes.
func (p *Reader) Got(bytes int) {
	p.timer.Stop()
	p.left -= time.Since(p.since)
	if p.bytes += bytes; p.bytes >= MinProgress {
		p.bytes, p.left = 0, p.every
	}
}

// Read implements io.Reader.
func (p *Reader) Read(into []byte) (int, error) {
	p.Await()
	n, err := p.Reader.Read(into)
	p.Got(n)
	if err != nil {
		err = p.OrCause(err)
	}
	return n, err
}

// OrCause returns why the request was cancelled, or else err. net/http can return io.EOF for a body that was cancelled
// in the middle.
func (p *Reader) OrCause(err error) error {
	switch {
	case p.ctx.Err() == nil:
		return err
	case errors.Is(context.Cause(p.ctx), ErrSlow):
		return fmt.Errorf("%w: it sent %d bytes in %s; allowed: at least %d", ErrSlow, p.bytes, p.every, MinProgress)
	}
	return Ended(p.ctx)
}

// WithContext returns a reader that returns an error when the context has ended.
func WithContext(ctx context.Context, r io.Reader) io.Reader { return contextReader{ctx, r} }

// contextReader returns an error when its context has ended. It has a context in a field because it lives only for one
// call.
type contextReader struct {
	ctx context.Context //nolint:containedctx // see above
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, Ended(c.ctx)
	}
	return c.r.Read(p)
}

// Ended returns why the context ended. errors.Is finds ctx.Err() in the result, even if the context has another cause.
func Ended(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, ctx.Err()) {
		return cause
	}
	return fmt.Errorf("%w: %w", ctx.Err(), cause)
}
