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

// tenure is one leadership: from the acquisition of the lock to its release.
type tenure struct {
	client  *consul.Client
	session *consul.Session
	holder  ballot.Holder // the lock's value without Unique
	end     context.CancelCauseFunc
	why     func() error  // why the leadership ended; nil while it lasts
	done    chan struct{} // closed when the duty has returned
	err     error         // the error that the duty returned

	mu    sync.Mutex
	fence consul.Fence
}

func begin(ctx context.Context, c *Candidate, holder ballot.Holder, fence consul.Fence,
	duty func(context.Context) error,
) *tenure {
	t := &tenure{client: c.Client, session: c.Session, holder: holder, fence: fence, done: make(chan struct{})}
	leading, end := context.WithCancelCause(context.WithValue(ctx, tenureKey{}, t))
	t.end, t.why = end, func() error { return context.Cause(leading) }
	go func() {
		defer close(t.done)
		t.err = duty(leading)
	}()
	return t
}

// After the leadership is over, the duty may still run.
func (t *tenure) over() bool { return t.why() != nil }

// ending leaves out the duty's error if it is the same.
func (t *tenure) ending(why error) error {
	if t.err == nil || errors.Is(t.err, why) || errors.Is(why, t.err) || errors.Is(t.err, context.Canceled) {
		return why
	}
	return errors.Join(why, t.err)
}

// Each call of valueOf returns a different value.
func valueOf(h ballot.Holder) []byte {
	h.Unique = nonce()
	return encode(h)
}

func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic("encode " + err.Error()) // records have only texts, numbers and times
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
			// If Consul refused only the fence, another call has moved it, or another program has written to the lock.
			// The fence is current now, so try again.
			if consul.RefusedOnly(err, fence.Key) {
				continue
			}
		}
		return nil, err
	}
}

// bump moves the fence, unless another call has moved it since used was read. After that, no transaction with the old
// fence can land. If this session does not hold the lock any more, bump ends the leadership, even if the lock is free,
// because another candidate may have led meanwhile.
func (t *tenure) bump(ctx context.Context, used consul.Fence) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fence != used {
		return nil
	}
	for {
		written, err := t.client.Commit(ctx, []consul.Op{
			consul.CheckSession(used.Key, used.Session),
			consul.Lock(used.Key, valueOf(t.holder), used.Session),
		})
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
