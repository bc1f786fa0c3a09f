package shim_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// noAnswer is how long a question goes without an answer until it counts as unanswered.
const noAnswer = 100 * time.Millisecond

// silent reports whether the supervisor does not answer.
func (n *node) silent(t *testing.T) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), noAnswer)
	defer cancel()
	return errors.Is(n.Ping(ctx), context.DeadlineExceeded)
}

// pinged asks the supervisor whether it answers. The channel gets how that ended.
func (n *node) pinged(ctx context.Context) <-chan error {
	done := make(chan error, 1)
	go func() { done <- n.Ping(ctx) }()
	return done
}

// A ping waits for no stop, which takes as long as its grace.
func TestPingDuringAStop(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	spec := n.script("a", `trap "" TERM; echo ready; while :; do sleep 0.1; done`)
	n.start(t, spec)
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- n.Stop(ctx, "a") }()
	n.await(t, "a", "stopping", func(st runtime.Status) bool { return st.Phase == runtime.Stopping })
	if err := <-n.pinged(t.Context()); err != nil {
		t.Error(err)
	}
	cancel()
	<-stopped
}

// A supervisor that was stopped answers when it goes on.
func TestPingOfAStoppedSupervisor(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start(t, n.idler("a"))
	pid := n.supervisorPID(t)
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "it is silent", func() bool { return n.silent(t) })
	done := n.pinged(t.Context())
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A supervisor whose disk hangs does not answer before the disk does.
func TestPingWhileTheDiskHangs(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start(t, n.idler("a"))
	pipe := filepath.Join(n.Dir, "state", "a.json"+durable.SpareSuffix) // opening it for writing hangs until somebody reads
	Eventually(t, "the state is written that says it runs", func() bool {
		if state := n.states(t); len(state) != 1 || state[0].PID == 0 {
			return false
		}
		if err := errors.Join(os.Remove(pipe), unix.Mkfifo(pipe, 0o600)); err != nil {
			t.Fatal(err)
		}
		return true
	})
	stopped := make(chan error, 1)
	go func() { stopped <- n.Stop(t.Context(), "a") }()
	Eventually(t, "it is silent", func() bool { return n.silent(t) })
	done := n.pinged(t.Context())
	disk, err := os.OpenFile(pipe, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	// A pipe is no state file, so the stop is not recorded, and not confirmed, before there is another one.
	if err := errors.Join(os.Remove(pipe), disk.Close(), <-stopped); err != nil {
		t.Error(err)
	}
}
