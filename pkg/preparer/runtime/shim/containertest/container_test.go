package containertest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/container"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/runc"
)

// A container runs as PID 1, writes to its log, gets the stop signal, and its exit status is known. The log belongs to
// root.
func TestRunAndStop(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.String(), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, k, nil, "serve")
			n.start(t)
			n.start(t) // changes nothing
			n.says(t, map[kind]string{mapped: "up 1 0\n", numbered: "up 1 250000\n", nodeRoot: "up 1 0\n"}[k])
			n.isOne(t)
			var st unix.Stat_t
			must(t, unix.Stat(n.spec.LogPath, &st))
			if st.Uid != 0 || st.Mode&0o002 != 0 {
				t.Errorf("the log belongs to %d and has the mode %o", st.Uid, st.Mode)
			}
			must(t, n.Stop(t.Context(), n.spec.ID))
			after := n.status(t)
			if exit := after.LastExit; after.Phase != runtime.Stopped || exit == nil || exit.Code != 3 || exit.Unknown {
				t.Errorf("after the stop: %+v, %v", after.State, exit)
			}
			if !strings.HasSuffix(n.log(t), "bye\n") {
				t.Errorf("log: %q", n.log(t))
			}
			must(t, n.Remove(t.Context(), n.spec.ID))
		})
	}
}

// A program that ends is started again in a new container, or not, as its policy says.
func TestEnd(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.String(), func(t *testing.T) {
			t.Parallel()
			again := newNode(t, k, nil, "exit", "7")
			again.start(t)
			st := again.await(t, "two restarts", func(st runtime.Status) bool { return st.Restarts >= 2 })
			if st.LastExit == nil || st.LastExit.Code != 7 || st.LastExit.Unknown || st.LastExit.OutOfMemory {
				t.Errorf("ended with %+v", st.LastExit)
			}
			once := newNode(t, k, func(n *node, _ *container.Input) { n.spec.Restart.Policy = runtime.Never }, "leave")
			once.start(t)
			st = once.await(t, "the end", func(st runtime.Status) bool { return st.Phase == runtime.Exited })
			if st.LastExit == nil || st.LastExit.Code != 0 || st.LastExit.Unknown {
				t.Errorf("ended with %+v", st.LastExit)
			}
			if members, err := isolate.Members(filepath.Join(unified, once.spec.ID)); err != nil || len(members) > 0 {
				t.Errorf("after the end there are %d, %v", members, err)
			}
			must(t, once.Remove(t.Context(), once.spec.ID))
		})
	}
}

// After the grace period all processes are killed.
func TestStopAfterGrace(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		n := newNode(t, k, func(n *node, _ *container.Input) { n.spec.StopGrace = 50 * time.Millisecond }, "stubborn")
		n.start(t)
		n.says(t, "up 1")
		n.says(t, "child up")
		n.await(t, "running", running)
		must(t, n.Stop(t.Context(), n.spec.ID))
		if members, err := isolate.Members(filepath.Join(unified, n.spec.ID)); err != nil || len(members) > 0 {
			t.Errorf("%s: after the stop there are %d, %v", k, members, err)
		}
		if exit := n.status(t).LastExit; exit == nil || exit.Signal != "SIGKILL" || exit.OutOfMemory {
			t.Errorf("%s: ended with %+v", k, exit)
		}
	}
}

// A stop and a removal need no runc. A start says that it is missing.
func TestWithoutRunc(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		n := newNode(t, k, func(n *node, _ *container.Input) {
			n.Runc = filepath.Join(n.root, "runc-copy")
			path, err := exec.LookPath(runc.DefaultProgram)
			must(t, err)
			data, err := os.ReadFile(path)
			must(t, err)
			must(t, os.WriteFile(n.Runc, data, 0o700))
		}, "serve")
		n.start(t)
		n.says(t, "up 1")
		n.await(t, "running", running)
		must(t, os.Remove(n.Runc))
		must(t, n.Stop(t.Context(), n.spec.ID))
		if st := n.status(t); st.Phase != runtime.Stopped || st.LastExit == nil || st.LastExit.Code != 3 {
			t.Errorf("%s: after the stop: %+v", k, st.State)
		}
		n.start(t)
		n.await(t, "an error", func(st runtime.Status) bool {
			return st.Phase == runtime.Backoff && strings.Contains(st.Message, "runc-copy")
		})
	}
}

// A watchdog stops a container without a client and without runc.
func TestWatchdog(t *testing.T) {
	t.Parallel()
	n := newNode(t, mapped, func(n *node, _ *container.Input) {
		n.spec.Watchdog = &runtime.Watchdog{Note: filepath.Join(n.root, "note"), Timeout: 10 * time.Second}
	}, "serve")
	n.start(t)
	n.says(t, "bye\n")
	st := n.await(t, "stopped", func(st runtime.Status) bool { return st.Phase == runtime.Stopped })
	if st.LastExit == nil || st.LastExit.Code != 3 {
		t.Errorf("ended with %+v", st.LastExit)
	}
}

// A program that does not exist is an error that names it.
func TestNoProgram(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		n := newNode(t, k, func(_ *node, in *container.Input) { in.Ask.Command = "/no/such/program" })
		n.start(t)
		n.await(t, "an error", func(st runtime.Status) bool {
			return st.Phase == runtime.Backoff && strings.Contains(st.Message, "/no/such/program") && st.ShortRuns > 1
		})
	}
}

// An image whose log is a link to /dev/stdout works. What the container writes is gone at the next start.
func TestFiles(t *testing.T) {
	t.Parallel()
	hosts, err := os.ReadFile("/etc/hosts")
	must(t, err)
	for _, k := range kinds {
		linked := newNode(t, k, nil, "stdout")
		linked.start(t)
		linked.says(t, "through the link\n")
		files := newNode(t, k, func(n *node, in *container.Input) {
			in.Ask.ReadOnlyRoot = true
			in.Image.Config.Volumes = map[string]struct{}{"/a": {}, "/b": {}}
			in.Node.Scratch = map[string]string{
				"/a": filepath.Join(n.spec.Container.Dir, "scratch/0"),
				"/b": filepath.Join(n.spec.Container.Dir, "scratch/1"),
			}
			n.spec.Container.Scratch = 2
		}, "files", "/a", "/b")
		files.start(t)
		files.await(t, "two restarts", func(st runtime.Status) bool { return st.Restarts >= 2 })
		if log := files.log(t); strings.Contains(log, "exists") || !strings.Contains(log, "/b <nil>\n") ||
			!strings.Contains(log, strings.TrimSpace(string(hosts))) {
			t.Errorf("%s: %s", k, log)
		}
	}
}

// A restart that a client asks for ends the container and makes another.
func TestRestart(t *testing.T) {
	t.Parallel()
	n := newNode(t, mapped, nil, "serve")
	n.start(t)
	n.says(t, "up 1")
	before := n.await(t, "running", running)
	must(t, n.Restart(t.Context(), runtime.RestartRequest{
		ID: n.spec.ID, PID: before.PID, StartedAt: before.StartedAt, Reason: "of a test",
	}))
	n.await(t, "another process", func(st runtime.Status) bool { return running(st) && st.PID != before.PID })
	n.isOne(t)
}

// A supervisor that is killed while a container runs changes nothing, and the next one stops the container.
func TestTakenOver(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		n := newNode(t, k, nil, "serve")
		n.start(t)
		n.says(t, "up 1")
		before := n.await(t, "running", running)
		n.killSupervisors(t)
		after := n.await(t, "running", running)
		if after.PID != before.PID || !after.StartedAt.Equal(before.StartedAt) || after.Restarts > 0 {
			t.Errorf("%s: taken over as %+v, was %+v", k, after.State, before.State)
		}
		n.isOne(t)
		must(t, n.Stop(t.Context(), n.spec.ID))
	}
}

// After a kill of the supervisor at any step of a start or removal, the next one ends with one container, or none.
func TestKilledAtEachStep(t *testing.T) {
	t.Parallel()
	for i, step := range []string{
		"record", "bundle", "creator", "move", "create", "created", "note", "start", "started",
	} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			k := kinds[i%len(kinds)]
			n := newNode(t, k, func(n *node, _ *container.Input) { n.KillAt = step }, "serve")
			n.start(t)
			n.await(t, "running", func(st runtime.Status) bool { return n.killed() && running(st) })
			n.isOne(t)
			// The same, and the next supervisor has to stop it.
			n = newNode(t, k, func(n *node, _ *container.Input) { n.KillAt = step }, "serve")
			n.start(t)
			eventually(t, "the kill", n.killed)
			must(t, n.Stop(t.Context(), n.spec.ID))
			if members, err := isolate.Members(filepath.Join(unified, n.spec.ID)); err != nil || len(members) > 0 {
				t.Errorf("after the stop there are %d, %v", members, err)
			}
		})
	}
	for _, step := range []string{"delete", "forget"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, mapped, func(n *node, _ *container.Input) { n.KillAt = step }, "serve")
			n.start(t)
			n.await(t, "running", running)
			must(t, n.Stop(t.Context(), n.spec.ID))
			eventually(t, "the kill", n.killed)
			n.start(t)
			n.isOne(t)
		})
	}
}

func (n *node) killed() bool {
	_, err := os.Stat(filepath.Join(n.Dir, "killed"))
	return err == nil
}

// A creation that is recalled leaves nothing.
func TestStopDuringStart(t *testing.T) {
	t.Parallel()
	for i := range 12 {
		n := newNode(t, kinds[i%len(kinds)], nil, "serve")
		n.start(t)
		<-time.After(time.Duration(i*10) * time.Millisecond) // so that the stop comes at another step each time
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		must(t, n.Stop(ctx, n.spec.ID))
		cancel()
		if members, err := isolate.Members(filepath.Join(unified, n.spec.ID)); err != nil || len(members) > 0 {
			t.Errorf("after the stop there are %d, %v", members, err)
		}
	}
}
