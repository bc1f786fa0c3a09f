package preparer_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer"
)

// A pod's report names each slow hook, and processes that take long to stop.
func TestTheReportNamesWhatTheNodeWaitsFor(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	gates := t.TempDir()
	pass := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(gates, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	waits := func(name string) string {
		return fmt.Sprintf("while ! [ -e %s/%s-$VERSION ]; do sleep 0.02; done", gates, name)
	}
	gated := func(version string) manifest.Manifest {
		m := b.pod(`trap '`+waits("process")+`; exit 0' TERM; while :; do sleep 0.02; done`, version)
		grace := field.Duration(time.Minute)
		m.Launchables[0].StopGrace, m.Hooks = &grace, &manifest.Hooks{}
		for name, hook := range map[string]**manifest.Hook{
			"after_install": &m.Hooks.AfterInstall, "before_launch": &m.Hooks.BeforeLaunch,
			"before_stop": &m.Hooks.BeforeStop,
		} {
			b.addProgram(m, "bin/"+name, waits(name))
			*hook = &manifest.Hook{Path: "bin/" + name}
		}
		return m
	}
	first, second := b.upload(gated("1")), b.upload(gated("2"))
	await := func(state pod.State, revision int64, message string) {
		t.Helper()
		b.awaitState(0, state, revision, message)
	}
	b.write(intent(0, first, pod.Running, 10))
	await(pod.StateInstalling, 10, "hook after_install runs: main:bin/after_install")
	pass("after_install-1")
	await(pod.StateStarting, 10, "hook before_launch runs")
	pass("before_launch-1")
	if r := b.awaitReady(0, first, 10); r.Message != "" {
		t.Errorf("a ready pod has the message %q", r.Message)
	}

	pass("after_install-2")
	b.write(intent(0, second, pod.Running, 20))
	await(pod.StateStarting, 20, "hook before_stop runs: main:bin/before_stop")
	pass("before_stop-1")
	await(pod.StateStarting, 20, "waiting for main to stop, its grace is 1m0s")
	pass("process-1")
	await(pod.StateStarting, 20, "hook before_launch runs")
	pass("before_launch-2")
	b.awaitReady(0, second, 20)

	b.write(intent(0, second, pod.Stopped, 30))
	await(pod.StateStopping, 30, "hook before_stop runs")
	pass("before_stop-2")
	await(pod.StateStopping, 30, "waiting for main to stop, its grace is 1m0s")
	pass("process-2")
	if r := b.awaitState(0, pod.StateStopped, 30, ""); r.Message != "" {
		t.Errorf("a stopped pod has the message %q", r.Message)
	}
}

type gatedManifests struct {
	preparer.Store
	open chan struct{}
}

func (g *gatedManifests) SignedManifest(ctx context.Context, digest string) (*manifest.Manifest, string, error) {
	select {
	case <-g.open:
		return g.Store.SignedManifest(ctx, digest)
	case <-ctx.Done():
		return nil, "", context.Cause(ctx)
	}
}

// From its first report on, a pending pod's report has what the pod waits for.
func TestTheReportOfAPendingPodSaysWhy(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	manifests := &gatedManifests{Store: b.store, open: make(chan struct{})}
	b.cfg.Store = manifests
	b.start()
	gates := t.TempDir()
	m := b.pod(
		`trap 'while ! [ -e `+gates+`/process ]; do sleep 0.02; done; exit 0' TERM; while :; do sleep 0.02; done`, "1",
	)
	grace := field.Duration(time.Minute)
	m.Launchables[0].StopGrace = &grace
	first, second := b.upload(m), b.upload(b.sleeper("2"))
	b.write(intent(0, first, pod.Running, 10))
	r := b.awaitReality(0, "its first report", func(pod.Reality) bool { return true })
	if r.State != pod.StatePending || r.Message == "" {
		t.Errorf("the first report is %s, %q", r.State, r.Message)
	}
	b.awaitState(0, pod.StatePending, 10, "reading manifest "+first[:12]+" from Consul")
	close(manifests.open)
	b.awaitReady(0, first, 10)

	// A pod whose intent came during a stop waits for the end of the stop.
	b.write(intent(0, first, pod.Stopped, 20))
	b.awaitState(0, pod.StateStopping, 20, "waiting for main to stop")
	b.write(intent(0, second, pod.Running, 30))
	b.awaitReality(0, "what the next revision waits for", func(r pod.Reality) bool {
		if r.State == pod.StatePending && r.Message == "" {
			t.Errorf("pending without a reason: %+v", r)
		}
		return strings.Contains(r.Message, "waiting for main to stop")
	})
	if err := os.WriteFile(filepath.Join(gates, "process"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.awaitReady(0, second, 30)
}
