package supervise

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

type still struct {
	runtime.Runtime
	held  chan struct{} // each answer first receives from held
	pings int
}

func (s *still) answer(ctx context.Context) error {
	select {
	case <-s.held:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *still) Ping(ctx context.Context) error { s.pings++; return s.answer(ctx) }

func (s *still) Stop(ctx context.Context, _ string) error { return s.answer(ctx) }

func (s *still) Watch(ctx context.Context, cursor uint64) ([]runtime.Status, uint64, error) {
	return nil, cursor, s.answer(ctx)
}

// Attend notices a silent runtime within ten seconds, with one ping. Waiting calls then end, and further ones fail at
// once until it answers.
func TestAttend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := &still{held: make(chan struct{})}
		s := New(rt, func(string) {})
		ctx, cancel := context.WithCancel(t.Context())
		var silent atomic.Bool
		over := make(chan struct{})
		go func() {
			defer close(over)
			s.Attend(ctx, 5*time.Second, 5*time.Second, silent.Store)
		}()
		stopped, asked := make(chan error, 1), make(chan error, 1)
		go func() { stopped <- s.Stop(ctx, []string{"a"}) }()
		go func() { _, err := s.Of(ctx, pod.Identity{}); asked <- err }()
		<-time.After(10*time.Second - time.Millisecond) // time in synctest
		synctest.Wait()
		if silent.Load() || len(stopped)+len(asked) > 0 {
			t.Error("given up too early")
		}
		<-time.After(time.Hour)
		synctest.Wait()
		if err := <-stopped; !silent.Load() || !errors.Is(err, ErrSilent) || !errors.Is(<-asked, ErrSilent) ||
			rt.pings != 1 {
			t.Errorf("silent: %t after %d questions; the stop ended with %v", silent.Load(), rt.pings, err)
		}
		if err := s.Stop(ctx, []string{"a"}); !errors.Is(err, ErrSilent) {
			t.Errorf("a stop meanwhile: %v", err)
		}
		close(rt.held)
		synctest.Wait()
		if _, err := s.Of(ctx, pod.Identity{}); silent.Load() || err != nil {
			t.Errorf("silent: %t although it answers, %v", silent.Load(), err)
		}
		cancel()
		<-over
	})
}
