package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// execStop: a command that an operator runs in a pod ends before the pod's stop is confirmed, with and without cgroups.
func execStop(e *env) {
	e.startConsul("")
	e.preparer(1, "--isolation", "off")
	e.preparer(2)
	e.farm("f1", "")
	e.applied(e.hello(2, nil))
	const script = `trap "" TERM INT HUP; setsid sh -c 'trap "" TERM; while :; do sleep 0.1; done' & echo $$ $!; while :; do sleep 0.1; done`
	var pids []int
	for i := range 2 {
		cmd, lines := e.startRcctl("exec", fmt.Sprintf("hello-main-%d", i), "--", "sh", "-c", script)
		var shell, child int
		if _, err := fmt.Sscan(<-lines, &shell, &child); err != nil {
			e.t.Fatal(err)
		}
		pids = append(pids, shell, child)
		e.t.Cleanup(func() { _ = cmd.Wait() }) // it fails: its command was killed
	}
	e.rcctl("", "rc", "delete", "hello", "--force", "--allow-mass-stop", "--wait", "--timeout", limit.String())
	for _, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			e.t.Errorf("process %d of a command is left after its pod: %v", pid, err)
		}
	}
}

// hostilePod: a pod harms its node as much as it can. The node and another pod on it continue to work, also during
// restarts and stops.
func hostilePod(e *env) {
	dir := e.inMemory()
	e.startConsul("")
	n1 := e.preparer(1, "--data-dir", dir, "--keep-stopped", "1ms")
	e.farm("f1", "")
	e.applied(e.hello(1, nil))
	good := e.processes()

	const levels = "25000" // more than the hard limit of descriptors on many machines
	n1.ready(http.StatusOK, "")
	socket := filepath.Join(dir, "api", "socket")
	bad := e.hello(1, map[string]string{"HELLO_HOSTILE": levels, "HELLO_SIEGE": n1.debugAddr() + "," + socket})
	bad.Name, bad.Port = "mischief", 8081
	e.applied(bad)
	e.remember("hello", "mischief")
	name := e.rcIDs["mischief"] + ".main.0"
	e.besieged(n1, filepath.Join(dir, "homes", name, "told"))
	log := filepath.Join(dir, "logs", name, "web.log")
	e.awaitMischief(log)
	e.takesNoRoom(log)
	neighbour := filepath.Join(dir, "logs", e.rcIDs["hello"]+".main.0", "web.log")
	e.writeLog(neighbour, 12<<20)
	e.cut(neighbour)

	e.crash("mischief", 0)
	e.within(limit, func() error { return e.availableAll(e.rcIDs["mischief"], 1) })
	n1.kill()
	n1.startAgain()
	e.rcctl("", "rc", "delete", "mischief", "--force", "--allow-mass-stop", "--wait", "--timeout", limit.String())
	e.sameProcesses(good, "after its neighbour was deleted")
	n1.kill() // the next preparer continues the deletion
	n1.startAgain()
	for _, left := range []string{name, ".removed"} {
		e.within(limit, func() error {
			if _, err := os.Lstat(filepath.Join(dir, "homes", left)); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s is there: %w", left, err)
			}
			return nil
		})
	}
	e.sameProcesses(good, "while what its neighbour left was deleted")
	e.applied(e.hello(1, map[string]string{"HELLO_VERSION": "two"}))
	e.rcctl("", "rc", "scale", "hello", "0", "--wait", "--timeout", limit.String())
}

// besieged: while a pod takes all connections that it gets, operators read logs and run commands. The pod itself gets
// no access to the operators' API.
func (e *env) besieged(n *daemon, told string) {
	e.t.Helper()
	e.within(limit, func() error {
		text, err := os.ReadFile(told)
		if err == nil && os.Geteuid() == 0 && !strings.Contains(string(text), "permission denied") {
			e.t.Fatalf("the pod asked the node API, and got %q", text)
		}
		return err
	})
	for range 5 {
		n.ready(http.StatusOK, "")
		if out := e.rcctl("", "logs", "hello-main-0"); !strings.Contains(out, "listening on ") {
			e.t.Errorf("log of the neighbour: %q", out)
		}
		if out := e.rcctl("", "exec", "hello-main-0", "--", "printenv", "POD_ID"); out != "hello\n" {
			e.t.Errorf("command in the neighbour: %q", out)
		}
	}
}

// inMemory returns a directory that pods can reach, and that is deleted quickly.
func (e *env) inMemory() string {
	e.t.Helper()
	const memory = "/dev/shm"
	parent := ""
	if info, err := os.Stat(memory); err == nil && info.IsDir() {
		parent = memory
	}
	dir, err := os.MkdirTemp(parent, "rcf-")
	if err == nil {
		err = os.Chmod(dir, 0o711)
	}
	if err != nil {
		e.t.Fatal(err)
	}
	e.dirs = append(e.dirs, dir)
	return dir
}

func (e *env) awaitMischief(log string) {
	e.t.Helper()
	e.within(limit, func() error {
		var texts []string
		for _, path := range []string{log + ".1", log + ".2", log + ".3", log} {
			info, err := os.Stat(path)
			switch {
			case err != nil:
			case info.Size() >= 1<<40: // the pod stretches its log when all else is done
				return nil
			case info.Size() < 1<<20:
				text, _ := os.ReadFile(path) // it may have been moved on
				texts = append(texts, string(text))
			}
		}
		if all := strings.Join(texts, ""); !strings.Contains(all, "mischief done") &&
			!strings.Contains(all, "stretching") {
			return fmt.Errorf("its logs say %q", all)
		}
		return nil
	})
}

// takesNoRoom waits until a log is longer than any disk, and takes almost no space.
func (e *env) takesNoRoom(log string) {
	e.t.Helper()
	e.within(limit, func() error {
		info, err := os.Stat(log)
		if err != nil {
			return err
		}
		if room := info.Sys().(*syscall.Stat_t).Blocks * 512; info.Size() < 1<<40 || room > 20<<20 {
			return fmt.Errorf("the log has %d bytes, and takes %d", info.Size(), room)
		}
		return nil
	})
}

func (e *env) cut(log string) {
	e.t.Helper()
	e.within(limit, func() error {
		rotated, err := os.Stat(log + ".1")
		if err != nil {
			return err
		}
		if info, err := os.Stat(log); err != nil || info.Size() > 0 && info.Size() < 1<<40 && rotated.Size() > 100<<20 {
			return fmt.Errorf("the log is %v, %w", info, err)
		}
		return nil
	})
}
