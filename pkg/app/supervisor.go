package app

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/runtime/runit"
	"github.com/rcfarm/rcfarm/pkg/runtime/shim"
)

// SupervisorConfig is what a node's supervisor is told by the preparer that starts it.
type SupervisorConfig struct {
	Runtime  string // RuntimeShim, or RuntimeRunit with a lifeline
	Dir      string
	Lifeline string // development only: when it breaks, every pod is killed
}

// RunSupervisor is the main of the process that keeps a node's pods running. It ends with ctx, and leaves them running.
func RunSupervisor(ctx context.Context, cfg SupervisorConfig) error {
	if cfg.Runtime == RuntimeRunit {
		return guardRunit(ctx, cfg)
	}
	log, err := obs.NewLogger(os.Stderr, "info", "text")
	if err != nil {
		return err
	}
	conf := shim.Config{Dir: cfg.Dir, Log: func(msg string, fields map[string]any) { log.WithFields(fields).Info(msg) }}
	if cfg.Lifeline != "" {
		line, err := HoldLifeline(ctx, cfg.Lifeline)
		if err != nil {
			return err
		}
		defer line.Close()
		conf.KillAll = line.Broken()
	}
	return shim.Serve(ctx, conf)
}

// guardWait bounds how long the preparer may take to end with its cluster.
const guardWait = 15 * time.Second

// guardRunit kills everything that runit runs for a node of a development cluster when the cluster ends.
func guardRunit(ctx context.Context, cfg SupervisorConfig) error {
	line, err := HoldLifeline(ctx, cfg.Lifeline)
	if err != nil {
		return err
	}
	defer line.Close()
	select {
	case <-line.Broken():
	case <-ctx.Done():
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), guardWait)
	defer cancel()
	// A preparer that still works would start runit again. Of several guards one does the work, and the others find none.
	dir, err := waitDataDir(ctx, filepath.Dir(cfg.Dir))
	if err != nil {
		return err
	}
	defer dir.Close()
	return runit.KillAll(ctx, cfg.Dir)
}

// waitDataDir opens a data directory as soon as its daemon has ended.
func waitDataDir(ctx context.Context, path string) (*DataDir, error) {
	tick := time.NewTicker(devNodePollGap)
	defer tick.Stop()
	for {
		dir, err := OpenDataDir(path)
		if err == nil {
			return dir, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}
