// Command farm is an example of a farm with a scheduler of its own: cmd/farm with one line more. It takes all flags of a farm but those of
// an outside scheduler, and does all that a farm does. This scheduler leaves out the nodes that operators have labelled keep-free:
//
//	go run ./docs/examples/farm --id farm-1 --data-dir /var/lib/rcfarm/farm
//	rcctl label node n3 keep-free=yes
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/rcfarm/rcfarm/pkg/app"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// keepFree names the eligible nodes that are not kept free. Of them the farm takes those with the fewest pods of the controller.
type keepFree struct{ scheduler.NoBooks }

// EligibleNodes implements scheduler.Scheduler.
func (keepFree) EligibleNodes(_ context.Context, v *scheduler.View) (names []string, others scheduler.Reasons, err error) {
	nodes, others := v.Eligible()
	for _, n := range nodes {
		if n.Label("keep-free") != "" {
			others["kept free"]++
			continue
		}
		names = append(names, n.Name())
	}
	return names, others, nil
}

func main() {
	ctx, stop := app.WithSignals(context.Background())
	defer stop()
	cmd := app.FarmCommand(func(cfg app.FarmConfig) error {
		cfg.Scheduler = keepFree{}
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
