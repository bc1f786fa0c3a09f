package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/consul/devserver"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

// scope has what a measurement has started. The method close ends all of it, the last part first.
type scope struct{ undo []func() }

func (s *scope) add(f func()) { s.undo = append(s.undo, f) }

func (s *scope) close() {
	for _, undo := range slices.Backward(s.undo) {
		undo()
	}
	s.undo = nil
}

type agent struct {
	addr string // host:port of its HTTP API
	id   string // of its node
	rpc  int    // port of the servers' protocol
	serf int    // port that others join
	dev  bool   // in dev mode
	proc *os.Process
	done chan struct{}
}

const consulLimit = 30 * time.Second

// startAgent starts a Consul, which runs until the scope or this program ends, and does not wait until it is ready.
func (b *bench) startAgent(ctx context.Context, sc *scope, args []string, conf map[string]any) (*agent, error) {
	bin, err := devserver.Find(filepath.Join(b.root, "bin"))
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "rcfarm-bench-")
	if err != nil {
		return nil, err
	}
	sc.add(func() { _ = os.RemoveAll(dir) })
	ports, err := devserver.FreePorts(ctx, 3)
	if err != nil {
		return nil, err
	}
	id := devserver.NewNodeID()
	all := map[string]any{
		"node_id": id, "bind_addr": "127.0.0.1", "client_addr": "127.0.0.1",
		"disable_update_check": true, "log_level": "warn",
		"retry_interval": "1s", // of joining
		"node_name":      fmt.Sprintf("agent-%d", ports[2]),
		"ports": map[string]int{
			"http": ports[0], "server": ports[1], "serf_lan": ports[2],
			"serf_wan": -1, "dns": -1, "grpc": -1, "grpc_tls": -1,
		},
		"telemetry": map[string]any{"prometheus_retention_time": "1h", "disable_hostname": true},
	}
	maps.Copy(all, conf)
	file := filepath.Join(dir, "consul.json")
	data, err := json.Marshal(all)
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		return nil, err
	}
	if !slices.Contains(args, "-dev") {
		args = append(args, "-data-dir", filepath.Join(dir, "data"))
	}
	a := &agent{
		addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0])), id: id, rpc: ports[1], serf: ports[2],
		dev: slices.Contains(args, "-dev"), done: make(chan struct{}),
	}
	cmd := exec.Command(bin, append([]string{"agent", "-config-file", file}, args...)...)
	if err := consultest.StartTied(cmd, func(error) { close(a.done) }); err != nil {
		return nil, err
	}
	a.proc = cmd.Process
	sc.add(a.kill)
	return a, nil
}

func (a *agent) kill() {
	_ = a.proc.Kill() // it may have ended already
	<-a.done
}

// manyClients raises Consul's limit of 200 connections from one address, because all farms and nodes run on one
// machine.
var manyClients = map[string]any{"limits": map[string]any{"http_max_conns_per_client": 5000}}

// startDev runs one Consul in dev mode, in memory.
func (b *bench) startDev(ctx context.Context, sc *scope, conf map[string]any) (*agent, error) {
	a, err := b.startAgent(ctx, sc, []string{"-dev"}, conf)
	if err != nil {
		return nil, err
	}
	return a, waitReady(ctx, a)
}

func (b *bench) startClient(ctx context.Context, sc *scope, server *agent) (*agent, error) {
	a, err := b.startAgent(ctx, sc, []string{"-retry-join", server.join()}, manyClients)
	if err != nil {
		return nil, err
	}
	return a, waitReady(ctx, a)
}

func (a *agent) join() string { return fmt.Sprintf("127.0.0.1:%d", a.serf) }

// startThree runs three servers with disks, and returns the leader.
func (b *bench) startThree(ctx context.Context, sc *scope) (*agent, error) {
	const servers = 3
	conf := map[string]any{"performance": map[string]any{"raft_multiplier": 1}} // as advised for production
	maps.Copy(conf, manyClients)
	var all []*agent
	for range servers {
		args := []string{"-server", "-bootstrap-expect", strconv.Itoa(servers)}
		for _, other := range all {
			args = append(args, "-retry-join", other.join())
		}
		a, err := b.startAgent(ctx, sc, args, conf)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	var group errgroup.Group
	for _, a := range all {
		group.Go(func() error { return waitReady(ctx, a) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	leader, err := cluster.Get(ctx, "http://"+all[0].addr+"/v1/status/leader")
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		if strings.HasSuffix(strings.TrimSpace(leader), fmt.Sprintf(`:%d"`, a.rpc)) {
			return a, nil
		}
	}
	return nil, fmt.Errorf("no server is the leader %s", leader)
}

func waitReady(ctx context.Context, a *agent) error {
	ctx, cancel := context.WithTimeoutCause(ctx, consulLimit, errors.New("not ready in time"))
	defer cancel()
	return devserver.WaitReady(ctx, devserver.Identity{Addr: a.addr, NodeID: a.id})
}
