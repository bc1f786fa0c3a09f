// Package runit is the runtime for nodes whose operators know runit: the processes of pods are services under one
// runsvdir of the node's own, seen and served with the usual tools, such as `sv status <dir>/sv/<id>`.
//
// Each process has a service directory, sv/<id>, which holds one record, the only state that decides. A runsv serves
// it. Its run and finish scripts start a stub of our own binary (ExecStub). The stub of run waits for the restart's
// time to come, records its pid and becomes the program; the stub of finish ends what the program left behind and
// records how it ended. Whoever changes a record holds the directory's lock, and a program is only ever started under
// that lock, with a record that wants it to run. So any of these processes, and the preparer, may be killed at any
// instant. A program whose runsv was killed runs on: the stub of the next runsv finds it and waits for its end.
//
// A service is linked into the scanned directory, service/, only while no runsv serves it: one whose runsvdir was
// killed goes on, and the next runsvdir would try to start another every second.
//
// runsvdir looks for new services every five seconds, and runsv waits a second before it starts a service again.
package runit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/proc"
)

// ErrMissing is returned by Open when runit's programs are not installed.
var ErrMissing = errors.New("runit is not installed")

// Defaults of Config.
const (
	DefaultRestartDelay    = 100 * time.Millisecond
	DefaultMaxRestartDelay = 30 * time.Second
	DefaultStableAfter     = 10 * time.Second
	DefaultLogCheck        = time.Second
)

// Config is what Open needs. Zero values mean the defaults above.
type Config struct {
	Dir string   // absolute; belongs to the runtime
	Exe string   // the program that calls ExecStub; empty: this one
	Env []string // of runsvdir besides PATH; stubs see it, programs do not

	RestartDelay    time.Duration // between the end of a process and its first restart; doubles with each short run
	MaxRestartDelay time.Duration // bound of that doubling
	StableAfter     time.Duration // a run of this length makes the delay start over
	LogCheck        time.Duration // between two looks at the sizes of all log files

	Log func(msg string, fields map[string]any) // nil: nothing is logged
}

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.RestartDelay, DefaultRestartDelay},
		{&c.MaxRestartDelay, DefaultMaxRestartDelay},
		{&c.StableAfter, DefaultStableAfter},
		{&c.LogCheck, DefaultLogCheck},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.Log == nil {
		c.Log = func(string, map[string]any) {}
	}
	return c
}

// Runtime is the preparer's end. It is safe for concurrent use.
type Runtime struct {
	cfg     Config
	dir     layout
	boot    string
	scanner proc.Scanner

	stop    context.CancelFunc
	workers sync.WaitGroup
	// endLater ends a process whose record wants it, on the runtime's own time; closed when that is done or given up.
	endLater func(s service) <-chan struct{}

	view     view
	notifier *notifier // nil: none could be had

	spawning sync.Mutex // held while runsvdir is started, so that concurrent calls start one

	mu     sync.Mutex
	ending map[string]chan struct{} // by id: those that a goroutine ends
}

var _ runtime.Runtime = (*Runtime)(nil)

// Open takes over what the directory holds, starts runsvdir if it does not run, and looks after both until Close. It
// returns ErrMissing if runit's programs are not on PATH.
func Open(cfg Config) (*Runtime, error) {
	cfg = cfg.withDefaults()
	if !filepath.IsAbs(cfg.Dir) {
		return nil, fmt.Errorf("runit directory %q: not valid; allowed: an absolute path", cfg.Dir)
	}
	for _, name := range []string{"runsvdir", "runsv"} {
		if _, err := exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("%w: no %s on PATH; install Debian's package runit, or choose another runtime", ErrMissing, name)
		}
	}
	boot, err := proc.BootID()
	if err != nil {
		return nil, err
	}
	if cfg.Exe == "" {
		if cfg.Exe, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
	}
	r := &Runtime{cfg: cfg, dir: layout(cfg.Dir), boot: boot, ending: map[string]chan struct{}{}}
	r.view.init()
	if err := r.dir.make(cfg.Exe); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	if err := r.holdAfterBoot(ctx); err != nil {
		cancel()
		return nil, err
	}
	if err := r.supervise(ctx); err != nil {
		cancel()
		return nil, err
	}
	r.endLater = func(s service) <-chan struct{} { return r.endIn(ctx, s) }
	if r.notifier, err = newNotifier(r.dir.path(servicesName)); err != nil {
		cfg.Log("changes are not notified, but looked for", map[string]any{"error": err})
	} else {
		r.view.notified = true
		r.workers.Go(func() { r.notifier.run(ctx, shortGap, r.view.poke) })
	}
	r.workers.Go(func() { r.tend(ctx) })
	r.workers.Go(func() { r.keepReserve(ctx) })
	return r, nil
}

// Close stops looking after the directory. Everything in it runs on.
func (r *Runtime) Close() {
	r.stop()
	r.workers.Wait()
	r.view.close()
}

// Start implements runtime.Runtime. Errors to test for: runtime.ErrExists, runtime.ErrInvalid. The process runs as
// soon as runsvdir has seen it.
func (r *Runtime) Start(ctx context.Context, spec runtime.Spec) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	s := r.dir.service(spec.ID)
	for {
		retry, err := r.accept(ctx, s, spec)
		if errors.Is(err, errGone) && ctx.Err() == nil {
			continue // it has just been made or removed
		}
		if retry == nil {
			if err == nil {
				err = errors.Join(r.supervise(ctx), r.serve(ctx, s))
			}
			return err
		}
		select {
		case <-retry:
		case <-ctx.Done():
			return fmt.Errorf("start %s: %w", spec.ID, ctx.Err())
		}
	}
}

// accept records the spec. A channel that comes back says when to try again.
func (r *Runtime) accept(ctx context.Context, s service, spec runtime.Spec) (retry <-chan struct{}, err error) {
	defer r.view.poke()
	fresh := record{Spec: spec, Desired: wantRun, BootID: r.boot, Pace: pace{Min: r.cfg.RestartDelay, Max: r.cfg.MaxRestartDelay, Stable: r.cfg.StableAfter}}
	if !s.exists() {
		return nil, r.dir.build(s, fresh)
	}
	lock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer lock.release()
	rec, err := s.load()
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w; %s", err, s.byHand())
	case rec.Removed:
		lock.release()
		return nil, errors.Join(r.dir.remove(ctx, s), errGone)
	case !rec.Spec.Same(spec):
		return nil, fmt.Errorf("start %s: %w", spec.ID, runtime.ErrExists)
	case rec.Desired == wantRun:
		return nil, nil
	case rec.PID != 0:
		return r.endLater(s), nil
	}
	fresh.LastExit = rec.LastExit
	if err := s.save(fresh); err != nil {
		return nil, err
	}
	return nil, s.wake()
}

// Stop implements runtime.Runtime.
func (r *Runtime) Stop(ctx context.Context, id string) error {
	s := r.dir.service(id)
	running, err := r.recordStop(ctx, s)
	for running && err == nil {
		select {
		case <-r.endLater(s):
			running, err = r.stopping(ctx, s)
		case <-ctx.Done():
			return fmt.Errorf("stop %s: %w", id, ctx.Err())
		}
	}
	if errors.Is(err, errGone) {
		return nil
	}
	return err
}

// stopping reports whether a stop is not done yet. A Start that came after it counts as done: it waits for that.
func (r *Runtime) stopping(ctx context.Context, s service) (bool, error) {
	rec, err := r.read(ctx, s)
	return rec.Desired == wantStop && rec.PID != 0, err
}

// recordStop makes the wish durable before anything is done about it, and reports whether anything must be.
func (r *Runtime) recordStop(ctx context.Context, s service) (running bool, err error) {
	defer r.view.poke()
	lock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer lock.release()
	rec, err := s.load()
	if err != nil {
		return false, fmt.Errorf("%w; %s", err, s.byHand())
	}
	if rec.Desired != wantStop {
		rec.Desired, rec.StopBy = wantStop, time.Now().Add(rec.Spec.StopGrace)
		if err := s.save(rec); err != nil {
			return false, err
		}
	}
	if rec.PID == 0 {
		return false, s.rest()
	}
	return true, s.putDown()
}

// Remove implements runtime.Runtime. An error to test for: runtime.ErrNotStopped.
func (r *Runtime) Remove(ctx context.Context, id string) error {
	s := r.dir.service(id)
	err := r.recordRemoval(ctx, s)
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return err
	}
	return r.dir.remove(ctx, s)
}

// recordRemoval makes the wish durable. The lock must not be held when runsv is asked to end: a stub may want it.
func (r *Runtime) recordRemoval(ctx context.Context, s service) error {
	defer r.view.poke()
	lock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer lock.release()
	rec, err := s.load()
	if err != nil {
		return fmt.Errorf("%w; %s", err, s.byHand())
	}
	if rec.PID != 0 || !rec.resting() {
		return fmt.Errorf("remove %s: %w", s.id(), runtime.ErrNotStopped)
	}
	rec.Desired, rec.Removed = wantStop, true
	return errors.Join(s.save(rec), s.rest())
}

// Watch implements runtime.Runtime. When ctx ends it returns its error and the cursor that it was given.
func (r *Runtime) Watch(ctx context.Context, cursor uint64) ([]runtime.Status, uint64, error) {
	for {
		wake := r.view.changed()
		if err := r.refresh(); err != nil {
			return nil, cursor, err
		}
		if list, now := r.view.list(); now != cursor {
			return list, now, nil
		}
		timer := time.NewTimer(r.view.gap())
		select {
		case <-timer.C:
		case <-wake:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil, cursor, ctx.Err()
		}
	}
}
