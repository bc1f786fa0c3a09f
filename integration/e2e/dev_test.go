package e2e

import (
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
)

// devPortTaken: rcctl dev is started with the port of a Consul that runs already. It returns an error, writes nothing
// to that Consul, and leaves nothing behind. An earlier release used that Consul as its own, and deregistered the
// services of pods of the cluster there.
func devPortTaken(e *env) {
	e.startConsul("")
	e.farm("f1", "")
	e.preparer(1)
	e.applied(e.hello(1, nil))
	_, port, err := net.SplitHostPort(e.consul.Addr)
	if err != nil {
		e.t.Fatal(err)
	}
	before, running := e.registered(), e.processes()
	tmp := filepath.Join(e.dir, "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		e.t.Fatal(err)
	}
	named := filepath.Join(e.dir, "named")
	for _, more := range [][]string{nil, {"--dir", named}} {
		cmd := exec.CommandContext(e.t.Context(), filepath.Join(e.root, "bin", "rcctl"),
			append([]string{"dev", "--nodes", "1", "--consul-port", port}, more...)...)
		cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
		// a cluster that started would run until then
		cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(os.Interrupt) }, limit
		time.AfterFunc(limit, func() { _ = cmd.Cancel() })
		text, _ := cmd.CombinedOutput() // the exit code says more
		code, out := cmd.ProcessState.ExitCode(), string(text)
		if code != 4 || strings.Contains(out, "ready after") ||
			!strings.Contains(out, "consul-port: another program has the port: "+port) {
			e.t.Errorf("rcctl dev %v ended with %d:\n%s", more, code, out)
		}
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		e.t.Errorf("left behind: %v, %v", left, err)
	}
	if _, err := os.Stat(named); !os.IsNotExist(err) {
		e.t.Errorf("%s was made: %v", named, err)
	}
	if after := e.registered(); after != before {
		e.t.Errorf("what is in Consul has changed from\n%s\nto\n%s", before, after)
	}
	e.sameProcesses(running, "after rcctl dev")
	if left, err := cluster.ProcessesUnder(tmp); err != nil || len(left) > 0 {
		e.t.Errorf("processes are left: %v, %v", left, err)
	}
}

func (e *env) registered() string {
	e.t.Helper()
	var keys, sessions []struct{ Key, Name, ID string }
	var services map[string]any
	e.decode(e.request(http.MethodGet, "/v1/kv/?recurse", nil), &keys)
	e.decode(e.request(http.MethodGet, "/v1/session/list", nil), &sessions)
	e.decode(e.request(http.MethodGet, "/v1/agent/services", nil), &services)
	lines := slices.Collect(maps.Keys(services))
	for _, k := range append(keys, sessions...) {
		lines = append(lines, k.Key+k.Name+k.ID)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
