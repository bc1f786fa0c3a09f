// Command preparer is the agent of one node. It starts the same program again as the node's supervisor, which outlives
// it.
package main

import (
	"context"
	"os"

	"github.com/rcfarm/rcfarm/pkg/app"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/oneshot"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/tree"
)

func main() {
	app.CrashBySignal()
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case oneshot.Arg:
			oneshot.Exec()
		case tree.Arg:
			tree.Exec()
		}
	}
	os.Exit(run())
}

func run() int {
	ctx, stop := app.WithSignals(context.Background())
	defer stop()
	cmd := app.PreparerCommand(func(cfg app.PreparerConfig) error {
		p, err := app.NewPreparer(ctx, cfg)
		if err != nil {
			return err
		}
		return p.Run(ctx)
	}, func(cfg app.SupervisorConfig) error { return app.RunSupervisor(ctx, cfg) })
	return app.Exit(os.Stderr, "preparer", cmd.RunContext(ctx, os.Args))
}
