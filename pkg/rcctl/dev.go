package rcctl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/app"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consul/devserver"
)

const devHelp = `Starts Consul in dev mode, a farm, and preparers n1, n2, ... with labels rack=a, rack=b, rack=c in turn,
each with its own loopback address 127.1.0.N. A daemon that ends is started again, as a service manager
would. Ctrl-C ends every process, pods included; so does the end of rcctl dev for whatever reason.
Nothing is kept: it is for trying things out.

A Consul that runs already is neither used nor changed: --consul-port wants a port that nothing has.

The programs farm and preparer must stand beside rcctl. Consul is $CONSUL_BIN, else consul beside rcctl,
else consul on PATH.

Examples:
  rcctl dev
  rcctl dev --nodes 12 --farms 3
  rcctl dev --dir /tmp/rcfarm --consul-port 8500
  rcctl dev --scheduler-url http://127.0.0.1:7470`

// devCommand is a development cluster in one command.
func devCommand() *cli.Command {
	var cfg app.DevConfig
	return leaf(&cli.Command{
		Name: "dev", Usage: "run a development cluster until Ctrl-C", Description: devHelp,
		UsageText: "rcctl dev [flags]",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "nodes", Value: 5, Usage: "how many preparers", Destination: &cfg.Nodes},
			&cli.IntFlag{Name: "farms", Value: 1, Usage: "how many farms", Destination: &cfg.Farms},
			&cli.StringFlag{Name: "dir", Usage: "`DIRECTORY` for logs and data; one that is not there is made with the mode 0711, for pods with users of their own (default: a new one, which goes again if the cluster does not start)", Destination: &cfg.Dir},
			&cli.IntFlag{Name: "consul-port", Usage: "Consul's HTTP port; 0: a free one", Destination: &cfg.Port},
			&cli.DurationFlag{Name: "ttl", Value: consul.DefaultTTL, Usage: "liveness TTL of the daemons", Destination: &cfg.TTL},
			&cli.StringFlag{Name: "scheduler-url", Usage: "have the farms ask the scheduler at this `URL` for nodes (default: the built-in one)", Destination: &cfg.Scheduler.URL},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usagef(c, "dev takes no arguments, got %q", c.Args().First())
			}
			return runDev(c.Context, stdioOf(c), cfg)
		},
	})
}

func runDev(ctx context.Context, std *stdio, cfg app.DevConfig) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	cfg.Bin = filepath.Dir(exe)
	if cfg.Consul, err = devserver.Find(); err != nil {
		return err
	}
	own, asked := cfg.Dir == "", cfg
	if own {
		asked.Dir = filepath.Join(os.TempDir(), devDir)
	}
	if err := asked.Validate(); err != nil {
		return &usageError{command: "rcctl dev", err: err}
	}
	if own {
		if cfg.Dir, err = os.MkdirTemp("", devDir); err != nil {
			return err
		}
		if err = os.Chmod(cfg.Dir, 0o711); err != nil { // pods have users of their own
			return err
		}
	}
	started, ready := time.Now(), false
	cfg.Say = func(line string) { fmt.Fprintln(std.err, line) }
	cfg.Say(fmt.Sprintf("starting Consul, %d farm(s) and %d preparer(s) in %s", cfg.Farms, cfg.Nodes, cfg.Dir))
	err = app.RunDev(ctx, cfg, func(s app.DevState) {
		ready = true
		fmt.Fprintf(std.out, devReady, time.Since(started).Seconds(), s.ConsulAddr, exe, exe, filepath.Join(cfg.Dir, "logs"))
	})
	if own && !ready {
		if ctx.Err() == nil {
			showLogs(std, filepath.Join(cfg.Dir, "logs"))
		}
		err = errors.Join(err, os.RemoveAll(cfg.Dir))
	}
	if errors.Is(err, app.ErrPortTaken) {
		return refusedf("%v", err)
	}
	if app.Clean(err) || errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// showLogs prints the end of each log of a cluster that did not start, whose directory is about to go.
func showLogs(std *stdio, dir string) {
	const tail = 5                                         // lines
	files, _ := filepath.Glob(filepath.Join(dir, "*.log")) // the pattern is fine
	for _, file := range files {
		text, _ := os.ReadFile(file) // what cannot be read cannot be shown
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		for _, line := range lines[max(0, len(lines)-tail):] {
			if line != "" {
				fmt.Fprintf(std.err, "%s: %s\n", strings.TrimSuffix(filepath.Base(file), ".log"), line)
			}
		}
	}
}

// devDir begins the name of a directory that a development cluster makes for itself.
const devDir = "rcfarm-dev-"

const devReady = `ready after %.1f s. In another terminal:

  export CONSUL_HTTP_ADDR=%s
  %s nodes
  %s apply -f rc.yaml --wait

Logs are in %s. Ctrl-C ends everything.
`
