package preparer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
)

// olderRuntime has no watchdogs until renewed is set.
type olderRuntime struct {
	runtime.Runtime
	renewed, gone atomic.Bool
}

func (o *olderRuntime) Watch(ctx context.Context, cursor uint64) ([]runtime.Status, uint64, error) {
	if o.gone.Load() {
		return nil, cursor, errors.New("no supervisor")
	}
	return o.Runtime.Watch(ctx, cursor)
}

func (o *olderRuntime) Features() runtime.Features {
	known := o.Runtime.Features()
	known.Watchdogs = known.Watchdogs && o.renewed.Load()
	return known
}

func (o *olderRuntime) Start(ctx context.Context, spec runtime.Spec) error {
	if !o.renewed.Load() {
		spec.Watchdog = nil
	}
	return o.Runtime.Start(ctx, spec)
}

// The node's record has EnforcesStopAfter only if the supervisor stops all processes of pods with stop_after, running
// and later ones.
func TestTheNodesRecordSaysWhetherStopAfterIsEnforced(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	older := &olderRuntime{Runtime: b.runtime}
	b.cfg.Runtime = older
	enforces := func(want bool) {
		t.Helper()
		b.awaitNode("what it enforces", func(n node.Node, session string) bool {
			return session != "" && n.Epoch != "" && n.EnforcesStopAfter == want
		})
	}
	a := b.start()
	digest, other := b.upload(b.stopsAfter(time.Hour)), b.upload(b.sleeper("1"))
	enforces(false) // although no such pod runs
	b.write(intent(0, digest, pod.Running, 10), intent(1, other, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	b.awaitReady(1, other, 10)
	enforces(false)
	a.stop()

	older.renewed.Store(true)
	a = b.start()
	b.awaitServing()
	b.write(intent(2, digest, pod.Running, 10))
	b.awaitReady(2, digest, 10)
	enforces(false) // the first pod was started before the supervisor was renewed
	newer := b.upload(b.stopsAfter(2 * time.Hour))
	b.write(intent(0, newer, pod.Running, 20))
	b.awaitReady(0, newer, 20)
	enforces(true)
	pid := b.pid(0)
	a.stop()

	b.start()
	enforces(true)
	b.mustKeepPID(0, pid)
	older.gone.Store(true)
	if err := unix.Kill(b.pid(1), unix.SIGKILL); err != nil { // so that Watch returns to the preparer
		t.Fatal(err)
	}
	enforces(false)
	older.gone.Store(false)
	enforces(true)
	for _, i := range []int{0, 2} {
		dog := b.procs(i)[0].Spec.Watchdog
		if dog == nil || dog.Note != b.inNode("contact.json") {
			t.Errorf("watchdog of pod %d: %+v", i, dog)
		}
	}
	b.awaitPhase(1, runtime.Running)
	if dog := b.procs(1)[0].Spec.Watchdog; dog != nil {
		t.Errorf("a pod without stop_after has a watchdog: %+v", dog)
	}
}

// cutRun has its preparer in another process. Pod 0 has stop_after, and pod 1 does not.
type cutRun struct {
	*faultRun
	proxy  *consultest.Proxy
	digest string // of pod 0
	pids   [2]int
	limit  time.Duration // until the supervisor stops pod 0
}

const shortStop = 2 * time.Second

func newCutRun(t *testing.T) *cutRun {
	t.Helper()
	c := &cutRun{faultRun: newFaultRun(t, rand.New(rand.NewPCG(1, 2)))}
	c.proxy = consultest.StartProxy(t, c.v.Consul)
	c.v.Consul = c.proxy.Addr
	after := field.Duration(shortStop)
	m := c.publish(c.manifest(0))
	m.Disconnect = &manifest.Disconnect{StopAfter: &after}
	c.digest, c.limit = c.upload(m), shortStop+manifest.StopMargin
	c.begin(0)
	c.write(intent(0, c.digest, pod.Running, 10), intent(1, c.digests[0], pod.Running, 10))
	c.awaitReady(0, c.digest, 10)
	c.awaitReady(1, c.digests[0], 10)
	c.pids = [2]int{c.onePID(0), c.onePID(1)}
	return c
}

func (c *cutRun) onePID(index int) int {
	c.t.Helper()
	procs := c.procs(index)
	if len(procs) != 2 || procs[0].Phase != runtime.Running || procs[1].Phase != runtime.Running {
		c.t.Fatalf("pod %d: %+v", index, procs)
	}
	return procs[0].PID
}

func (c *cutRun) cutOff(cut bool) {
	c.proxy.Set(func(*http.Request) consultest.Verdict {
		if cut {
			return consultest.CutBefore
		}
		return consultest.Forward
	})
}

func (c *cutRun) signal(sig unix.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(sig); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cutRun) now() proc.Moment {
	c.t.Helper()
	now, err := proc.Now()
	if err != nil {
		c.t.Fatal(err)
	}
	return now
}

// mustBeDown waits until pod 0 has stopped: limit after the time in the contact note, or later on a busy machine.
func (c *cutRun) mustBeDown() {
	c.t.Helper()
	note, err := proc.ReadNote(c.inNode("contact.json"), c.now())
	if err != nil {
		c.t.Fatal(err)
	}
	c.eventually(func() error {
		for _, p := range c.procs(0) {
			if p.Phase != runtime.Stopped {
				return fmt.Errorf("%s is %s", p.Spec.ID, p.Phase)
			}
		}
		return nil
	})
	if took := c.now().Since(note); took < c.limit || took > c.limit+30*time.Second {
		c.t.Errorf("stopped %s after the last contact, want %s and some grace", took, c.limit)
	}
	if got := c.onePID(1); got != c.pids[1] {
		c.t.Errorf("the pod without stop_after runs as %d, before as %d", got, c.pids[1])
	}
}

// mustHold waits until a preparer without Consul has logged that it does not start pod 0.
func (c *cutRun) mustHold() {
	c.t.Helper()
	c.eventually(func() error {
		for line := range strings.Lines(c.log.text()) {
			if strings.Contains(line, "hold back without contact to Consul") &&
				strings.Contains(line, identity(0).String()) {
				return nil
			}
		}
		return errors.New("pod 0 is not held back")
	})
	for _, p := range c.procs(0) {
		if p.Phase != runtime.Stopped {
			c.t.Errorf("%s is %s", p.Spec.ID, p.Phase)
		}
	}
}

// Without Consul and preparer, the supervisor stops the pod with stop_after. The next preparer starts it only after it
// has read its intent.
func TestSupervisorStopsWithoutPreparer(t *testing.T) {
	t.Parallel()
	c := newCutRun(t)
	c.cutOff(true)
	c.kill()
	c.mustBeDown()
	c.begin(0)
	c.mustHold()
	c.deleteIntent(0)
	c.cutOff(false)
	c.awaitState(0, pod.StatePending, 10, "orphaned")
	c.write(intent(0, c.digest, pod.Running, 10))
	c.awaitReady(0, c.digest, 10)
}

// Without Consul and with a suspended preparer, the supervisor stops the pod with stop_after. The preparer then starts
// it only after it has read its intent again.
func TestSupervisorStopsBesideAPreparerThatStandsStill(t *testing.T) {
	t.Parallel()
	c := newCutRun(t)
	c.cutOff(true)
	c.signal(unix.SIGSTOP)
	c.mustBeDown()
	c.signal(unix.SIGCONT)
	c.mustHold()
	c.cutOff(false)
	c.awaitReady(0, c.digest, 10)
}

// A preparer that restarts before the limit keeps its pods running, even with a damaged contact note.
func TestRestartInTimeStopsNothing(t *testing.T) {
	t.Parallel()
	c := newCutRun(t)
	c.kill()
	gone := c.now()
	c.eventually(func() error {
		if silence := c.now().Since(gone); silence < shortStop {
			return fmt.Errorf("gone for %s", silence)
		}
		return nil
	})
	c.begin(0)
	spoiled := false
	c.eventually(func() error {
		note, err := proc.ReadNote(c.inNode("contact.json"), c.now())
		switch {
		case err == nil && note.Up > gone.Up && !spoiled:
			spoiled = true
			return errors.Join(errors.New("spoiled"), os.WriteFile(c.inNode("contact.json"), []byte("garbage"), 0o600))
		case err == nil && note.Since(gone) > c.limit+time.Second:
			return nil
		default:
			return fmt.Errorf("the note is %+v: %w", note, err)
		}
	})
	if got := [2]int{c.onePID(0), c.onePID(1)}; got != c.pids {
		t.Errorf("they run as %v, before as %v", got, c.pids)
	}
}

// A pod with an accepted stop serves for its drain time, even if stop_after is shorter.
func TestDrainOutlastsStopAfter(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	m := b.server("1")
	after, drain := field.Duration(time.Second), field.Duration(15*time.Second)
	m.Disconnect, m.Service = &manifest.Disconnect{StopAfter: &after}, &manifest.Service{Drain: &drain}
	in := intent(0, b.upload(m), pod.Running, 10)
	b.write(in)
	b.awaitReady(0, in.Digest, 10)
	timeout := b.procs(0)[0].Spec.Watchdog.Timeout
	if timeout >= time.Duration(drain) {
		t.Fatalf("it is stopped after %s, and drained for %s", timeout, time.Duration(drain))
	}
	pid, began := b.pid(0), time.Now()
	in.State, in.Revision = pod.Stopped, 20
	b.write(in)
	b.eventually(func() error {
		if unix.Kill(pid, 0) == nil {
			return fmt.Errorf("%d runs", pid)
		}
		return nil
	})
	if took := time.Since(began); took < time.Duration(drain) {
		t.Errorf("stopped after %s, before it was drained", took)
	}
}
