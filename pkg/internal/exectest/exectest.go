// Package exectest helps tests to suspend a new process that has changed its user, and has not executed its program. At
// this moment its pod is already allowed to send it signals.
package exectest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const patience = time.Minute

// Program makes a program that no process can execute before the test ends. The test has a lease on the file, for which
// execve(2) waits 45 s by default (proc_sys_fs(5)). The program sleeps for the seconds in its first argument.
func Program(t testing.TB) (path string) {
	t.Helper()
	data, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "held")
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(path); strings.HasPrefix(dir, os.TempDir()+"/"); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	for deadline := time.Now().Add(patience); ; <-time.After(time.Millisecond) {
		_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
		if err == nil {
			return path
		}
		// A process that another goroutine has just forked may still have the file open.
		if !errors.Is(err, unix.EAGAIN) || time.Now().After(deadline) {
			t.Fatal("take a lease:", err)
		}
	}
}

// Stop waits for the process that is about to execute such a program, and sends it SIGSTOP. No other process may have
// the same first argument and working directory.
func Stop(t testing.TB, dir, arg string) (pid, parent int) {
	t.Helper()
	for deadline := time.Now().Add(patience); pid == 0; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no process %q in %s is about to become a program", arg, dir)
		}
		pid = find(dir, arg)
	}
	// The process still has this id, unless the test has waited for its end.
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); ; <-time.After(time.Millisecond) {
		var state string
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, rest, _ := strings.Cut(string(stat), ") ")
		if _, scanErr := fmt.Sscan(rest, &state, &parent); scanErr == nil && state == "T" {
			return pid, parent
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("process %d was stopped and is not: %s, %v", pid, stat, err)
		}
	}
}

func find(dir, arg string) (pid int) {
	entries, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, cwd := range entries {
		if at, err := os.Readlink(cwd); err != nil || at != dir {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(cwd), "cmdline"))
		if args := strings.Split(string(line), "\x00"); len(args) > 1 && args[1] == arg {
			n, _ := strconv.Atoi(filepath.Base(filepath.Dir(cwd)))
			return n
		}
	}
	return 0
}
