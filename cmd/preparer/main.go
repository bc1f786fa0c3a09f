// Command preparer is the agent of one node: it makes the node's processes match what the farm wrote. It starts itself
// again as the node's supervisor, which outlives it.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/app"
	"github.com/rcfarm/rcfarm/pkg/runtime/oneshot"
	"github.com/rcfarm/rcfarm/pkg/runtime/tree"
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
	cmd := command(func(cfg app.PreparerConfig) error {
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

// command reads the command line and starts a preparer, or its supervisor, as it says.
func command(start func(app.PreparerConfig) error, supervisor func(app.SupervisorConfig) error) *cli.App {
	hostname, _ := os.Hostname() // the flag is checked, whatever its default
	var cfg app.PreparerConfig
	var labels cli.StringSlice
	return &cli.App{
		Name: "preparer", Version: app.Version, Usage: "run the pods of this node",
		Description: "Example:\n   preparer --node web-17 --address 10.0.3.17 --label rack=a --label disk=ssd --slots 50\n\n" +
			"Consul is reached as CONSUL_HTTP_ADDR and Consul's other variables say, unless flags say otherwise.\n" +
			"Pods run on when it ends, and keep their pids when it starts again.",
		Flags: slices.Concat(app.CommonFlags(&cfg.Common, "/var/lib/rcfarm/preparer", app.PreparerDebugAddr), app.ArtifactFlags(&cfg.Artifacts), app.APIFlags(&cfg.API), []cli.Flag{
			&cli.StringFlag{Name: "node", Usage: "stable name, unique among the nodes", Value: hostname, Destination: &cfg.Node},
			&cli.BoolFlag{Name: "take-over-name", Usage: "take the node's name from another host, of whose pods nothing runs any more; for one start", Destination: &cfg.TakeOver},
			&cli.StringFlag{Name: "address", Usage: "IP address that pods listen on, given to them as NODE_ADDRESS", Value: "127.0.0.1", Destination: &cfg.Address},
			&cli.StringSliceFlag{Name: "label", Usage: "`KEY=VALUE` that selectors match; may be repeated", Destination: &labels},
			&cli.IntFlag{Name: "slots", Usage: "how many pods the node takes", Value: 100, Destination: &cfg.Slots},
			&cli.Int64Flag{Name: "cpu", Usage: "thousandths of a core for pods; 0: not limited", Destination: &cfg.CPU},
			&cli.Int64Flag{Name: "memory", Usage: "bytes for pods; 0: not limited", Destination: &cfg.Memory},
			&cli.Int64Flag{Name: "reserve-cpu", Usage: "thousandths of a core that all pods together leave to the machine; 0: none", Destination: &cfg.ReserveCPU},
			&cli.Int64Flag{Name: "reserve-memory", Usage: "bytes that all pods together leave to the machine; 0: none", Destination: &cfg.ReserveMemory},
			&cli.IntFlag{Name: "port-min", Usage: "first dynamic port", Value: 20000, Destination: &cfg.PortsMin},
			&cli.StringFlag{Name: "isolation", Usage: "auto: keep pods apart as far as the host allows, and start none as root; on: fully or not at all; off", Value: app.IsolationAuto, Destination: &cfg.Isolation},
			&cli.StringFlag{Name: "user-range", Usage: "`FIRST-LAST` user and group numbers, one of which each pod is given", Value: app.DefaultUserRange, Destination: &cfg.UserRange},
			&cli.BoolFlag{Name: "allow-root-pods", Usage: "start pods whose manifests say user: root", Destination: &cfg.AllowRoot},
			&cli.IntFlag{Name: "port-max", Usage: "last dynamic port", Value: 29999, Destination: &cfg.PortsMax},
			&cli.StringFlag{Name: "trust-policy", Usage: "`FILE` that says whose manifests this node runs (default: anybody's)", Destination: &cfg.TrustPolicy},
			&cli.StringFlag{Name: "hooks-dir", Usage: "`DIRECTORY` of the node's own hooks", Destination: &cfg.HooksDir},
			&cli.DurationFlag{Name: "keep-stopped", Usage: "how long home, logs and versions of a stopped pod stay", Value: app.DefaultKeepStopped, Destination: &cfg.KeepStopped},
		}),
		Action: app.Action(func() error {
			cfg.Labels = labels.Value()
			return start(cfg)
		}),
		Commands: []*cli.Command{supervise(supervisor)},
	}
}

// supervise is the preparer's other half; it starts it by itself.
func supervise(start func(app.SupervisorConfig) error) *cli.Command {
	const one = "shim"
	var cfg app.SupervisorConfig
	var former string // preparers from before ADR 17 say which supervisor they mean
	return &cli.Command{
		Name: "supervise", Hidden: true, Usage: "keep this node's processes running (started by the preparer)",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "runtime", Value: one, Destination: &former},
			&cli.StringFlag{Name: "dir", Required: true, Destination: &cfg.Dir},
			&cli.StringFlag{Name: "lifeline", Destination: &cfg.Lifeline},
		},
		Action: app.Action(func() error {
			if former != one {
				return fmt.Errorf("runtime: %q is not valid; allowed: %s", former, one)
			}
			return start(cfg)
		}),
	}
}
