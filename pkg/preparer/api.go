package preparer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/oneshot"
	"github.com/rcfarm/rcfarm/pkg/preparer/supervise"
)

const logSuffix = ".log"

// LogFiles returns the log file of every process that a pod has or had on this node, by the process's name, and whether
// anything may still be written to them. The names of logs that are the node's own begin with an underscore.
func (p *Preparer) LogFiles(id pod.Identity) (files map[string]string, more bool) {
	var procs []runtime.Status
	known := false
	p.pods.do(func() {
		var e *entry
		if e, known = p.pods.all[id]; known {
			procs = e.procs
			more = e.rec.StoppedAt == nil || len(procs) > 0 || e.want != nil
		}
	})
	if !known {
		return nil, false // nothing but what is known here becomes a path
	}
	files = map[string]string{}
	entries, _ := os.ReadDir(p.node.Logs(id)) // it may not be there yet
	for _, entry := range entries {
		if name, isLog := strings.CutSuffix(entry.Name(), logSuffix); isLog {
			files[name] = filepath.Join(p.node.Logs(id), entry.Name())
		}
	}
	for i := range procs {
		if procs[i].Phase == runtime.Unknown {
			continue
		}
		files[procs[i].Spec.Name] = procs[i].Spec.LogPath
	}
	return files, more
}

var errNoProgram = errors.New("there is no such program")

func commandLike(spec *runtime.Spec, argv []string) (oneshot.Command, error) {
	program, err := lookPath(argv[0], spec)
	if err != nil {
		return oneshot.Command{}, err
	}
	argv = slices.Clone(argv)
	argv[0] = program
	return oneshot.Command{Argv: argv, Env: spec.Env, Dir: spec.Dir, Isolation: spec.Isolation}, nil
}

func lookPath(name string, spec *runtime.Spec) (string, error) {
	if filepath.IsAbs(name) {
		return name, nil // the attempt to run it says what is wrong
	}
	if strings.Contains(name, "/") {
		return filepath.Join(spec.Dir, name), nil
	}
	path := install.Describe(spec.Env).Path
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		if filepath.IsAbs(dir) && install.CheckProgram(file) == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("%s: %w in the process's PATH, which is %s", name, errNoProgram, path)
}

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
	if command.LockFile, err = supervise.LockCommands(commandsPath(p.cfg.Dir, id)); err != nil {
		return fmt.Errorf("pod %s: %w", id, err)
	}
	defer func() { _ = command.LockFile.Close() }() // it is closed already where the command was started
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
