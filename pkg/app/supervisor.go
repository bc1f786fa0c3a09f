package app

import (
	"context"
	"os"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/runtime/shim"
)

// SupervisorConfig is what a node's supervisor is told by the preparer that starts it.
type SupervisorConfig struct {
	Dir      string
	Lifeline string // development only: when it breaks, every pod is killed
}

// RunSupervisor is the main of the process that keeps a node's pods running. It ends with ctx, and leaves them running.
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
