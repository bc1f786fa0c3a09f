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

// LogFiles returns a pod's log files by the names of its present and former processes. more reports whether the pod may
// still write to them. The name of a log that the node writes, such as _hooks, begins with an underscore.
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
		return nil, false // only the identity of a known pod becomes a path
	}
	files = map[string]string{}
	entries, _ := os.ReadDir(p.node.Logs(id)) // the directory may not exist yet
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

var errStopping = errors.New("the pod is stopping")

// Command returns a function that runs a command beside a running process of the pod; process "" is the first one. A
// program without a slash is looked up in the process's PATH, a relative path in its directory. If the program cannot
// be run, the returned function returns the error.
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

// lookPath returns the path of a program. It returns runtime.ErrNoProgram if no file in the PATH has the name, and
// runtime.ErrNotStarted if none of the files can be executed.
func lookPath(name string, spec *runtime.Spec) (string, error) {
	if filepath.IsAbs(name) {
		return name, nil // if the file is missing, the start reports the error
	}
	if strings.Contains(name, "/") {
		return filepath.Join(spec.Dir, name), nil
	}
	path := install.Describe(spec.Env).Path
	var unfit error // why the first file with that name cannot be executed
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
