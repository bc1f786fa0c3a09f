package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/oneshot"
)

// attack stops each process that joins the pod's cgroup when it has the pod's user, and prints the pid if it is a stub.
const attack = `
mount=$(while read _ dir type _; do [ $type = cgroup2 ] && echo $dir; done </proc/mounts)
members=$mount$(sed -n 's/^0:://p' /proc/self/cgroup)/cgroup.procs
known=" "
while read p; do known="$known$p "; done <$members
while :; do
	while read p; do
		case $known in *" $p "*) continue;; esac
		[ "$p" -gt 0 ] || continue # one that ends is 0, which would be the attacker's own group
		kill -STOP $p 2>/dev/null || continue # it is root's
		known="$known$p "
		case $(tr '\0' ' ' </proc/$p/cmdline) in
		*shim-exec*) echo stopped $p;;
		*) kill -CONT $p;;
		esac
	done <$members
done`

// stoppedStub: a pod stops commands that run beside it, before they have become programs. These commands end when their
// caller ends and when the pod stops. Their guards end too.
func stoppedStub(e *env) {
	e.startConsul("")
	e.preparer(1)
	e.farm("f1", "")
	e.applied(e.hello(1, nil))
	_, stopped := e.startRcctl("exec", "hello-main-0", "--", "sh", "-c", attack)
	for _, end := range []string{"caller", "pod"} {
		stub, victim := e.stopOne(stopped)
		if end == "caller" {
			_ = victim.Kill()
		} else {
			e.rcctl("", "rc", "delete", "hello", "--force", "--allow-mass-stop", "--wait", "--timeout", limit.String())
		}
		e.within(limit, func() error {
			if state := processState(stub); state != "" {
				return fmt.Errorf(
					"a command that was stopped before it was a program is in state %q after the end of its %s", state,
					end)
			}
			return nil
		})
	}
	e.within(limit, func() error {
		if left := e.guards(); len(left) > 0 {
			return fmt.Errorf("guards are left: %v", left)
		}
		return nil
	})
}

// stopOne returns the stopped stub of a command, and the process that asked for the command.
func (e *env) stopOne(stopped <-chan string) (stub int, caller *os.Process) {
	e.t.Helper()
	e.within(limit, func() error {
		cmd, lines := e.startRcctl("exec", "hello-main-0", "--", "true")
		caller = cmd.Process
		select {
		case line, ok := <-stopped:
			if !ok {
				e.t.Fatal("the attacker has ended")
			}
			_, err := fmt.Sscanf(line, "stopped %d", &stub)
			e.t.Cleanup(func() { _, _ = caller.Kill(), cmd.Wait() })
			return err
		case <-lines: // lines is closed: the command was not stopped
			return errors.Join(errors.New("the pod has stopped no command of its own"), cmd.Wait())
		}
	})
	return stub, caller
}

func (e *env) guards() (pids []string) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, line := range lines {
		text, _ := os.ReadFile(line) // one that has ended is no guard
		exe, arg, _ := strings.Cut(string(text), "\x00")
		if strings.HasPrefix(exe, e.root) && arg == oneshot.Arg+"\x00" {
			pids = append(pids, filepath.Base(filepath.Dir(line)))
		}
	}
	return pids
}
