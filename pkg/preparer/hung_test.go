package preparer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// hanging is what checked returns, started again when its check has failed for ten seconds.
func (b *bench) hanging() manifest.Manifest {
	m := b.checked()
	after := field.Duration(manifest.MinRestartAfter)
	m.Health.RestartAfter = &after
	return m
}

// restartedFor returns an error unless the pod is available after so many restarts, the last one because it hung.
func (b *bench) restartedFor(index, restarts int) error {
	r, _, err := b.reality(index)
	if err == nil && (!r.Available || r.Restarts != restarts || r.LastExit == nil || r.LastExit.Reason != "its health check failed for 10s") {
		err = fmt.Errorf("reality %+v", r)
	}
	return err
}

// A pod whose check fails for long is started again; one that is not to be, or cannot be asked, runs on.
func TestHungPodIsStartedAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	const hangs, stays, unasked = 0, 1, 2
	digest := b.upload(b.hanging())
	b.tell(intent(hangs, digest, pod.Running, 10), intent(unasked, digest, pod.Running, 10), intent(stays, b.upload(b.checked()), pod.Running, 10))
	all := []int{hangs, stays, unasked}
	pids := map[int]int{}
	for _, index := range all {
		b.awaitState(index, pod.StateUnhealthy, 10, "it is ill")
		b.heal(index)
		b.awaitReality(index, "available", func(r pod.Reality) bool { return r.Available })
		pids[index] = b.pid(index)
	}
	if err := os.Remove(b.homeFile(stays, "well")); err != nil {
		t.Fatal(err)
	}
	b.awaitState(stays, pod.StateUnhealthy, 10, "it is ill")
	if err := os.Remove(b.homeFile(hangs, "well")); err != nil {
		t.Fatal(err)
	}
	b.awaitReality(hangs, "started again", func(r pod.Reality) bool { return r.Restarts == 1 })
	b.heal(hangs)
	b.eventually(func() error { return b.restartedFor(hangs, 1) })
	if b.pid(hangs) == pids[hangs] {
		t.Error("it has the same process")
	}
	b.mustKeepPID(stays, pids[stays])
	b.mustKeepPID(unasked, pids[unasked])
}

// tooOld is a supervisor that starts nothing again because it was asked to.
type tooOld struct {
	runtime.Runtime
	asked atomic.Int64
}

func (o *tooOld) Restart(context.Context, runtime.RestartRequest) error {
	o.asked.Add(1)
	return runtime.ErrTooOld
}

// Where the supervisor is too old, the log says so once, and the pod runs on.
func TestHungPodOfAnOlderSupervisor(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	older := &tooOld{Runtime: b.runtime}
	b.cfg.Runtime = older
	b.start()
	digest := b.upload(b.hanging())
	b.tell(intent(0, digest, pod.Running, 10))
	b.awaitState(0, pod.StateUnhealthy, 10, "it is ill")
	pid := b.pid(0)
	const line = "the node's supervisor is too old for"
	b.awaitLog(line)
	b.tell(intent(0, digest, pod.Running, 20))
	b.eventually(func() error { // it is asked again when something else is done for the pod
		if asked := older.asked.Load(); asked < 2 {
			return errors.New("it was asked once")
		}
		return nil
	})
	b.awaitState(0, pod.StateUnhealthy, 20, "it is ill")
	if n := strings.Count(b.log.text(), line); n != 1 {
		t.Errorf("the log says %d times that the supervisor is too old", n)
	}
	b.mustKeepPID(0, pid)
}
