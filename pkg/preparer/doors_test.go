package preparer_test

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

type doors struct {
	mu    sync.Mutex
	open  []string
	err   error
	asked int
}

func (d *doors) OpenDoors(context.Context, string) ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	return d.open, d.err
}

func (d *doors) set(err error, open ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open, d.err = open, err
}

func (d *doors) questions() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked
}

func (b *bench) awaitDoors(want string, shut bool) {
	b.t.Helper()
	b.awaitNode("what pods may do at Consul: "+want, func(n node.Node, _ string) bool {
		return n.Anonymous == want && n.Shut == shut
	})
}

// While pods can write intents, a strict node accepts no intent, not even a stop. Its pods are kept running and
// reported, and it still echoes the epoch. Afterwards it accepts intents again.
func TestAShutNodeAcceptsNoIntents(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	d := &doors{}
	b.cfg.Doors, b.cfg.Strict, b.cfg.AskAgain, b.cfg.AskDoors = d, true, 20*time.Millisecond, 20*time.Millisecond
	b.start()
	digest := b.upload(b.sleeper("1"))
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	b.awaitDoors(node.AnonymousSecured, false)
	pid := b.pid(0)

	d.set(nil, "write key rcfarm/intent/n1/x")
	b.awaitDoors(node.AnonymousUnsecured, true)
	b.awaitLog("no new intents are taken")
	b.awaitLog("write key rcfarm/intent/n1/x")
	b.write(intent(0, digest, pod.Stopped, 11))
	b.write(intent(1, digest, pod.Running, 11))
	b.awaitState(0, pod.StateReady, 10, "revision 11 is not accepted")
	b.mustKeepPID(0, pid)
	b.awaitServing() // the node echoes the epoch, so that the farms do not wait for it
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	consultest.Eventually(t, patience, func() error {
		if procs := b.procs(0); len(procs) != 1 || procs[0].PID == pid || procs[0].Phase != runtime.Running {
			return errors.New("not started again")
		}
		return nil
	})
	pid = b.pid(0)
	d.set(errors.New("Consul is away"))
	asked := d.questions()
	consultest.Eventually(t, patience, func() error {
		if d.questions() < asked+3 {
			return errors.New("not asked again yet")
		}
		return nil
	})
	b.mustKeepPID(0, pid)
	d.set(nil)
	b.awaitDoors(node.AnonymousSecured, false)
	b.awaitState(0, pod.StateStopped, 11, "")
	b.awaitReady(1, digest, 11)
}

// A strict node accepts no intents before it knows what pods can do in Consul.
func TestAStrictNodeIsShutUntilConsulAnswers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	d := &doors{err: errors.New("Consul does not say")}
	b.cfg.Doors, b.cfg.Strict, b.cfg.AskAgain = d, true, 20*time.Millisecond
	digest := b.upload(b.sleeper("1"))
	b.write(intent(0, digest, pod.Running, 10))
	b.start()
	b.awaitDoors(node.AnonymousUnknown, true)
	b.awaitServing()
	b.awaitLog("cannot find out what pods may do at Consul")
	if procs := b.procs(0); len(procs) > 0 {
		t.Errorf("a pod was started: %+v", procs)
	}
	d.set(nil)
	b.awaitReady(0, digest, 10)
}

// A node that is not strict accepts intents, and reports in its record and its log what pods can do.
func TestANodeReportsThatConsulIsOpen(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.cfg.Doors = &doors{open: []string{"write acl"}}
	b.start()
	digest := b.upload(b.sleeper("1"))
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	b.awaitDoors(node.AnonymousUnsecured, false)
	b.awaitLog("need no token to have any program started on this node")
}
