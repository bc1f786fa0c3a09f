package preparer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// stopsAfter returns a manifest of one process that stops by itself without Consul.
func (b *bench) stopsAfter(d time.Duration) manifest.Manifest {
	m := b.sleeper("stops " + d.String())
	after := field.Duration(d)
	m.Disconnect = &manifest.Disconnect{StopAfter: &after}
	return m
}

// awaitPhase waits until the pod's only process is in a phase.
func (b *bench) awaitPhase(index int, want runtime.Phase) {
	b.t.Helper()
	b.eventually(func() error {
		if procs := b.procs(index); len(procs) != 1 || procs[0].Phase != want {
			return fmt.Errorf("processes %+v, want one that is %s", procs, want)
		}
		return nil
	})
}

// Out of touch with Consul, a pod with stop_after stops by itself, others run on; back in touch it starts again, under the
// same intent.
func TestStopWithoutContact(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	lone, other := b.upload(b.stopsAfter(300*time.Millisecond)), b.upload(b.sleeper("1"))
	b.tell(intent(0, lone, pod.Running, 10), intent(1, other, pod.Running, 10))
	b.awaitReady(0, lone, 10)
	b.awaitReady(1, other, 10)
	pid := b.pid(1)
	a.stop()

	alone := b.startAlone()
	b.awaitPhase(0, runtime.Stopped)
	b.mustKeepPID(1, pid)
	b.awaitLog("stop without contact to Consul")
	alone.stop()

	b.startAlone().stop() // another start in the silence changes nothing
	b.awaitPhase(0, runtime.Stopped)

	b.start()
	b.awaitPhase(0, runtime.Running)
	b.awaitReady(0, lone, 10)
	b.mustKeepPID(1, pid)
}

// A session is no contact before it has the node's lock: farms count from when that was free.
func TestASessionWithoutTheLockIsNoContact(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	lone, other := b.upload(b.stopsAfter(300*time.Millisecond)), b.upload(b.sleeper("1"))
	b.tell(intent(0, lone, pod.Running, 10), intent(1, other, pod.Running, 10))
	b.awaitReady(0, lone, 10)
	b.awaitReady(1, other, 10)
	pid := b.pid(1)
	a.stop()
	lock := &slowLock{t: t, take: make(chan struct{})}
	b.startWith(func(session preparer.Session) preparer.Session { lock.Session = session; return lock })
	b.awaitPhase(0, runtime.Stopped)
	b.mustKeepPID(1, pid)
	close(lock.take)
	b.awaitPhase(0, runtime.Running)
	b.awaitReady(0, lone, 10)
	b.mustKeepPID(1, pid)
}

// A restart of the preparer is no silence, however long ago the contact was noted: it gets the time to find Consul.
func TestLongRestartStopsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	digest := b.upload(b.stopsAfter(20 * time.Second))
	b.tell(intent(0, digest, pod.Running, 10))
	before := b.awaitReady(0, digest, 10)
	pid := b.pid(0)
	a.stop()
	const silence = 25 * time.Second
	// It is longer than stop_after. Where the machine is younger, the last contact would be before its start.
	b.eventually(func() error {
		now, err := proc.Now()
		if err == nil && now.Up <= silence {
			err = fmt.Errorf("the machine is up for %s", now.Up)
		}
		return err
	})
	b.setContact(func(m *proc.Moment) { m.Up = max(1, m.Up-silence) })

	b.start()
	b.tell(intent(0, digest, pod.Running, 20))
	if r := b.awaitReady(0, digest, 20); !r.Since.Equal(before.Since) {
		t.Errorf("reality %+v, before %+v", r, before)
	}
	b.mustKeepPID(0, pid)
}

// setContact changes the note of the last contact.
func (b *bench) setContact(change func(*proc.Moment)) {
	b.t.Helper()
	path := filepath.Join(b.cfg.Dir, "contact.json")
	data, err := os.ReadFile(path)
	if err != nil {
		b.t.Fatal(err)
	}
	var m proc.Moment
	if err := json.Unmarshal(data, &m); err != nil {
		b.t.Fatal(err)
	}
	change(&m)
	if data, err = json.Marshal(m); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// After a restart of the machine a pod with stop_after waits for its intent; others do not wait for Consul.
func TestRebootWaitsForContact(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	lone, other := b.upload(b.stopsAfter(time.Hour)), b.upload(b.sleeper("1"))
	b.tell(intent(0, lone, pod.Running, 10), intent(1, other, pod.Running, 10))
	b.awaitReady(0, lone, 10)
	b.awaitReady(1, other, 10)
	a.stop()
	b.reboot(0, 1)

	alone := b.startAlone()
	b.awaitPhase(1, runtime.Running)
	b.awaitLog("hold back without contact to Consul")
	b.awaitPhase(0, runtime.Stopped)
	alone.stop()
	b.start()
	b.awaitReady(0, lone, 10)
}

// reboot leaves the node as a restart of the machine does: nothing of its pods runs, and the clock has begun anew.
func (b *bench) reboot(indices ...int) {
	b.t.Helper()
	for _, i := range indices {
		for _, status := range b.procs(i) {
			if err := b.runtime.Stop(b.t.Context(), status.Spec.ID); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	b.setContact(func(m *proc.Moment) { m.Boot = "an earlier one" })
}

// gatedIntents gives the intents once it is opened.
type gatedIntents struct {
	preparer.Store
	open chan struct{}
}

func (g *gatedIntents) WatchIntents(ctx context.Context, node string, onError func(error), deliver func(store.Seen[pod.Intent]) error) error {
	select {
	case <-g.open:
		return g.Store.WatchIntents(ctx, node, onError, deliver)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// gatedRuntime tells what it has once it is opened.
type gatedRuntime struct {
	runtime.Runtime
	open chan struct{}
}

func (g *gatedRuntime) Watch(ctx context.Context, cursor uint64) ([]runtime.Status, uint64, error) {
	select {
	case <-g.open:
		return g.Runtime.Watch(ctx, cursor)
	case <-ctx.Done():
		return nil, cursor, ctx.Err()
	}
}

// After a restart of the machine, a session, and even the node's lock, is not enough for a pod with stop_after: it may have
// been started elsewhere, which only its intent can tell. Nor is it enough that the intents were read, if its own is not there.
func TestRebootWaitsForIntent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	lone := b.upload(b.stopsAfter(time.Hour))
	for i := range 3 {
		b.tell(intent(i, lone, pod.Running, 10))
	}
	for i := range 3 {
		b.awaitReady(i, lone, 10)
	}
	before := b.awaitServing()
	a.stop()
	b.reboot(0, 1, 2)

	intents, procs := &gatedIntents{Store: b.store, open: make(chan struct{})}, &gatedRuntime{Runtime: b.runtime, open: make(chan struct{})}
	b.cfg.Store, b.cfg.Runtime = intents, procs
	b.start()
	b.awaitNode("the lock", func(n node.Node, session string) bool { return session != "" && n.Incarnation != before.Incarnation })
	close(procs.open) // from here on pods are looked at
	for i := range 3 {
		b.awaitSuspended(i)
	}
	b.forget(1)
	b.tell(intent(2, lone, pod.Stopped, 11))
	close(intents.open)
	b.awaitReady(0, lone, 10)
	b.awaitState(1, pod.StatePending, 10, "orphaned")
	b.awaitState(2, pod.StateStopped, 11, "")
	b.awaitPhase(1, runtime.Stopped)

	b.tell(intent(1, lone, pod.Running, 10)) // the same one is back
	b.awaitReady(1, lone, 10)
}

// awaitSuspended waits until the preparer has said that it does not start a pod.
func (b *bench) awaitSuspended(index int) {
	b.t.Helper()
	b.eventually(func() error {
		for line := range strings.Lines(b.log.text()) {
			if strings.Contains(line, "hold back without contact to Consul") && strings.Contains(line, identity(index).String()) {
				return nil
			}
		}
		return fmt.Errorf("pod %s is not held back", identity(index))
	})
}

// What a node holds back is listed as an orphan that does not run; what runs says so.
func TestOrphansSayWhetherTheyRun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.commit(consul.Set(b.keys.Gate.Key(), fmt.Appendf(nil, `{"version":%q}`, feature.Known.Named("ordered").Since)))
	a := b.start()
	lone, other := b.upload(b.stopsAfter(time.Hour)), b.upload(b.sleeper("1"))
	b.tell(intent(0, lone, pod.Running, 10), intent(1, other, pod.Running, 10))
	b.awaitReady(0, lone, 10)
	b.awaitReady(1, other, 10)
	before := b.awaitServing()
	a.stop()
	b.reboot(0)
	b.forget(0)
	b.forget(1)
	b.start()
	b.awaitNode("two orphans, of which one runs", func(n node.Node, session string) bool {
		return session != "" && n.Incarnation != before.Incarnation && len(n.Orphans) == 2 && !n.Orphans[0].Runs && n.Orphans[1].Runs
	})
}

// What the gate does not allow yet is said as soon as it does, by a node that has nothing else to write, too.
func TestARaisedGateCompletesTheNodesRecord(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.cfg.Node.TTL = field.Duration(10 * time.Second)
	b.cfg.LookAtGate = 50 * time.Millisecond
	gate := func(version string) {
		b.commit(consul.Set(b.keys.Gate.Key(), fmt.Appendf(nil, `{"version":%q}`, version)))
	}
	gate(feature.Oldest)
	b.start()
	if n := b.awaitServing(); n.TTL != 0 || n.EnforcesStopAfter {
		t.Fatalf("under the oldest gate it says %+v", n)
	}
	gate(feature.Known.Named("ordered").Since)
	b.awaitNode("what the gate allows now", func(n node.Node, session string) bool {
		return session != "" && n.TTL == b.cfg.Node.TTL && n.EnforcesStopAfter
	})
}

// A pod that does not run starts only by an intent of the present epoch, where its intent names one: an older store says what was true once. What runs is
// left alone.
func TestAnIntentOfAnotherEpochStartsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	lone, other := b.upload(b.stopsAfter(time.Hour)), b.upload(b.sleeper("1"))
	told := func(index int, digest string, revision int64, epoch string) pod.Intent {
		in := intent(index, digest, pod.Running, revision)
		in.Epoch = epoch
		return in
	}
	now := b.awaitServing().Epoch
	b.tell(told(0, lone, 10, now), told(1, lone, 10, now))
	b.awaitReady(0, lone, 10)
	b.awaitReady(1, lone, 10)
	a.stop()
	b.reboot(0)
	a = b.start()
	b.awaitReady(0, lone, 10) // after a restart of the machine in the same epoch it starts as ever
	b.tell(told(1, lone, 11, "another"))
	pid := b.pid(1)
	b.awaitReady(1, lone, 11)
	b.mustKeepPID(1, pid)
	a.stop()

	b.reboot(1)
	b.start()
	b.awaitState(1, pod.StatePending, 11, "another epoch")
	b.awaitPhase(1, runtime.Stopped)
	b.tell(told(2, other, 10, "another")) // one that was never here, and that needs no contact
	b.awaitState(2, pod.StatePending, 10, "another epoch")
	if procs := b.procs(2); len(procs) > 0 {
		t.Errorf("it was started: %+v", procs)
	}
	b.tell(told(1, lone, 12, now), told(2, other, 12, now))
	b.awaitReady(1, lone, 12)
	b.awaitReady(2, other, 12)
}
