package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/shim"
)

const supervisorName = "shim"

// formerServices had a directory for each process under runit in earlier versions (ADR 17).
const formerServices = "runit/sv"

// refuseFormer returns an error if pods may run under runit, because this version would start them a second time.
func refuseFormer(dir *DataDir) error {
	path := dir.Path(formerServices)
	entries, err := os.ReadDir(path)
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return strings.HasPrefix(e.Name(), ".") })
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("find out whether pods of this node run under runit: %w", err)
	case len(entries) == 0:
		return nil
	}
	return fmt.Errorf("processes under runit in %s: %d, the first is %s; this version does not know runit and would "+
		"run their pods twice; start the previous version again, drain the node, wait until `rcctl pods` shows none "+
		"on it, then start this version", path, len(entries), entries[0].Name())
}

// openRuntime opens the node's runtime, with cgroups below cgroup if that is not empty. Its supervisor is another
// process of this program. After Close, all processes run on.
func openRuntime(b *base, cgroup string) (*shim.Client, error) {
	dir, lifeline := b.dir.Path(supervisorName), b.common.Lifeline
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	args := []string{"supervise", "--dir", dir}
	if lifeline != "" {
		absolute, err := filepath.Abs(lifeline)
		if err != nil {
			return nil, err
		}
		args = append(args, "--lifeline", absolute)
	}
	spawn := func() error { return shim.Spawn(exe, args, dir) }
	return shim.Dial(shim.ClientConfig{Dir: dir, Cgroup: cgroup, Spawn: spawn})
}

// SupervisorConfig is the configuration of a node's supervisor, from the preparer that starts it.
type SupervisorConfig struct {
	Dir      string
	Lifeline string // development only: when it breaks, every pod is killed
}

// RunSupervisor is the main function of the process that keeps a node's pods running. It ends with ctx; the pods run
// on.
func RunSupervisor(ctx context.Context, cfg SupervisorConfig) error {
	log, err := obs.NewLogger(os.Stderr, "info", "text")
	if err != nil {
		return err
	}
	conf := shim.Config{Dir: cfg.Dir, Log: func(msg string, fields map[string]any) { log.WithFields(fields).Info(msg) }}
	if cfg.Lifeline != "" {
		line, err := HoldLifeline(cfg.Lifeline)
		if err != nil {
			return err
		}
		defer line.Close()
		conf.KillAll = line.Broken()
	}
	return shim.Serve(ctx, conf)
}
