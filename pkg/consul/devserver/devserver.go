// Package devserver runs a development Consul: one agent in dev mode on loopback, all of its ports free ones.
package devserver

import (
	"context"
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
	Dir       string // where its configuration is written
	Port      int    // HTTP port on 127.0.0.1; zero picks a free one
	ExtraJSON string // more configuration, as a JSON object
	// MaxClientConns is how many connections one address may have; zero: Consul's default, which is 200.
	MaxClientConns int
	OnDisk         bool // a server of its own cluster that keeps its state in Dir, in place of dev mode
}

// Find returns the Consul program: $CONSUL_BIN, else consul beside this program or in one of the given folders, else
// consul on PATH.
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

// Args writes the server's configuration and returns its HTTP address and the arguments to start it with.
func Args(ctx context.Context, cfg Config) (addr string, args []string, err error) {
	ports, err := FreePorts(ctx, 3)
	if err != nil {
		return "", nil, err
	}
	if cfg.Port != 0 {
		ports[0] = cfg.Port
	}
	file := filepath.Join(cfg.Dir, "consul.json")
	conf := map[string]any{
		"bind_addr": "127.0.0.1", "client_addr": "127.0.0.1", "disable_update_check": true,
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
		return "", nil, fmt.Errorf("write configuration of Consul: %w", err)
	}
	args = []string{"agent", "-dev", "-log-level", "warn", "-config-file", file}
	if cfg.OnDisk {
		args = []string{
			"agent", "-server", "-bootstrap-expect", "1", "-data-dir", filepath.Join(cfg.Dir, "data"), "-log-level", "warn",
			"-hcl", "performance { raft_multiplier = 1 }", "-config-file", file,
		}
	}
	if cfg.ExtraJSON != "" {
		extra := filepath.Join(cfg.Dir, "consul-extra.json")
		if err := os.WriteFile(extra, []byte(cfg.ExtraJSON), 0o600); err != nil {
			return "", nil, fmt.Errorf("write configuration of Consul: %w", err)
		}
		args = append(args, "-config-file", extra)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0])), args, nil
}

// FreePorts returns distinct TCP ports on 127.0.0.1 that nothing listens on. Another program may take one before it is
// used; who starts a server on it must be ready to try again.
func FreePorts(ctx context.Context, n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close()
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}

// WaitReady returns when the server at addr has a leader and its own node is in the catalog, or when ctx ends.
func WaitReady(ctx context.Context, addr string) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := ready(ctx, addr)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for Consul at %s: %w (last answer: %w)", addr, context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}

func ready(ctx context.Context, addr string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/v1/health/state/passing", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var checks []struct{ CheckID string }
	if err := json.NewDecoder(resp.Body).Decode(&checks); err != nil {
		return fmt.Errorf("status %d: %w", resp.StatusCode, err)
	}
	// A server that denies by default hides the checks, and from a client without a token also that it does so; that it
	// has a leader is enough there.
	denies := resp.Header.Get("X-Consul-Default-Acl-Policy") == "deny" && resp.Header.Get("X-Consul-Knownleader") == "true"
	if resp.StatusCode != http.StatusOK || (len(checks) == 0 && !denies) {
		return fmt.Errorf("status %d, %d passing checks", resp.StatusCode, len(checks))
	}
	return nil
}
