// Command farm is the daemon that owns replication controllers. Run any number of them; together they own all.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/app"
)

func main() {
	ctx, stop := app.WithSignals(context.Background())
	defer stop()
	cmd := command(func(cfg app.FarmConfig) error {
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

// command reads the command line and starts a farm as it says.
func command(start func(app.FarmConfig) error) *cli.App {
	hostname, _ := os.Hostname() // the flag is checked, whatever its default
	var cfg app.FarmConfig
	return &cli.App{
		Name: "farm", Version: app.Version, Usage: "own replication controllers and keep their pods placed",
		Description: "Example:\n   farm --id farm-1 --data-dir /var/lib/rcfarm/farm\n\n" +
			"Consul is reached as CONSUL_HTTP_ADDR and Consul's other variables say, unless flags say otherwise.\n" +
			"SIGTERM ends it in order: it stops working and gives its controllers up. A second one ends it at once.",
		Flags: append(app.CommonFlags(&cfg.Common, "/var/lib/rcfarm/farm", app.FarmDebugAddr),
			&cli.StringFlag{Name: "id", Usage: "stable name, unique among the farms", Value: hostname, Destination: &cfg.ID},
			&cli.StringFlag{Name: "session", Usage: "what Consul knows of this farm's life by: check (at the local agent), or ttl (of the session; without an agent here)", Value: app.DefaultSession, Destination: &cfg.Session},
			&cli.StringFlag{Name: "rc-selector", Usage: "work only on controllers whose labels match this `SELECTOR`, such as env=prod", Destination: &cfg.RCSelector},
			&cli.StringFlag{Name: "scheduler-url", Usage: "ask the scheduler at this `URL` for nodes, in place of the built-in one", Destination: &cfg.SchedulerAt.URL},
			&cli.StringFlag{Name: "scheduler-ca", Usage: "`FILE` with the certificates that are believed of it, in PEM (default: those of the machine)", Destination: &cfg.SchedulerAt.CAFile},
			&cli.StringFlag{Name: "scheduler-token-file", Usage: "`FILE` with the token that it is shown, read again for each request", Destination: &cfg.SchedulerAt.TokenFile},
			&cli.IntFlag{Name: "workers", Usage: "controllers worked on at once", Value: 64, Destination: &cfg.Workers},
		),
		Action: app.Action(func() error { return start(cfg) }),
	}
}
