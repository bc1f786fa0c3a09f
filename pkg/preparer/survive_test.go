package preparer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer"
	"github.com/rcfarm/rcfarm/pkg/preparer/register"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A restarted preparer finds its pods running, and writes no new report.
func TestRestartKeepsPods(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	counted := &countedServices{Services: b.client.Services}
	b.cfg.Services = counted
	a := b.start()
	digest := b.upload(b.server("1"))
	b.write(intent(0, digest, pod.Running, 10), intent(1, digest, pod.Stopped, 5))
	b.awaitReady(0, digest, 10)
	b.awaitState(1, pod.StateStopped, 5, "")
	pid := b.pid(0)
	_, index, err := b.reality(0)
	if err != nil {
		t.Fatal(err)
	}
	before := b.awaitServing()
	a.stop()
	b.mustKeepPID(0, pid)
	registered := counted.registered.Load()

	b.start()
	epoch := b.epoch()
	b.awaitNode("the next incarnation", func(n node.Node, session string) bool {
		return session != "" && n.Incarnation != before.Incarnation && n.Epoch == epoch && len(n.Orphans) == 0
	})
	b.write(intent(2, digest, pod.Stopped, 5))
	b.awaitState(2, pod.StateStopped, 5, "") // after this report, all realities have been compared
	looks := counted.looks.Load()
	b.eventually(func() error {
		if counted.looks.Load() < looks+5 {
			return errors.New("the agent was not read often enough")
		}
		return nil
	})
	r, after, err := b.reality(0)
	if err != nil || after != index || !r.Available {
		t.Errorf("the same health was written again: index %d, then %d (%v), %+v", index, after, err, r)
	}
	if again := counted.registered.Load() - registered; again != 0 {
		t.Errorf("%d services were registered again", again)
	}
	b.mustKeepPID(0, pid)
	b.write(intent(0, digest, pod.Stopped, 11))
	b.awaitState(0, pod.StateStopped, 11, "")
}

type countedServices struct {
	register.Services
	looks, registered atomic.Int64
}

func (c *countedServices) LocalServices(ctx context.Context, key, value string) (map[string]consul.Health, error) {
	defer c.looks.Add(1)
	return c.Services.LocalServices(ctx, key, value)
}

func (c *countedServices) RegisterService(ctx context.Context, s consul.Service) error {
	defer c.registered.Add(1)
	return c.Services.RegisterService(ctx, s)
}

// When all records in Consul are deleted, all processes run on. The node writes its orphans with the new epoch, and
// intents with a higher revision adopt them.
func TestAWipeStopsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	m := b.sleeper("1")
	m.Launchables[0].Resources = manifest.Resources{CPU: 100, Memory: 1 << 20}
	digest := b.upload(m)
	b.write(intent(0, digest, pod.Running, 10), intent(1, digest, pod.Running, 10), intent(2, digest, pod.Stopped, 10))
	b.awaitReady(0, digest, 10)
	b.awaitReady(1, digest, 10)
	b.awaitState(2, pod.StateStopped, 10, "")
	pids := []int{b.pid(0), b.pid(1)}

	b.wipe()
	epoch := b.epoch() // a new epoch
	n := b.awaitNode("two orphans", func(n node.Node, session string) bool {
		if n.Epoch == epoch && len(n.Orphans) != 2 {
			t.Errorf("the epoch was echoed with the orphans %+v", n.Orphans)
		}
		return session != "" && n.Epoch == epoch
	})
	want := pod.Orphan{
		Identity: identity(0), PodID: "web", Digest: digest, Revision: 10, CPU: 100, Memory: 1 << 20,
		Reason: pod.ReasonOrphaned,
	}
	if got := n.Orphans[0]; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("orphan %+v, want %+v", got, want)
	}
	for i := range 2 {
		if r := b.awaitState(i, pod.StateOrphaned, 10, "orphaned"); !r.Available || r.Digest != digest {
			t.Errorf("reality of an orphan: %+v", r)
		}
	}

	b.write(intent(0, digest, pod.Running, 11), intent(1, digest, pod.Running, 11))
	for i, pid := range pids {
		b.awaitReady(i, digest, 11)
		b.mustKeepPID(i, pid)
	}
	b.awaitNode("no orphans", func(n node.Node, _ string) bool { return len(n.Orphans) == 0 })
}

func (b *bench) wipe() {
	b.t.Helper()
	keys, err := b.client.Keys(b.t.Context(), b.keys.Prefix())
	if err != nil {
		b.t.Fatal(err)
	}
	var ops []consul.Op
	for _, key := range keys {
		ops = append(ops, consul.Delete(key))
	}
	b.commit(ops...)
}

func TestOlderIntentsStopNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	digest := b.upload(b.sleeper("1"))
	older := b.upload(b.sleeper("0"))
	b.write(intent(0, digest, pod.Running, 10), intent(1, digest, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	b.awaitReady(1, digest, 10)
	pids := []int{b.pid(0), b.pid(1)}
	b.write(intent(0, digest, pod.Stopped, 9), intent(1, older, pod.Running, 8))
	b.awaitNode("two regressed pods", func(n node.Node, _ string) bool {
		return len(n.Orphans) == 2 && n.Orphans[0].Reason == pod.ReasonAhead && n.Orphans[1].Reason == pod.ReasonAhead
	})
	b.awaitState(0, pod.StateReady, 10, "regressed: its intent has revision 9")
	b.awaitState(1, pod.StateReady, 10, "regressed: its intent has revision 8")
	for i, pid := range pids {
		b.mustKeepPID(i, pid)
	}
	b.write(intent(0, digest, pod.Stopped, 11), intent(1, digest, pod.Running, 11))
	b.awaitState(0, pod.StateStopped, 11, "")
	b.awaitReady(1, digest, 11)
	b.mustKeepPID(1, pids[1])
	b.awaitNode("no orphans", func(n node.Node, _ string) bool { return len(n.Orphans) == 0 })
}

// A pod's unreadable record is rebuilt from its processes in the runtime, without effect on others.
func TestUnreadableRecordIsRebuiltFromTheRuntime(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	digest := b.upload(b.server("1"))
	sleeper := b.upload(b.sleeper("1"))
	b.write(intent(0, digest, pod.Running, 10), intent(1, sleeper, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	b.awaitReady(1, sleeper, 10)
	pids := []int{b.pid(0), b.pid(1)}
	a.stop()
	file := filepath.Join(b.cfg.Dir, "pods", "rc1.main.0.json")
	if err := os.WriteFile(file, []byte(`{"version":1,`), 0o600); err != nil {
		t.Fatal(err)
	}
	b.deleteIntent(0)
	b.commit(consul.Delete(b.keys.Realities.Key(b.cfg.Node.Name, identity(0).String())))

	b.start()
	b.awaitLog("pod record unreadable and set aside")
	b.awaitState(0, pod.StateOrphaned, 10, "orphaned")
	n := b.awaitNode("an orphan", func(n node.Node, _ string) bool { return len(n.Orphans) == 1 })
	if o := n.Orphans[0]; o.Digest != digest || o.Ports["http-main"] != httpPort || o.PodID != "web" {
		t.Errorf("orphan %+v", o)
	}
	b.awaitReady(1, sleeper, 10)
	for i, pid := range pids {
		b.mustKeepPID(i, pid)
	}
	b.write(intent(0, digest, pod.Running, 20))
	b.awaitReady(0, digest, 20)
	b.mustKeepPID(0, pids[0])
	if kept, err := filepath.Glob(file + ".*.unreadable"); err != nil || len(kept) != 1 {
		t.Errorf("set aside: %v (%v)", kept, err)
	}
	b.write(intent(0, digest, pod.Stopped, 21))
	b.awaitState(0, pod.StateStopped, 21, "")
}

// After a reboot without Consul, pods with records start, and stopped ones stay stopped.
func TestPodsStartWithoutConsulAfterAReboot(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	digest := b.upload(b.server("1"))
	b.write(intent(0, digest, pod.Running, 10), intent(1, digest, pod.Stopped, 10))
	b.awaitReady(0, digest, 10)
	b.awaitState(1, pod.StateStopped, 10, "")
	pid := b.pid(0)
	a.stop()
	if err := b.runtime.Stop(t.Context(), b.procs(0)[0].Spec.ID); err != nil {
		t.Fatal(err)
	}
	gone, err := consul.New(consul.Config{Address: "127.0.0.1:1", CallTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gone.Close)
	b.runtime = startSupervisor(t, filepath.Join(shortDir(t), "shim"))
	b.cfg.Runtime, b.cfg.Services, b.cfg.Store = b.runtime, gone.Services, store.New(gone, b.keys)
	b.startAlone()
	b.eventually(func() error {
		procs := b.procs(0)
		if len(procs) != 1 || procs[0].Phase != runtime.Running {
			return fmt.Errorf("processes %+v", procs)
		}
		return nil
	})
	if b.pid(0) == pid || len(b.procs(1)) != 0 {
		t.Errorf("processes %+v and %+v", b.procs(0), b.procs(1))
	}
}

// faults goes back in time once, after goBack.
type faults struct {
	preparer.Store
	goBack atomic.Bool
}

func (f *faults) WatchIntents(
	ctx context.Context, name string, onError func(error), deliver func(store.Seen[pod.Intent]) error,
) error {
	return f.Store.WatchIntents(ctx, name, onError, func(seen store.Seen[pod.Intent]) error {
		seen.WentBack = f.goBack.CompareAndSwap(true, false)
		return deliver(seen)
	})
}

// If the store goes back in time, the session ends, and no pod stops.
func TestAStoreThatWentBackStopsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	faulty := &faults{Store: b.store}
	b.cfg.Store = faulty
	b.start()
	digest := b.upload(b.sleeper("1"))
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	pid, before := b.pid(0), b.awaitServing()
	faulty.goBack.Store(true)
	b.deleteIntent(0)
	b.awaitLog("session ended " + store.ErrWentBack.Error())
	epoch := b.epoch()
	b.awaitNode("orphan under a new session", func(n node.Node, session string) bool {
		return n.Incarnation != before.Incarnation && session != "" && n.Epoch == epoch && len(n.Orphans) == 1
	})
	b.mustKeepPID(0, pid)
}

// Records that are deleted in Consul are written again.
func TestDeletedRecordsAreWrittenAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.cfg.RelistEvery = 100 * time.Millisecond
	b.start()
	digest := b.upload(b.sleeper("1"))
	b.write(intent(0, digest, pod.Running, 10))
	r := b.awaitReady(0, digest, 10)
	b.awaitServing()
	b.commit(consul.Delete(b.keys.Nodes.Key(b.cfg.Node.Name)))
	b.awaitServing()
	b.commit(consul.Delete(b.keys.Realities.Key(b.cfg.Node.Name, identity(0).String())))
	b.awaitReady(0, digest, 10)
	b.commit(consul.Set(b.keys.Realities.Key(b.cfg.Node.Name, identity(0).String()), []byte("{")))
	b.awaitReady(0, digest, 10)
	// This changes the lock's index, but not its session.
	b.commit(consul.Set(b.keys.Nodes.Key(b.cfg.Node.Name), []byte("{")))
	b.awaitServing()
	if again := b.awaitReady(0, digest, 10); !again.Since.Equal(r.Since) {
		t.Errorf("since %s, want %s", again.Since, r.Since)
	}
}

// lossySession loses the answer of each reality's first write, which succeeds.
type lossySession struct {
	preparer.Session
	mu   sync.Mutex
	lost map[pod.Reality]bool
}

func (l *lossySession) WriteRealities(ctx context.Context, writes ...store.RealityWrite) (uint64, error) {
	written, err := l.Session.WriteRealities(ctx, writes...)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range writes {
		if err == nil && !l.lost[w.Reality] {
			l.lost[w.Reality] = true
			return 0, store.ErrUnknown
		}
	}
	return written, err
}

func TestUnknownOutcomesAreReadAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.startWith(func(session preparer.Session) preparer.Session {
		return &lossySession{Session: session, lost: map[pod.Reality]bool{}}
	})
	digest := b.upload(b.sleeper("1"))
	b.write(intent(0, digest, pod.Running, 10), intent(1, digest, pod.Running, 10), intent(2, digest, pod.Running, 10))
	for i := range 3 {
		b.awaitReady(i, digest, 10)
	}
	pid := b.pid(0)
	b.write(intent(0, digest, pod.Stopped, 11))
	b.awaitState(0, pod.StateStopped, 11, "")
	if syscall.Kill(pid, 0) == nil {
		t.Errorf("process %d still runs", pid)
	}
}

// If another program changes one report, the others of its transaction are written nevertheless.
func TestOneChangedReportDelaysNoOther(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	digest := b.upload(b.sleeper("1"))
	const pods = 8
	for round := range 3 {
		revision := int64(10 + round)
		var intents []pod.Intent
		for i := range pods {
			intents = append(intents, intent(i, digest, pod.Running, revision))
		}
		if round > 0 {
			b.commit(consul.Set(b.keys.Realities.Key(b.cfg.Node.Name, identity(round).String()), []byte("{")))
		}
		b.write(intents...)
		for i := range pods {
			b.awaitReady(i, digest, revision)
		}
	}
}

// Half of all calls fail, before or after they are carried out.
type flaky struct {
	runtime.Runtime
	preparer.State
	register.Services
	*artifacts
}

var errFlaky = errors.New("flaky")

func (f *flaky) fail(call func() error) error {
	switch rand.N(4) {
	case 0:
		return errFlaky
	case 1:
		return errors.Join(call(), errFlaky)
	default:
		return call()
	}
}

func (f *flaky) Start(ctx context.Context, spec runtime.Spec) error {
	return f.fail(func() error { return f.Runtime.Start(ctx, spec) })
}

func (f *flaky) Stop(ctx context.Context, id string) error {
	return f.fail(func() error { return f.Runtime.Stop(ctx, id) })
}

func (f *flaky) Remove(ctx context.Context, id string) error {
	return f.fail(func() error { return f.Runtime.Remove(ctx, id) })
}

func (f *flaky) Watch(ctx context.Context, cursor uint64) (procs []runtime.Status, next uint64, err error) {
	err = f.fail(func() (err error) { procs, next, err = f.Runtime.Watch(ctx, cursor); return err })
	return procs, next, err
}

func (f *flaky) Save(rec preparer.Record) error {
	return f.fail(func() error { return f.State.Save(rec) })
}

func (f *flaky) Ensure(ctx context.Context, a manifest.Artifact) (dir string, err error) {
	err = f.fail(func() (err error) { dir, err = f.artifacts.Ensure(ctx, a); return err })
	return dir, err
}

func (f *flaky) RegisterService(ctx context.Context, s consul.Service) error {
	return f.fail(func() error { return f.Services.RegisterService(ctx, s) })
}

func (f *flaky) DeregisterService(ctx context.Context, id string) error {
	return f.fail(func() error { return f.Services.DeregisterService(ctx, id) })
}

func (f *flaky) LocalServices(ctx context.Context, key, value string) (local map[string]consul.Health, err error) {
	err = f.fail(func() (err error) { local, err = f.Services.LocalServices(ctx, key, value); return err })
	return local, err
}

// Although half of all calls fail, one copy runs in the end as its intent asks. A stop is confirmed only without
// processes.
func TestPodMatchesItsIntentOnAFlakyNode(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	disk, err := preparer.NewDisk(filepath.Join(b.cfg.Dir, "pods"))
	if err != nil {
		t.Fatal(err)
	}
	f := &flaky{Runtime: b.runtime, State: disk, Services: b.client.Services, artifacts: b.artifacts}
	b.cfg.Runtime, b.cfg.State, b.cfg.Services, b.cfg.Artifacts = f, f, f, f
	b.start()
	digests := []string{b.upload(b.sleeper("1")), b.upload(b.sleeper("2"))}
	revision := int64(0)
	for round := range 4 {
		revision++
		b.write(intent(0, digests[round%2], pod.Running, revision))
		b.awaitReady(0, digests[round%2], revision)
		pid := b.pid(0)
		if round%2 == 0 {
			continue // an upgrade follows
		}
		revision++
		b.write(intent(0, digests[0], pod.Stopped, revision))
		b.awaitState(0, pod.StateStopped, revision, "")
		if syscall.Kill(pid, 0) == nil {
			t.Errorf("stop of %d confirmed while process %d runs", revision, pid)
		}
	}
}
