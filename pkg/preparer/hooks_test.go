package preparer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// traced has processes and hooks that write lines to the volume "trace" at begin and end.
func (b *bench) traced(version string) manifest.Manifest {
	m := b.pod("# "+version+"\n"+`
note() { echo "$VERSION:$1" >> "$VOLUME_TRACE/log"; }
trap 'note end; exit 0' TERM
note begin
while :; do sleep 0.02; done`, version)
	note := `echo "$VERSION:$HOOK:$(test -e "$CONFIG_PATH" && echo config)" >> "$VOLUME_TRACE/log"`
	for _, name := range []string{"hook", "enable", "disable"} {
		b.addProgram(m, "bin/"+name, note)
	}
	h := &manifest.Hook{Path: "bin/hook"}
	m.Hooks = &manifest.Hooks{
		BeforeInstall: h, AfterInstall: h, BeforeLaunch: h, AfterLaunch: h, BeforeStop: h, AfterStop: h,
	}
	m.Volumes = []manifest.Volume{{Name: "trace"}}
	return m
}

func (b *bench) nodeHook(path, script string) {
	b.t.Helper()
	if b.cfg.HooksDir == "" {
		b.cfg.HooksDir = filepath.Join(shortDir(b.t), "hooks")
	}
	file := filepath.Join(b.cfg.HooksDir, path)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) trace(index int) string {
	return b.inNode("volumes", fmt.Sprintf("rc1.main.%d", index), "trace", "log")
}

// awaitTrace waits for exactly these lines, and removes the trace.
func (b *bench) awaitTrace(want ...string) {
	b.t.Helper()
	b.awaitText(b.trace(0), strings.Join(want, "\n")+"\n")
	if err := os.Remove(b.trace(0)); err != nil {
		b.t.Fatal(err)
	}
}

func TestHooksRunInOrder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	node := func(name string) string {
		return fmt.Sprintf(`echo "node:$HOOK:%s:$VERSION" >> "$VOLUME_TRACE/log"`, name)
	}
	b.nodeHook("before_launch.d/20-last", node("20"))
	b.nodeHook("before_launch/10-first", node("10"))
	b.nodeHook("before_launch/not so", node("bad name"))
	b.nodeHook("before_launch/30-off", node("off"))
	b.nodeHook("before_launch/sub/40-deep", node("deep"))
	if err := os.Chmod(filepath.Join(b.cfg.HooksDir, "before_launch/30-off"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.start()
	first := b.upload(b.traced("1"))
	b.write(intent(0, first, pod.Running, 10))
	b.awaitReady(0, first, 10)
	launched := func(v string) []string {
		return []string{v + ":before_install:", v + ":after_install:config"}
	}
	b.eventually(func() error {
		if got := b.text(b.trace(0)); !strings.Contains(got, "1:begin") || !strings.Contains(got, "1:enable") {
			return errors.New(got)
		}
		return nil
	})
	// The process runs beside the hooks after its start, so its line can be anywhere.
	lines := strings.Split(strings.TrimSpace(b.text(b.trace(0))), "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool { return line == "1:begin" })
	want := append(
		launched("1"), "node:before_launch:10:", "node:before_launch:20:", "1:before_launch:config",
		"1:after_launch:config", "1:enable:config",
	)
	if !slices.Equal(lines, want) {
		t.Errorf("trace %q, want %q", lines, want)
	}
	if err := os.Remove(b.trace(0)); err != nil {
		t.Fatal(err)
	}

	second := b.upload(b.traced("2"))
	b.write(intent(0, second, pod.Running, 20))
	b.awaitReady(0, second, 20)
	b.eventually(func() error {
		if got := b.text(b.trace(0)); !strings.Contains(got, "2:begin") || !strings.Contains(got, "2:enable") {
			return errors.New(got)
		}
		return nil
	})
	lines = strings.Split(strings.TrimSpace(b.text(b.trace(0))), "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool { return line == "2:begin" })
	want = append(
		launched("2"), "1:before_stop:config", "1:disable:config", "1:end", "1:after_stop:config",
		"node:before_launch:10:", "node:before_launch:20:",
		"2:before_launch:config", "2:after_launch:config", "2:enable:config",
	)
	if !slices.Equal(lines, want) {
		t.Errorf("trace %q, want %q", lines, want)
	}
	if err := os.Remove(b.trace(0)); err != nil {
		t.Fatal(err)
	}

	b.write(intent(0, second, pod.Stopped, 30))
	b.awaitState(0, pod.StateStopped, 30, "")
	b.awaitTrace("2:before_stop:config", "2:disable:config", "2:end", "2:after_stop:config")
	log := b.text(b.inNode("logs", "rc1.main.0", "_hooks.log"))
	if !strings.Contains(log, "before_launch of version 20-"+second[:12]+": main:bin/hook") ||
		!strings.Contains(log, "after_stop: done in") {
		t.Errorf("log of hooks: %s", log)
	}
}

// required fails until the pod's home has the file "<name>-ok".
func (b *bench) required(m manifest.Manifest, name string) *manifest.Hook {
	b.t.Helper()
	b.addProgram(m, "bin/"+name, `test -e "$POD_HOME/`+name+`-ok" || { echo refusing; exit 9; }`)
	return &manifest.Hook{Path: "bin/" + name, Required: true}
}

func (b *bench) allow(name string) {
	b.t.Helper()
	if err := os.WriteFile(b.homeFile(0, name+"-ok"), nil, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// If a required hook fails before the switch of versions, the old version continues to run. If it fails after the
// switch, no process runs.
func TestRequiredHooksPreventTheNextStep(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	first := b.upload(b.sleeper("1"))
	b.write(intent(0, first, pod.Running, 10))
	b.awaitReady(0, first, 10)
	pid := b.pid(0)

	m := b.pod("# 2\nexec sleep 1000", "2")
	m.Hooks = &manifest.Hooks{
		BeforeInstall: b.required(m, "install"), AfterInstall: b.required(m, "installed"),
		BeforeLaunch: b.required(m, "launching"), AfterLaunch: b.required(m, "launched"),
		BeforeStop: b.required(m, "stop"), AfterStop: b.required(m, "stopped"),
	}
	second := b.upload(m)
	b.write(intent(0, second, pod.Running, 20))
	for _, hook := range []string{"install", "installed"} {
		output := b.inNode("logs", "rc1.main.0", "_hooks.log")
		r := b.awaitState(
			0, pod.StateFailed, 20, "main:bin/"+hook+" ended with exit status 9; its output is in "+output,
		)
		if r.Digest != first || !r.Available || !strings.Contains(r.Message, "version "+first[:12]+" stays as it is") {
			t.Errorf("reality %+v", r)
		}
		b.mustKeepPID(0, pid)
		b.allow(hook)
	}
	r := b.awaitState(0, pod.StateFailed, 20, "main:bin/launching ended with exit status 9")
	if r.Digest != second || r.Available || !strings.Contains(r.Message, "version "+first[:12]+" stays installed") {
		t.Errorf("reality %+v", r)
	}
	if procs := b.procs(0); len(procs) > 0 || syscall.Kill(pid, 0) == nil {
		t.Errorf("processes %+v", procs)
	}
	if got := b.names("versions", "rc1.main.0"); len(got) != 3 {
		t.Errorf("versions %v", got)
	}
	b.allow("launching")
	r = b.awaitState(0, pod.StateFailed, 20, "main:bin/launched ended with exit status 9")
	if procs := b.procs(0); len(procs) != 1 || len(b.services()) != 0 || r.Available {
		t.Errorf("processes %+v, services %v", procs, b.services())
	}
	b.allow("launched")
	b.awaitReady(0, second, 20)
	if log := b.text(b.inNode("logs", "rc1.main.0", "_hooks.log")); !strings.Contains(log, "refusing\n") {
		t.Errorf("log of hooks: %s", log)
	}
	b.write(intent(0, second, pod.Stopped, 30)) // a failed hook does not prevent a stop
	b.awaitState(0, pod.StateStopped, 30, "")
	b.awaitLog("hook failed; going on all the same")
}

// A hanging hook is killed with all its processes, and the stop continues. An optional hook that fails does not stop
// the launch.
func TestHooksThatHang(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.nodeHook("after_launch.d/50-optional", "exit 1")
	b.start()
	m := b.sleeper("1")
	b.addProgram(m, "bin/hang", `setsid sleep 1000 & echo $! > "$POD_HOME/child"; sleep 1000`)
	short := field.Duration(3 * time.Second) // even a busy machine starts the hook's child in this time
	m.Hooks = &manifest.Hooks{BeforeStop: &manifest.Hook{Path: "bin/hang", Timeout: &short, Required: true}}
	digest := b.upload(m)
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	b.awaitLog("optional hook failed")
	b.write(intent(0, digest, pod.Stopped, 20))
	b.awaitState(0, pod.StateStopped, 20, "")
	b.awaitLog("was killed after 3s")
	var child int
	if _, err := fmt.Sscan(b.text(b.homeFile(0, "child")), &child); err != nil || syscall.Kill(child, 0) == nil {
		t.Errorf("child %d of the hook still runs (%v)", child, err)
	}
}

// A required hook of the node prevents a launch, and a newer intent interrupts it.
func TestNodeHookRefusesAndIsInterrupted(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.nodeHook(
		"before_launch/50-wait.required",
		`echo "$LD_PRELOAD" > "$POD_HOME/preload"; touch "$POD_HOME/waiting"; exec sleep 1000`,
	)
	b.start()
	m := b.sleeper("1")
	m.Launchables[0].Env["LD_PRELOAD"] = "/evil.so"
	digest := b.upload(m)
	b.write(intent(0, digest, pod.Running, 10))
	b.eventually(func() error { _, err := os.Stat(b.homeFile(0, "waiting")); return err })
	if got := b.text(b.homeFile(0, "preload")); got != "\n" {
		t.Errorf("the pod's environment reached a hook of the node: %q", got)
	}
	b.write(intent(0, digest, pod.Stopped, 20))
	b.awaitState(0, pod.StateStopped, 20, "")
	b.nodeHook("before_launch/50-wait.required", "exit 5")
	b.write(intent(0, digest, pod.Running, 30))
	b.awaitState(0, pod.StateFailed, 30, "50-wait.required ended with exit status 5")
	if procs := b.procs(0); len(procs) > 0 {
		t.Errorf("processes %+v", procs)
	}
}

type refusing struct {
	runtime.Runtime
	name   string
	refuse atomic.Bool
}

var errRefused = errors.New("refused")

func (r *refusing) Start(ctx context.Context, spec runtime.Spec) error {
	if spec.Name == r.name && r.refuse.Load() {
		return errRefused
	}
	return r.Runtime.Start(ctx, spec)
}

// If the second process of a pod cannot be started, the first process stops again.
func TestPartialStartIsUndone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := &refusing{Runtime: b.runtime, name: "side"}
	r.refuse.Store(true)
	b.cfg.Runtime, b.cfg.RetryMin, b.cfg.RetryMax = r, time.Second, 2*time.Second
	b.start()
	m := b.sleeper("1")
	side := m.Launchables[0]
	side.Name = "side"
	m.Launchables = append(m.Launchables, side)
	digest := b.upload(m)
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitState(0, pod.StateFailed, 10, "start side: refused")
	b.eventually(func() error {
		if procs := b.procs(0); len(procs) > 0 {
			return fmt.Errorf("processes %+v", procs)
		}
		return nil
	})
	r.refuse.Store(false)
	b.awaitReady(0, digest, 10)
	if procs := b.procs(0); len(procs) != 2 {
		t.Errorf("processes %+v", procs)
	}
}
