package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// ErrSlow is what a server matches that sends next to nothing. It is not final.
var ErrSlow = errors.New("the server is too slow")

// minProgress is how many bytes must arrive within Config.StallTimeout.
const minProgress = 64 << 10

// progress is a transport that gives up on servers that send next to nothing, be it before or after the first byte.
type progress struct {
	base  http.RoundTripper
	every time.Duration
}

// RoundTrip implements http.RoundTripper.
func (p progress) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	w := &watched{cancel: cancel, every: p.every, waiting: true}
	w.arm()
	resp, err := p.base.RoundTrip(req.WithContext(ctx))
	if err != nil {
		w.stop()
		return nil, slowOr(ctx, err)
	}
	w.got(minProgress) // it has answered
	resp.Body = &watchedBody{ReadCloser: resp.Body, watched: w, cause: func(err error) error { return slowOr(ctx, err) }}
	return resp, nil
}

// CloseIdleConnections lets http.Client reach the transport below.
func (p progress) CloseIdleConnections() {
	if base, ok := p.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

// slowOr returns why the request was cancelled if it was us, else the error.
func slowOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, ErrSlow) {
		return cause
	}
	return err
}

// watched counts what arrives in one request.
type watched struct {
	cancel context.CancelCauseFunc
	every  time.Duration

	mu      sync.Mutex
	timer   *time.Timer
	bytes   int64 // since the timer was armed
	waiting bool  // for the server, not the server for us
	ended   bool
}

func (w *watched) arm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(w.every, w.look)
}

// look runs once in a while.
func (w *watched) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	if w.waiting && w.bytes < minProgress {
		w.cancel(fmt.Errorf("%w: it sent %d bytes in %s; allowed: at least %d", ErrSlow, w.bytes, w.every, minProgress))
		return
	}
	w.bytes = 0
	w.timer.Reset(w.every)
}

func (w *watched) got(bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bytes += int64(bytes)
	w.waiting = false
}

func (w *watched) wait() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = true
}

func (w *watched) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	w.timer.Stop()
	w.cancel(nil)
}

// watchedBody is the body of a watched request.
type watchedBody struct {
	io.ReadCloser
	watched *watched
	cause   func(error) error
}

// Read implements io.Reader.
func (b *watchedBody) Read(p []byte) (int, error) {
	b.watched.wait()
	n, err := b.ReadCloser.Read(p)
	b.watched.got(n)
	if err != nil {
		err = b.cause(err) // also in place of io.EOF, which net/http may say of a body that is cancelled in its middle
	}
	return n, err
}

// Close implements io.Closer.
func (b *watchedBody) Close() error {
	err := b.ReadCloser.Close()
	b.watched.stop()
	return err
}
