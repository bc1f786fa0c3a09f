package shim_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/internal/disktest"
	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// filler fills the disk, ends, and is started again at once.
func (n *node) filler(disk string) runtime.Spec {
	spec := n.script("filler", `cat /dev/zero >> "$0" 2> /dev/null; exit 1`)
	spec.Command = append(spec.Command, filepath.Join(disk, "filler"))
	spec.Restart = runtime.Restart{Min: time.Millisecond, Max: time.Millisecond}
	return spec
}

func stopped(st runtime.Status) bool { return st.Phase == runtime.Stopped }

// All processes can be stopped, even one that fills the disk without a pause, and stay stopped when the supervisor
// dies.
func TestFullDisk(t *testing.T) {
	disktest.Run(t, 4<<20, func(t *testing.T, disk string) {
		t.Setenv("TMPDIR", disk)
		n := newNode(t)
		n.start(t, n.idler("a"))
		pid := n.await(t, "a", "running", running).PID
		n.start(t, n.filler(disk))
		// more restarts than reserved space could allow
		const restarts = 300
		for some := 0; some <= restarts; some += 20 { // in parts, because a busy machine needs long for all
			n.await(t, "filler", "started again and again", func(st runtime.Status) bool { return st.Restarts > some })
		}
		for _, id := range []string{"a", "filler"} {
			if err := n.Stop(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			n.await(t, id, "stopped", stopped)
		}
		if Alive(pid) {
			t.Errorf("process %d still runs", pid)
		}
		n.killSupervisor(t)
		for _, id := range []string{"a", "filler"} {
			n.await(t, id, "still stopped", stopped)
		}
	})
}

// A process whose stop cannot be written ends nevertheless, and the stop is confirmed when it is on the disk. Until
// then neither a client nor the next supervisor starts the process.
func TestStopThatCannotBeRecorded(t *testing.T) {
	disktest.Run(t, 4<<20, func(t *testing.T, disk string) {
		t.Setenv("TMPDIR", disk)
		n := newNode(t)
		spec := n.idler("a")
		n.start(t, spec)
		pid := n.await(t, "a", "running", running).PID
		consultest.Eventually(t, 10*time.Second, func() error { // it must write its pid before the disk is full
			if len(n.pids(t, "a")) == 0 {
				return errors.New("it has not written its pid yet")
			}
			return nil
		})
		if err := os.Truncate(filepath.Join(n.Dir, "state", "a.json"+durable.SpareSuffix), 0); err != nil {
			t.Fatal(err)
		}
		filler := disktest.Fill(t, disk)
		stop := func(ctx context.Context) <-chan error {
			err := make(chan error, 1)
			go func() { err <- n.Stop(ctx, "a") }()
			return err
		}
		client, leave := context.WithCancel(t.Context())
		first := stop(client)
		n.await(t, "a", "ended and not recorded", func(st runtime.Status) bool {
			return st.Phase == runtime.Stopping && st.PID == 0 && st.Message != ""
		})
		if Alive(pid) {
			t.Errorf("process %d still runs", pid)
		}
		soon, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if err := n.Start(soon, spec); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it was started before its stop was recorded: %v", err)
		}
		leave()
		if err := <-first; err == nil {
			t.Error("a stop was confirmed that is not recorded")
		}
		n.killSupervisor(t)
		n.await(t, "a", "not started",
			func(st runtime.Status) bool { return st.Phase == runtime.Backoff && st.ShortRuns > 2 })
		second := stop(t.Context())
		n.await(t, "a", "not recorded",
			func(st runtime.Status) bool { return st.Phase == runtime.Stopping && st.Message != "" })
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		if err := <-second; err != nil {
			t.Error(err)
		}
		n.killSupervisor(t)
		n.await(t, "a", "still stopped", stopped)
		if got := n.pids(t, "a"); len(got) != 1 {
			t.Errorf("it ran %d times: %v", len(got), got)
		}
	})
}

// The stop of a process that has ended by itself is confirmed only when it is on the disk.
func TestStopOfAnExitedProcessThatCannotBeRecorded(t *testing.T) {
	disktest.Run(t, 4<<20, func(t *testing.T, disk string) {
		t.Setenv("TMPDIR", disk)
		n := newNode(t)
		spec := n.script("a", "exit 0")
		spec.Restart.Policy = "on-failure"
		n.start(t, spec)
		n.await(t, "a", "ended", func(st runtime.Status) bool { return st.Phase == runtime.Exited })
		if err := os.Truncate(filepath.Join(n.Dir, "state", "a.json"+durable.SpareSuffix), 0); err != nil {
			t.Fatal(err)
		}
		filler := disktest.Fill(t, disk)
		if err := n.Stop(t.Context(), "a"); err == nil {
			t.Error("a stop was confirmed that is not recorded")
		}
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		consultest.Eventually(t, Timeout, func() error { return n.Stop(t.Context(), "a") })
		n.await(t, "a", "stopped", stopped)
	})
}
