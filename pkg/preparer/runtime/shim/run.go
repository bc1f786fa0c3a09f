package shim

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/oneshot"
)

// How long, and in which steps, the removal of a cgroup waits for the killed processes in it.
const (
	clearWait = time.Second
	clearGap  = 2 * time.Millisecond
)

// onceGroup is the cgroup for programs that run once, below the node's cgroup.
const onceGroup = "hooks"

// RunOnce does not use the supervisor, because the program must end with this process.
func (c *Client) RunOnce(ctx context.Context, run runtime.Once, streams runtime.Streams) (runtime.Exit, error) {
	confined := c.confine(run.Isolation, filepath.Join(onceGroup, run.Name))
	if confined != nil && confined.Cgroup != "" {
		defer clearCgroup(confined.Cgroup)
	}
	return oneshot.Run(ctx,
		oneshot.Command{Argv: run.Command, Env: run.Env, Dir: run.Dir, Isolation: confined, Streams: streams})
}

// clearCgroup kills the processes that are left in a cgroup if their guard was killed, and removes the cgroup. If the
// removal fails, the next run of the program uses the cgroup again.
func clearCgroup(dir string) {
	_ = isolate.Kill(dir)
	for deadline := time.Now().Add(clearWait); isolate.Remove(dir) != nil && time.Now().Before(deadline); {
		<-time.After(clearGap)
	}
	isolate.Prune(filepath.Dir(dir))
}

// Exec can also return ErrUnreachable.
func (c *Client) Exec(ctx context.Context, id string, command []string, streams runtime.Streams) (runtime.Exit, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lock, ended, err := c.commands.begin(id)
	if err != nil {
		return runtime.Exit{}, fmt.Errorf("run a command beside %s: %w", id, err)
	}
	defer func() { _ = lock.Close() }() // if the command was started, Run has closed it already
	go func() {
		select {
		case <-ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	spec, err := c.specOf(ctx, id)
	if err != nil {
		return runtime.Exit{}, fmt.Errorf("run a command beside %s: %w", id, err)
	}
	if spec.Container != nil {
		return runtime.Exit{}, fmt.Errorf("run a command beside %s: %w: it is a container", id, runtime.ErrNotStarted)
	}
	return oneshot.Run(ctx, oneshot.Command{
		Argv: command, Env: spec.Env, Dir: spec.Dir, Isolation: spec.Isolation, Streams: streams, LockFile: lock,
	})
}

// specOf asks the supervisor if the latest snapshot does not have the process.
func (c *Client) specOf(ctx context.Context, id string) (localSpec, error) {
	if seen := c.seen.Load(); seen != nil {
		if spec, ok := seen.beside(id); ok {
			return spec, nil
		}
	}
	now, err := c.poll(ctx, 0)
	if err != nil {
		return localSpec{}, err
	}
	if spec, ok := now.beside(id); ok {
		return spec, nil
	}
	return localSpec{}, runtime.ErrNotRunning
}

// If no command may run beside the process, beside returns false.
func (s *snapshot) beside(id string) (localSpec, bool) {
	at, found := search(s.Processes, id)
	if !found {
		return localSpec{}, false
	}
	switch st := s.Processes[at]; st.Phase {
	case runtime.Unknown, runtime.Stopping, runtime.Stopped:
		return localSpec{}, false
	default:
		return st.Spec, true
	}
}

// Bound limits how much CPU, in thousandths of a core, and memory, in bytes, all processes in the node's cgroup use
// together; zero: no bound. It also kills programs of RunOnce that an earlier client left in this cgroup because their
// guards were killed.
func (c *Client) Bound(cpu, memory int64) error {
	if c.cfg.Cgroup == "" {
		return nil
	}
	if err := confine.Cap(c.cfg.Cgroup, cpu, memory); err != nil {
		return err
	}
	left := filepath.Join(c.cfg.Cgroup, onceGroup)
	_ = errors.Join(isolate.Kill(left), isolate.Remove(left)) // if some are left, the next call removes them
	return nil
}
