// Command farm is the daemon that owns replication controllers. Farms share all controllers.
package main

import (
	"context"
	"os"

	"github.com/rcfarm/rcfarm/pkg/app"
)

func main() {
	app.CrashBySignal()
	os.Exit(run())
}

func run() int {
	ctx, stop := app.WithSignals(context.Background())
	defer stop()
	cmd := app.FarmCommand(func(cfg app.FarmConfig) error {
		f, err := app.NewFarm(ctx, cfg)
		if err != nil {
			return err
		}
		return f.Run(ctx)
	})
	return app.Exit(os.Stderr, "farm", cmd.RunContext(ctx, os.Args))
}
