package preparer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
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

// errStopping keeps commands from being run.
var errStopping = errors.New("the pod is stopping")

// Command returns what runs a command beside one of the pod's running processes, as the runtime does. An empty name
// means the first of them. A program without a slash is looked for along the process's PATH, one with a relative path
// in its directory. One that cannot be run is said by what comes back.
func (p *Preparer) Command(id pod.Identity, process string, argv []string) (runtime.Command, error) {
	spec, err := p.processOf(id, process)
	if err != nil {
		return nil, err
	}
	argv = slices.Clone(argv)
	argv[0], err = lookPath(argv[0], &spec)
	return func(ctx context.Context, streams runtime.Streams) (runtime.Exit, error) {
		if err != nil {
			return runtime.Exit{}, err
		}
		return p.cfg.Runtime.Exec(ctx, spec.ID, argv, streams)
	}, nil
}

// lookPath returns the path of a program. Its errors are runtime.ErrNoProgram, and runtime.ErrNotStarted where there
// are only files along the PATH that nobody may execute.
func lookPath(name string, spec *runtime.Spec) (string, error) {
	if filepath.IsAbs(name) {
		return name, nil // the attempt to run it says what is wrong
	}
	if strings.Contains(name, "/") {
		return filepath.Join(spec.Dir, name), nil
	}
	path := install.Describe(spec.Env).Path
	var unfit error // why the first file of that name is none
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		if !filepath.IsAbs(dir) {
			continue
		}
		err := install.CheckProgram(file)
		if err == nil {
			return file, nil
		}
		if unfit == nil && !errors.Is(err, fs.ErrNotExist) {
			unfit = err
		}
	}
	if unfit != nil {
		return "", fmt.Errorf("%w: %w", runtime.ErrNotStarted, unfit)
	}
	return "", fmt.Errorf("%w: %s is not in the process's PATH, which is %s", runtime.ErrNoProgram, name, path)
}

// processOf returns the specification of one of the pod's running processes, unless the pod is to stop.
func (p *Preparer) processOf(id pod.Identity, process string) (runtime.Spec, error) {
	var procs []runtime.Status
	stopping := false
	p.pods.do(func() {
		if e := p.pods.all[id]; e != nil {
			procs, stopping = e.procs, e.accepted().Intent.State == pod.Stopped
		}
	})
	var running []string
	for i := range procs {
		if procs[i].Phase != runtime.Running {
			continue
		}
		if spec := procs[i].Spec; process == "" || spec.Name == process {
			if stopping {
				return spec, fmt.Errorf("pod %s: %w", id, errStopping)
			}
			return spec, nil
		}
		running = append(running, procs[i].Spec.Name)
	}
	if len(running) == 0 {
		return runtime.Spec{}, fmt.Errorf("pod %s has no process that runs on this node", id)
	}
	return runtime.Spec{}, fmt.Errorf("process: %q is not valid; allowed: %s", process, strings.Join(running, ", "))
}
