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

// clearWait bounds how long the removal of a cgroup waits for what was killed in it, and clearGap is between two looks.
const (
	clearWait = time.Second
	clearGap  = 2 * time.Millisecond
)

// onceGroup is the part of the node's cgroup that programs are in which run once.
const onceGroup = "hooks"

// RunOnce implements runtime.Runtime. The supervisor has no part in it: the program ends with this process.
func (c *Client) RunOnce(ctx context.Context, run runtime.Once, streams runtime.Streams) (runtime.Exit, error) {
	confined := c.confine(run.Isolation, filepath.Join(onceGroup, run.Name))
	if confined != nil && confined.Cgroup != "" {
		defer clearCgroup(confined.Cgroup)
	}
	return oneshot.Run(ctx, oneshot.Command{Argv: run.Command, Env: run.Env, Dir: run.Dir, Isolation: confined, Streams: streams})
}

// clearCgroup ends what a guard that was killed has left, and removes the cgroup. One that stays costs next to nothing, and the next run of
// the program has it again.
func clearCgroup(dir string) {
	_ = isolate.Kill(dir)
	for deadline := time.Now().Add(clearWait); isolate.Remove(dir) != nil && time.Now().Before(deadline); {
		<-time.After(clearGap)
	}
	isolate.Prune(filepath.Dir(dir))
}

// Exec implements runtime.Runtime. An error to test for besides: ErrUnreachable.
func (c *Client) Exec(ctx context.Context, id string, command []string, streams runtime.Streams) (runtime.Exit, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lock, ended, err := c.commands.begin(id)
	if err != nil {
		return runtime.Exit{}, fmt.Errorf("run a command beside %s: %w", id, err)
	}
	defer func() { _ = lock.Close() }() // it is closed already where the command was started
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
	return oneshot.Run(ctx, oneshot.Command{
		Argv: command, Env: spec.Env, Dir: spec.Dir, Isolation: spec.Isolation, Streams: streams, LockFile: lock,
	})
}

// specOf returns what a process was started from. Whoever was told of the process needs no supervisor for that.
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

// beside returns what a process was started from, false when no command may run beside it.
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

// Bound says what all processes in the node's cgroup may take together: thousandths of a core and bytes; zero: not bounded. It ends
// there what an earlier client has left of programs that ran once. Their guards end them too; this is for what a guard cannot.
func (c *Client) Bound(cpu, memory int64) error {
	if c.cfg.Cgroup == "" {
		return nil
	}
	if err := confine.Cap(c.cfg.Cgroup, cpu, memory); err != nil {
		return err
	}
	left := filepath.Join(c.cfg.Cgroup, onceGroup)
	_ = errors.Join(isolate.Kill(left), isolate.Remove(left)) // what is still in there goes with the next
	return nil
}
