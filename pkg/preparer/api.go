package preparer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/oneshot"
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
