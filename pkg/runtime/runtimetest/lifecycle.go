package runtimetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/runtime"
)

// lifecycleTests are about starting, ending, being seen and being forgotten.
func lifecycleTests() []test {
	return []test{
		{"Start", testStart},
		{"Environment", testEnvironment},
		{"StartIsIdempotent", testStartIsIdempotent},
		{"StartRefusesOtherSpec", testStartRefusesOtherSpec},
		{"StartAfterStop", testStartAfterStop},
		{"ExitStatusAndSignal", testExitStatusAndSignal},
		{"CrashLoop", testCrashLoop},
		{"ExecError", testExecError},
		{"Remove", testRemove},
		{"Watch", testWatch},
		{"LogRotation", testLogRotation},
	}
}

// idle says that it is ready and runs until it is told to end.
const idle = `echo $$ >> pid; echo up; echo err >&2; : > ready; exec sleep 1000`

func testStart(t *testing.T, b *bench) {
	t.Helper()
	spec := b.script("p", idle)
	before := time.Now()
	st := b.startReady(t, spec)
	if diff := cmp.Diff(spec, st.Spec); diff != "" {
		t.Errorf("the spec came back changed:\n%s", diff)
	}
	if pids := b.pids(t, "pid"); !slices.Equal(pids, []int{st.PID}) {
		t.Errorf("status says pid %d, the script %v", st.PID, pids)
	}
	if st.StartedAt.Before(before.Add(-time.Second)) || st.StartedAt.After(time.Now()) {
		t.Errorf("started at %s, want about %s", st.StartedAt, before)
	}
	if st.Restarts != 0 || st.LastExit != nil || st.Message != "" {
		t.Errorf("a first run has %d restarts, last exit %v, message %q", st.Restarts, st.LastExit, st.Message)
	}
	if log := b.read(t, "p.log"); log != "up\nerr\n" {
		t.Errorf("log %q, want both outputs", log)
	}
}

// The program gets its environment and directory, descriptors 0 to 2, default signal handling, and nothing else.
func testEnvironment(t *testing.T, b *bench) {
	t.Helper()
	spec := b.script("env", "")
	spec.Command = []string{"/bin/cat", "/proc/self/environ"}
	spec.Env = []string{"B=two words", "A=1", "GODEBUG=inittrace=1"}
	b.start(t, spec)
	const want = "B=two words\x00A=1\x00GODEBUG=inittrace=1\x00"
	Eventually(t, "environment in the log", func() bool { return len(b.read(t, "env.log")) >= len(want) })
	if log := b.read(t, "env.log"); !strings.HasPrefix(log, want) {
		t.Errorf("environment %q, want %q", log, want)
	}

	b.startReady(t, b.script("fds", `for f in /proc/$$/fd/*; do readlink "$f"; done; pwd; : > ready; exec sleep 1000`))
	log := b.path("fds.log")
	if got, want := b.read(t, "fds.log"), "/dev/null\n"+log+"\n"+log+"\n"+b.dir+"\n"; got != want {
		t.Errorf("descriptors and directory:\n%swant:\n%s", got, want)
	}

	spec = b.script("signals", "")
	spec.Command = []string{"/bin/grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"}
	b.start(t, spec)
	const none = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"
	Eventually(t, "signal masks in the log", func() bool { return len(b.read(t, "signals.log")) >= len(none) })
	if log := b.read(t, "signals.log"); !strings.HasPrefix(log, none) {
		t.Errorf("signals %q, want none blocked or ignored", log)
	}
}

func testStartIsIdempotent(t *testing.T, b *bench) {
	t.Helper()
	spec := b.script("p", idle)
	first := b.startReady(t, spec)
	for range 3 {
		b.start(t, spec)
	}
	st, _ := b.status(t)
	if st.PID != first.PID || st.Restarts != 0 || len(b.pids(t, "pid")) != 1 {
		t.Errorf("pid %d, %d restarts, pids %v; want the first run, pid %d", st.PID, st.Restarts, b.pids(t, "pid"), first.PID)
	}
}

func testStartRefusesOtherSpec(t *testing.T, b *bench) {
	spec := b.script("p", idle)
	first := b.startReady(t, spec)
	other := spec
	other.Revision++
	if err := b.Runtime.Start(t.Context(), other); !errors.Is(err, runtime.ErrExists) {
		t.Errorf("another spec: %v, want ErrExists", err)
	}
	if st, _ := b.status(t); st.PID != first.PID || st.Spec.Revision != spec.Revision {
		t.Errorf("pid %d, revision %d; want the first run untouched", st.PID, st.Spec.Revision)
	}
	b.stop(t, "p")
	if err := b.Runtime.Start(t.Context(), other); !errors.Is(err, runtime.ErrExists) {
		t.Errorf("another spec for a stopped process: %v, want ErrExists", err)
	}
}

func testStartAfterStop(t *testing.T, b *bench) {
	spec := b.script("p", idle)
	first := b.startReady(t, spec)
	b.stop(t, "p")
	b.start(t, spec)
	second := b.await(t, "p", "running again", func(st runtime.Status) bool { return st.Phase == runtime.Running })
	if second.PID == first.PID || second.Restarts != 0 {
		t.Errorf("pid %d after %d, %d restarts; want a new first run", second.PID, first.PID, second.Restarts)
	}
}

func testExitStatusAndSignal(t *testing.T, b *bench) {
	b.start(t, b.script("exits", `exit 7`))
	st := b.await(t, "exits", "ended", func(st runtime.Status) bool { return st.LastExit != nil })
	if e := st.LastExit; e.Code != 7 || e.Signal != "" || e.Unknown || e.Launchable != "main" || e.At.IsZero() {
		t.Errorf("last exit %+v, want status 7 of main", e)
	}
	b.start(t, b.script("killed", `kill -USR1 $$; sleep 1000`))
	st = b.await(t, "killed", "ended", func(st runtime.Status) bool { return st.LastExit != nil })
	if e := st.LastExit; e.Code != -1 || e.Signal != "SIGUSR1" || e.Unknown {
		t.Errorf("last exit %+v, want SIGUSR1", e)
	}
}

func testCrashLoop(t *testing.T, b *bench) {
	b.start(t, b.script("p", `echo $$ >> pid; exit 1`))
	pids := b.awaitPIDs(t, 4)
	slices.Sort(pids)
	if len(slices.Compact(pids)) < 4 {
		t.Errorf("pids %v, want a new one for each run", pids)
	}
	st := b.await(t, "p", "waiting for a restart", func(st runtime.Status) bool { return st.Phase == runtime.Backoff && st.Restarts >= 3 })
	if st.PID != 0 || st.Message == "" {
		t.Errorf("pid %d, message %q; want none, and a reason", st.PID, st.Message)
	}
}

func testExecError(t *testing.T, b *bench) {
	b.start(t, b.script("runs", idle))
	for id, change := range map[string]func(*runtime.Spec){
		"missing":        func(s *runtime.Spec) { s.Command = []string{b.path("no-such-program")} },
		"not-executable": func(s *runtime.Spec) { s.Command = []string{"/etc/passwd"} },
		"no-directory":   func(s *runtime.Spec) { s.Dir = b.path("no-such-directory") },
		"no-log":         func(s *runtime.Spec) { s.LogPath = b.path("no-such-directory/log") },
	} {
		spec := b.script(id, idle)
		change(&spec)
		b.start(t, spec)
		st := b.await(t, id, "tried twice", func(st runtime.Status) bool { return st.Phase == runtime.Backoff && st.Message != "" })
		named := []string{spec.Command[0], spec.Dir, spec.LogPath}
		if !slices.ContainsFunc(named, func(s string) bool { return strings.Contains(st.Message, s) }) {
			t.Errorf("%s: message %q names none of %q", id, st.Message, named)
		}
		if st.PID != 0 {
			t.Errorf("%s: pid %d, want none", id, st.PID)
		}
		b.stop(t, id)
	}
}

func testRemove(t *testing.T, b *bench) {
	spec := b.script("p", idle)
	first := b.startReady(t, spec)
	if err := b.Runtime.Remove(t.Context(), "p"); err == nil {
		t.Error("a running process was removed")
	}
	if !Alive(first.PID) {
		t.Error("a refused Remove ended the process")
	}
	b.stop(t, "p")
	for range 2 {
		if err := b.Runtime.Remove(t.Context(), "p"); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	if st, ok := b.status(t); ok {
		t.Errorf("a removed process is still listed: %+v", st)
	}
	spec.Revision++
	b.start(t, spec)
	b.await(t, "p", "running under the new spec", func(st runtime.Status) bool {
		return st.Phase == runtime.Running && st.Spec.Revision == spec.Revision
	})
}

func testWatch(t *testing.T, b *bench) {
	list, cursor, err := b.Runtime.Watch(t.Context(), 0)
	if err != nil || len(list) != 0 {
		t.Fatalf("first watch: %v, %v; want an empty list at once", list, err)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, same, err := b.Runtime.Watch(short, cursor); !errors.Is(err, context.DeadlineExceeded) || same != cursor {
		t.Errorf("without a change: cursor %d, %v; want %d and the deadline", same, err, cursor)
	}
	type answer struct {
		list []runtime.Status
		err  error
	}
	answers := make(chan answer, 1)
	long, cancelLong := context.WithTimeout(t.Context(), Timeout)
	defer cancelLong()
	go func() {
		list, _, err := b.Runtime.Watch(long, cursor)
		answers <- answer{list, err}
	}()
	b.start(t, b.script("p", idle))
	if a := <-answers; a.err != nil || len(a.list) != 1 || a.list[0].Spec.ID != "p" {
		t.Errorf("watch answered %v, %v; want the new process", a.list, a.err)
	}
}

func testLogRotation(t *testing.T, b *bench) {
	spec := b.script("p", `i=0; while :; do i=$((i+1)); echo "line $i"; sleep 0.002; done`)
	spec.LogBytes = 500
	b.start(t, spec)
	b.await(t, "p", "running", func(st runtime.Status) bool { return st.Phase == runtime.Running })
	Eventually(t, "two rotated logs, and the second of them replaced", func() bool {
		return b.exists("p.log.2") && !strings.HasPrefix(b.read(t, "p.log.2"), "line 1\n")
	})
	if b.exists("p.log.3") {
		t.Error("more rotated logs than asked for")
	}
	st, _ := b.status(t)
	if st.Restarts != 0 {
		t.Errorf("rotation cost %d restarts", st.Restarts)
	}
	// A rotation may be under way, and moves one file after the other: the last one is awaited.
	b.stop(t, "p")
	for _, name := range []string{"p.log.1", "p.log.2"} {
		Eventually(t, name+" holds whole lines", func() bool {
			log := b.read(t, name)
			return strings.HasPrefix(log, "line ") && strings.HasSuffix(log, "\n")
		})
	}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatalf("kill %d: %v", pid, err)
	}
	Eventually(t, "the process is gone", func() bool { return !Alive(pid) })
}
