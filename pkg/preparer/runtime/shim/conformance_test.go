package shim_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// Timeout bounds how long the suite waits for anything; it is generous because builds share the machine.
const Timeout = 60 * time.Second

// TestConformance is what the seam of package runtime promises, one method of bench called Test for each promise. It works with real
// processes: small shell scripts that write down what they see.
func TestConformance(t *testing.T) {
	for test := range reflect.TypeFor[*bench]().Methods() {
		name, isTest := strings.CutPrefix(test.Name, "Test")
		if !isTest {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir() // made first, so that it is removed last, when nothing writes there any more
			n := newNode(t)
			test.Func.Call([]reflect.Value{reflect.ValueOf(&bench{T: t, Runtime: n.Client, node: n, dir: dir})})
		})
	}
}

// Eventually calls the condition until it holds, and fails the test when that takes too long.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Timeout); !condition(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", Timeout, what)
		}
	}
}

// Alive reports whether a process runs; a zombie does not.
func Alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	return rest != "" && rest[0] != 'Z' && rest[0] != 'X'
}

// bench is a runtime with nothing in it, the supervisor behind it, and a directory that scripts write into.
type bench struct {
	*testing.T
	Runtime runtime.Runtime
	node    *node
	dir     string
}

// failIf fails the test, which goes on, if something is not as it should be.
func (b *bench) failIf(wrong bool, format string, args ...any) {
	b.Helper()
	if wrong {
		b.Errorf(format, args...)
	}
}

// wantEnd fails the test unless a process ended so last: with that exit status, and with that signal or "unknown" behind -1.
func (b *bench) wantEnd(st runtime.Status, want string) {
	b.Helper()
	got := "no end"
	if e := st.LastExit; e != nil {
		got = strings.TrimSpace(fmt.Sprint(e.Code, " ", e.Signal))
		if e.Unknown {
			got += " unknown"
		}
	}
	b.failIf(got != want, "%s ended last with %s, want %s", st.Spec.ID, got, want)
}

// wantStopped fails the test unless the process "p" is stopped, and ended so last.
func (b *bench) wantStopped(end string) {
	b.Helper()
	st, _ := b.status()
	b.failIf(st.Phase != runtime.Stopped || st.PID != 0, "it is %s with pid %d, want stopped with none", st.Phase, st.PID)
	b.wantEnd(st, end)
}

// wantLog fails the test unless what is in a log matches.
func (b *bench) wantLog(name string, match func(log, want string) bool, want string) {
	b.Helper()
	log := b.read(name)
	b.failIf(!match(log, want), "%s is %q, want %q", name, log, want)
}

func whole(log, want string) bool { return log == want }

// wantOther fails the test unless the specification is refused, as another one of its id is there.
func (b *bench) wantOther(spec runtime.Spec) {
	b.Helper()
	spec.Revision++
	err := b.Runtime.Start(b.Context(), spec)
	b.failIf(!errors.Is(err, runtime.ErrExists), "another spec: %v, want ErrExists", err)
}

// removeTwice removes the process "p", and once more what is not there.
func (b *bench) removeTwice() {
	b.Helper()
	for range 2 {
		err := b.Runtime.Remove(b.Context(), "p")
		b.failIf(err != nil, "remove: %v", err)
	}
	st, ok := b.status()
	b.failIf(ok, "a removed process is still listed: %+v", st)
}

// path returns a file in the test's directory, which scripts see as their working directory.
func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

// script returns the spec of a shell script.
func (b *bench) script(id, script string) runtime.Spec {
	return runtime.Spec{Process: runtime.Process{
		ID: id, Pod: pod.Identity{RCID: "rc1", Role: "web", Index: 3}, Revision: 7, Name: "main",
		Command: []string{"/bin/sh", "-c", script},
		Env:     []string{"PATH=/usr/local/bin:/usr/bin:/bin"},
		Dir:     b.dir, LogPath: b.path(id + ".log"), LogBytes: 1 << 20, LogKeep: 2, StopGrace: 10 * time.Second,
	}}
}

func (b *bench) start(spec runtime.Spec) {
	b.Helper()
	if err := b.Runtime.Start(b.Context(), spec); err != nil {
		b.Fatalf("start %s: %v", spec.ID, err)
	}
}

func (b *bench) stop(id string) {
	b.Helper()
	if err := b.Runtime.Stop(b.Context(), id); err != nil {
		b.Fatalf("stop %s: %v", id, err)
	}
}

// startReady starts a script and waits until it has made a file named ready, and is reported as running.
func (b *bench) startReady(spec runtime.Spec) runtime.Status {
	b.Helper()
	b.start(spec)
	Eventually(b, spec.ID+" is ready", func() bool { return b.exists("ready") })
	return b.await(spec.ID, "running", func(st runtime.Status) bool { return st.Phase == runtime.Running })
}

// await watches until the process's state is as wanted.
func (b *bench) await(id, what string, ok func(runtime.Status) bool) runtime.Status {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), Timeout)
	defer cancel()
	var cursor uint64
	var last *runtime.Status
	for {
		list, next, err := b.Runtime.Watch(ctx, cursor)
		if err != nil {
			b.Fatalf("watch %s until %s: %v; last seen: %+v", id, what, err, last)
		}
		cursor = next
		for _, st := range list {
			if st.Spec.ID != id {
				continue
			}
			if ok(st) {
				return st
			}
			last = &st
		}
	}
}

// status returns the state of process "p" now; false when the runtime does not know it.
func (b *bench) status() (runtime.Status, bool) {
	b.Helper()
	list, _, err := b.Runtime.Watch(b.Context(), 0)
	if err != nil {
		b.Fatalf("watch: %v", err)
	}
	for _, st := range list {
		if st.Spec.ID == "p" {
			return st, true
		}
	}
	return runtime.Status{}, false
}

func (b *bench) exists(name string) bool {
	_, err := os.Stat(b.path(name))
	return err == nil
}

func (b *bench) read(name string) string {
	b.Helper()
	data, err := os.ReadFile(b.path(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		b.Fatal(err)
	}
	return string(data)
}

// pids reads a file that scripts appended their pids to, one per line.
func (b *bench) pids(name string) []int {
	b.Helper()
	var pids []int
	for line := range strings.FieldsSeq(b.read(name)) {
		pid, err := strconv.Atoi(line)
		if err != nil {
			b.Fatalf("pid in %s: %v", name, err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// awaitPIDs waits until scripts have written so many pids into the file "pid", one for each run.
func (b *bench) awaitPIDs(n int) []int {
	b.Helper()
	Eventually(b, fmt.Sprintf("%d pids", n), func() bool { return strings.Count(b.read("pid"), "\n") >= n })
	return b.pids("pid")
}

func (b *bench) wantGone(pids ...int) {
	b.Helper()
	for _, pid := range pids {
		if Alive(pid) {
			b.Errorf("process %d still runs", pid)
		}
	}
}
