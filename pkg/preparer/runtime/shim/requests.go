package shim

import (
	"context"
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// byHand is what to do about a process whose state cannot be read: it may run, and nothing is known that could end it.
const byHand = "make sure that nothing of it runs, remove its state file and end the supervisor with SIGTERM: another one is started"

// slot returns the process of an id, a new one without a record if there is none.
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

// find returns the process of an id, nil if there is none.
func (s *supervisor) find(id string) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.procs[id]
}

// start accepts a process; its run loop starts it. One that is just being stopped is started again after that.
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

// accept records the spec and starts the run loop. A channel that comes back says when to try again.
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
	err = p.commit(runtime.Starting, "", func(r *record) { *r = record{Spec: spec, Desired: wantRun, Boot: p.sup.boot, LastExit: r.LastExit} })
	if err != nil {
		return nil, err
	}
	p.trustAnew()
	p.begin(nil)
	return nil, nil
}

// stop returns nil when nothing of the process runs and nothing will start it.
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
	// A run loop also returns, with the process running, when the supervisor leaves.
	if ctx.Err() != nil {
		return errLeaving
	}
	return p.confirm()
}

// confirm returns nil if the stop of a process of which nothing runs is on the disk. It writes what is not: a run loop
// that ended because the process was done has not seen the stop.
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

// recordStop writes the request to stop to the disk before anything is done about it. A disk that does not take it keeps
// nothing running: the run loop records the stop later, and returns after that. The channel that comes back is closed
// when the run loop has returned.
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
	if closed(p.ended) { // it ended by itself, and no run loop is left that could record more
		return p.ended, p.commit(runtime.Stopping, "", stop)
	}
	p.note(runtime.Stopping, "", stop)
	p.recall()
	return p.ended, nil
}

// lookAtWrite is the pause between two looks at a write that is under way.
const lookAtWrite = 10 * time.Millisecond

// ping returns nil once no write to the disk is under way that was when it was called. A supervisor whose disk hangs
// can neither start nor stop anything, although it answers.
func (s *supervisor) ping(ctx context.Context) error {
	for _, p := range s.all() {
		for !p.write.TryLock() { // not Lock, which would wait for a disk that hangs after the client has left
			if wait.Pause(ctx, lookAtWrite) != nil {
				return errLeaving
			}
		}
		p.write.Unlock()
	}
	return nil
}

// remove forgets a stopped or exited process.
func (s *supervisor) remove(id string) error {
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
			<-p.ended // the run loop has nothing left to do
		} else if now.Desired != wantStop || !closed(p.ended) {
			return fmt.Errorf("remove %s: %w", id, runtime.ErrNotStopped)
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
