package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	poll "k8s.io/apimachinery/pkg/util/wait"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consul/devserver"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/scheduler/remote"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// DevConfig describes a development cluster on this machine.
type DevConfig struct {
	Dir    string // logs, data and sockets; short, because the kernel limits the paths of sockets
	Bin    string // directory of the farm and preparer programs
	Consul string // path of the Consul program
	Port   int    // Consul's HTTP port; zero picks a free one
	Farms  int
	Nodes  int
	TTL    time.Duration
	// Scheduler is the outside scheduler of the farms; without a URL they use the built-in one.
	Scheduler remote.Config
	// Say gets each line about the progress.
	Say func(line string)
}

// Node addresses are 127.1.0.1 to 127.1.0.250, and each daemon costs memory.
const (
	maxDevNodes = 250
	maxDevFarms = 4
	maxDevDir   = 60 // bytes; a socket path below it must stay under 108
)

// Validate reports every mistake.
func (d *DevConfig) Validate() error {
	var errs field.Errors
	if d.Nodes < 1 || d.Nodes > maxDevNodes {
		errs.Add("nodes", d.Nodes, fmt.Sprintf("a whole number from 1 to %d", maxDevNodes))
	}
	if d.Farms < 1 || d.Farms > maxDevFarms {
		errs.Add("farms", d.Farms, fmt.Sprintf("a whole number from 1 to %d", maxDevFarms))
	}
	if len(d.Dir) > maxDevDir || !filepath.IsAbs(d.Dir) {
		errs.Add("dir", d.Dir,
			fmt.Sprintf("an absolute path of at most %d bytes, because sockets live below it", maxDevDir))
	}
	if d.TTL < MinTTL || d.TTL > node.MaxTTL {
		errs.Add("ttl", d.TTL.String(), "a length of time from 1s to 1m")
	}
	if d.Port < 0 || d.Port > 65535 {
		errs.Add("consul-port", d.Port, "a TCP port, or 0 for a free one")
	}
	if d.Scheduler != (remote.Config{}) {
		errs = append(errs, d.Scheduler.Check()...)
	}
	return errs.Err()
}

func (d *DevConfig) farmArgs(name string) []string {
	args := []string{"--id", name}
	if d.Scheduler.URL != "" {
		args = append(args, "--scheduler-url", d.Scheduler.URL)
	}
	return args
}

// DevState is written to cluster.json in the cluster's directory whenever it changes.
type DevState struct {
	ConsulAddr string         `json:"consul_addr"`
	PIDs       map[string]int `json:"pids"` // by process: consul, farm-1, n1, ...
}

type devCluster struct {
	cfg  DevConfig
	line *LifelineServer

	consul *exec.Cmd

	ending atomic.Bool
	mu     sync.Mutex
	state  DevState
}

const (
	lifelineName   = "life.sock"
	restartAfter   = 200 * time.Millisecond // pause before a daemon that ended is started again
	devStartLimit  = 60 * time.Second
	devEndLimit    = 20 * time.Second
	devNodePollGap = 50 * time.Millisecond
)

// RunDev runs a development cluster until ctx ends. Before it returns, all processes of the cluster have ended: Consul,
// daemons, supervisors and pods. They also end when this process is killed.
func RunDev(ctx context.Context, cfg DevConfig, ready func(DevState)) (err error) {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if cfg.Port != 0 {
		if err := devserver.CheckFree(ctx, cfg.Port); err != nil {
			return takenError(cfg.Port, err)
		}
	}
	if err := makeDevDirs(cfg.Dir); err != nil {
		return fmt.Errorf("development cluster: %w", err)
	}
	line, err := ListenLifeline(filepath.Join(cfg.Dir, lifelineName))
	if err != nil {
		return err
	}
	d := &devCluster{cfg: cfg, line: line, state: DevState{PIDs: map[string]int{}}}
	group, ctx := errgroup.WithContext(ctx)
	defer func() {
		err = errors.Join(err, d.end(context.WithoutCancel(ctx), group)) // ctx has ended; end has its own limit
	}()
	if err := d.startConsul(ctx, group); err != nil {
		return err
	}
	for i := range cfg.Farms {
		name := fmt.Sprintf("farm-%d", i+1)
		group.Go(func() error { return d.keep(ctx, name, "farm", cfg.farmArgs(name)...) })
	}
	for i := range cfg.Nodes {
		name := fmt.Sprintf("n%d", i+1)
		rack := string(rune('a' + i%3))
		address := fmt.Sprintf("127.1.0.%d", i+1)
		group.Go(func() error {
			args := []string{"--node", name, "--address", address, "--label", "rack=" + rack}
			if !CanHaveUsers() { // for example in a user namespace with one user
				args = append(args, "--isolation", IsolationOff)
			}
			return d.keep(ctx, name, "preparer", args...)
		})
	}
	if err := d.waitNodes(ctx); err != nil {
		return err
	}
	ready(d.snapshot())
	<-ctx.Done()
	cfg.Say("stopping every process of the cluster")
	return context.Cause(ctx)
}

// makeDevDirs makes the cluster's directories. Users of pods must be able to pass through to the pods' data, so it sets
// the modes despite the umask. If dir itself exists, it keeps its mode.
func makeDevDirs(dir string) error {
	modes := map[string]os.FileMode{"logs": 0o700, "data": 0o711, "consul": 0o700}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		modes["."] = 0o711
	}
	for _, name := range slices.Sorted(maps.Keys(modes)) { // "." is the first
		path := filepath.Join(dir, name)
		if err := cmp.Or(os.MkdirAll(path, modes[name]), os.Chmod(path, modes[name])); err != nil {
			return err
		}
	}
	return nil
}

func (d *DevConfig) conns() int {
	const people = 200
	return d.Farms*farmConns + d.Nodes*preparerConns + people
}

// ErrPortTaken means that another program has the port for Consul. It got no request, and nothing was written.
var ErrPortTaken = errors.New("another program has the port")

func takenError(port int, err error) error {
	return fmt.Errorf("consul-port: %w: %d is in use on 127.0.0.1 (%w), and a development cluster uses only a Consul "+
		"that it has started; name another port, or 0 for a free one",
		ErrPortTaken, port, err)
}

// errConsulEnded means that Consul ended before it was ready, perhaps because another program took one of its ports.
var errConsulEnded = errors.New("consul ended")

// consulTries is how often Consul is started, on other free ports each time, if it ends before it is ready.
const consulTries = 3

func (d *devCluster) startConsul(ctx context.Context, group *errgroup.Group) error {
	for try := 1; ; try++ {
		err := d.tryConsul(ctx, group)
		switch {
		case errors.Is(err, devserver.ErrForeign):
			return takenError(d.cfg.Port, err)
		case !errors.Is(err, errConsulEnded), try == consulTries, ctx.Err() != nil:
			return err
		}
	}
}

// tryConsul starts Consul once, outside the lifeline: end kills it.
func (d *devCluster) tryConsul(ctx context.Context, group *errgroup.Group) error {
	server, err := devserver.New(ctx, devserver.Config{
		Bin: d.cfg.Consul, Dir: filepath.Join(d.cfg.Dir, "consul"), Port: d.cfg.Port, MaxClientConns: d.cfg.conns(),
	})
	if err != nil {
		return err
	}
	d.state.ConsulAddr = server.Addr // nothing else runs yet
	started, ended := make(chan error, 1), make(chan struct{})
	var exit error // why Consul ended; set before ended is closed
	waitCtx, stop := context.WithTimeout(ctx, devStartLimit)
	defer stop()
	group.Go(func() error {
		defer stop() // Consul has ended: WaitReady need not wait any longer
		// The kernel kills Consul when the thread that started it ends. So it ends when this process is killed, and
		// this goroutine must keep its thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		cmd, err := d.start("consul", d.cfg.Consul, syscall.SIGKILL, server.Args...)
		d.consul = cmd
		started <- err
		if err == nil {
			why := cmd.Wait()
			exit = fmt.Errorf("%w (%v); see %s", errConsulEnded, why, d.log("consul")) //nolint:errorlint // may be nil
		}
		return nil
	})
	if err := <-started; err != nil {
		return err
	}
	if err := devserver.WaitReady(waitCtx, server.Identity); err != nil {
		select {
		case <-ended:
			if !errors.Is(err, devserver.ErrForeign) {
				err = exit
			}
		default:
		}
		return err
	}
	group.Go(func() error {
		<-ended
		if d.ending.Load() {
			return nil
		}
		return exit
	})
	return nil
}

func (d *devCluster) lifeline() string { return filepath.Join(d.cfg.Dir, lifelineName) }

func (d *devCluster) log(name string) string { return filepath.Join(d.cfg.Dir, "logs", name+".log") }

// start starts one process with a log. The process has its own process group, because only rcctl dev should get the
// signal of Ctrl-C. It gets the signal death when the thread that started it ends; zero: no signal.
func (d *devCluster) start(name, program string, death syscall.Signal, args ...string) (*exec.Cmd, error) {
	log, err := os.OpenFile(d.log(name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()                     // the child has its own descriptor
	cmd := exec.Command(program, args...) //nolint:noctx // the lifeline ends it
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: death}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state.PIDs[name] = cmd.Process.Pid
	data, err := json.MarshalIndent(d.state, "", "  ")
	if err != nil {
		return nil, err
	}
	return cmd, durable.WriteFile(filepath.Join(d.cfg.Dir, "cluster.json"), data)
}

func (d *devCluster) snapshot() DevState {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state
}

func (d *devCluster) keep(ctx context.Context, name, program string, args ...string) error {
	all := append([]string{
		"--consul-addr", d.snapshot().ConsulAddr, "--data-dir", filepath.Join(d.cfg.Dir, "data", name),
		"--lifeline", d.lifeline(), "--ttl", d.cfg.TTL.String(),
		"--debug-addr", "127.0.0.1:0", // any port, because many daemons run here; each log has its port
	}, args...)
	for {
		cmd, err := d.start(name, filepath.Join(d.cfg.Bin, program), 0, all...)
		if err != nil {
			return err
		}
		err = cmd.Wait()
		if d.ending.Load() || ctx.Err() != nil {
			return nil //nolint:nilerr // it ended because the cluster does
		}
		d.cfg.Say(fmt.Sprintf("%s ended (%v); starting it again", name, err))
		if wait.Pause(ctx, restartAfter) != nil {
			return nil //nolint:nilerr // the cluster ends
		}
	}
}

func (d *devCluster) waitNodes(ctx context.Context) error {
	client, err := consul.New(consul.Config{Address: d.snapshot().ConsulAddr, MaxConns: 1})
	if err != nil {
		return err
	}
	defer client.Close()
	keys, err := store.NewKeys(store.DefaultPrefix)
	if err != nil {
		return err
	}
	alive := 0
	err = poll.PollUntilContextTimeout(ctx, devNodePollGap, devStartLimit, true,
		func(ctx context.Context) (bool, error) {
			nodes, _, err := store.New(client, keys).Nodes.List(ctx, store.Default)
			alive = len(slices.DeleteFunc(nodes, func(n store.Rec[node.Node]) bool { return n.Session == "" }))
			return err == nil && alive == d.cfg.Nodes, nil
		})
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("%d of %d nodes are alive after %s; see the logs in %s",
			alive, d.cfg.Nodes, devStartLimit, filepath.Join(d.cfg.Dir, "logs"))
	}
	return nil
}

// end kills Consul, breaks the lifeline that all other processes of the cluster hold, and waits until they have ended.
func (d *devCluster) end(ctx context.Context, group *errgroup.Group) error {
	d.ending.Store(true)
	if d.consul != nil {
		_ = d.consul.Process.Kill() // Consul in dev mode has nothing to save
	}
	ctx, cancel := context.WithTimeout(ctx, devEndLimit)
	defer cancel()
	err := d.line.End(ctx)
	if err == nil {
		err = d.waitGone(ctx)
	}
	if groupErr := group.Wait(); err == nil && !Clean(groupErr) {
		err = groupErr
	}
	return err
}

// waitGone waits for processes that were being started while the cluster ended. They never held the lifeline, find it
// broken, and end by themselves.
func (d *devCluster) waitGone(ctx context.Context) error {
	var left []string
	err := poll.PollUntilContextCancel(ctx, devNodePollGap, true, func(context.Context) (_ bool, err error) {
		left, err = namedInCommandLine(d.lifeline())
		return len(left) == 0, err
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("processes %v have not ended: %w", left, context.Cause(ctx))
	}
	return err
}

func namedInCommandLine(text string) ([]string, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var pids []string
	for _, file := range files {
		pid := filepath.Base(filepath.Dir(file))
		line, err := os.ReadFile(file) // a process that ends meanwhile has no such file
		if err == nil && strings.Contains(string(line), text) && pid != strconv.Itoa(os.Getpid()) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
