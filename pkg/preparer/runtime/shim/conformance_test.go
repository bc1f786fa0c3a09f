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

// Timeout is long because the machine may be busy.
const Timeout = 60 * time.Second

// TestConformance tests the promises of package runtime's interface, with real processes: scripts that write what they
// see to files. Each method of bench that begins with Test is one test.
func TestConformance(t *testing.T) {
	for test := range reflect.TypeFor[*bench]().Methods() {
		name, isTest := strings.CutPrefix(test.Name, "Test")
		if !isTest {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir() // made first, so that it is removed last, when no process writes there
			n := newNode(t)
			test.Func.Call([]reflect.Value{reflect.ValueOf(&bench{T: t, Runtime: n.Client, node: n, dir: dir})})
		})
	}
}

// Eventually calls condition until it returns true, for at most Timeout.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Timeout); !condition(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", Timeout, what)
		}
	}
}

// Alive reports whether a process runs, and is no zombie.
func Alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	return rest != "" && rest[0] != 'Z' && rest[0] != 'X'
}

type bench struct {
	*testing.T
	Runtime runtime.Runtime
	node    *node
	dir     string
}

func (b *bench) failIf(wrong bool, format string, args ...any) {
	b.Helper()
	if wrong {
		b.Errorf(format, args...)
	}
}

// wantEnd compares the last exit: an exit status, or -1 and then a signal or "unknown".
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

func (b *bench) wantStopped(end string) {
	b.Helper()
	st, _ := b.status()
	b.failIf(st.Phase != runtime.Stopped || st.PID != 0,
		"it is %s with pid %d, want stopped with none", st.Phase, st.PID)
	b.wantEnd(st, end)
}

func (b *bench) wantLog(name string, match func(log, want string) bool, want string) {
	b.Helper()
	log := b.read(name)
	b.failIf(!match(log, want), "%s is %q, want %q", name, log, want)
}

func whole(log, want string) bool { return log == want }

// wantOther: another specification with the same id is refused.
func (b *bench) wantOther(spec runtime.Spec) {
	b.Helper()
	spec.Revision++
	err := b.Runtime.Start(b.Context(), spec)
	b.failIf(!errors.Is(err, runtime.ErrExists), "another spec: %v, want ErrExists", err)
}

// removeTwice removes "p", which is then unknown.
func (b *bench) removeTwice() {
	b.Helper()
	for range 2 {
		err := b.Runtime.Remove(b.Context(), "p")
		b.failIf(err != nil, "remove: %v", err)
	}
	st, ok := b.status()
	b.failIf(ok, "a removed process is still listed: %+v", st)
}

// The test's directory is the working directory of scripts.
func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

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

// startReady waits for the file ready, and the phase running.
func (b *bench) startReady(spec runtime.Spec) runtime.Status {
	b.Helper()
	b.start(spec)
	Eventually(b, spec.ID+" is ready", func() bool { return b.exists("ready") })
	return b.await(spec.ID, "running", func(st runtime.Status) bool { return st.Phase == runtime.Running })
}

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

// status returns false if the runtime does not know "p".
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

// awaitPIDs waits for so many pids in the file "pid", one for each run.
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
