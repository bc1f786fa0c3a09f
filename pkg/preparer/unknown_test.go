package preparer_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

func parentOf(t *testing.T, pid int) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	parent, err := strconv.Atoi(strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))[1])
	if err != nil {
		t.Fatal(err)
	}
	return parent
}

// A process whose record the runtime cannot read is left alone: the report shows this, no second process starts, and a
// stop is not confirmed.
func TestUnreadableProcessIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir := filepath.Join(shortDir(t), "shim")
	b.runtime = startSupervisor(t, dir)
	b.cfg.Runtime = b.runtime
	a := b.start()
	m := b.server("1")
	b.addProgram(m, "bin/before", `echo launch >> launches`)
	m.Hooks = &manifest.Hooks{BeforeLaunch: &manifest.Hook{Path: "bin/before", Required: true}}
	digest := b.upload(m)
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	pid := b.pid(0)
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) }) // the supervisor has lost this process
	files, err := filepath.Glob(filepath.Join(dir, "state", "rc1.main.0.*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("state files %v, %v", files, err)
	}
	a.stop()
	if err := syscall.Kill(parentOf(t, pid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files[0], []byte(`{"spec":`), 0o600); err != nil {
		t.Fatal(err)
	}
	b.runtime = startSupervisor(t, dir)
	b.cfg.Runtime = b.runtime

	b.start()
	r := b.awaitState(0, pod.StateFailed, 10, "cannot be read")
	if !strings.Contains(r.Message, "remove its state file") || r.Digest != digest {
		t.Errorf("reality %+v, want the remedy and the installed digest", r)
	}
	b.write(intent(1, b.upload(b.sleeper("1")), pod.Running, 10)) // when this pod runs, the first pod was reconciled
	b.awaitState(1, pod.StateReady, 10, "")
	if text := b.text(b.inNode("homes", "rc1.main.0", "launches")); text != "launch\n" {
		t.Errorf("hooks of the launch ran again: %q", text)
	}
	b.awaitState(0, pod.StateFailed, 10, "cannot be read")
	if !b.services()["rcfarm-pod-"+b.cfg.Node.Name+"-rc1-main-0"] {
		t.Error("its service was deregistered although its check passes")
	}
	b.write(intent(0, digest, pod.Stopped, 20))
	b.awaitState(0, pod.StateStopping, 20, "not stopped yet")
	if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
		t.Error("the process was touched")
	}
}
