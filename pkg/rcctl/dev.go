package rcctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/app"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consul/devserver"
	"github.com/rcfarm/rcfarm/pkg/field"
)

const devHelp = `Starts Consul in dev mode, a farm, and preparers n1, n2, ... with labels rack=a, rack=b, rack=c in
turn, each with its own loopback address 127.1.0.N. A daemon that ends is started again, as a service manager would.
Ctrl-C ends every process, pods included; so does any other end of rcctl dev. It is for trying things out: what Consul
knew is lost. Start again with another or an empty --dir, or pods that were left run again without a controller. The
directory has documents to deploy: web.yaml, its second version web-2.yaml, and worker.yaml.

It neither uses nor changes a Consul that runs already: --consul-port must be a free port.

The programs farm and preparer must stand beside rcctl. Consul is $CONSUL_BIN, else consul beside rcctl,
else consul on PATH.

Examples:
  rcctl dev
  rcctl dev --nodes 12 --farms 3
  rcctl dev --dir /tmp/rcfarm --consul-port 8500
  rcctl dev --scheduler-url http://127.0.0.1:7470`

func devCommand() *cli.Command {
	var cfg app.DevConfig
	return leaf("dev [flags]", "run a development cluster until Ctrl-C",
		devHelp,
		func(c *cli.Context) error {
			if c.Args().Present() {
				return usagef(c, "dev takes no arguments, got %q", c.Args().First())
			}
			return runDev(c.Context, stdioOf(c), cfg)
		},
		[]cli.Flag{&cli.IntFlag{Name: "nodes", Value: 5, Usage: "how many preparers", Destination: &cfg.Nodes}},
		[]cli.Flag{&cli.IntFlag{Name: "farms", Value: 1, Usage: "how many farms", Destination: &cfg.Farms}},
		[]cli.Flag{&cli.StringFlag{
			Name: "dir",
			Usage: "`DIRECTORY` for logs and data; if it is missing, it is created with the mode 0711, for pods with " +
				"users of their own (default: a new one, which is removed if the cluster does not start)",
			Destination: &cfg.Dir,
		}},
		[]cli.Flag{
			&cli.IntFlag{Name: "consul-port", Usage: "Consul's HTTP port; 0: a free one", Destination: &cfg.Port},
		},
		[]cli.Flag{&cli.DurationFlag{
			Name: "ttl", Value: consul.DefaultTTL, Usage: "liveness TTL of the daemons",
			Destination: &cfg.TTL,
		}},
		[]cli.Flag{&cli.StringFlag{
			Name:        "scheduler-url",
			Usage:       "have the farms ask the scheduler at this `URL` for nodes (default: the built-in one)",
			Destination: &cfg.Scheduler.URL,
		}},
	)
}

func runDev(ctx context.Context, std *stdio, cfg app.DevConfig) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	cfg.Bin = filepath.Dir(exe)
	if cfg.Dir != "" {
		if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
			return err
		}
	}
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
	sayUsed(&cfg)
	cfg.Say(fmt.Sprintf("starting Consul, %d farm(s) and %d preparer(s) in %s", cfg.Farms, cfg.Nodes, cfg.Dir))
	err = app.RunDev(ctx, cfg, func(s app.DevState) {
		ready = true
		try := devSamples
		if err := writeSamples(cfg.Dir, cfg.Bin); err != nil {
			try = devNoSamples
			fmt.Fprintf(std.err, "there are no sample documents in %s: %v\n", cfg.Dir, err)
		}
		fmt.Fprintf(std.out, devReady, time.Since(started).Seconds(), forShell(cfg.Bin), s.ConsulAddr,
			forShell(cfg.Dir), try,
			filepath.Join(cfg.Dir, "logs"))
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

// sayUsed says that pods of an earlier run are in the directory. Preparers start them again, and the new Consul does
// not know them.
func sayUsed(cfg *app.DevConfig) {
	data, left := filepath.Join(cfg.Dir, "data"), 0
	var nodes []string
	for i := range cfg.Nodes {
		name := fmt.Sprintf("n%d", i+1)
		pods, _ := filepath.Glob(filepath.Join(data, name, "pods", "*.json")) // an odd path matches nothing
		pods = slices.DeleteFunc(pods, isStopped)
		if left += len(pods); len(pods) > 0 {
			nodes = append(nodes, name)
		}
	}
	if left > 0 {
		cfg.Say(fmt.Sprintf("%s has %s of an earlier run, on %s; they start again, without a controller",
			cfg.Dir, field.Count(left, "pod"), field.Few(nodes, 5, ", ")))
		cfg.Say(fmt.Sprintf("to begin without them: end this with Ctrl-C, remove %s, and start again", data))
	}
}

// isStopped reports whether a preparer's record is about a pod that it has stopped. The record stays for a month.
func isStopped(file string) bool {
	var record struct {
		StoppedAt *time.Time `json:"stopped_at"`
	}
	data, err := os.ReadFile(file)
	return err == nil && json.Unmarshal(data, &record) == nil && record.StoppedAt != nil
}

func showLogs(std *stdio, dir string) {
	const tail = 5                                         // lines
	files, _ := filepath.Glob(filepath.Join(dir, "*.log")) // the pattern is fine
	for _, file := range files {
		text, _ := os.ReadFile(file) // we cannot show an unreadable log
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		for _, line := range lines[max(0, len(lines)-tail):] {
			if line != "" {
				fmt.Fprintf(std.err, "%s: %s\n", strings.TrimSuffix(filepath.Base(file), ".log"), line)
			}
		}
	}
}

const devDir = "rcfarm-dev-"

// The commands of devReady work unchanged, also in a script.
const devReady = `ready after %.1f s. In another terminal:

  export PATH=%s:$PATH CONSUL_HTTP_ADDR=%s
  cd %s
  rcctl nodes
%s
Logs are in %s. Ctrl-C ends everything.
`

const devSamples = `  rcctl deploy -f web.yaml --yes         # a service with two replicas
  rcctl deploy -f web-2.yaml --yes       # its second version
  rcctl rollback web --yes
  rcctl apply -f worker.yaml --wait      # a controller without a service
`

const devNoSamples = `  rcctl apply -f rc.yaml --wait
`

func forShell(path string) string {
	if strings.Trim(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-") == "" {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
