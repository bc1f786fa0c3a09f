// Command chaos disturbs a whole rcfarm cluster, heals it, waits until it converges, and lets integration/checker judge
// what happened. Faults, their targets and times come from a seed.
//
// A run has its own mount, network and process-id namespaces. When its first process ends, for any reason, the kernel
// ends all its other processes and removes its networks. Start reading at run.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/consul/devserver"
)

type config struct {
	seed     int64
	length   time.Duration // how long faults happen
	ttl      time.Duration // TTL of the daemons' liveness
	farm     string        // path of the farm program
	rcctl    string        // path of the operators' program
	consul   string        // path of Consul
	dir      string        // directory for the run's files
	faults   string        // comma-separated; empty: all
	pods     int           // most pods of a large controller
	expect   string        // succeed only if violations of this kind are found
	rollouts bool
	// ordered: some groups are ordered, and machines are away until farms give up indices
	ordered bool
	keep    bool
	check   bool   // judge the run in dir again
	trace   string // with check: show what happened to the keys that contain this text
	verbose bool
}

func main() { os.Exit(start(os.Args[1:])) }

const insideVar = "RCFARM_CHAOS_INSIDE"

const (
	exitGood = iota
	exitViolations
	exitHarness
)

func start(args []string) int {
	if len(args) > 0 && args[0] == ownCommand {
		return own(args[1:])
	}
	cfg, err := parse(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		return exitHarness
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var code int
	switch {
	case cfg.check:
		code, err = judge(cfg, nil)
	case os.Getenv(insideVar) != "":
		code, err = inside(ctx, cfg)
	default:
		code, err = outside(ctx, cfg, args)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
	}
	return code
}

func parse(args []string) (config, error) {
	var cfg config
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.Int64Var(&cfg.seed, "seed", 0, "of the faults; 0: a new one, which the report states")
	flags.DurationVar(&cfg.length, "time", 2*time.Minute, "how long faults happen")
	flags.DurationVar(&cfg.ttl, "ttl", 6*time.Second, "liveness TTL of the daemons")
	flags.StringVar(&cfg.farm, "farm", "", "the farm program; default bin/farm")
	flags.StringVar(&cfg.dir, "dir", "",
		"where the run keeps its files, for good; default a new one, removed after a good run")
	flags.StringVar(&cfg.faults, "faults", "",
		"only these, comma-separated; default all: "+strings.Join(faultNames(), ","))
	flags.IntVar(&cfg.pods, "pods", maxPods, "of large controllers, at most")
	flags.StringVar(&cfg.expect, "expect", "",
		"succeed only if violations are found: `fence`, writes by another than the lock's holder, "+
			"or service, of the minimum or the bound of one")
	flags.BoolVar(&cfg.rollouts, "rollouts", true, "operators deploy services, too")
	flags.BoolVar(&cfg.ordered, "ordered", true, "some groups are ordered, and machines are away for long")
	flags.BoolVar(&cfg.keep, "keep", false, "keep the files of a good run too")
	flags.BoolVar(&cfg.check, "check", false, "only judge the run in -dir again")
	flags.StringVar(&cfg.trace, "trace", "",
		"with -check: show every change of the keys that contain `text`, such as an RC id or schema")
	flags.BoolVar(&cfg.verbose, "v", false, "say each fault as it happens")
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	root, err := cluster.Root()
	if err != nil {
		return cfg, err
	}
	if cfg.farm == "" {
		cfg.farm = filepath.Join(root, "bin", "farm")
	}
	if cfg.seed == 0 {
		cfg.seed = time.Now().UnixNano() % 1_000_000
	}
	if cfg.length < 5*time.Second || cfg.length > 2*time.Hour {
		return cfg, fmt.Errorf("-time %s: allowed 5s to 2h", cfg.length)
	}
	if cfg.pods < 1 || cfg.pods > maxPods {
		return cfg, fmt.Errorf("-pods %d: allowed 1 to %d", cfg.pods, maxPods)
	}
	if cfg.expect != "" && expected[cfg.expect] == nil {
		return cfg, fmt.Errorf("-expect %s: allowed fence, service", cfg.expect)
	}
	if _, err := deck(cfg); err != nil {
		return cfg, err
	}
	if cfg.check {
		return cfg, nil
	}
	if cfg.consul, err = devserver.Find(filepath.Join(root, "bin")); err != nil {
		return cfg, err
	}
	cfg.rcctl = filepath.Join(root, "bin", "rcctl")
	for _, program := range []string{cfg.farm, cfg.rcctl} {
		if _, err := os.Stat(program); err != nil {
			return cfg, fmt.Errorf("run `make build` first: %w", err)
		}
	}
	return cfg, nil
}

func outside(ctx context.Context, cfg config, args []string) (int, error) {
	named := cfg.dir != ""
	if !named {
		dir, err := os.MkdirTemp("", "rcfarm-chaos-")
		if err != nil {
			return exitHarness, err
		}
		cfg.dir = dir
		args = append(args, "-dir", dir)
	} else if err := os.MkdirAll(cfg.dir, 0o700); err != nil {
		return exitHarness, err
	}
	args = append(args, fmt.Sprintf("-seed=%d", cfg.seed), "-farm", cfg.farm)
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), insideVar+"=1", "CONSUL_BIN="+cfg.consul)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	cmd.SysProcAttr = namespaces()
	// The child ends with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	code := cmd.ProcessState.ExitCode() // -1 when it did not start
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		code, err = exitHarness, errors.New("interrupted")
	case errors.As(err, &exit):
		err = nil // the child has printed why
	case err != nil:
		return exitHarness,
			fmt.Errorf("this needs network, mount and process-id namespaces (root, or user namespaces allowed): %w",
				err)
	}
	if !named && (code == exitGood && !cfg.keep || ctx.Err() != nil) {
		return code, errors.Join(err, os.RemoveAll(cfg.dir))
	}
	fmt.Println("files of the run:", cfg.dir)
	return code, err
}
