package app

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul/devserver"
)

// Users of pods can pass through the directory of a development cluster, with any umask. An existing directory
// keeps its mode.
func TestDevDirsLetPodsPass(t *testing.T) { //nolint:paralleltest // it sets the umask of the process
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	parent := t.TempDir()
	mine := filepath.Join(parent, "mine")
	if err := os.Mkdir(mine, 0o700); err != nil {
		t.Fatal(err)
	}
	fresh := filepath.Join(parent, "new")
	for _, dir := range []string{fresh, mine} {
		if err := makeDevDirs(dir); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]os.FileMode{
		fresh: 0o711, filepath.Join(fresh, "data"): 0o711, filepath.Join(fresh, "logs"): 0o700,
		filepath.Join(fresh, "consul"): 0o700, mine: 0o700,
	} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode().Perm(), err, want)
		}
	}
}

// All farms of a development cluster use the outside scheduler.
func TestDevFarmsAskTheScheduler(t *testing.T) {
	t.Parallel()
	cfg := DevConfig{}
	if got := cfg.farmArgs("farm-1"); !slices.Equal(got, []string{"--id", "farm-1"}) {
		t.Errorf("%v", got)
	}
	cfg.Scheduler.URL = "http://127.0.0.1:7470"
	if got := cfg.farmArgs("farm-2"); !slices.Equal(got,
		[]string{"--id", "farm-2", "--scheduler-url", "http://127.0.0.1:7470"}) {
		t.Errorf("%v", got)
	}
}

// Consul accepts the connections of all daemons of the largest cluster, which come from one address.
func TestConsulOfDevTakesAllConnections(t *testing.T) {
	t.Parallel()
	for _, cfg := range []DevConfig{
		{Farms: 1, Nodes: 35},
		{Farms: 4, Nodes: 8},
		{Farms: maxDevFarms, Nodes: maxDevNodes},
	} {
		if got, need := cfg.conns(), cfg.Farms*60+cfg.Nodes*6; got < need {
			t.Errorf("%d farms and %d nodes: %d connections, of %d", cfg.Farms, cfg.Nodes, got, need)
		}
	}
	dir := t.TempDir()
	if _, err := devserver.New(t.Context(), devserver.Config{Dir: dir, MaxClientConns: 1234}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "consul.json"))
	if err != nil {
		t.Fatal(err)
	}
	var conf struct{ Limits map[string]int }
	if err := json.Unmarshal(data, &conf); err != nil || conf.Limits["http_max_conns_per_client"] != 1234 {
		t.Errorf("%s, %v", data, err)
	}
}
