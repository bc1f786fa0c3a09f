package preparer_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// olderRuntime is a supervisor of before there were watchdogs, until it is renewed.
type olderRuntime struct {
	runtime.Runtime
	renewed atomic.Bool
}

func (o *olderRuntime) Watchdogs() bool { return o.renewed.Load() && o.Runtime.Watchdogs() }

func (o *olderRuntime) Start(ctx context.Context, spec runtime.Spec) error {
	if !o.renewed.Load() {
		spec.Watchdog = nil
	}
	return o.Runtime.Start(ctx, spec)
}

// A node says that it enforces stop_after while whatever runs there of such pods is stopped by its supervisor, and whatever starts next.
func TestEnforcesStopAfter(t *testing.T) {
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
	enforces(false) // though nothing runs that it had to enforce
	b.tell(intent(0, digest, pod.Running, 10), intent(1, other, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	b.awaitReady(1, other, 10)
	enforces(false)
	a.stop()

	older.renewed.Store(true)
	a = b.start()
	b.awaitServing()
	b.tell(intent(2, digest, pod.Running, 10))
	b.awaitReady(2, digest, 10)
	enforces(false) // the first was started before
	newer := b.upload(b.stopsAfter(2 * time.Hour))
	b.tell(intent(0, newer, pod.Running, 20))
	b.awaitReady(0, newer, 20)
	enforces(true)
	pid := b.pid(0)
	a.stop()

	b.start()
	enforces(true)
	b.mustKeepPID(0, pid)
	for _, i := range []int{0, 2} {
		dog := b.procs(i)[0].Spec.Watchdog
		if dog == nil || dog.Note != b.inNode("contact.json") {
			t.Errorf("watchdog of pod %d: %+v", i, dog)
		}
	}
	if dog := b.procs(1)[0].Spec.Watchdog; dog != nil {
		t.Errorf("a pod without stop_after has a watchdog: %+v", dog)
	}
}
