// Command preparer is the agent of one node: it makes the node's processes match what the farm wrote. It starts itself
// again as the node's supervisor, which outlives it.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/rcfarm/rcfarm/pkg/app"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/oneshot"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/tree"
)

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case oneshot.Arg:
			oneshot.Exec()
		case tree.Arg:
			tree.Exec()
		}
	}
	ctx, stop := app.WithSignals(context.Background())
	defer stop()
	cmd := app.PreparerCommand(func(cfg app.PreparerConfig) error {
		p, err := app.NewPreparer(ctx, cfg)
		if err != nil {
			return err
		}
		return p.Run(ctx)
	}, func(cfg app.SupervisorConfig) error { return app.RunSupervisor(ctx, cfg) })
	if err := cmd.RunContext(ctx, os.Args); !app.Clean(err) {
		fmt.Fprintln(os.Stderr, "preparer:", err)
		os.Exit(1)
	}
}
