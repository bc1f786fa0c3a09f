package preparer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/oneshot"
)

// commandsDir holds a file for each identity that a command was run in. Whatever runs such a command holds a shared lock on it
// until nothing of the command is left. The kernel keeps that: a preparer that was killed cannot forget what it had started.
const commandsDir = "commands"

// commandsWait bounds how long a stop waits for commands that were told to end, before it says so and tries again.
const commandsWait = 10 * time.Second

var errStopping = errors.New("the pod is stopping")

// commands are those that run beside a pod's processes. Preparer.mu guards them.
type commands struct {
	ending  bool                       // none may begin
	running map[int]context.CancelFunc // by the order in which they began
	next    int
}

// RunIn has a command run as one of the pod's running processes is: with its environment, directory and isolation. An empty
// name means the first of them. A program without a slash is looked for along the process's PATH, one with a relative path in its
// directory. The context that run is given ends with ctx, and when the pod's processes are to stop; no stop is confirmed before
// nothing of the command is left. An error means that run was not called.
func (p *Preparer) RunIn(ctx context.Context, id pod.Identity, process string, argv []string, run func(context.Context, oneshot.Command)) error {
	spec, err := p.processOf(id, process)
	if err != nil {
		return err
	}
	command, err := commandLike(&spec, argv)
	if err != nil {
		return err
	}
	if command.Hold, err = p.holdCommands(id); err != nil {
		return fmt.Errorf("pod %s: %w", id, err)
	}
	defer func() { _ = command.Hold.Close() }() // it is closed already where the command was started
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	over, err := p.beginCommand(id, cancel)
	if err != nil {
		return fmt.Errorf("pod %s: %w", id, err)
	}
	defer over()
	run(ctx, command)
	return nil
}

// processOf returns the specification of one of the pod's running processes.
func (p *Preparer) processOf(id pod.Identity, process string) (runtime.Spec, error) {
	p.mu.Lock()
	var procs []runtime.Status
	if e := p.pods[id]; e != nil {
		procs = e.procs
	}
	p.mu.Unlock()
	var running []string
	for i := range procs {
		if procs[i].Phase != runtime.Running {
			continue
		}
		if spec := procs[i].Spec; process == "" || spec.Name == process {
			return spec, nil
		}
		running = append(running, procs[i].Spec.Name)
	}
	if len(running) == 0 {
		return runtime.Spec{}, fmt.Errorf("pod %s has no process that runs on this node", id)
	}
	return runtime.Spec{}, fmt.Errorf("process: %q is not valid; allowed: %s", process, strings.Join(running, ", "))
}

// beginCommand notes a command, unless the pod is to stop.
func (p *Preparer) beginCommand(id pod.Identity, cancel context.CancelFunc) (over func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.pods[id]
	if e == nil || e.commands.ending || e.local().Stop {
		return nil, errStopping
	}
	c := &e.commands
	if c.running == nil {
		c.running = map[int]context.CancelFunc{}
	}
	c.next++
	n := c.next
	c.running[n] = cancel
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(c.running, n)
	}, nil
}

// endCommands tells all commands of a pod to end, and keeps others from beginning until reopen is called.
func (p *Preparer) endCommands(e *entry) (reopen func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.commands.ending = true
	for _, cancel := range e.commands.running {
		cancel()
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		e.commands.ending = false
	}
}

func (p *Preparer) commandsPath(id pod.Identity) string {
	return filepath.Join(p.cfg.Dir, commandsDir, fileName(id))
}

// holdCommands takes the shared lock that a command is to hold.
func (p *Preparer) holdCommands(id pod.Identity) (*os.File, error) {
	path := p.commandsPath(id)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("note that a command runs: %w", err)
	}
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("note that a command runs: %w", err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		if err == nil && sameFile(f, path) {
			return f, nil
		}
		_ = f.Close()
		switch {
		case errors.Is(err, unix.EWOULDBLOCK):
			return nil, errStopping
		case err != nil:
			return nil, fmt.Errorf("note that a command runs: %w", err)
		}
	}
}

// sameFile reports whether an open file still has its name.
func sameFile(f *os.File, path string) bool {
	now, err := os.Lstat(path)
	if err != nil {
		return false
	}
	info, err := f.Stat()
	return err == nil && os.SameFile(now, info)
}

// awaitCommands returns nil when nothing of any command in the pod is left.
func (p *Preparer) awaitCommands(ctx context.Context, id pod.Identity) error {
	f, err := os.OpenFile(p.commandsPath(id), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // there never was one
	}
	if err != nil {
		return fmt.Errorf("find out whether commands run in the pod: %w", err)
	}
	defer func() { _ = f.Close() }()
	const firstLook, lastLook = 2 * time.Millisecond, 200 * time.Millisecond
	deadline := time.Now().Add(commandsWait)
	for look := firstLook; ; look = min(2*look, lastLook) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("find out whether commands run in the pod: %w", err)
		case time.Now().After(deadline):
			return fmt.Errorf("a command that was run in the pod is not dead yet %s after it was killed", commandsWait)
		}
		if err := loop.Pause(ctx, look); err != nil {
			return err
		}
	}
}
