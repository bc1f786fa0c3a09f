package preparer_test

import (
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer"
)

func (b *bench) supervisor() (pid int) {
	b.t.Helper()
	conn, err := net.Dial("unix", filepath.Join(b.runtimeDir(), "shim.sock"))
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		b.t.Fatal(err)
	}
	var cred *unix.Ucred
	controlErr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if controlErr != nil || err != nil {
		b.t.Fatal(controlErr, err)
	}
	return int(cred.Pid)
}

// While the supervisor is suspended, all pods' reports show it, and a pod whose process has ended is not available. A
// stop waits, and nothing is ended. Then the reports return to normal.
func TestASupervisorThatStandsStill(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	reg := prometheus.NewRegistry()
	b.cfg.Metrics = preparer.NewMetrics(reg)
	b.cfg.PingEvery, b.cfg.SilentAfter = 50*time.Millisecond, 500*time.Millisecond
	b.start()
	digest := b.upload(b.sleeper("1"))
	for index := range 3 {
		b.write(intent(index, digest, pod.Running, 1))
	}
	for index := range 3 {
		b.awaitReady(index, digest, 1)
	}
	says := func(silent bool) {
		t.Helper()
		b.awaitNode("whether the supervisor answers", func(n node.Node, _ string) bool {
			return n.SupervisorSilent == silent && n.EnforcesStopAfter != silent
		})
	}
	says(false)
	b.awaitMetric(reg, "rcfarm_preparer_supervisor_answers", "", 1, 1)
	dies, runs := b.pid(0), b.pid(1)

	supervisor := b.supervisor()
	if err := syscall.Kill(supervisor, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(supervisor, syscall.SIGCONT) })
	if err := syscall.Kill(dies, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.write(intent(2, digest, pod.Stopped, 2))
	const silence = "supervisor does not answer"
	b.awaitReality(0, "failed", func(r pod.Reality) bool {
		return r.State == pod.StateFailed && !r.Available && strings.Contains(r.Message, silence)
	})
	b.awaitReality(1, "as it was", func(r pod.Reality) bool {
		return r.State == pod.StateReady && r.Available && strings.Contains(r.Message, silence)
	})
	b.awaitState(2, pod.StateStopping, 2, silence)
	says(true)
	b.awaitMetric(reg, "rcfarm_preparer_supervisor_answers", "", 0, 0)
	b.awaitLog("nothing can be started or stopped on this node")

	if err := syscall.Kill(supervisor, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for index := range 2 {
		if r := b.awaitReady(index, digest, 1); strings.Contains(r.Message, silence) {
			b.awaitReality(index, "no message", func(r pod.Reality) bool { return r.Available && r.Message == "" })
		}
	}
	b.awaitReality(2, "stopped", func(r pod.Reality) bool {
		return r.State == pod.StateStopped && r.Revision == 2 && r.Message == ""
	})
	says(false)
	b.awaitMetric(reg, "rcfarm_preparer_supervisor_answers", "", 1, 1)
	b.mustKeepPID(1, runs)
	if now := b.pid(0); now == dies {
		t.Error("the ended process was not started again")
	}
}
