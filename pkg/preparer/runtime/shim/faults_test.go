package shim_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// After a kill of the supervisor at any instant, each process runs once, and has a record.
func TestKillAtAnyInstant(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	const processes = 8
	specs := make([]runtime.Spec, processes)
	for i := range specs {
		specs[i] = n.idler(fmt.Sprintf("p%d", i))
	}
	for range 12 {
		var wg sync.WaitGroup
		for _, spec := range specs {
			wg.Go(func() {
				if err := n.Start(t.Context(), spec); err != nil {
					t.Error(err)
				}
			})
		}
		Eventually(t, "there is a supervisor", func() bool { return n.supervisorPID(t) != 0 })
		<-time.After(rand.N(25 * time.Millisecond)) // a random time, so that the supervisor dies at a random step
		n.killSupervisor(t)
		wg.Wait()
		// Restarts are interrupted too.
		if pids := n.pids(t, "p0"); len(pids) > 0 {
			last := pids[len(pids)-1]
			_ = unix.Kill(last, unix.SIGKILL)
			Eventually(t, "it is gone", func() bool { return !Alive(last) })
		}
	}
	for _, spec := range specs {
		n.start(t, spec)
		st := n.await(t, spec.ID, "running", func(st runtime.Status) bool {
			pids := n.pids(t, spec.ID)
			return running(st) && len(pids) > 0 && pids[len(pids)-1] == st.PID && Alive(st.PID)
		})
		for _, pid := range n.pids(t, spec.ID) {
			if pid != st.PID && Alive(pid) {
				t.Errorf("%s: pid %d runs besides pid %d", spec.ID, pid, st.PID)
			}
		}
	}
}

// If another process has the recorded pid by now, it must not be killed.
func TestUsedAgainPIDIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*state){
		"other start time": func(s *state) { s.Start-- },
		"other boot":       func(s *state) { s.Boot = "another" },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			innocent := exec.CommandContext(t.Context(), "/bin/sleep", "1000")
			innocent.SysProcAttr = &unix.SysProcAttr{Setsid: true}
			if err := innocent.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = innocent.Process.Kill(); _ = innocent.Wait() }()
			n.start(t, n.idler("p"))
			first := n.await(t, "p", "running", running)
			n.killSupervisor(t)
			if err := unix.Kill(first.PID, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			s := n.states(t)[0]
			s.PID, s.Start = innocent.Process.Pid, startTime(t, innocent.Process.Pid)
			spoil(&s)
			data, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(n.Dir, "state", "p.json"), data, 0o600); err != nil {
				t.Fatal(err)
			}
			st := n.await(t, "p", "started anew",
				func(st runtime.Status) bool { return running(st) && st.LastExit != nil })
			if st.PID == innocent.Process.Pid || !st.LastExit.Unknown {
				t.Errorf("pid %d, last exit %+v; want a new process after an unknown exit", st.PID, st.LastExit)
			}
			if !Alive(innocent.Process.Pid) {
				t.Error("a process that only shares the pid was killed")
			}
		})
	}
}

func startTime(t *testing.T, pid int) uint64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	start, err := strconv.ParseUint(strings.Fields(rest)[19], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return start
}

// After a reboot, processes that ran start again, except with the policy never or StartSuspended, and exited ones do
// not.
func TestReboot(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	policies := []runtime.RestartPolicy{runtime.Always, runtime.OnFailure, runtime.Never}
	for _, policy := range policies {
		spec := n.idler(string(policy))
		spec.Restart.Policy = policy
		n.start(t, spec)
		n.awaitBegun(t, spec.ID)
	}
	done := n.script("done", `echo $$ >> done.pids; exit 0`)
	done.Restart.Policy = runtime.OnFailure
	held, crashing := n.idler("held"), n.script("held-crashing", `echo $$ >> held-crashing.pids; exit 1`)
	held.StartSuspended, crashing.StartSuspended = true, true
	crashing.Restart.Min = time.Hour
	n.start(t, held)
	n.awaitBegun(t, "held")
	n.start(t, crashing)
	n.await(t, "held-crashing", "waiting for its next start",
		func(st runtime.Status) bool { return st.Phase == runtime.Backoff })
	n.start(t, done)
	n.await(t, "done", "exited", func(st runtime.Status) bool { return st.Phase == runtime.Exited })
	n.killSupervisor(t)
	n.killPods(t)
	n.changeStates(t, func(s map[string]any) {
		s["boot"] = "an earlier one"
	})
	for _, policy := range []runtime.RestartPolicy{runtime.Always, runtime.OnFailure} {
		st := n.await(t, string(policy), "running again", running)
		if st.LastExit == nil || !st.LastExit.Unknown || len(n.pids(t, string(policy))) > 2 {
			t.Errorf("%s: last exit %+v, runs %v; want a second run after an unknown end", policy, st.LastExit,
				n.pids(t, string(policy)))
		}
	}
	for _, spec := range []runtime.Spec{held, crashing} {
		for range 2 { // for the second supervisor too
			n.await(t, spec.ID, "stopped", func(st runtime.Status) bool { return st.Phase == runtime.Stopped })
			n.killSupervisor(t)
		}
		if pids := n.pids(t, spec.ID); len(pids) != 1 {
			t.Errorf("%s ran %d times", spec.ID, len(pids))
		}
		n.start(t, spec)
		n.await(t, spec.ID, "started again", func(runtime.Status) bool { return len(n.pids(t, spec.ID)) > 1 })
	}
	for id, unknown := range map[string]bool{"never": true, "done": false} {
		st := n.await(t, id, "exited", func(st runtime.Status) bool { return st.Phase == runtime.Exited })
		if st.LastExit == nil || st.LastExit.Unknown != unknown || len(n.pids(t, id)) != 1 {
			t.Errorf("%s: last exit %+v, runs %v; want one run, its end unknown: %t", id, st.LastExit,
				n.pids(t, id), unknown)
		}
	}
}

// awaitBegun waits until an idler has written its pid.
func (n *node) awaitBegun(t *testing.T, id string) {
	t.Helper()
	n.await(t, id, "running", func(st runtime.Status) bool { return running(st) && len(n.pids(t, id)) == 1 })
}

func (n *node) changeStates(t *testing.T, change func(map[string]any)) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(n.Dir, "state", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var s map[string]any
		if err := json.Unmarshal(data, &s); err != nil {
			t.Fatal(err)
		}
		change(s)
		if data, err = json.Marshal(s); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// An unreadable state file does not show whether its process runs, so the supervisor reports the process, and leaves it
// alone.
func TestUnreadableStateIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(file string, whole []byte) error{
		"half": func(file string, whole []byte) error {
			return os.WriteFile(file, bytes.TrimSpace(whole)[:len(bytes.TrimSpace(whole))/2], 0o600)
		},
		"dangling": func(file string, _ []byte) error {
			return errors.Join(os.Remove(file), os.Symlink("missing", file))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testUnreadableState(t, spoil)
		})
	}
}

func testUnreadableState(t *testing.T, spoil func(file string, whole []byte) error) {
	t.Helper()
	n := newNode(t)
	n.start(t, n.idler("bad"))
	n.start(t, n.idler("good"))
	bad := n.await(t, "bad", "running", running)
	Eventually(t, "it has begun", func() bool { return len(n.pids(t, "bad")) == 1 })
	n.killSupervisor(t)
	file := filepath.Join(n.Dir, "state", "bad.json")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := spoil(file, whole); err != nil {
		t.Fatal(err)
	}
	n.await(t, "good", "running", running)
	for what, err := range map[string]error{
		"start": n.Start(t.Context(), n.idler("bad")), "stop": n.Stop(t.Context(),
			"bad"), "remove": n.Remove(t.Context(), "bad"),
	} {
		if err == nil || !strings.Contains(err.Error(), "state/bad.json") {
			t.Errorf("%s: %v, want an error that names the state", what, err)
		}
	}
	st := n.await(t, "bad", "listed", func(st runtime.Status) bool { return st.Phase == runtime.Unknown })
	if !strings.Contains(st.Message, "state/bad.json") || st.PID != 0 {
		t.Errorf("listed as %+v, want why it is not known", st)
	}
	if !Alive(bad.PID) || len(n.pids(t, "bad")) != 1 {
		t.Error("the process was touched")
	}
	n.killSupervisor(t)
	// so that the cleanup finds the process
	if err := errors.Join(os.Remove(file), os.WriteFile(file, whole, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// A node must start or stop a hundred processes at once.
func TestHundredProcesses(t *testing.T) {
	n := newNode(t)
	const count = 100
	each := func(what string, do func(id string) error) time.Duration {
		t.Helper()
		began := time.Now()
		var wg sync.WaitGroup
		for i := range count {
			wg.Go(func() {
				if err := do(fmt.Sprintf("p%d", i)); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			})
		}
		wg.Wait()
		return time.Since(began)
	}
	n.start(t, n.idler("first")) // so that the start of the supervisor is not measured
	began := time.Now()
	each("start", func(id string) error { return n.Start(t.Context(), n.idler(id)) })
	Eventually(t, "all run", func() bool {
		list, _, err := n.Watch(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		up := 0
		for _, st := range list {
			if running(st) {
				up++
			}
		}
		return up == count+1
	})
	took := time.Since(began)
	t.Logf("start to running: %d processes in %s, %.0f/s", count, took.Round(time.Millisecond), count/took.Seconds())
	n.killSupervisor(t)
	began = time.Now()
	n.await(t, "p99", "taken over", running)
	t.Logf("new supervisor to first answer, %d processes taken over: %s", count,
		time.Since(began).Round(time.Millisecond))
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.supervisorPID(t)))
	if err != nil {
		t.Fatal(err)
	}
	_, rss, _ := strings.Cut(string(status), "VmRSS:")
	rss, _, _ = strings.Cut(rss, "\n")
	t.Logf("resident memory of the supervisor: %s", strings.TrimSpace(rss))
	took = each("stop", func(id string) error { return n.Stop(t.Context(), id) })
	t.Logf("stop and confirm: %d processes in %s, %.0f/s", count, took.Round(time.Millisecond), count/took.Seconds())
}
