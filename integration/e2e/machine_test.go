package e2e

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func (e *env) pidOf(rcName string, index int) int {
	e.t.Helper()
	prefix := fmt.Sprintf("%s/main.%d@", e.rcIDs[rcName], index)
	for key, pid := range e.processes() {
		if strings.HasPrefix(key, prefix) {
			return pid
		}
	}
	return 0
}

// remember keeps ids, because Consul may be away later.
func (e *env) remember(names ...string) {
	e.t.Helper()
	e.rcIDs = map[string]string{}
	for _, name := range names {
		e.rcIDs[name] = e.rcID(name)
	}
}

func (e *env) crash(rcName string, index int) {
	e.t.Helper()
	old := e.pidOf(rcName, index)
	if old == 0 {
		e.t.Fatalf("%s.%d has no process", rcName, index)
	}
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		e.t.Fatal(err)
	}
	killed := time.Now()
	e.within(limit, func() error {
		if now := e.pidOf(rcName, index); now == 0 || now == old {
			return fmt.Errorf("%s.%d has process %d, after %d was killed", rcName, index, now, old)
		}
		return nil
	})
	e.t.Logf("%s.%d was started again %s after it was killed", rcName, index,
		time.Since(killed).Round(time.Millisecond))
}

// preparerCrash: the preparer of a node is killed. The node's pods continue to run, and are started again when they
// crash. The next preparer takes the pods over as they are, and reports what has happened.
func preparerCrash(e *env) {
	e.startConsul("")
	n1 := e.preparer(1)
	e.preparer(2)
	e.farm("f1", "")
	e.applied(e.hello(2, nil))
	e.remember("hello")
	id := e.rcIDs["hello"]
	index := 0
	if e.placements(id)["main.0"].Value.Node != "n1" {
		index = 1
	}
	n1.kill()
	e.crash("hello", index)
	processes := e.processes()
	started := time.Now()
	n1.startAgain()
	e.within(limit, func() error {
		if e.nodes()["n1"].Session == "" {
			return errors.New("n1 has no lock yet")
		}
		return nil
	})
	e.t.Logf("the preparer had its lock again %s after it was started", time.Since(started).Round(time.Millisecond))
	e.within(limit, func() error { return e.converged(id, 2) })
	e.within(limit, func() error {
		out, err := e.tryRcctl("", "pods", "-o", "json")
		if err == nil && !strings.Contains(out, `"restarts": 1`) {
			err = fmt.Errorf("the restart is not reported: %s", out)
		}
		return err
	})
	e.sameProcesses(processes, "after the restart of the preparer")

	for version := range 3 {
		e.apply(e.hello(2, map[string]string{"HELLO_VERSION": fmt.Sprint(version)}))
		e.within(limit, func() error {
			if p := e.placements(id)[fmt.Sprintf("main.%d", index)].Value; !strings.Contains(n1.logText(),
				fmt.Sprint(p.Revision)) {
				return fmt.Errorf("revision %d is not accepted", p.Revision)
			}
			return nil
		})
		n1.kill()
		n1.startAgain()
		e.within(limit, func() error { return e.converged(id, 2) })
	}
	e.oneCopyEach()
	e.sameProcessCount(2)
}

func (e *env) sameProcessCount(want int) {
	e.t.Helper()
	if got := e.processes(); len(got) != want {
		e.t.Errorf("processes %v, want %d", got, want)
	}
}

// supervisorCrash: the supervisor is killed. Its pods continue to run, and the next supervisor takes them over. Then
// the supervisor and the preparer are killed together. At last the supervisor, the preparer and the pod are killed
// together.
func supervisorCrash(e *env) {
	e.startConsul("")
	n1 := e.preparer(1)
	e.farm("f1", "")
	e.applied(e.hello(1, nil))
	e.remember("hello")
	processes := e.processes()

	e.killSupervisor(1)
	e.within(limit, func() error {
		if len(e.supervisors(1)) != 1 {
			return errors.New("there is no new supervisor")
		}
		return nil
	})
	e.sameProcesses(processes, "after the supervisor was killed")
	e.crash("hello", 0)
	e.within(limit, func() error { return e.converged(e.rcIDs["hello"], 1) })

	n1.kill()
	e.killSupervisor(1)
	processes = e.processes()
	n1.startAgain()
	e.within(limit, func() error { return e.converged(e.rcIDs["hello"], 1) })
	e.sameProcesses(processes, "after supervisor and preparer were killed")

	old := e.pidOf("hello", 0)
	e.powerOff(1, n1)
	n1.startAgain()
	e.within(limit, func() error {
		if now := e.pidOf("hello", 0); now == 0 || now == old {
			return fmt.Errorf("process %d, before %d", now, old)
		}
		return nil
	})
	e.within(limit, func() error { return e.converged(e.rcIDs["hello"], 1) })
	e.sameProcessCount(1)
}

func (e *env) killSupervisor(n int) {
	e.t.Helper()
	var pids []int
	e.within(limit, func() error { // a busy machine may start a second one, which ends when it finds the first
		if pids = e.supervisors(n); len(pids) != 1 {
			return fmt.Errorf("supervisors of n%d: %v, want one", n, pids)
		}
		return nil
	})
	if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
		e.t.Fatal(err)
	}
	e.within(limit, func() error {
		if !isZombie(pids[0]) {
			return errors.New("the supervisor still runs")
		}
		return nil
	})
}

const awayFor = time.Minute

// consulAway: Consul is killed for a minute. Pods continue to run and are restarted when they crash, also while
// preparers and farms restart. A pod that must not run without Consul stops by itself. When Consul returns, nothing
// else has changed.
func consulAway(e *env) {
	e.startConsulOnDisk()
	preparers := []*daemon{e.preparer(1), e.preparer(2), e.preparer(3)}
	f1 := e.farm("f1", "")
	e.applied(e.hello(3, nil))
	lone := e.hello(1, nil)
	lone.Name, lone.Port, lone.Disconnect = "lone", 8081, "{stop_after: 5s}"
	e.applied(lone)
	e.remember("hello", "lone")

	loneAt := e.keyOf(e.processes(), "lone")

	e.consul.Kill()
	away := time.After(awayFor)
	e.crash("hello", 0)
	processes := e.processes()
	preparers[0].kill()
	f1.kill()
	preparers[0].startAgain()
	f1.startAgain()
	e.within(limit, func() error {
		if e.pidOf("lone", 0) != 0 {
			return errors.New("the pod with stop_after still runs")
		}
		return nil
	})
	delete(processes, loneAt)
	e.sameProcesses(processes, "while Consul is away")
	<-away
	e.sameProcesses(processes, "after Consul was away for a minute")

	if err := e.consul.StartAgain(); err != nil {
		e.t.Fatal(err)
	}
	e.within(2*limit, func() error { // until a farm is back, the status is old
		if e.pidOf("lone", 0) == 0 {
			return errors.New("the pod with stop_after has not started again")
		}
		return errors.Join(e.converged(e.rcIDs["hello"], 3), e.converged(e.rcIDs["lone"], 1))
	})
	after := e.processes()
	if pid := after[loneAt]; pid == 0 {
		e.t.Errorf("the pod with stop_after is not where it was: %v", after)
	}
	maps.DeleteFunc(after, func(key string, _ int) bool { return key == loneAt })
	if !maps.Equal(after, processes) {
		e.t.Errorf("processes %v, want %v", after, processes)
	}
	e.oneCopyEach()
	e.applied(e.hello(2, nil))
}

func (e *env) keyOf(processes map[string]int, rcName string) string {
	e.t.Helper()
	for key := range processes {
		if strings.HasPrefix(key, e.rcIDs[rcName]+"/") {
			return key
		}
	}
	e.t.Fatalf("no process of %s in %v", rcName, processes)
	return ""
}

// reboot: a machine restarts while Consul is away. Its pods start again without Consul, but a pod that must not run
// without Consul waits.
func reboot(e *env) {
	e.startConsulOnDisk()
	n1 := e.preparer(1)
	e.farm("f1", "")
	e.applied(e.hello(1, nil))
	lone := e.hello(1, nil)
	lone.Name, lone.Port, lone.Disconnect = "lone", 8081, "{stop_after: 1h}"
	e.applied(lone)
	e.remember("hello", "lone")
	before := e.processes()

	e.consul.Kill()
	e.powerOff(1, n1)
	n1.afterReboot("a0000000-0000-4000-8000-000000000001")
	n1.startAgain()
	e.within(limit, func() error {
		if now := e.pidOf("hello", 0); now == 0 || now == before[e.keyOf(before, "hello")] {
			return errors.New("the pod has not started again")
		}
		return nil
	})
	e.within(limit, func() error {
		if !strings.Contains(n1.logText(), "hold back without contact to Consul") {
			return errors.New("the preparer has not looked at the pod with stop_after")
		}
		return nil
	})
	processes := e.processes()
	if len(processes) != 1 || processes[e.keyOf(before, "hello")] == 0 {
		e.t.Fatalf("processes %v, want that of hello alone", processes)
	}

	if err := e.consul.StartAgain(); err != nil {
		e.t.Fatal(err)
	}
	e.within(2*limit, func() error {
		if e.pidOf("lone", 0) == 0 {
			return errors.New("the pod with stop_after has not started again")
		}
		return errors.Join(e.converged(e.rcIDs["hello"], 1), e.converged(e.rcIDs["lone"], 1))
	})
	if now := e.processes(); now[e.keyOf(before, "hello")] != processes[e.keyOf(before, "hello")] || len(now) != 2 {
		e.t.Errorf("processes %v, before Consul returned %v", now, processes)
	}
}

// afterReboot gives the machine another boot id, which the daemon and its children see from its next start on.
func (d *daemon) afterReboot(bootID string) {
	d.e.t.Helper()
	file := filepath.Join(d.e.dir, d.name+".boot_id")
	if err := os.WriteFile(file, []byte(bootID+"\n"), 0o600); err != nil {
		d.e.t.Fatal(err)
	}
	script, namespaces := `mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"`,
		[]string{"--mount", "--propagation", "private"}
	if os.Getuid() != 0 { // may mount in a user namespace; the daemon may not
		script = strings.Replace(script, "exec", "exec setpriv --ambient-caps=-all --inh-caps=-all", 1)
		namespaces = append(namespaces, "--user", "--map-current-user", "--keep-caps")
	}
	d.args = slices.Concat(namespaces, []string{"sh", "-c", script, file, d.path}, d.args)
	d.path = "/usr/bin/unshare"
}
