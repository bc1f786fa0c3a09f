package preparer

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/supervise"
	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/oneshot"
)

// commandsDir holds a file for each identity that a command was run in. Whatever runs such a command holds a shared lock on it
// until nothing of the command is left. The kernel keeps that: a preparer that was killed cannot forget what it had started.
const commandsDir = "commands"

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
	if command.Hold, err = supervise.HoldCommands(commandsPath(p.cfg.Dir, id)); err != nil {
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
	var procs []runtime.Status
	p.pods.do(func() {
		if e := p.pods.all[id]; e != nil {
			procs = e.procs
		}
	})
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

// beginCommand notes a command, unless the pod is to stop. A stop that is accepted after that waits for what the command holds.
func (p *Preparer) beginCommand(id pod.Identity, cancel context.CancelFunc) (over func(), err error) {
	err = supervise.ErrStopping
	p.pods.do(func() {
		if e := p.pods.all[id]; e != nil && e.accepted().Intent.State != pod.Stopped {
			over, err = e.commands.Begin(cancel)
		}
	})
	return over, err
}

func commandsPath(dir string, id pod.Identity) string {
	return filepath.Join(dir, commandsDir, install.FileName(id))
}
