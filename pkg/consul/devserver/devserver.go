// Package devserver runs a development Consul: one agent on loopback, with free ports.
package devserver

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// Config describes one server.
type Config struct {
	Bin       string // path of the consul program; see Find
	Dir       string // for its configuration
	Port      int    // HTTP port on 127.0.0.1; zero: a free one
	ExtraJSON string // more configuration, as a JSON object
	// MaxClientConns is how many connections Consul accepts from one address; zero: Consul's default, 200.
	MaxClientConns int
	OnDisk         bool // a server of a cluster of its own, with its state in Dir, instead of dev mode
}

// Find returns the Consul program: $CONSUL_BIN, or consul in one of the folders, beside this program, or on PATH.
func Find(folders ...string) (string, error) {
	if bin := os.Getenv("CONSUL_BIN"); bin != "" {
		if _, err := os.Stat(bin); err != nil {
			return "", fmt.Errorf("CONSUL_BIN=%s: %w", bin, err)
		}
		return bin, nil
	}
	if exe, err := os.Executable(); err == nil {
		folders = append(folders, filepath.Dir(exe))
	}
	for _, folder := range folders {
		bin := filepath.Join(folder, "consul")
		if info, err := os.Stat(bin); err == nil && info.Mode().IsRegular() {
			return bin, nil
		}
	}
	bin, err := exec.LookPath("consul")
	if err != nil {
		return "", errors.New("no consul program found: set CONSUL_BIN, put consul on PATH, or run `make bin/consul`")
	}
	return bin, nil
}

// Server has what is needed to start one server, and to recognise it.
type Server struct {
	Identity
	Args []string // of the consul program
}

// Identity distinguishes a server from others that may answer at the same address.
type Identity struct {
	Addr   string // host:port of its HTTP API
	NodeID string // see NewNodeID
	RPC    string // host:port of its RPC, which is also the address of its cluster's leader; empty: not known
}

// NewNodeID returns a node id that no other agent has.
func NewNodeID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])                      // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80 // version 4 of RFC 9562
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// New writes the server's configuration and returns how to start it.
func New(ctx context.Context, cfg Config) (*Server, error) {
	ports, err := FreePorts(ctx, 3)
	if err != nil {
		return nil, err
	}
	if cfg.Port != 0 {
		ports[0] = cfg.Port
	}
	s := &Server{Identity: Identity{Addr: loopback(ports[0]), NodeID: NewNodeID(), RPC: loopback(ports[1])}}
	file := filepath.Join(cfg.Dir, "consul.json")
	conf := map[string]any{
		"node_id": s.NodeID, "bind_addr": "127.0.0.1", "client_addr": "127.0.0.1", "disable_update_check": true,
		"ports": map[string]int{
			"http": ports[0], "server": ports[1], "serf_lan": ports[2],
			"serf_wan": -1, "dns": -1, "grpc": -1, "grpc_tls": -1,
		},
	}
	if cfg.MaxClientConns != 0 {
		conf["limits"] = map[string]int{"http_max_conns_per_client": cfg.MaxClientConns}
	}
	data, err := json.MarshalIndent(conf, "", "  ")
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("write configuration of Consul: %w", err)
	}
	s.Args = []string{"agent", "-dev", "-log-level", "warn", "-config-file", file}
	if cfg.OnDisk {
		s.Args = []string{
			"agent", "-server", "-bootstrap-expect", "1", "-data-dir", filepath.Join(cfg.Dir,
				"data"), "-log-level", "warn",
			"-hcl", "performance { raft_multiplier = 1 }", "-config-file", file,
		}
	}
	if cfg.ExtraJSON != "" {
		extra := filepath.Join(cfg.Dir, "consul-extra.json")
		if err := os.WriteFile(extra, []byte(cfg.ExtraJSON), 0o600); err != nil {
			return nil, fmt.Errorf("write configuration of Consul: %w", err)
		}
		s.Args = append(s.Args, "-config-file", extra)
	}
	return s, nil
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// CheckFree returns an error if a program listens on a port of 127.0.0.1, by TCP or UDP.
func CheckFree(ctx context.Context, port int) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", loopback(port))
	if err != nil {
		return err
	}
	defer l.Close()
	return checkDatagrams(ctx, l)
}

// checkDatagrams checks the port for UDP, because Consul's gossip uses both.
func checkDatagrams(ctx context.Context, l net.Listener) error {
	p, err := new(net.ListenConfig).ListenPacket(ctx, "udp", l.Addr().String())
	if err != nil {
		return err
	}
	return p.Close()
}

// portTries bounds how many ports the kernel is asked for until one is also free for UDP.
const portTries = 20

// FreePorts returns distinct ports on 127.0.0.1. Another program may take one before the caller uses it.
func FreePorts(ctx context.Context, n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		for try := 1; ; try++ {
			l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
			if err != nil {
				return nil, fmt.Errorf("find a free port: %w", err)
			}
			defer l.Close()
			if err = checkDatagrams(ctx, l); err == nil {
				ports[i] = l.Addr().(*net.TCPAddr).Port
				break
			}
			if try == portTries {
				return nil, fmt.Errorf("find a free port: %w", err)
			}
		}
	}
	return ports, nil
}

// ErrForeign means that another Consul answers.
var ErrForeign = errors.New("another Consul answers")

// WaitReady returns when this server has a leader and its own node is in the catalog, or when ctx ends. It returns
// ErrForeign as soon as another server answers. It only reads.
func WaitReady(ctx context.Context, id Identity) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := isOwn(ctx, id)
		if err == nil {
			err = ready(ctx, id.Addr)
		}
		if err == nil || errors.Is(err, ErrForeign) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for Consul at %s: %w (last answer: %w)", id.Addr, context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}

// isOwn checks who answers. A server with the default policy deny does not show its identity without a token. Then the
// address of the cluster's leader identifies it, because only the started server uses this port.
func isOwn(ctx context.Context, id Identity) error {
	var self struct {
		Config struct{ NodeID, NodeName string }
	}
	status, _, err := get(ctx, id.Addr, "/v1/agent/self", &self)
	var leader string
	if status == http.StatusForbidden && id.RPC != "" {
		switch _, _, err = get(ctx, id.Addr, "/v1/status/leader", &leader); {
		case err == nil && leader == "":
			return errors.New("no leader yet")
		case err == nil && leader != id.RPC:
			return fmt.Errorf("%w at %s: its leader is at %s, and the one that was started would be at %s", ErrForeign,
				id.Addr, leader, id.RPC)
		}
		return err
	}
	if err == nil && self.Config.NodeID != id.NodeID {
		return fmt.Errorf("%w at %s: it is %q with the node id %s, and the one that was started has %s",
			ErrForeign, id.Addr, self.Config.NodeName, self.Config.NodeID, id.NodeID)
	}
	return err
}

func ready(ctx context.Context, addr string) error {
	var checks []struct{ CheckID string }
	status, header, err := get(ctx, addr, "/v1/health/state/passing", &checks)
	if err != nil {
		return err
	}
	// Such a server hides the checks from a client without a token. Then a leader is enough.
	denies := header.Get("X-Consul-Default-Acl-Policy") == "deny" && header.Get("X-Consul-Knownleader") == "true"
	if len(checks) == 0 && !denies {
		return fmt.Errorf("status %d, no passing check", status)
	}
	return nil
}

func get(ctx context.Context, addr, path string, into any) (status int, header http.Header, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return resp.StatusCode, resp.Header, fmt.Errorf("%s: status %d", path, resp.StatusCode)
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return resp.StatusCode, resp.Header, fmt.Errorf("%s: %w", path, err)
	}
	return resp.StatusCode, resp.Header, nil
}
