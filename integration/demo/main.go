// Command demo shows the main job of rcfarm from end to end on a development cluster, and prints how long each step
// took.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

const stepLimit = 30 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo failed:", err)
		os.Exit(1)
	}
}

type demo struct {
	bin, dir string
	dev      *exec.Cmd
	ended    chan error
	addr     string // address of Consul
	artifact cluster.Artifact
	pids     map[string]string // of the pods, by address
}

func run(ctx context.Context) (err error) {
	root, err := cluster.Root()
	if err != nil {
		return err
	}
	d := &demo{bin: filepath.Join(root, "bin")}
	if d.dir, err = os.MkdirTemp("", "rcfarm-demo-"); err != nil {
		return err
	}
	if err = os.Chmod(d.dir, 0o711); err != nil { // pods have users of their own
		return err
	}
	if d.artifact, err = cluster.HelloArtifact(root); err != nil {
		return err
	}
	started := time.Now()
	defer func() {
		if d.dev != nil && d.dev.ProcessState == nil {
			err = errors.Join(err, d.stop())
		}
		if err == nil {
			err = consultest.RemoveAll(d.dir)
			fmt.Printf("\nall steps passed in %.1f s\n", time.Since(started).Seconds())
		} else {
			fmt.Fprintln(os.Stderr, "logs are kept in", filepath.Join(d.dir, "logs"))
		}
	}()
	for i, s := range d.steps() {
		begun := time.Now()
		stepCtx, cancel := context.WithTimeoutCause(ctx, stepLimit, fmt.Errorf("not done after %s", stepLimit))
		note, err := s.do(stepCtx)
		cancel()
		if err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, s.name, err)
		}
		fmt.Printf("%2d. %-58s %6.2f s\n", i+1, s.name, time.Since(begun).Seconds())
		for line := range strings.Lines(note) {
			fmt.Print("      ", line)
		}
	}
	return nil
}

type step struct {
	name string
	do   func(ctx context.Context) (note string, err error)
}

func (d *demo) steps() []step {
	return []step{
		{"start Consul, a farm and 5 preparers (rcctl dev)", d.start},
		{"deploy 3 replicas (rcctl apply --wait)", func(ctx context.Context) (string, error) {
			return d.rcctl(ctx, d.spec(3), "apply", "-f", "-", "--wait")
		}},
		{"3 are passing in Consul's own health API", func(ctx context.Context) (string, error) {
			return d.passing(ctx, 3)
		}},
		{"fetch each over HTTP", d.fetchAll},
		{"scale to 5", func(ctx context.Context) (string, error) {
			if note, err := d.rcctl(ctx, "", "rc", "scale", "hello", "5"); err != nil {
				return note, err
			}
			return d.passing(ctx, 5)
		}},
		{"kill -9 one pod's process: it is restarted", d.killPod},
		{"kill -9 one preparer: started again, same pids", d.killPreparer},
		{"kill -9 the farm: started again, it carries on", d.killFarm},
		{"scale to 0", func(ctx context.Context) (string, error) {
			if note, err := d.rcctl(ctx, "", "rc", "scale", "hello", "0"); err != nil {
				return note, err
			}
			return d.passing(ctx, 0)
		}},
		{"delete", func(ctx context.Context) (string, error) {
			return d.rcctl(ctx, "", "rc", "delete", "hello", "--wait")
		}},
		{"Ctrl-C: every process ends", func(context.Context) (string, error) { return "", d.stop() }},
	}
}

func (d *demo) start(ctx context.Context) (string, error) {
	d.dev = exec.Command(filepath.Join(d.bin, "rcctl"), "dev", "--nodes", "5", "--dir", d.dir)
	ready := make(chan string, 1)
	out, in := io.Pipe()
	d.dev.Stdout, d.dev.Stderr = in, in
	if err := d.dev.Start(); err != nil {
		return "", err
	}
	go cluster.FirstLine(out, "ready after", ready)
	d.ended = make(chan error, 1)
	go func() { d.ended <- d.dev.Wait(); _ = in.Close() }() // closing a pipe of our own cannot fail
	select {
	case <-ready:
	case err := <-d.ended:
		return "", fmt.Errorf("rcctl dev ended: %w", err)
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	state, err := cluster.ReadState(d.dir)
	d.addr = state.ConsulAddr
	return "CONSUL_HTTP_ADDR=" + d.addr + "\n", err
}

func (d *demo) stop() error {
	state, err := cluster.ReadState(d.dir)
	if err != nil {
		return err
	}
	if err := d.dev.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	select {
	case err := <-d.ended:
		if err != nil {
			return fmt.Errorf("rcctl dev: %w", err)
		}
	case <-time.After(stepLimit):
		return errors.New("rcctl dev did not end")
	}
	left, err := cluster.ProcessesUnder(d.dir)
	if err != nil {
		return err
	}
	for name, pid := range state.PIDs {
		if syscall.Kill(pid, 0) == nil {
			left = append(left, fmt.Sprintf("%s (pid %d)", name, pid))
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("processes are left: %s", strings.Join(left, ", "))
	}
	return nil
}

func (d *demo) spec(replicas int) string {
	return cluster.HelloSpec(cluster.Hello{
		Name: "hello", Replicas: replicas, Port: 8080, Artifact: d.artifact,
		Env: map[string]string{"HELLO_VERSION": "1"},
	})
}

func (d *demo) rcctl(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(d.bin, "rcctl"),
		append([]string{"--consul-addr", d.addr}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("rcctl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// passing waits until Consul's own health API shows exactly n passing instances.
func (d *demo) passing(ctx context.Context, n int) (string, error) {
	err := cluster.Until(ctx, func() error {
		addrs, err := d.instances(ctx)
		if err == nil && len(addrs) != n {
			err = fmt.Errorf("%d instances of hello are passing in Consul, want %d", len(addrs), n)
		}
		return err
	})
	return "", err
}

func (d *demo) instances(ctx context.Context) ([]string, error) {
	var entries []struct {
		Service struct {
			Address string
			Port    int
		}
	}
	body, err := cluster.Get(ctx, "http://"+d.addr+"/v1/health/service/hello?passing=true")
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(body), &entries); err != nil {
		return nil, err
	}
	addrs := make([]string, len(entries))
	for i, e := range entries {
		addrs[i] = fmt.Sprintf("%s:%d", e.Service.Address, e.Service.Port)
	}
	slices.Sort(addrs)
	return addrs, nil
}

func (d *demo) fetchAll(ctx context.Context) (string, error) {
	addrs, err := d.instances(ctx)
	if err != nil {
		return "", err
	}
	d.pids = map[string]string{}
	note := ""
	for _, addr := range addrs {
		page, err := cluster.Get(ctx, "http://"+addr+"/")
		if err != nil {
			return "", err
		}
		d.pids[addr] = pidIn(page)
		note += page
	}
	return note, nil
}

func pidIn(page string) string {
	_, rest, _ := strings.Cut(page, "pid ")
	pid, _, _ := strings.Cut(rest, ",")
	return pid
}

func (d *demo) killPod(ctx context.Context) (string, error) {
	if _, err := d.fetchAll(ctx); err != nil {
		return "", err
	}
	addrs, err := d.instances(ctx)
	if err != nil {
		return "", err
	}
	victim := addrs[0]
	if err := cluster.Kill(d.pids[victim], syscall.SIGKILL); err != nil {
		return "", err
	}
	before := d.pids[victim]
	err = cluster.Until(ctx, func() error {
		page, err := cluster.Get(ctx, "http://"+victim+"/")
		if err == nil && pidIn(page) == before {
			err = errors.New("the old process still answers")
		}
		if err == nil {
			d.pids[victim] = pidIn(page)
		}
		return err
	})
	return fmt.Sprintf("pid %s -> %s\n", before, d.pids[victim]), err
}

func (d *demo) kill(ctx context.Context, name string) (string, error) {
	state, err := cluster.ReadState(d.dir)
	if err != nil {
		return "", err
	}
	before := state.PIDs[name]
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		return "", fmt.Errorf("kill %s (pid %d): %w", name, before, err)
	}
	err = cluster.Until(ctx, func() error {
		state, err := cluster.ReadState(d.dir)
		if err == nil && state.PIDs[name] == before {
			err = fmt.Errorf("%s was not started again", name)
		}
		return err
	})
	return fmt.Sprintf("%s: pid %d killed\n", name, before), err
}

func (d *demo) killPreparer(ctx context.Context) (string, error) {
	if _, err := d.passing(ctx, 5); err != nil {
		return "", err
	}
	if _, err := d.fetchAll(ctx); err != nil {
		return "", err
	}
	before := d.pids
	note, err := d.kill(ctx, "n1")
	if err != nil {
		return "", err
	}
	// The preparer has its node's lock again when rcctl shows the node alive under another incarnation.
	if err := d.nodeAlive(ctx, "n1"); err != nil {
		return "", err
	}
	if _, err := d.fetchAll(ctx); err != nil {
		return "", err
	}
	for addr, pid := range before {
		if d.pids[addr] != pid {
			return "", fmt.Errorf("the pod at %s had pid %s, now %s", addr, pid, d.pids[addr])
		}
	}
	return note + fmt.Sprintf("all %d pods kept their pids\n", len(before)), nil
}

func (d *demo) nodeAlive(ctx context.Context, name string) error {
	return cluster.Until(ctx, func() error {
		out, err := d.rcctl(ctx, "", "nodes", "-o", "json")
		if err != nil {
			return err
		}
		var nodes []struct {
			Name  string `json:"name"`
			Alive bool   `json:"alive"`
		}
		if err := json.Unmarshal([]byte(out), &nodes); err != nil {
			return fmt.Errorf("rcctl nodes -o json: %w", err)
		}
		for _, n := range nodes {
			if n.Name == name && n.Alive {
				return nil
			}
		}
		return fmt.Errorf("node %s is not alive", name)
	})
}

func (d *demo) killFarm(ctx context.Context) (string, error) {
	note, err := d.kill(ctx, "farm-1")
	if err != nil {
		return "", err
	}
	if out, err := d.rcctl(ctx, "", "rc", "scale", "hello", "4"); err != nil {
		return out, err
	}
	if _, err := d.passing(ctx, 4); err != nil {
		return "", err
	}
	return note + "the new farm scaled hello to 4\n", nil
}
