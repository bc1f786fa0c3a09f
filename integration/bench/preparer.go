package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/app"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consul/devserver"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

const (
	startRate    = 100 // pods per second, from intent to available
	startFlat    = 0.8 // of the rate at 100 pods
	ownMemory    = 1.5 // MiB for each pod
	crashRestart = 1   // second, the first restart of a process
	agentRestart = 1   // second, both until it is ready and until it takes intents
	nodeIdleCPU  = 1   // percent of a core
)

const (
	nodeName   = "bench"
	steadyPods = 200 // for measuring memory, restarts and idle
	nodeIdle   = 20 * time.Second
	crashes    = 5 // the worst counts; each in another pod, because a restart after a second crash waits longer
)

// realNode is a preparer with real processes, supervisor, disk and agent.
type realNode struct {
	world    *world
	program  string
	dir      string
	debug    string // address of its debug server
	line     *app.LifelineServer
	digest   string
	cmd      *exec.Cmd
	ended    chan struct{}
	revision int64
}

// preparerBench measures the built preparer, which starts real processes from intents as a farm writes them. The
// artifact is in its cache.
func preparerBench(ctx context.Context, b *bench) error {
	dirs, err := os.MkdirTemp("", "rcfb-") // short: sockets live below it
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dirs) }()
	if err := os.Chmod(dirs, 0o711); err != nil { // pods have their own users
		return err
	}
	spreadOut(dirs)
	var rate float64
	for _, n := range []int{100, 300, 500} {
		if part := fmt.Sprintf("start-%d", n); b.wants(part) {
			took, err := b.startPods(ctx, dirs, n)
			if err != nil {
				return fmt.Errorf("%s: %w", part, err)
			}
			now := float64(n) / took.Seconds()
			b.report.add("preparer/"+part+"/pods", now, "pods/s", atLeast(startRate))
			if rate == 0 {
				rate = now
			} else {
				b.report.add("preparer/"+part+"/share-of-100", now/rate, "", atLeast(startFlat))
			}
		}
	}
	if !b.wants("steady") {
		return nil
	}
	return b.steadyNode(ctx, dirs)
}

// spreadOut asks the file system to keep new directories in dir apart from each other (chattr(1), T). ext4 without a
// journal skips inodes that were freed lately in the same part of the disk, so files that other nodes, tests and builds
// deleted would slow a node down. Other file systems do not know the flag.
func spreadOut(dir string) {
	f, err := os.Open(dir)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	if flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS); err == nil {
		_ = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags|topDir)
	}
}

// topDir is FS_TOPDIR_FL (include/uapi/linux/fs.h).
const topDir = 0x00020000

func (b *bench) startPods(ctx context.Context, dirs string, n int) (time.Duration, error) {
	var sc scope
	defer sc.close()
	node, err := b.realNode(ctx, &sc, dirs)
	if err != nil {
		return 0, err
	}
	return node.run(ctx, n)
}

func (b *bench) steadyNode(ctx context.Context, dirs string) error {
	var sc scope
	defer sc.close()
	node, err := b.realNode(ctx, &sc, dirs)
	if err != nil {
		return err
	}
	if _, err := node.run(ctx, steadyPods); err != nil {
		return err
	}
	own, pods, err := node.processes()
	if err != nil {
		return err
	}
	if len(pods) != steadyPods+1 {
		return fmt.Errorf("%d pods run, want %d", len(pods), steadyPods+1)
	}
	var memory int64
	for _, pid := range own {
		bytes, err := pss(pid)
		if err != nil {
			return err
		}
		memory += bytes
	}
	b.report.add("preparer/steady/memory", float64(memory)/mega/steadyPods, "MiB/pod", atMost(ownMemory))
	used, err := cpuDuring(ctx, own, nodeIdle)
	if err != nil {
		return err
	}
	b.report.add("preparer/steady/idle", 100*used.Seconds()/nodeIdle.Seconds(), "% of a core", below(nodeIdleCPU))
	var worst time.Duration
	for _, victim := range pods[:crashes] {
		took, err := node.crash(ctx, victim)
		if err != nil {
			return err
		}
		worst = max(worst, took)
	}
	b.report.add("preparer/steady/crash-worst", worst.Seconds(), "s", atMost(crashRestart))
	again, err := node.restart(ctx)
	if err != nil {
		return err
	}
	b.report.add("preparer/steady/ready", again.ready.Seconds(), "s", atMost(agentRestart))
	b.report.add("preparer/steady/restart", again.held.Seconds(), "s", atMost(agentRestart))
	return nil
}

// realNode starts a preparer and one pod, so that the cache has the artifact.
func (b *bench) realNode(ctx context.Context, sc *scope, dirs string) (*realNode, error) {
	dev, err := b.startDev(ctx, sc, nil)
	if err != nil {
		return nil, err
	}
	n := &realNode{program: filepath.Join(filepath.Dir(b.farm), "preparer"), revision: time.Now().UnixMilli()}
	if n.world, err = newWorld(ctx, sc, dev.addr); err != nil {
		return nil, err
	}
	// Remove the directory later, with the directories of all nodes: ext4 skips freed inodes for minutes (see
	// spreadOut).
	if n.dir, err = os.MkdirTemp(dirs, ""); err != nil {
		return nil, err
	}
	if err := os.Chmod(n.dir, 0o711); err != nil {
		return nil, err
	}
	ports, err := devserver.FreePorts(ctx, 1)
	if err != nil {
		return nil, err
	}
	n.debug = net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0]))
	if n.line, err = app.ListenLifeline(filepath.Join(n.dir, "life.sock")); err != nil {
		return nil, err
	}
	if err := n.upload(ctx); err != nil {
		return nil, err
	}
	if err := n.start(); err != nil {
		return nil, err
	}
	sc.add(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		_ = n.line.End(ctx) // everything of the node ends with it
		<-n.ended
	})
	_, err = n.run(ctx, 1)
	return n, err
}

func (n *realNode) start() error {
	n.cmd = exec.Command(n.program, "--node", nodeName, "--address", "127.0.0.1",
		"--data-dir", filepath.Join(n.dir, "node"),
		"--consul-addr", n.world.addr, "--prefix", n.world.keys.Prefix(),
		"--lifeline", filepath.Join(n.dir, "life.sock"),
		"--slots", "10000", "--debug-addr", n.debug, "--log-level", "warn")
	log, err := os.OpenFile(filepath.Join(n.dir, "preparer.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	n.cmd.Stderr = log
	ended := make(chan struct{})
	n.ended = ended
	if err := consultest.StartTied(n.cmd, func(error) { close(ended) }); err != nil {
		return fmt.Errorf("%w; run `make build`", err)
	}
	return nil
}

func (n *realNode) upload(ctx context.Context) error {
	script := filepath.Join(n.dir, "launch")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec sleep 1000000\n"), 0o755); err != nil {
		return err
	}
	archive := filepath.Join(n.dir, "waits.tar.gz")
	pack := exec.CommandContext(ctx, "tar", "-C", n.dir, "--transform", "s,^,bin/,", "-czf", archive, "launch")
	if out, err := pack.CombinedOutput(); err != nil {
		return fmt.Errorf("pack an artifact: %w: %s", err, out)
	}
	data, err := os.ReadFile(archive)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	m := &manifest.Manifest{Version: 1, ID: "waits", MinReady: new(field.Duration), Launchables: []manifest.Launchable{{
		Name: "main",
		Artifact: manifest.Artifact{
			Kind: manifest.ArtifactTar, URL: "file://" + archive,
			SHA256: hex.EncodeToString(sum[:]),
		},
	}}}
	canonical, err := m.Canonical()
	if err != nil {
		return err
	}
	n.digest = manifest.Digest(canonical)
	stored, err := json.Marshal(map[string]json.RawMessage{"manifest": canonical})
	if err == nil {
		_, err = n.world.client.Commit(ctx, []consul.Op{consul.Set(n.world.keys.Manifests.Key(n.digest), stored)})
	}
	return err
}

// run orders more pods, and returns the time until all of these are available.
func (n *realNode) run(ctx context.Context, more int) (time.Duration, error) {
	n.revision++
	rcID := fmt.Sprintf("rc-%d", n.revision)
	var txns [][]consul.Op
	for i := range more {
		in := pod.Intent{
			Identity: pod.Identity{RCID: rcID, Role: "main", Index: i}, PodID: "waits", Digest: n.digest,
			State: pod.Running, Revision: n.revision,
		}
		data, err := json.Marshal(in)
		if err != nil {
			return 0, err
		}
		if i%consul.MaxTxnOps == 0 {
			txns = append(txns, nil)
		}
		txns[len(txns)-1] = append(txns[len(txns)-1],
			consul.Set(n.world.keys.Intents.Key(nodeName, in.Identity.String()), data))
	}
	began := time.Now()
	if err := simnode.CommitAll(ctx, n.world.client, txns); err != nil {
		return 0, err
	}
	// Each look costs processor time that the node then lacks, and more with more pods.
	err := sparingly(ctx, began, func() error {
		pairs, err := n.world.client.List(ctx, n.world.keys.Realities.Below(nodeName)+rcID+"/", consul.Default)
		if err != nil {
			return err
		}
		available := 0
		for _, p := range pairs {
			var r pod.Reality
			if json.Unmarshal(p.Value, &r) == nil && r.Available {
				available++
			}
		}
		if available < more {
			return fmt.Errorf("%d of %d pods are available", available, more)
		}
		return nil
	})
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(n.dir, "preparer.log"))
		err = fmt.Errorf("%w\n%s", err, log[max(0, len(log)-2000):])
	}
	return time.Since(began), err
}

func (n *realNode) processes() (own, pods []int, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, nil, err
	}
	for _, file := range files {
		line, err := os.ReadFile(file)
		pid, convErr := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil || convErr != nil {
			continue // it has ended
		}
		cwd, _ := os.Readlink(filepath.Join(filepath.Dir(file), "cwd")) // one that has ended has none
		switch {
		case strings.HasPrefix(string(line), n.program+"\x00") && strings.Contains(string(line), n.dir):
			own = append(own, pid)
		case strings.HasPrefix(string(line), "sleep\x001000000") && strings.HasPrefix(cwd, n.dir):
			pods = append(pods, pid)
		}
	}
	return own, pods, nil
}

// crash kills one pod's program and returns how long its restart takes.
func (n *realNode) crash(ctx context.Context, victim int) (time.Duration, error) {
	_, before, err := n.processes()
	if err != nil {
		return 0, err
	}
	if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
		return 0, err
	}
	began := time.Now()
	err = every(ctx, 10*time.Millisecond, func() error {
		_, now, err := n.processes()
		if err == nil && (len(now) != len(before) || slices.Contains(now, victim)) {
			err = fmt.Errorf("%d pods run, want %d", len(now), len(before))
		}
		return err
	})
	return time.Since(began), err
}

type restarted struct {
	ready time.Duration // until /readyz is OK: the preparer supervises its pods
	held  time.Duration // until the preparer holds its node, and takes intents
}

// restart kills the preparer and starts it again. The pods must survive.
func (n *realNode) restart(ctx context.Context) (again restarted, err error) {
	_, before, err := n.processes()
	if err != nil {
		return again, err
	}
	record := n.world.keys.Nodes.Key(nodeName)
	last, err := n.world.client.Get(ctx, record, consul.Default)
	if err != nil {
		return again, err
	}
	_ = n.cmd.Process.Kill() // it runs
	<-n.ended
	began := time.Now()
	if err := n.start(); err != nil {
		return again, err
	}
	err = every(ctx, 5*time.Millisecond, func() error {
		if again.ready == 0 {
			if _, err := cluster.Get(ctx, "http://"+n.debug+"/readyz"); err == nil {
				again.ready = time.Since(began)
			}
		}
		if again.held == 0 {
			now, err := n.world.client.Get(ctx, record, consul.Default)
			if err != nil {
				return err
			}
			if now.Session != "" && now.Session != last.Session {
				again.held = time.Since(began)
			}
		}
		if again.ready == 0 || again.held == 0 {
			return fmt.Errorf("ready after %s, the node held after %s; 0s: not yet", again.ready, again.held)
		}
		return nil
	})
	if err != nil {
		return again, err
	}
	if _, err := n.run(ctx, 1); err != nil { // it works again
		return again, err
	}
	_, after, err := n.processes()
	if err != nil {
		return again, err
	}
	for _, pid := range before {
		if !slices.Contains(after, pid) {
			return again, fmt.Errorf("pod %d did not survive the restart of the preparer", pid)
		}
	}
	return again, nil
}

// pss returns the memory of a process in bytes, with its share of shared memory (proc(5), smaps_rollup).
func pss(pid int) (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if text, ok := strings.CutPrefix(line, "Pss:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(text)[0], 10, 64)
			return kb * 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/smaps_rollup has no Pss", pid)
}

func cpuDuring(ctx context.Context, pids []int, d time.Duration) (time.Duration, error) {
	total := func() (sum time.Duration, err error) {
		for _, pid := range pids {
			used, err := cpu(pid)
			if err != nil {
				return 0, err
			}
			sum += used
		}
		return sum, nil
	}
	from, err := total()
	if err != nil {
		return 0, err
	}
	if err := wait.Pause(ctx, d); err != nil {
		return 0, err
	}
	to, err := total()
	return to - from, err
}
