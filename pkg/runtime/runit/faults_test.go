package runit_test

import (
	"context"
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

	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/runit"
	"github.com/rcfarm/rcfarm/pkg/runtime/runtimetest"
)

// idler returns a process that appends its pid to a file and then sleeps.
func (n *node) idler(t *testing.T, id string) runtime.Spec {
	t.Helper()
	return n.script(t, id, `echo $$ >> pids; exec sleep 1000`)
}

func pids(t *testing.T, spec runtime.Spec) []int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(spec.Dir, "pids"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var list []int
	for line := range strings.FieldsSeq(string(data)) {
		pid, err := strconv.Atoi(line)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, pid)
	}
	return list
}

// awaitRun returns the state of a process that runs and has written down its pid; any other run of it is gone.
func (n *node) awaitRun(t *testing.T, spec runtime.Spec) runtime.Status {
	t.Helper()
	st := n.await(t, spec.ID, "running", func(st runtime.Status) bool {
		list := pids(t, spec)
		return running(st) && len(list) > 0 && list[len(list)-1] == st.PID && runtimetest.Alive(st.PID)
	})
	for _, pid := range pids(t, spec) {
		if pid != st.PID && runtimetest.Alive(pid) {
			t.Errorf("%s: pid %d runs besides pid %d", spec.ID, pid, st.PID)
		}
	}
	return st
}

func (n *node) keeperLog(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(n.Dir, "runsvdir.log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// runsvdir alone is killed: each runsv goes on, is told how its process ends, and gets no rival.
func TestRunsvdirKilled(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	old, fresh := n.idler(t, "old"), n.idler(t, "fresh")
	n.start(t, old)
	first := n.awaitRun(t, old)
	served := n.supervisors(t, "runsv")
	n.killProgram(t, "runsvdir")
	runtimetest.Eventually(t, "there is another runsvdir", func() bool { return len(n.supervisors(t, "runsvdir")) == 1 })
	n.start(t, fresh)
	n.awaitRun(t, fresh) // so the new runsvdir has looked at everything since
	if now := n.supervisors(t, "runsv"); now["old"] != served["old"] || len(now) != 2 {
		t.Errorf("runsv were %v, are %v; want the old one and another", served, now)
	}
	if st := n.awaitRun(t, old); st.PID != first.PID || st.Restarts != 0 {
		t.Errorf("pid %d with %d restarts, want the first run, pid %d", st.PID, st.Restarts, first.PID)
	}
	if err := unix.Kill(first.PID, unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	st := n.await(t, "old", "ended", func(st runtime.Status) bool { return st.LastExit != nil })
	if e := st.LastExit; e.Signal != "SIGUSR1" || e.Unknown {
		t.Errorf("last exit %+v, want SIGUSR1", e)
	}
	if log := n.keeperLog(t); strings.Contains(log, "fatal") {
		t.Errorf("runit complains:\n%s", log)
	}
}

// A runsv is killed: its process runs on, and the next runsv finds it.
func TestRunsvKilled(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	spec := n.idler(t, "p")
	n.start(t, spec)
	first := n.awaitRun(t, spec)
	for range 2 {
		was := n.supervisors(t, "runsv")["p"]
		n.killProgram(t, "runsv")
		runtimetest.Eventually(t, "there is another runsv", func() bool {
			now := n.supervisors(t, "runsv")["p"]
			return now != 0 && now != was
		})
		if st := n.awaitRun(t, spec); st.PID != first.PID || st.Restarts != 0 {
			t.Errorf("pid %d with %d restarts, want pid %d", st.PID, st.Restarts, first.PID)
		}
	}
	if err := n.Stop(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	if runtimetest.Alive(first.PID) {
		t.Error("the process survived its stop")
	}
	n.start(t, spec)
	n.awaitRun(t, spec)
}

// While a process waits for its restart its runsv is killed: it must not come twice.
func TestRunsvKilledDuringBackoff(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(s *settings) { s.RestartDelay, s.MaxRestartDelay = 8*time.Second, 8*time.Second })
	spec := n.script(t, "p", `echo $$ >> pids; [ -e second ] && exec sleep 1000; : > second; exit 1`)
	n.start(t, spec)
	n.await(t, "p", "waiting", func(st runtime.Status) bool { return st.Phase == runtime.Backoff })
	n.killProgram(t, "runsv")
	st := n.awaitRun(t, spec)
	if runs := pids(t, spec); len(runs) != 2 || st.Restarts != 1 {
		t.Errorf("runs %v, %d restarts; want two runs", runs, st.Restarts)
	}
	if gap := st.StartedAt.Sub(st.LastExit.At); gap < 8*time.Second {
		t.Errorf("restarted after %s, want its delay of 8s", gap)
	}
}

// All of runit is killed at any instant: every process runs once, and is recorded.
func TestKillAtAnyInstant(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	specs := make([]runtime.Spec, 6)
	for i := range specs {
		specs[i] = n.idler(t, fmt.Sprintf("p%d", i))
	}
	for round := range 5 {
		for _, spec := range specs {
			n.start(t, spec)
		}
		if round%2 == 0 { // let some of them run, or be about to
			runtimetest.Eventually(t, "one has a pid", func() bool { return n.state(t, "p0").PID != 0 })
		}
		<-time.After(rand.N(30 * time.Millisecond)) // when in its work it dies is the point of this test
		n.killSupervisors(t)
		if list := pids(t, specs[0]); len(list) > 0 { // end one of them now and then, so that restarts are interrupted too
			last := list[len(list)-1]
			_ = unix.Kill(last, unix.SIGKILL)
			runtimetest.Eventually(t, "it is gone", func() bool { return !runtimetest.Alive(last) })
		}
	}
	for _, spec := range specs {
		n.start(t, spec)
		n.awaitRun(t, spec)
	}
}

// The preparer is killed at any instant of Start: starting again completes it, and what runs runs once.
func TestClientKilledDuringStart(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	var specs []runtime.Spec
	for i := range 8 {
		spec := n.idler(t, fmt.Sprintf("p%d", i))
		specs = append(specs, spec)
		cmd := clientCommand(t, n.settings, spec)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-time.After(rand.N(60 * time.Millisecond)) // when in its work it dies is the point of this test
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
	}
	for _, spec := range specs {
		n.start(t, spec)
	}
	for _, spec := range specs {
		n.awaitRun(t, spec)
		if runs := pids(t, spec); len(runs) != 1 {
			t.Errorf("%s: runs %v, want one", spec.ID, runs)
		}
	}
}

// What happens while there is no preparer is known to the next one.
func TestExitWhileClientIsAway(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	spec := n.script(t, "p", `echo $$ >> pids; [ -e second ] && exec sleep 1000; : > second; while [ ! -e go ]; do sleep 0.01; done; exit 7`)
	n.start(t, spec)
	n.awaitRun(t, spec)
	n.Close()
	if err := os.WriteFile(filepath.Join(spec.Dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	runtimetest.Eventually(t, "it was started again", func() bool { return len(pids(t, spec)) == 2 })
	n.Runtime = n.open(t)
	if st := n.awaitRun(t, spec); st.Restarts != 1 || st.LastExit == nil || st.LastExit.Code != 7 || st.LastExit.Unknown {
		t.Errorf("%d restarts, last exit %+v; want one after exit status 7", st.Restarts, st.LastExit)
	}
}

// A stop goes on under the next preparer, though nobody asks for it again.
func TestStopGoesOnUnderNextClient(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	spec := n.script(t, "p", `trap ': > asked' TERM; echo $$ >> pids; while :; do sleep 0.01; done`)
	spec.StopGrace = 5 * time.Second // in which the client must have gone
	n.start(t, spec)
	st := n.awaitRun(t, spec)
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- n.Stop(ctx, "p") }()
	runtimetest.Eventually(t, "it was asked to end", func() bool {
		_, err := os.Stat(filepath.Join(spec.Dir, "asked"))
		return err == nil
	})
	cancel()
	if err := <-stopped; !errors.Is(err, context.Canceled) {
		t.Errorf("the interrupted call returned %v", err)
	}
	n.Close()
	if !runtimetest.Alive(st.PID) {
		t.Fatal("it ended within its grace")
	}
	n.Runtime = n.open(t)
	n.await(t, "p", "stopped", func(st runtime.Status) bool { return st.Phase == runtime.Stopped })
	if runtimetest.Alive(st.PID) {
		t.Error("it is reported as stopped and runs")
	}
}

// A leader that ends in a stop leaves its grandchildren the grace, and they end with nobody but the stub to see to it.
func TestLeftoversEndWithoutClient(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	spec := n.script(t, "p", `sh -c 'trap "" TERM; echo $$ > child; while :; do sleep 0.01; done' &
		while [ ! -s child ]; do sleep 0.01; done; trap 'exit 0' TERM; echo $$ >> pids; while :; do sleep 0.01; done`)
	spec.StopGrace = time.Second
	n.start(t, spec)
	st := n.awaitRun(t, spec)
	data, err := os.ReadFile(filepath.Join(spec.Dir, "child"))
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- n.Stop(ctx, "p") }()
	runtimetest.Eventually(t, "the leader has ended", func() bool { return !runtimetest.Alive(st.PID) })
	cancel()
	<-stopped
	n.Close()
	runtimetest.Eventually(t, "the grandchild has ended", func() bool { return !runtimetest.Alive(child) })
	runtimetest.Eventually(t, "that is recorded", func() bool { return n.state(t, "p").PID == 0 })
}

// Numbers that another process bears by now must not get it killed.
func TestUsedAgainPIDIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(record map[string]any, innocent int, start uint64){
		"other start time": func(r map[string]any, pid int, start uint64) { r["pid"], r["start"] = pid, start-1 },
		"other boot":       func(r map[string]any, pid int, start uint64) { r["pid"], r["start"], r["boot"] = pid, start, "another" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			innocent := exec.CommandContext(t.Context(), "/bin/sleep", "1000")
			innocent.SysProcAttr = &unix.SysProcAttr{Setsid: true}
			if err := innocent.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = innocent.Process.Kill(); _ = innocent.Wait() }()
			spec := n.idler(t, "p")
			n.start(t, spec)
			first := n.awaitRun(t, spec)
			n.Close()
			n.killSupervisors(t)
			if err := unix.Kill(first.PID, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			n.changeRecord(t, "p", func(r map[string]any) { change(r, innocent.Process.Pid, startTime(t, innocent.Process.Pid)) })
			n.Runtime = n.open(t)
			st := n.awaitRun(t, spec)
			if st.PID == innocent.Process.Pid || st.LastExit == nil || !st.LastExit.Unknown {
				t.Errorf("pid %d, last exit %+v; want a new process after an unknown exit", st.PID, st.LastExit)
			}
			if !runtimetest.Alive(innocent.Process.Pid) {
				t.Error("a process that only shares the pid was killed")
			}
		})
	}
}

// A record that cannot be read says nothing about whether something runs: hands off, and say so.
func TestUnreadableRecordIsLeftAlone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	spec := n.idler(t, "bad")
	n.start(t, spec)
	bad := n.awaitRun(t, spec)
	whole, err := os.ReadFile(n.record("bad"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.record("bad"), whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(n.Dir, "sv", "empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	n.killSupervisors(t)
	good := n.idler(t, "good")
	n.start(t, good)
	n.awaitRun(t, good) // so everything has been looked at
	for _, id := range []string{"bad", "empty"} {
		st := n.await(t, id, "listed", func(st runtime.Status) bool { return st.Phase == runtime.Unknown })
		if !strings.Contains(st.Message, "read record of "+id) || !strings.Contains(st.Message, "remove") {
			t.Errorf("message %q, want the reason and what to do", st.Message)
		}
		for what, err := range map[string]error{
			"start": n.Start(t.Context(), n.idler(t, id)), "stop": n.Stop(t.Context(), id), "remove": n.Remove(t.Context(), id),
		} {
			if err == nil || !strings.Contains(err.Error(), "read record of "+id) {
				t.Errorf("%s %s: %v, want an error that names the record", what, id, err)
			}
		}
	}
	if !runtimetest.Alive(bad.PID) || len(pids(t, spec)) != 1 {
		t.Error("the process was touched")
	}
	if err := os.WriteFile(n.record("bad"), whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if st := n.awaitRun(t, spec); st.PID != bad.PID {
		t.Errorf("pid %d, want %d as before", st.PID, bad.PID)
	}
}

// After a restart of the machine a process starts again, unless it is to be held back.
func TestMachineRestarted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	plain, held, never := n.idler(t, "plain"), n.idler(t, "held"), n.idler(t, "never")
	held.HoldAfterBoot, never.Restart.Policy = true, runtime.Never
	specs := []runtime.Spec{plain, held, never}
	for _, spec := range specs {
		n.start(t, spec)
	}
	for _, spec := range specs {
		n.awaitRun(t, spec)
	}
	n.Close()
	n.killAll(t) // as a power failure does
	for _, spec := range specs {
		n.changeRecord(t, spec.ID, func(r map[string]any) { r["boot"], r["boot_id"] = "earlier", "earlier" })
	}
	n.Runtime = n.open(t)
	st := n.await(t, "held", "listed", func(runtime.Status) bool { return true })
	if st.Phase != runtime.Stopped || st.PID != 0 {
		t.Errorf("phase %s, pid %d; want it held back", st.Phase, st.PID)
	}
	if st := n.awaitRun(t, plain); st.LastExit == nil || !st.LastExit.Unknown {
		t.Errorf("last exit %+v, want an unknown one", st.LastExit)
	}
	n.await(t, "never", "exited", func(st runtime.Status) bool { return st.Phase == runtime.Exited })
	if runs := pids(t, held); len(runs) != 1 {
		t.Errorf("runs %v, want none since the restart", runs)
	}
	n.start(t, held)
	n.awaitRun(t, held)
	n.killSupervisors(t)
	n.awaitRun(t, held) // in the same boot it is not held
}

// What a crash left of a service that was being made or removed is no service, and goes.
func TestHalfMadeServices(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	old, fresh := filepath.Join(n.Dir, "sv", ".new-1"), filepath.Join(n.Dir, "sv", ".gone-2")
	for _, dir := range []string{old, fresh} {
		if err := os.MkdirAll(filepath.Join(dir, "supervise"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "run"), []byte("#!/bin/sh\n: > "+n.Dir+"/ran\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	then := time.Now().Add(-time.Hour)
	if err := os.Chtimes(old, then, then); err != nil {
		t.Fatal(err)
	}
	spec := n.idler(t, "p")
	n.start(t, spec)
	n.awaitRun(t, spec)
	if list, _, err := n.Watch(t.Context(), 0); err != nil || len(list) != 1 {
		t.Errorf("processes %v, %v; want one", list, err)
	}
	runtimetest.Eventually(t, "the old one is gone", func() bool {
		_, err := os.Stat(old)
		return os.IsNotExist(err)
	})
	if _, err := os.Stat(fresh); err != nil {
		t.Errorf("one that may still be in the making: %v", err)
	}
	if _, err := os.Stat(filepath.Join(n.Dir, "ran")); err == nil {
		t.Error("a half-made service ran")
	}
}

// A removal that a crash interrupted goes on, and nothing of it is started meanwhile.
func TestRemovalGoesOn(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	spec := n.idler(t, "p")
	n.start(t, spec)
	n.awaitRun(t, spec)
	if err := n.Stop(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	n.Close()
	n.changeRecord(t, "p", func(r map[string]any) { r["removed"] = true })
	n.Runtime = n.open(t)
	if list, _, err := n.Watch(t.Context(), 0); err != nil || len(list) != 0 {
		t.Errorf("processes %v, %v; want none", list, err)
	}
	runtimetest.Eventually(t, "the service is gone", func() bool {
		_, err := os.Stat(filepath.Join(n.Dir, "sv", "p"))
		return os.IsNotExist(err) && len(n.supervisors(t, "runsv")) == 0
	})
	if runs := pids(t, spec); len(runs) != 1 {
		t.Errorf("runs %v, want one", runs)
	}
}

// Stop and Start in quick succession leave it running: what the end of one run tells runsv must not undo the next start.
func TestStartAfterStopManyTimes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	spec := n.idler(t, "p")
	n.start(t, spec)
	n.awaitRun(t, spec)
	for range 8 {
		if err := n.Stop(t.Context(), "p"); err != nil {
			t.Fatal(err)
		}
		n.start(t, spec)
		n.awaitRun(t, spec)
	}
}

// Start during a stop waits for its end and then starts again.
func TestStartDuringStop(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	spec := n.script(t, "p", `trap '' TERM; echo $$ >> pids; while :; do sleep 0.01; done`)
	spec.StopGrace = 3 * time.Second // in which the test must see it stopping
	n.start(t, spec)
	first := n.awaitRun(t, spec)
	stopped := make(chan error, 1)
	go func() { stopped <- n.Stop(t.Context(), "p") }()
	n.await(t, "p", "stopping", func(st runtime.Status) bool { return st.Phase == runtime.Stopping })
	n.start(t, spec)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if runtimetest.Alive(first.PID) {
		t.Error("two runs at a time")
	}
	n.awaitRun(t, spec)
}

func TestMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := runit.Open(runit.Config{Dir: t.TempDir()}); !errors.Is(err, runit.ErrMissing) || !strings.Contains(err.Error(), "runsvdir") {
		t.Errorf("got %v, want ErrMissing that names runsvdir", err)
	}
}

// A node's worth of processes: how fast they come and go, and what watching them costs.
func TestManyProcesses(t *testing.T) {
	n := newNode(t, func(s *settings) { s.LogCheck = runit.DefaultLogCheck })
	const count = 200
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
	began := time.Now()
	spec := n.idler(t, "p")
	each("start", func(id string) error { spec := spec; spec.ID = id; return n.Start(t.Context(), spec) })
	var cursor uint64
	soon, enough := context.WithTimeout(t.Context(), 2*runtimetest.Timeout)
	defer enough()
	for up := 0; up < count; {
		list, now, err := n.Watch(soon, cursor)
		if err != nil {
			t.Fatal(err)
		}
		cursor, up = now, 0
		for _, st := range list {
			if running(st) {
				up++
			}
		}
	}
	t.Logf("start to running: %d processes in %s", count, time.Since(began).Round(time.Millisecond))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	before := cpuTime(t)
	if _, _, err := n.Watch(ctx, cursor); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an idle node changed: %v", err)
	}
	t.Logf("watching %d idle processes for 10s took %s of processor time", count, (cpuTime(t) - before).Round(time.Millisecond))
	took := each("stop", func(id string) error { return n.Stop(t.Context(), id) })
	t.Logf("stop and confirm: %d processes in %s", count, took.Round(time.Millisecond))
	took = each("remove", func(id string) error { return n.Remove(t.Context(), id) })
	t.Logf("remove: %d processes in %s", count, took.Round(time.Millisecond))
}

func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var use unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &use); err != nil {
		t.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
