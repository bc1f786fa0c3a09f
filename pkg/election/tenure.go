package election

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/election/ballot"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

type tenureKey struct{}

// tenure is one time of leading: from the acquisition of the lock to its release.
type tenure struct {
	client  *consul.Client
	session *consul.Session
	holder  ballot.Holder // what the lock says, but for Unique
	end     context.CancelCauseFunc
	why     func() error  // why the leadership ended; nil while it lasts
	done    chan struct{} // closed when the duty has returned
	err     error         // that it returned

	mu    sync.Mutex
	fence consul.Fence
}

// begin runs the duty under a fence.
func begin(ctx context.Context, c *Candidate, holder ballot.Holder, fence consul.Fence, duty func(context.Context) error) *tenure {
	t := &tenure{client: c.Client, session: c.Session, holder: holder, fence: fence, done: make(chan struct{})}
	leading, end := context.WithCancelCause(context.WithValue(ctx, tenureKey{}, t))
	t.end, t.why = end, func() error { return context.Cause(leading) }
	go func() {
		defer close(t.done)
		t.err = duty(leading)
	}()
	return t
}

// over reports whether the leadership has ended; the duty may still be at it.
func (t *tenure) over() bool { return t.why() != nil }

// ending joins why the leadership has ended and what the duty returned, unless that says the same.
func (t *tenure) ending(why error) error {
	if t.err == nil || errors.Is(t.err, why) || errors.Is(why, t.err) || errors.Is(t.err, context.Canceled) {
		return why
	}
	return errors.Join(why, t.err)
}

// valueOf returns what the lock is to say, another one each time.
func valueOf(h ballot.Holder) []byte {
	h.Unique = nonce()
	return encode(h)
}

func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic("encode " + err.Error()) // records hold texts, numbers and times only
	}
	return data
}

func (t *tenure) present() consul.Fence {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.fence
}

func (t *tenure) commit(ctx context.Context, ops []consul.Op) (map[string]uint64, error) {
	for {
		fence := t.present()
		sent := time.Now()
		written, err := t.client.Commit(ctx, append(fence.Ops(), ops...))
		switch {
		case err == nil:
			t.session.Confirm(sent)
			delete(written, fence.Key)
			return written, nil
		case errors.Is(err, consul.ErrUnsent):
			return nil, err
		case errors.Is(err, consul.ErrUnknown), consul.RefusedOn(err, fence.Key):
			if lost := t.bump(ctx, fence); lost != nil {
				return nil, errors.Join(lost, err)
			}
			if consul.RefusedOnly(err, fence.Key) { // another call has moved the fence, or somebody has written to the lock
				continue
			}
		}
		return nil, err
	}
}

// bump moves the fence, unless that was done since a call read it, after which nothing that bears the old one can land any more. It tries
// until the answer is definite, and ends the leadership where the lock is lost: also where it is free now, because somebody else may have
// led in between.
func (t *tenure) bump(ctx context.Context, used consul.Fence) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fence != used {
		return nil
	}
	for {
		written, err := t.client.Commit(ctx, []consul.Op{consul.CheckSession(used.Key, used.Session), consul.Lock(used.Key, valueOf(t.holder), used.Session)})
		switch {
		case err == nil:
			t.fence.Index = written[used.Key]
			return nil
		case denied(err):
			return err
		case errors.Is(err, consul.ErrRefused):
			lost := fmt.Errorf("%w: %w", ErrLost, err)
			t.end(lost)
			return lost
		}
		if err := wait.Pause(ctx, retryPause); err != nil {
			return err
		}
	}
}
