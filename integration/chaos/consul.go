package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
)

// managementToken has all rights in the run's own Consul.
const managementToken = "5d9b1a3e-6d0c-4b60-9a5f-3f1f6c1b0a02"

const consulPort = 8500

// agentConfig keeps the Raft log whole, in a format that the checker reads. Gossip is faster than by default, so that
// short faults are noticed.
func agentConfig(m *machine, dataDir string, servers []*machine, isServer bool) map[string]any {
	var join []string
	for _, s := range servers {
		join = append(join, s.ip())
	}
	conf := map[string]any{
		"node_name": m.name, "bind_addr": m.ip(), "client_addr": "127.0.0.1 " + m.ip(), "data_dir": dataDir,
		"retry_join": join, "retry_interval": "1s", "disable_update_check": true, "disable_coordinates": true,
		"log_level": "warn", "leave_on_terminate": false, "skip_leave_on_interrupt": true,
		"ports":   map[string]int{"dns": -1, "grpc": -1, "grpc_tls": -1, "serf_wan": -1},
		"connect": map[string]any{"enabled": false},
		"peering": map[string]any{"enabled": false},
		"gossip_lan": map[string]any{
			"probe_interval": "500ms", "probe_timeout": "300ms",
			"gossip_interval": "100ms", "suspicion_mult": 3,
		},
		"acl": map[string]any{
			"enabled": true, "default_policy": "deny", "down_policy": "extend-cache",
			"tokens": map[string]string{"initial_management": managementToken, "agent": managementToken},
		},
	}
	if isServer {
		conf["server"], conf["bootstrap_expect"] = true, len(servers)
		conf["performance"] = map[string]int{"raft_multiplier": 1}
		conf["raft_logstore"] = map[string]any{"backend": "boltdb"}
		conf["raft_snapshot_threshold"], conf["raft_trailing_logs"] = 100_000_000, 100_000_000
		conf["autopilot"] = map[string]any{"cleanup_dead_servers": false}
	}
	return conf
}

func (c *chaos) agent(m *machine, isServer bool) (*process, error) {
	dir := filepath.Join(c.cfg.dir, m.name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	conf := agentConfig(m, dir, c.serverMachines, isServer)
	if !isServer {
		delete(conf["acl"].(map[string]any)["tokens"].(map[string]string), "initial_management")
	}
	data, err := json.Marshal(conf)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(c.cfg.dir, m.name+".json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return nil, err
	}
	return &process{
		name: "consul-" + m.name, on: m, dir: c.cfg.dir,
		args: []string{c.cfg.consul, "agent", "-config-file", file},
	}, nil
}

func request(ctx context.Context, ip, method, path string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("http://%s:%d%s", ip, consulPort, path),
		bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-Consul-Token", managementToken)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s at %s: status %d: %.200s", method, path, ip, resp.StatusCode, data)
	}
	return data, err
}

func (c *chaos) anyServer(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	var errs []error
	for _, m := range c.serverMachines {
		data, err := request(ctx, m.ip(), method, path, body)
		if err == nil {
			return data, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func (c *chaos) leader(ctx context.Context) (int, error) {
	data, err := c.anyServer(ctx, http.MethodGet, "/v1/status/leader", nil)
	if err != nil {
		return 0, err
	}
	for i, m := range c.serverMachines {
		if strings.HasPrefix(string(data), `"`+m.ip()+":") {
			return i, nil
		}
	}
	return 0, fmt.Errorf("the leader is %s", data)
}

// leaderSoon waits for a leader for a short time, because the last fault may just have removed the leader.
func (c *chaos) leaderSoon(ctx context.Context) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = cluster.Until(ctx, func() error { n, err = c.leader(ctx); return err })
	return n, err
}

// logIndex returns the last index of a server's Raft log, and the last that it has applied.
func (c *chaos) logIndex(ctx context.Context, server int) (last, applied uint64, err error) {
	data, err := request(ctx, c.serverMachines[server].ip(), http.MethodGet, "/v1/agent/self", nil)
	if err != nil {
		return 0, 0, err
	}
	var self struct {
		Stats struct{ Raft map[string]string }
	}
	if err := json.Unmarshal(data, &self); err != nil {
		return 0, 0, err
	}
	last, err = strconv.ParseUint(self.Stats.Raft["last_log_index"], 10, 64)
	if err == nil {
		applied, err = strconv.ParseUint(self.Stats.Raft["applied_index"], 10, 64)
	}
	return last, applied, err
}

// snapshotIndex returns the Raft index of a snapshot's archive.
func snapshotIndex(archive []byte) (uint64, error) {
	zip, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return 0, err
	}
	for files := tar.NewReader(zip); ; {
		h, err := files.Next()
		if err != nil {
			return 0, fmt.Errorf("snapshot without meta.json: %w", err)
		}
		if h.Name != "meta.json" {
			continue
		}
		var meta struct{ Index uint64 }
		err = json.NewDecoder(files).Decode(&meta)
		return meta.Index, err
	}
}

// The rights of a farm, and the rights of a farm that may not read the records any more.
const (
	seeing    = `key_prefix "rcfarm/" { policy = "write" }`
	blind     = `key_prefix "rcfarm/" { policy = "deny" }`
	daemonACL = ` session_prefix "" { policy = "write" } service_prefix "" { policy = "write" }` +
		` agent_prefix "" { policy = "read" } node_prefix "" { policy = "read" }`
)

// policy makes a policy. If id is not empty, it changes the policy with this id.
func (c *chaos) policy(ctx context.Context, id, name, rules string) (string, error) {
	path := "/v1/acl/policy"
	if id != "" {
		path += "/" + id
	}
	body, err := json.Marshal(map[string]string{"Name": name, "Rules": rules})
	if err != nil {
		return "", err
	}
	data, err := c.anyServer(ctx, http.MethodPut, path, body)
	var made struct{ ID string }
	if err == nil {
		err = json.Unmarshal(data, &made)
	}
	return made.ID, err
}

// token makes a token with one policy.
func (c *chaos) token(ctx context.Context, policyID string) (string, error) {
	body, err := json.Marshal(map[string]any{"Policies": []map[string]string{{"ID": policyID}}})
	if err != nil {
		return "", err
	}
	data, err := c.anyServer(ctx, http.MethodPut, "/v1/acl/token", body)
	var made struct{ SecretID string }
	if err == nil {
		err = json.Unmarshal(data, &made)
	}
	return made.SecretID, err
}
