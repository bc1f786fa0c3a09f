package oneshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/internal/exectest"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/stub"
)

// someID has no account.
const someID = 1_900_000_021

// callerOfArg is a caller, with program, working directory and cgroup, perhaps empty. parentArg is the parent of a
// stub: it prints the stub's pid, and releases it after a line.
const (
	callerOfArg = "caller-of"
	parentArg   = "parent"
)

// apart runs as another user, if this process may change it.
func apart(program, dir, cgroup string) Command {
	c := Command{Argv: []string{program, "1000"}, Dir: dir, Isolation: &confine.Confinement{Cgroup: cgroup}}
	c.Isolation.UID, c.Isolation.GID = os.Getuid(), os.Getgid()
	if os.Getuid() == 0 && isolate.Mapped(someID, someID) {
		c.Isolation.UID, c.Isolation.GID = someID, someID
	}
	return c
}

func callerOf(program, dir, cgroup string) error {
	_, err := Run(context.Background(), apart(program, dir, cgroup))
	return err
}

func parentOfStub() error {
	goruntime.LockOSThread() // the kernel sends the death signal when this thread ends
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	started, err := stub.Start([3]*os.File{null, null, null}, syscall.SIGKILL)
	if err != nil {
		return err
	}
	fmt.Println(started.PID)
	if _, err := fmt.Scanln(); err != nil && !strings.Contains(err.Error(), "newline") {
		return err
	}
	c := apart("/bin/sleep", "/", "")
	return started.Release(stub.Order{Command: c.Argv, Dir: c.Dir, Isolation: c.Isolation, Guarded: true}, nil)
}

// cgroupOf returns "" on a host without cgroups.
func cgroupOf(t *testing.T) string {
	host := isolate.Probe("rcfarm-test-oneshot-" + strconv.Itoa(os.Getpid()))
	if host.Cgroup == "" {
		return ""
	}
	t.Cleanup(func() {
		eventually(t, func() error { return errors.Join(isolate.Kill(host.Cgroup), isolate.Remove(host.Cgroup)) })
	})
	return filepath.Join(host.Cgroup, "stopped")
}

// A pod can stop its command's stub before it becomes the program. When the context, the caller or the guard ends, the
// command still ends.
func TestStoppedBeforeItIsTheProgram(t *testing.T) {
	t.Parallel()
	cgroup := cgroupOf(t)
	for _, in := range []string{"", cgroup} {
		for _, what := range []string{"context", "caller", "guard"} {
			t.Run(fmt.Sprintf("end of the %s, cgroup %t", what, in != ""),
				func(t *testing.T) { stopBeforeExec(t, in, what) })
		}
	}
}

func stopBeforeExec(t *testing.T, cgroup, ends string) {
	program, dir := exectest.Program(t), t.TempDir()
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	caller := exec.Command(os.Args[0], callerOfArg, program, dir, cgroup)
	late := errors.New("late")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	ended := make(chan error, 1)
	if ends == "context" {
		go func() {
			_, err := Run(ctx, apart(program, dir, cgroup))
			ended <- err
		}()
	} else {
		if err := caller.Start(); err != nil {
			t.Fatal(err)
		}
		go func() { ended <- caller.Wait() }()
	}
	pid, guard := exectest.Stop(t, dir, stub.Arg)
	switch ends {
	case "context":
		cancel(late)
	case "caller":
		_ = caller.Process.Kill()
	case "guard":
		_ = unix.Kill(guard, unix.SIGKILL)
	}
	if err := <-ended; ends == "context" && err != late { //nolint:errorlint // nothing may have survived
		t.Errorf("got %v, want %v", err, late)
	}
	eventually(t, func() error {
		if alive(pid) || alive(guard) {
			return fmt.Errorf("they still run: stub %d %t, guard %d %t", pid, alive(pid), guard, alive(guard))
		}
		return nil
	})
}

// A pod's user must not be able to stop a stub before it is tied to its parent. The test holds the stub at each system
// call, and stops it after the first call after which the user may do so. The stub must still end with its parent.
func TestTiedBeforeItMayBeStopped(t *testing.T) {
	t.Parallel()
	parent := exec.Command(os.Args[0], parentArg)
	parent.Stderr = os.Stderr
	in, err := parent.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = parent.Process.Kill(), parent.Wait() })
	var pid int
	if _, err := fmt.Fscanln(out, &pid); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
	uid := apart("", "/", "").Isolation.UID
	held := make(chan error, 1)
	go func() { held <- stopOnce(pid, func() { _, _ = in.Write([]byte("\n")) }, uid) }()
	if err := <-held; err != nil {
		t.Fatal(err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if alive(pid) {
			return fmt.Errorf("the stub, process %d, was stopped and outlives its parent", pid)
		}
		return nil
	})
}

// stopOnce stops a process after the first system call at which the user may send it signals.
func stopOnce(pid int, begin func(), uid int) error {
	goruntime.LockOSThread() // the tracer is this thread, which ends with the goroutine
	if err := unix.PtraceSeize(pid); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	if err := unix.PtraceInterrupt(pid); err != nil {
		return fmt.Errorf("interrupt: %w", err)
	}
	for calls := 0; ; calls++ {
		var ws unix.WaitStatus
		if _, err := unix.Wait4(pid, &ws, unix.WALL, nil); err != nil {
			return fmt.Errorf("wait: %w", err)
		}
		if !ws.Stopped() {
			return fmt.Errorf("it ended (%x) before the user could signal it", ws)
		}
		if calls == 0 {
			begin()
		}
		if signallable(pid, uid) {
			return errors.Join(unix.Kill(pid, unix.SIGSTOP), unix.PtraceDetach(pid))
		}
		sig := 0
		if s := ws.StopSignal(); s != unix.SIGTRAP && ws.TrapCause() <= 0 {
			sig = int(s)
		}
		if err := unix.PtraceSyscall(pid, sig); err != nil {
			return fmt.Errorf("go on: %w", err)
		}
	}
}

// signallable: a thread has the user as its real or saved one (kill(2)).
func signallable(pid, uid int) bool {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(task) // if the thread has ended, there is no text
		_, line, _ := strings.Cut(string(text), "\nUid:")
		line, _, _ = strings.Cut(line, "\n")
		if ids := strings.Fields(line); len(ids) == 4 && (ids[0] == strconv.Itoa(uid) || ids[2] == strconv.Itoa(uid)) {
			return true
		}
	}
	return false
}
