package shim_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

const noAnswer = 100 * time.Millisecond

func (n *node) silent(t *testing.T) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), noAnswer)
	defer cancel()
	return errors.Is(n.Ping(ctx), context.DeadlineExceeded)
}

func (n *node) pinged(ctx context.Context) <-chan error {
	done := make(chan error, 1)
	go func() { done <- n.Ping(ctx) }()
	return done
}

// A ping does not wait for a stop's grace.
func TestPingDuringAStop(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	spec := n.script("a", `trap "" TERM; echo ready; while :; do sleep 0.1; done`)
	n.start(t, spec)
	Eventually(t, "the program ignores the signal", func() bool {
		log, err := os.ReadFile(spec.LogPath)
		return err == nil && strings.Contains(string(log), "ready")
	})
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

// A suspended supervisor answers when it continues.
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

// With a hanging disk, the supervisor answers when the disk does.
func TestPingWhileTheDiskHangs(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start(t, n.idler("a"))
	// opening a pipe for writing waits for a reader
	pipe := filepath.Join(n.Dir, "state", "a.json"+durable.SpareSuffix)
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
	// A pipe is no valid state file, so the stop is confirmed only after another file was written.
	if err := errors.Join(os.Remove(pipe), disk.Close(), <-stopped); err != nil {
		t.Error(err)
	}
}
