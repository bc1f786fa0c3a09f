package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/rcfarm/rcfarm/pkg/runtime/runit"
)

// underRunit: pods run as services of the real runit, and outlive everything that looks after them.
func underRunit(e *env) {
	e.startConsul("")
	e.farm("farm-1", "")
	agent := e.preparer(1, "--runtime", "runit")
	e.preparer(2, "--runtime", "runit")
	h := e.hello(2, nil)
	e.applied(h)
	before := e.processes()
	if len(before) != 2 {
		e.t.Fatalf("processes %v, want two", before)
	}
	dir := filepath.Join(e.dir, "n1", "runit")
	if used, err := runit.InUse(dir); err != nil || !used {
		e.t.Fatalf("%s holds no process: %v", dir, err)
	}

	agent.kill()
	e.sameProcesses(before, "preparer killed")
	// The other runtime would start the pod once more.
	out, err := exec.CommandContext(e.t.Context(), agent.path, append(agent.args, "--runtime", "shim")...).CombinedOutput()
	var failed *exec.ExitError
	if !errors.As(err, &failed) || !strings.Contains(string(out), "runtime: ") || !strings.Contains(string(out), "drain") {
		e.t.Errorf("the other runtime: %v, %s; want it refused", err, out)
	}
	for _, pid := range e.servedBy(dir) { // runsvdir and each runsv, while no preparer looks after them
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			e.t.Fatal(err)
		}
	}
	e.sameProcesses(before, "runit killed")
	agent.startAgain()
	e.within(limit, func() error {
		if n := len(e.servedBy(dir)); n != 2 {
			return fmt.Errorf("%d processes of runit, want runsvdir and one runsv", n)
		}
		return nil
	})
	e.rcctl("", "rc", "status", "hello", "--watch", "--until", "Converged", "--timeout", limit.String())
	e.sameProcesses(before, "preparer and runit back")

	// A change stops and starts them under runit, and the end of the controller leaves no service behind.
	h.Env = map[string]string{"VERSION": "2"}
	e.applied(h)
	for id, pid := range e.processes() {
		if before[id] == pid {
			e.t.Errorf("%s has pid %d still, want a new process", id, pid)
		}
	}
	e.rcctl("", "rc", "delete", "hello", "--force", "--wait", "--timeout", limit.String())
	e.within(limit, func() error {
		if used, err := runit.InUse(dir); err != nil || used {
			return fmt.Errorf("%s holds processes: %w", dir, err)
		}
		return nil
	})
	if left := e.processes(); len(left) > 0 {
		e.t.Errorf("left: %v", left)
	}
}

// servedBy returns the processes of runit that work in a directory.
func (e *env) servedBy(dir string) []int {
	e.t.Helper()
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		e.t.Fatal(err)
	}
	var pids []int
	for _, p := range procs {
		// One that has ended meanwhile has none of these.
		comm, _ := os.ReadFile(filepath.Join(p, "comm"))
		cwd, _ := os.Readlink(filepath.Join(p, "cwd"))
		cmdline, _ := os.ReadFile(filepath.Join(p, "cmdline"))
		if !strings.HasPrefix(string(comm), "runsv") || !strings.HasPrefix(cwd, dir) && !strings.Contains(string(cmdline), dir) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(p, "/proc/%d", &pid); err != nil {
			e.t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}
