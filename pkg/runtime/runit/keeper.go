package runit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/rcfarm/rcfarm/pkg/durable"
	"github.com/rcfarm/rcfarm/pkg/runtime/proc"
)

// spawnTimeout bounds how long starting runsvdir may take on a loaded machine.
const spawnTimeout = 10 * time.Second

func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrMissing, err)
	}
	return path, nil
}

func writeKeeper(l layout, data []byte) error {
	if err := durable.WriteFile(l.path(keeperName), data); err != nil {
		return fmt.Errorf("write which runsvdir runs: %w", err)
	}
	return nil
}

// takeLock is the lock of whoever starts a runsvdir.
func (l layout) takeLock(ctx context.Context) (*held, error) { return service(l).lock(ctx) }

// kept reports whether a runsvdir runs.
func (l layout) kept() (bool, error) {
	p, err := l.keeperProcess()
	if err != nil {
		return false, err
	}
	defer p.Close()
	return !p.Exited(), nil
}

// keeperProcess opens the runsvdir that was last started here.
func (l layout) keeperProcess() (*proc.Process, error) {
	k, err := l.keeper()
	if err != nil {
		return nil, err
	}
	boot, err := proc.BootID()
	if err != nil {
		return nil, err
	}
	return k.find(boot)
}

// unlinkServed takes away what a new runsvdir must not look at: services with a runsv that an earlier one started, and
// links that lead nowhere.
func (l layout) unlinkServed() error {
	entries, err := os.ReadDir(l.path(scannedName))
	if err != nil {
		return fmt.Errorf("read scanned directory: %w", err)
	}
	for _, e := range entries {
		s := l.service(e.Name())
		if s.exists() && !s.served() {
			continue
		}
		if err := os.Remove(filepath.Join(l.path(scannedName), e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("take service from runsvdir: %w", err)
		}
	}
	return nil
}

// supervise makes sure that a runsvdir runs.
func (r *Runtime) supervise(ctx context.Context) error {
	runs, err := r.dir.kept()
	if err != nil || runs {
		return err
	}
	r.spawning.Lock()
	defer r.spawning.Unlock()
	if runs, err := r.dir.kept(); err != nil || runs {
		return err
	}
	if err := r.spawn(ctx); err != nil {
		return fmt.Errorf("start runsvdir: %w; see %s", err, r.dir.path(keeperLog))
	}
	r.cfg.Log("runsvdir started", map[string]any{})
	r.view.bump() // whoever watches is told that somebody else is at work now
	return nil
}

// spawn starts a runsvdir that outlives the caller and returns when it runs.
func (r *Runtime) spawn(ctx context.Context) error {
	log, err := os.OpenFile(r.dir.path(keeperLog), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	ctx, cancel := context.WithTimeout(ctx, spawnTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.dir.path(stubName), StubArg, detachMode, string(r.dir))
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, r.cfg.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return err
	}
	for look := firstLook; ; look = min(2*look, lastLook) {
		if runs, err := r.dir.kept(); err != nil || runs {
			return err
		}
		timer := time.NewTimer(look)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// serve hands the service to runsvdir unless a runsv serves it, or it is being removed.
func (r *Runtime) serve(ctx context.Context, s service) error {
	lock, err := s.lock(ctx)
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.release()
	if rec, err := s.load(); err != nil || rec.Removed {
		return err
	}
	return r.dir.serve(s)
}
