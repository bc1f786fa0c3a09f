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

func (b *bench) stopsAfter(d time.Duration) manifest.Manifest {
	m := b.sleeper("stops " + d.String())
	after := field.Duration(d)
	m.Disconnect = &manifest.Disconnect{StopAfter: &after}
	return m
}

func (b *bench) awaitPhase(index int, want runtime.Phase) {
	b.t.Helper()
	b.eventually(func() error {
		if procs := b.procs(index); len(procs) != 1 || procs[0].Phase != want {
			return fmt.Errorf("processes %+v, want one that is %s", procs, want)
		}
		return nil
	})
}

// Without contact to Consul, only pods with stop_after stop. When Consul answers again, they start under the same
// intent.
func TestOnlyPodsWithStopAfterStopWithoutContact(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	lone, other := b.upload(b.stopsAfter(300*time.Millisecond)), b.upload(b.sleeper("1"))
	b.write(intent(0, lone, pod.Running, 10), intent(1, other, pod.Running, 10))
	b.awaitReady(0, lone, 10)
	b.awaitReady(1, other, 10)
	pid := b.pid(1)
	a.stop()

	alone := b.startAlone()
	b.awaitPhase(0, runtime.Stopped)
	b.mustKeepPID(1, pid)
	b.awaitLog("stop without contact to Consul")
	alone.stop()

	b.startAlone().stop() // another start of the preparer without Consul changes nothing
	b.awaitPhase(0, runtime.Stopped)

	b.start()
	b.awaitPhase(0, runtime.Running)
	b.awaitReady(0, lone, 10)
	b.mustKeepPID(1, pid)
}

// A session without the node's lock is no contact, because for farms the node is dead while its lock is free.
func TestASessionWithoutTheLockIsNoContact(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	lone, other := b.upload(b.stopsAfter(300*time.Millisecond)), b.upload(b.sleeper("1"))
	b.write(intent(0, lone, pod.Running, 10), intent(1, other, pod.Running, 10))
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

// A restarted preparer first has some time to reach Consul, however long ago the last contact was.
func TestLongRestartStopsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	digest := b.upload(b.stopsAfter(20 * time.Second))
	b.write(intent(0, digest, pod.Running, 10))
	before := b.awaitReady(0, digest, 10)
	pid := b.pid(0)
	a.stop()
	const silence = 25 * time.Second
	// silence is longer than stop_after. The machine must be up for longer, so that the last contact is after its
	// start.
	b.eventually(func() error {
		now, err := proc.Now()
		if err == nil && now.Up <= silence {
			err = fmt.Errorf("the machine is up for %s", now.Up)
		}
		return err
	})
	b.setContact(func(m *proc.Moment) { m.Up = max(1, m.Up-silence) })

	b.start()
	b.write(intent(0, digest, pod.Running, 20))
	if r := b.awaitReady(0, digest, 20); !r.Since.Equal(before.Since) {
		t.Errorf("reality %+v, before %+v", r, before)
	}
	b.mustKeepPID(0, pid)
}

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

// After a restart of the machine only pods with stop_after wait for Consul.
func TestOnlyPodsWithStopAfterWaitForConsulAfterAReboot(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	lone, other := b.upload(b.stopsAfter(time.Hour)), b.upload(b.sleeper("1"))
	b.write(intent(0, lone, pod.Running, 10), intent(1, other, pod.Running, 10))
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

// reboot ends these pods' processes, and makes the contact note one of an earlier boot.
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

type gatedIntents struct {
	preparer.Store
	open chan struct{}
}

func (g *gatedIntents) WatchIntents(
	ctx context.Context, node string, onError func(error), deliver func(store.Seen[pod.Intent]) error,
) error {
	select {
	case <-g.open:
		return g.Store.WatchIntents(ctx, node, onError, deliver)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

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

// After a restart of the machine, a pod with stop_after starts only when its own intent was read. A session, the lock,
// or a missing intent is not enough, because the pod may have been started elsewhere.
func TestPodsWithStopAfterWaitForTheirIntentAfterAReboot(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	lone := b.upload(b.stopsAfter(time.Hour))
	for i := range 3 {
		b.write(intent(i, lone, pod.Running, 10))
	}
	for i := range 3 {
		b.awaitReady(i, lone, 10)
	}
	before := b.awaitServing()
	a.stop()
	b.reboot(0, 1, 2)

	intents := &gatedIntents{Store: b.store, open: make(chan struct{})}
	procs := &gatedRuntime{Runtime: b.runtime, open: make(chan struct{})}
	b.cfg.Store, b.cfg.Runtime = intents, procs
	b.start()
	b.awaitNode("the lock", func(n node.Node, session string) bool {
		return session != "" && n.Incarnation != before.Incarnation
	})
	close(procs.open) // from here on workers reconcile the pods
	for i := range 3 {
		b.awaitSuspended(i)
	}
	b.deleteIntent(1)
	b.write(intent(2, lone, pod.Stopped, 11))
	close(intents.open)
	b.awaitReady(0, lone, 10)
	b.awaitState(1, pod.StatePending, 10, "orphaned")
	b.awaitState(2, pod.StateStopped, 11, "")
	b.awaitPhase(1, runtime.Stopped)

	b.write(intent(1, lone, pod.Running, 10)) // the same intent again
	b.awaitReady(1, lone, 10)
}

// awaitSuspended waits for the log line that a pod is not started.
func (b *bench) awaitSuspended(index int) {
	b.t.Helper()
	b.eventually(func() error {
		for line := range strings.Lines(b.log.text()) {
			if strings.Contains(line, "hold back without contact to Consul") &&
				strings.Contains(line, identity(index).String()) {
				return nil
			}
		}
		return fmt.Errorf("pod %s is not held back", identity(index))
	})
}

// The list of orphans shows which run, and which the node does not start.
func TestTheListOfOrphansSaysWhichOnesRun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.commit(consul.Set(b.keys.Gate.Key(), fmt.Appendf(nil, `{"version":%q}`, feature.Known.Named("ordered").Since)))
	a := b.start()
	lone, other := b.upload(b.stopsAfter(time.Hour)), b.upload(b.sleeper("1"))
	b.write(intent(0, lone, pod.Running, 10), intent(1, other, pod.Running, 10))
	b.awaitReady(0, lone, 10)
	b.awaitReady(1, other, 10)
	before := b.awaitServing()
	a.stop()
	b.reboot(0)
	b.deleteIntent(0)
	b.deleteIntent(1)
	b.start()
	b.awaitNode("two orphans, of which one runs", func(n node.Node, session string) bool {
		return session != "" && n.Incarnation != before.Incarnation &&
			len(n.Orphans) == 2 && !n.Orphans[0].Runs && n.Orphans[1].Runs
	})
}

// When the version gate allows more fields, the node writes them to its record.
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
		t.Fatalf("under the oldest gate the node's record is %+v", n)
	}
	gate(feature.Known.Named("ordered").Since)
	b.awaitNode("what the gate allows now", func(n node.Node, session string) bool {
		return session != "" && n.TTL == b.cfg.Node.TTL && n.EnforcesStopAfter
	})
}

// An intent of another epoch than the cluster's starts no pod, because it may be wrong by now. Running pods continue to
// run.
func TestAnIntentOfAnotherEpochStartsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	lone, other := b.upload(b.stopsAfter(time.Hour)), b.upload(b.sleeper("1"))
	inEpoch := func(index int, digest string, revision int64, epoch string) pod.Intent {
		in := intent(index, digest, pod.Running, revision)
		in.Epoch = epoch
		return in
	}
	now := b.awaitServing().Epoch
	b.write(inEpoch(0, lone, 10, now), inEpoch(1, lone, 10, now))
	b.awaitReady(0, lone, 10)
	b.awaitReady(1, lone, 10)
	a.stop()
	b.reboot(0)
	a = b.start()
	b.awaitReady(0, lone, 10) // in the same epoch it starts after a reboot
	b.write(inEpoch(1, lone, 11, "another"))
	pid := b.pid(1)
	b.awaitReady(1, lone, 11)
	b.mustKeepPID(1, pid)
	a.stop()

	b.reboot(1)
	b.start()
	b.awaitState(1, pod.StatePending, 11, "another epoch")
	b.awaitPhase(1, runtime.Stopped)
	b.write(inEpoch(2, other, 10, "another")) // a new pod without stop_after
	b.awaitState(2, pod.StatePending, 10, "another epoch")
	if procs := b.procs(2); len(procs) > 0 {
		t.Errorf("it was started: %+v", procs)
	}
	b.write(inEpoch(1, lone, 12, now), inEpoch(2, other, 12, now))
	b.awaitReady(1, lone, 12)
	b.awaitReady(2, other, 12)
}
