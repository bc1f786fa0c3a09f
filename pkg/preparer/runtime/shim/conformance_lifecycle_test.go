package shim_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

const idle = `echo $$ >> pid; echo up; echo err >&2; : > ready; exec sleep 1000`

func (b *bench) TestStart() {
	spec := b.script("p", idle)
	before := time.Now()
	st := b.startReady(spec)
	if diff := cmp.Diff(spec, st.Spec); diff != "" {
		b.Errorf("the spec came back changed:\n%s", diff)
	}
	if pids := b.pids("pid"); !slices.Equal(pids, []int{st.PID}) {
		b.Errorf("status says pid %d, the script %v", st.PID, pids)
	}
	if st.StartedAt.Before(before.Add(-time.Second)) || st.StartedAt.After(time.Now()) {
		b.Errorf("started at %s, want about %s", st.StartedAt, before)
	}
	if st.Restarts != 0 || st.LastExit != nil || st.Message != "" {
		b.Errorf("a first run has %d restarts, last exit %v, message %q", st.Restarts, st.LastExit, st.Message)
	}
	b.wantLog("p.log", whole, "up\nerr\n")
}

// The program gets its environment and directory, descriptors 0 to 2, and default signal handling, and nothing else.
func (b *bench) TestEnvironment() {
	spec := b.script("env", "")
	spec.Command = []string{"/bin/cat", "/proc/self/environ"}
	spec.Env = []string{"B=two words", "A=1", "GODEBUG=inittrace=1"}
	b.start(spec)
	const want = "B=two words\x00A=1\x00GODEBUG=inittrace=1\x00"
	Eventually(b, "environment in the log", func() bool { return len(b.read("env.log")) >= len(want) })
	b.wantLog("env.log", strings.HasPrefix, want)

	b.startReady(b.script("fds", `for f in /proc/$$/fd/*; do readlink "$f"; done; pwd; : > ready; exec sleep 1000`))
	log := b.path("fds.log")
	b.wantLog("fds.log", whole, "/dev/null\n"+log+"\n"+log+"\n"+b.dir+"\n")

	spec = b.script("signals", "")
	spec.Command = []string{"/bin/grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"}
	b.start(spec)
	const none = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"
	Eventually(b, "signal masks in the log", func() bool { return len(b.read("signals.log")) >= len(none) })
	b.wantLog("signals.log", strings.HasPrefix, none)
}

func (b *bench) TestStartIsIdempotent() {
	spec := b.script("p", idle)
	first := b.startReady(spec)
	for range 3 {
		b.start(spec)
	}
	st, _ := b.status()
	if st.PID != first.PID || st.Restarts != 0 || len(b.pids("pid")) != 1 {
		b.Errorf("pid %d, %d restarts, pids %v; want the first run, pid %d", st.PID, st.Restarts,
			b.pids("pid"), first.PID)
	}
}

func (b *bench) TestStartRefusesOtherSpec() {
	spec := b.script("p", idle)
	first := b.startReady(spec)
	b.wantOther(spec)
	if st, _ := b.status(); st.PID != first.PID || st.Spec.Revision != spec.Revision {
		b.Errorf("pid %d, revision %d; want the first run untouched", st.PID, st.Spec.Revision)
	}
	b.stop("p")
	b.wantOther(spec)
}

func (b *bench) TestStartAfterStop() {
	spec := b.script("p", idle)
	first := b.startReady(spec)
	b.stop("p")
	b.start(spec)
	second := b.await("p", "running again", func(st runtime.Status) bool { return st.Phase == runtime.Running })
	if second.PID == first.PID || second.Restarts != 0 {
		b.Errorf("pid %d after %d, %d restarts; want a new first run", second.PID, first.PID, second.Restarts)
	}
}

func (b *bench) TestExitStatusAndSignal() {
	b.start(b.script("exits", `exit 7`))
	st := b.await("exits", "ended", func(st runtime.Status) bool { return st.LastExit != nil })
	b.wantEnd(st, "7")
	b.failIf(st.LastExit.Launchable != "main" || st.LastExit.At.IsZero(),
		"last exit %+v, want one of main with a time", st.LastExit)
	b.start(b.script("killed", `kill -USR1 $$; sleep 1000`))
	st = b.await("killed", "ended", func(st runtime.Status) bool { return st.LastExit != nil })
	b.wantEnd(st, "-1 SIGUSR1")
}

func (b *bench) TestCrashLoop() {
	b.start(b.script("p", `echo $$ >> pid; exit 1`))
	pids := b.awaitPIDs(4)
	slices.Sort(pids)
	b.failIf(len(slices.Compact(pids)) < 4, "pids %v, want a new one for each run", pids)
	st := b.await("p", "waiting for a restart",
		func(st runtime.Status) bool { return st.Phase == runtime.Backoff && st.Restarts >= 3 })
	b.failIf(st.PID != 0 || st.Message == "", "pid %d, message %q; want none, and a reason", st.PID, st.Message)
}

func (b *bench) TestExecError() {
	b.start(b.script("runs", idle))
	for id, change := range map[string]func(*runtime.Spec){
		"missing":        func(s *runtime.Spec) { s.Command = []string{b.path("no-such-program")} },
		"not-executable": func(s *runtime.Spec) { s.Command = []string{"/etc/passwd"} },
		"no-directory":   func(s *runtime.Spec) { s.Dir = b.path("no-such-directory") },
		"no-log":         func(s *runtime.Spec) { s.LogPath = b.path("no-such-directory/log") },
	} {
		spec := b.script(id, idle)
		change(&spec)
		b.start(spec)
		st := b.await(id, "tried twice",
			func(st runtime.Status) bool { return st.Phase == runtime.Backoff && st.Message != "" })
		named := []string{spec.Command[0], spec.Dir, spec.LogPath}
		if !slices.ContainsFunc(named, func(s string) bool { return strings.Contains(st.Message, s) }) {
			b.Errorf("%s: message %q names none of %q", id, st.Message, named)
		}
		b.failIf(st.PID != 0, "%s: pid %d, want none", id, st.PID)
		b.stop(id)
	}
}

func (b *bench) TestRemove() {
	spec := b.script("p", idle)
	first := b.startReady(spec)
	if err := b.Runtime.Remove(b.Context(), "p"); err == nil {
		b.Error("a running process was removed")
	}
	b.failIf(!Alive(first.PID), "a refused Remove ended the process")
	b.stop("p")
	b.removeTwice()
	spec.Revision++
	b.start(spec)
	b.await("p", "running under the new spec", func(st runtime.Status) bool {
		return st.Phase == runtime.Running && st.Spec.Revision == spec.Revision
	})
}

func (b *bench) TestWatch() {
	list, cursor, err := b.Runtime.Watch(b.Context(), 0)
	if err != nil || len(list) != 0 {
		b.Fatalf("first watch: %v, %v; want an empty list at once", list, err)
	}
	short, cancel := context.WithTimeout(b.Context(), 100*time.Millisecond)
	defer cancel()
	if _, same, err := b.Runtime.Watch(short, cursor); !errors.Is(err, context.DeadlineExceeded) || same != cursor {
		b.Errorf("without a change: cursor %d, %v; want %d and the deadline", same, err, cursor)
	}
	type answer struct {
		list []runtime.Status
		err  error
	}
	answers := make(chan answer, 1)
	long, cancelLong := context.WithTimeout(b.Context(), Timeout)
	defer cancelLong()
	go func() {
		list, _, err := b.Runtime.Watch(long, cursor)
		answers <- answer{list, err}
	}()
	b.start(b.script("p", idle))
	if a := <-answers; a.err != nil || len(a.list) != 1 || a.list[0].Spec.ID != "p" {
		b.Errorf("watch answered %v, %v; want the new process", a.list, a.err)
	}
}

func (b *bench) TestLogRotation() {
	spec := b.script("p", `i=0; while :; do i=$((i+1)); echo "line $i"; sleep 0.002; done`)
	spec.LogBytes = 500
	b.start(spec)
	b.await("p", "running", func(st runtime.Status) bool { return st.Phase == runtime.Running })
	Eventually(b, "two rotated logs, and the second of them replaced", func() bool {
		return b.exists("p.log.2") && !strings.HasPrefix(b.read("p.log.2"), "line 1\n")
	})
	b.failIf(b.exists("p.log.3"), "more rotated logs than asked for")
	st, _ := b.status()
	b.failIf(st.Restarts != 0, "rotation cost %d restarts", st.Restarts)
	// A rotation may be under way, so wait until all files are there.
	b.stop("p")
	for _, name := range []string{"p.log.1", "p.log.2"} {
		Eventually(b, name+" holds whole lines", func() bool {
			log := b.read(name)
			return strings.HasPrefix(log, "line ") && strings.HasSuffix(log, "\n")
		})
	}
}

func (b *bench) kill(pid int) {
	b.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		b.Fatalf("kill %d: %v", pid, err)
	}
	Eventually(b, "the process is gone", func() bool { return !Alive(pid) })
}
