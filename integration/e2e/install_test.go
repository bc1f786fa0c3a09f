package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rcfarm/rcfarm/integration/cluster"
)

// defaultInstall: a preparer on a new machine, with defaults and a strict umask, runs no pod as root. It refuses a
// manifest that asks for root until the node allows it. If pods cannot have users, no pod is started, and the reports
// of all pods have the reason.
func defaultInstall(e *env) {
	e.startConsul("")
	life := filepath.Join(e.dir, "life.sock")
	lib := filepath.Join(e.dir, "lib")
	if err := os.Mkdir(lib, 0o755); err != nil {
		e.t.Fatal(err)
	}
	// In the preparer's own mount namespace, an empty directory takes the place of /var/lib.
	install := func(more ...string) *daemon {
		unshare, script := "-m", `umask 077; mount --bind "$0" /var/lib && exec "$@"`
		if os.Getuid() != 0 {
			unshare = "-Urm" // root of a user namespace with one user
		}
		args := append([]string{
			unshare, "sh", "-c", script, lib, filepath.Join(e.root, "bin", "preparer"), "--consul-addr", e.consul.Addr,
			"--node", "n1", "--address", e.address(1), "--lifeline", life, "--debug-addr", "127.0.0.1:0",
		}, more...)
		return e.start("n1", "/usr/bin/unshare", args...)
	}
	d := install()
	e.farm("f1", "")
	hello := e.hello(2, nil)
	hello.Port = 0
	e.apply(hello)
	if os.Getuid() != 0 {
		e.podsSay("starts none as root in place of one")
		e.within(limit, func() error { return e.nodesShow("refused") })
		return
	}
	e.applied(hello)
	e.runsAs(2, func(uid string) bool { return uid >= "1900000000" && len(uid) == len("1900000000") })
	e.within(limit, func() error { return e.nodesShow("users") })

	root := hello
	root.Name, root.Replicas = "asroot", 1
	spec := strings.Replace(cluster.HelloSpec(root), "    stop_grace: 5s\n", "    stop_grace: 5s\n    user: root\n", 1)
	e.rcctl(spec, "apply", "-f", "-")
	e.podsSay("see --allow-root-pods")
	e.runsAs(2, func(uid string) bool { return uid != "0" })
	before := e.processes()
	d.kill()
	install("--allow-root-pods")
	e.within(limit, func() error {
		for who, pid := range e.processes() {
			if uidOf(pid) == "0" && strings.HasPrefix(who, e.rcID("asroot")) {
				return nil
			}
		}
		return errors.New("the pod that may be root does not run as root")
	})
	e.keptProcesses(before, "of the others when root was allowed")
}

func (e *env) nodesShow(isolation string) error {
	if out := e.rcctl("", "nodes"); !strings.Contains(out, "ISOLATION") || !strings.Contains(out, " "+isolation) {
		return fmt.Errorf("rcctl nodes does not say %q:\n%s", isolation, out)
	}
	return nil
}

func (e *env) runsAs(n int, right func(uid string) bool) {
	e.t.Helper()
	all := e.processes()
	if len(all) != n {
		e.t.Errorf("%d processes run: %v, want %d", len(all), all, n)
	}
	for who, pid := range all {
		if uid := uidOf(pid); !right(uid) {
			e.t.Errorf("%s runs as user %q", who, uid)
		}
	}
}

func uidOf(pid int) string {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		if rest, is := strings.CutPrefix(line, "Uid:"); is {
			return strings.Fields(rest)[0]
		}
	}
	return ""
}
