// Command farm is an example of a farm with its own scheduler: cmd/farm with one more line. It has all flags of a farm,
// except those of an outside scheduler. Its scheduler leaves out the nodes that operators have labelled keep-free:
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

// keepFree returns the eligible nodes without the label. The farm takes those with the fewest pods of the controller.
type keepFree struct{ scheduler.NoBooks }

// EligibleNodes implements scheduler.Scheduler.
func (keepFree) EligibleNodes(_ context.Context, v *scheduler.View) ([]string, scheduler.Reasons, error) {
	nodes, others := v.Eligible()
	var names []string
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
