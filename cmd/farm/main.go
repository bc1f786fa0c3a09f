// Command farm is the daemon that owns replication controllers. Run any number of them; together they own all.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/rcfarm/rcfarm/pkg/app"
)

func main() {
	ctx, stop := app.WithSignals(context.Background())
	defer stop()
	cmd := app.FarmCommand(func(cfg app.FarmConfig) error {
		f, err := app.NewFarm(ctx, cfg)
		if err != nil {
			return err
		}
		return f.Run(ctx)
	})
	if err := cmd.RunContext(ctx, os.Args); !app.Clean(err) {
		fmt.Fprintln(os.Stderr, "farm:", err)
		os.Exit(1)
	}
}
