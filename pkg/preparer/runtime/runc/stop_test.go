package runc_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/runc"
)

// A container is stopped without runc: the kill of its cgroup ends its first process and all that it started.
func TestStopByCgroup(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.String(), func(t *testing.T) {
			t.Parallel()
			b := newBox(t, k, nil, "family")
			b.start(t)
			eventually(t, "four processes", func() bool { return strings.Count(b.output(t), "waits") == 4 })
			state, err := b.State(t.Context(), b.id)
			if err != nil || state.Status != runc.Running || state.PID != b.pid {
				t.Errorf("%+v, %v", state, err)
			}
			members, err := isolate.Members(b.cgroup)
			if err != nil || len(members) != 4 {
				t.Errorf("members of the cgroup: %d, %v", members, err)
			}
			if err := unix.Kill(b.pid, unix.SIGTERM); err != nil {
				t.Error(err)
			}
			if members, err = isolate.Members(b.cgroup); err != nil || len(members) != 4 {
				t.Errorf("after a signal that they ignore: %d, %v", members, err)
			}
			must(t, isolate.Kill(b.cgroup))
			if status := b.wait(t); status.Signal() != unix.SIGKILL {
				t.Errorf("status %#x", status)
			}
			for _, pid := range members {
				eventually(t, "the end of all", func() bool { return unix.Kill(pid, 0) == unix.ESRCH })
			}
			if state, err := b.State(t.Context(), b.id); err != nil || state.Status != runc.Stopped || state.PID != 0 {
				t.Errorf("%+v, %v", state, err)
			}
		})
	}
}

// The end of PID 1 ends all other processes of the container.
func TestEndOfTheFirst(t *testing.T) {
	t.Parallel()
	b := newBox(t, mapped, nil, "family")
	b.start(t)
	eventually(t, "four processes", func() bool { return strings.Count(b.output(t), "waits") == 4 })
	members, err := isolate.Members(b.cgroup)
	must(t, err)
	must(t, unix.Kill(b.pid, unix.SIGKILL))
	b.wait(t) // the kernel reports the end of PID 1 after the end of all others
	for _, pid := range members {
		if err := unix.Kill(pid, 0); err != unix.ESRCH {
			t.Errorf("process %d is left: %v", pid, err)
		}
	}
}

// A container that was created and not started, or that runs, is deleted with all its processes, repeatedly.
func TestDelete(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		created := newBox(t, k, nil, "wait")
		must(t, created.create(t))
		created.remove(t)
		running := newBox(t, k, nil, "family")
		running.start(t)
		running.says(t, "waits")
		running.remove(t)
	}
}

// A creation that is killed at any moment is undone by Delete. The test is not parallel, because it waits for all
// children of this process.
func TestKilledWhileCreating(t *testing.T) {
	null, err := os.Open(os.DevNull)
	must(t, err)
	defer func() { _ = null.Close() }()
	killed := 0
	for step := range 30 {
		b := newBox(t, kinds[step%len(kinds)], nil, "wait")
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(step)*4*time.Millisecond)
		err := b.Create(ctx, b.id, b.bundle(), [3]*os.File{null, b.out, b.out})
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			killed++
		} else if err != nil {
			t.Error(err)
		}
		must(t, b.Delete(t.Context(), b.id, b.in.Node.Cgroup))
		eventually(t, "the end of all children", noChild)
	}
	if killed < 5 {
		t.Errorf("only %d were killed", killed)
	}
}

// noChild waits for children that have ended, and reports whether there are no others.
func noChild() bool {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.ECHILD):
			return true
		case pid == 0:
			return false
		}
	}
}

// One id is one container.
func TestSecondCreate(t *testing.T) {
	t.Parallel()
	b := newBox(t, numbered, nil, "wait")
	b.start(t)
	err := b.Create(t.Context(), b.id, b.bundle(), [3]*os.File{nil, b.out, b.out})
	if err == nil || !strings.Contains(err.Error(), "runc create "+b.id) || !strings.Contains(err.Error(), "exists") {
		t.Errorf("a second create: %v", err)
	}
	if err := b.Start(t.Context(), b.id); err == nil || !strings.Contains(err.Error(), "runc start "+b.id) {
		t.Errorf("a second start: %v", err)
	}
	if state, err := b.State(t.Context(), b.id); err != nil || state.Status != runc.Running {
		t.Errorf("%+v, %v", state, err)
	}
}
