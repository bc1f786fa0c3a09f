package runit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/runtime/logfile"
)

// upkeep is the time between two looks at whether everything is served as it should be.
const upkeep = 2 * time.Second

// runsvdir's own log is rotated at this many bytes, with so many files kept.
const (
	ownLogBytes = 8 << 20
	ownLogKeep  = 2
)

// fillReserve is the time between two looks at what is set aside for records.
const fillReserve = 10 * time.Second

// keepReserve keeps room for records set aside until ctx ends, so that on a full disk processes are still stopped, and started
// again. Stubs take from it too. What it cannot do it says once.
func (r *Runtime) keepReserve(ctx context.Context) {
	told := false
	for ctx.Err() == nil {
		_, err := r.dir.reserve().Fill()
		if err != nil && !told {
			r.cfg.Log("no room for records can be set aside", map[string]any{"error": err})
		}
		told = err != nil
		timer := time.NewTimer(fillReserve)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// tend looks after the directory until ctx ends.
func (r *Runtime) tend(ctx context.Context) {
	look := time.NewTicker(upkeep)
	defer look.Stop()
	logs := time.NewTicker(r.cfg.LogCheck)
	defer logs.Stop()
	for {
		r.maintain(ctx)
		for due := false; !due; {
			select {
			case <-logs.C:
				r.rotateLogs(ctx)
			case <-look.C:
				due = true
			case <-ctx.Done():
				return
			}
		}
	}
}

func (r *Runtime) rotateLogs(ctx context.Context) {
	if err := logfile.Rotate(r.dir.path(keeperLog), ownLogBytes, ownLogKeep); err != nil {
		r.cfg.Log("log not rotated", map[string]any{"error": err})
	}
	for _, spec := range r.view.specs() {
		if spec.LogBytes == 0 || ctx.Err() != nil {
			continue
		}
		if err := logfile.Rotate(spec.LogPath, spec.LogBytes, spec.LogKeep); err != nil {
			r.cfg.Log("log not rotated", map[string]any{"process": spec.ID, "error": err})
		}
	}
}

// maintain makes the directory serve what the records say.
func (r *Runtime) maintain(ctx context.Context) {
	err := errors.Join(r.supervise(ctx), r.dir.sweep(), r.refresh())
	for id, rec := range r.view.records() {
		if ctx.Err() != nil {
			return
		}
		if e := r.maintainOne(ctx, r.dir.service(id), rec); e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", id, e))
		}
	}
	if err != nil && ctx.Err() == nil {
		r.cfg.Log("runit directory not maintained", map[string]any{"error": err})
	}
}

// holdAfterBoot stops what is not to run by itself after a restart of the machine, before anything serves it.
func (r *Runtime) holdAfterBoot(ctx context.Context) error {
	services, err := r.dir.services()
	if err != nil {
		return err
	}
	for _, s := range services {
		if rec, err := s.load(); err != nil || !rec.hold(r.boot) {
			continue // one that cannot be read is listed as such
		}
		if err := r.holdOne(ctx, s); err != nil {
			return fmt.Errorf("hold %s: %w", s.id(), err)
		}
	}
	return nil
}

func (r *Runtime) holdOne(ctx context.Context, s service) error {
	lock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer lock.release()
	rec, err := s.load()
	if err != nil || !rec.hold(r.boot) {
		return err
	}
	return errors.Join(s.save(rec), s.rest())
}

func (r *Runtime) maintainOne(ctx context.Context, s service, rec record) error {
	if rec.Removed {
		return r.dir.remove(ctx, s)
	}
	if rec.Desired == wantStop && rec.PID != 0 {
		r.endLater(s)
	}
	if !s.served() {
		return r.serve(ctx, s)
	}
	if up, wanted := s.status(); !up && !wanted && !rec.resting() {
		return r.raise(s)
	}
	return nil
}

// raise starts a service that its runsv leaves down although it is to run. A busy service is looked at next time.
func (r *Runtime) raise(s service) error {
	lock, err := s.tryLock()
	if lock == nil {
		return err
	}
	defer lock.release()
	if rec, err := s.load(); err != nil || rec.resting() {
		return err
	}
	return s.wake()
}

// endIn ends a process whose record says so, once for all that ask.
func (r *Runtime) endIn(ctx context.Context, s service) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if done, ok := r.ending[s.id()]; ok {
		return done
	}
	done := make(chan struct{})
	if ctx.Err() != nil {
		close(done)
		return done
	}
	r.ending[s.id()] = done
	r.workers.Go(func() {
		err := r.end(ctx, s)
		r.mu.Lock()
		delete(r.ending, s.id())
		r.mu.Unlock()
		close(done)
		r.view.poke()
		if err != nil && ctx.Err() == nil {
			r.cfg.Log("process not stopped", map[string]any{"process": s.id(), "error": err})
		}
	})
	return done
}

// end asks the whole session to end, kills it after the grace, and returns when the record says that nothing of it runs.
func (r *Runtime) end(ctx context.Context, s service) error {
	rec, err := r.read(ctx, s)
	if err != nil || rec.PID == 0 || rec.Desired != wantStop {
		return err
	}
	p, err := rec.find(r.boot)
	if err != nil {
		return err
	}
	defer p.Close()
	report := func(err error) {
		r.cfg.Log("signal not sent", map[string]any{"process": s.id(), "error": err})
	}
	ask, _ := rec.Spec.Signal() // Validate has seen it
	// SIGCONT, because a stopped process would sleep through the request and then be killed without a chance.
	for _, sig := range []unix.Signal{ask, unix.SIGCONT} {
		if _, err := p.Signal(&r.scanner, sig); err != nil {
			report(err)
		}
	}
	grace, cancel := context.WithTimeout(ctx, rec.grace(time.Now()))
	defer cancel()
	if p.Wait(grace) != nil || !empty(grace, p, &r.scanner, 0, nil) {
		empty(ctx, p, &r.scanner, unix.SIGKILL, report)
	}
	for look := firstLook; ctx.Err() == nil; look = min(2*look, lastLook) {
		if done, err := r.settle(ctx, s, rec.run); done || err != nil {
			return err
		}
		timer := time.NewTimer(look)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
	return ctx.Err()
}

func (r *Runtime) read(ctx context.Context, s service) (record, error) {
	lock, err := s.lock(ctx)
	if errors.Is(err, errGone) {
		return record{}, nil
	}
	if err != nil {
		return record{}, err
	}
	defer lock.release()
	return s.load()
}

// settle notes that nothing of a stopped run is left. It waits for the stub of finish to say how it ended, unless that
// will not come.
func (r *Runtime) settle(ctx context.Context, s service, was run) (done bool, err error) {
	quiet := s.quiet() // before the record: what finish writes is written before runsv says that it has ended
	lock, err := s.lock(ctx)
	if errors.Is(err, errGone) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer lock.release()
	rec, err := s.load()
	switch {
	case err != nil:
		return false, err
	case rec.run != was:
	case rec.Ended:
		rec.settle(*rec.LastExit, rec.uptime(r.boot))
		err = s.save(rec)
	case quiet:
		rec.settle(unknownExit(rec.Spec.Name, time.Now()), rec.uptime(r.boot))
		err = s.save(rec)
	default:
		return false, nil
	}
	if err == nil && rec.resting() {
		err = errors.Join(removeCgroup(rec.Spec), s.rest())
	}
	return true, err
}
