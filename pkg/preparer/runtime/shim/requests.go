package shim

import (
	"context"
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// byHand is what an operator must do if the state of a process is not known. The process may run, and the supervisor
// does not know how to end it.
const byHand = "make sure that no process of it runs, remove its state file and end the supervisor with SIGTERM: " +
	"the preparer starts another one"

// If there is no such process, slot adds one without a record.
func (s *supervisor) slot(id string) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.procs[id]
	if !ok {
		p = &process{sup: s, phase: runtime.Starting}
		s.procs[id] = p
	}
	return p
}

func (s *supervisor) find(id string) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.procs[id]
}

// start accepts a process for its run loop. If the process is being stopped, start first waits until it has stopped.
func (s *supervisor) start(ctx context.Context, spec localSpec) error {
	if err := spec.validate(); err != nil {
		return err
	}
	for {
		retry, err := s.slot(spec.ID).accept(ctx, spec)
		if retry == nil {
			return err
		}
		select {
		case <-retry:
		case <-ctx.Done():
			return errLeaving
		}
	}
}

// If accept returns a channel, the caller must call it again when the channel is closed.
func (p *process) accept(ctx context.Context, spec localSpec) (retry <-chan struct{}, err error) {
	p.op.Lock()
	defer p.op.Unlock()
	now := p.current()
	switch {
	case ctx.Err() != nil:
		return nil, errLeaving
	case p.broken != nil:
		return nil, fmt.Errorf("%w; %s", p.broken, byHand)
	case p.removed:
		again := make(chan struct{})
		close(again)
		return again, nil
	case !p.known():
	case !now.Spec.same(spec):
		return nil, fmt.Errorf("start %s: %w", spec.ID, runtime.ErrExists)
	case !p.stopping():
		return nil, nil
	case !closed(p.ended):
		return p.ended, nil
	}
	err = p.commit(runtime.Starting, "",
		func(r *record) {
			*r = record{
				Spec: spec, Desired: wantRun, Boot: p.sup.boot, LastExit: r.LastExit, Container: r.Container,
			}
		})
	if err != nil {
		return nil, err
	}
	p.trustAnew()
	p.begin(nil)
	return nil, nil
}

// stop returns nil when no process of this id runs and the stop is on the disk.
func (s *supervisor) stop(ctx context.Context, id string) error {
	p := s.find(id)
	if p == nil {
		return nil
	}
	ended, err := p.recordStop()
	if ended == nil || err != nil {
		return err
	}
	select {
	case <-ended:
	case <-ctx.Done():
		return errLeaving
	}
	// When the supervisor shuts down, the run loop returns although its process still runs.
	if ctx.Err() != nil {
		return errLeaving
	}
	return p.confirm()
}

// confirm writes the stop to the disk if it is not there. Usually the run loop writes it. But if the process had ended
// by itself, the run loop has ended too.
func (p *process) confirm() error {
	p.op.Lock()
	defer p.op.Unlock()
	p.mu.Lock()
	missing := p.rec.Desired == wantStop && p.unsaved != nil && !p.removed
	p.mu.Unlock()
	if !missing {
		return nil
	}
	return p.commit(runtime.Stopped, "", func(*record) {})
}

// recordStop writes to the disk that the process must stop, and wakes the run loop. If the write fails, the run loop
// stops the process nevertheless, and returns only after it has written the stop. ended is closed then.
func (p *process) recordStop() (ended <-chan struct{}, err error) {
	p.op.Lock()
	defer p.op.Unlock()
	switch {
	case p.broken != nil:
		return nil, fmt.Errorf("%w; %s", p.broken, byHand)
	case p.removed, !p.known():
		return nil, nil
	case p.current().Desired == wantStop:
		return p.ended, nil
	}
	stop := func(r *record) { r.Desired = wantStop }
	if closed(p.ended) { // the process ended by itself, so no run loop is left that could write the stop
		return p.ended, p.commit(runtime.Stopping, "", stop)
	}
	p.note(runtime.Stopping, "", stop)
	p.recall()
	return p.ended, nil
}

const lookAtWrite = 10 * time.Millisecond

// ping waits for all writes to the disk that were under way when it was called, because a supervisor whose disk hangs
// still answers requests, but cannot start or stop any process.
func (s *supervisor) ping(ctx context.Context) error {
	for _, p := range s.all() {
		// TryLock, because Lock would still wait for a hanging disk after the client has given up
		for !p.write.TryLock() {
			if wait.Pause(ctx, lookAtWrite) != nil {
				return errLeaving
			}
		}
		p.write.Unlock()
	}
	return nil
}

// remove forgets a stopped or exited process.
func (s *supervisor) remove(ctx context.Context, id string) error {
	p := s.find(id)
	if p == nil {
		return nil
	}
	p.op.Lock()
	defer p.op.Unlock()
	switch {
	case p.broken != nil:
		return fmt.Errorf("%w; %s", p.broken, byHand)
	case p.removed:
		return nil
	case p.known():
		if now := p.current(); now.Done && now.Desired == wantRun {
			<-p.ended // returns soon, because the run loop has nothing left to do
		} else if now.Desired != wantStop || !closed(p.ended) {
			return fmt.Errorf("remove %s: %w", id, runtime.ErrNotStopped)
		}
		p.abandon(ctx)
		if ctx.Err() != nil {
			return errLeaving
		}
		p.write.Lock()
		err := s.records.Forget(id)
		p.write.Unlock()
		if err != nil {
			return err
		}
	}
	p.removed = true
	s.forget(id)
	return nil
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
