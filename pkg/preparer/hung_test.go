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

// hanging has a health script, and restart_after of ten seconds.
func (b *bench) hanging() manifest.Manifest {
	m := b.checked()
	after := field.Duration(manifest.MinRestartAfter)
	m.Health.RestartAfter = &after
	return m
}

// restartedFor: the pod is available, and the last of so many restarts was because of its check.
func (b *bench) restartedFor(index, restarts int) error {
	r, _, err := b.reality(index)
	const reason = "its health check failed for 10s"
	if err == nil && (!r.Available || r.Restarts != restarts || r.LastExit == nil || r.LastExit.Reason != reason) {
		err = fmt.Errorf("reality %+v", r)
	}
	return err
}

// Only a pod with restart_after whose check has failed for that time is restarted.
func TestOnlyHungPodsWithRestartAfterAreRestarted(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	const hangs, stays, unasked = 0, 1, 2
	digest := b.upload(b.hanging())
	b.write(
		intent(hangs, digest, pod.Running, 10), intent(unasked, digest, pod.Running, 10),
		intent(stays, b.upload(b.checked()), pod.Running, 10),
	)
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

type tooOld struct {
	runtime.Runtime
	asked atomic.Int64
}

func (t *tooOld) Restart(context.Context, runtime.RestartRequest) error {
	t.asked.Add(1)
	return runtime.ErrTooOld
}

// If the supervisor is too old to restart a hung pod, one log line says so, and the pod runs on.
func TestHungPodRunsOnUnderAnOlderSupervisor(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	older := &tooOld{Runtime: b.runtime}
	b.cfg.Runtime = older
	b.start()
	digest := b.upload(b.hanging())
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitState(0, pod.StateUnhealthy, 10, "it is ill")
	pid := b.pid(0)
	const line = "the node's supervisor is too old for"
	b.awaitLog(line)
	b.write(intent(0, digest, pod.Running, 20))
	b.eventually(func() error { // with the next pass of the worker, the supervisor is asked again
		if asked := older.asked.Load(); asked < 2 {
			return errors.New("the supervisor was asked once")
		}
		return nil
	})
	b.awaitState(0, pod.StateUnhealthy, 20, "it is ill")
	if n := strings.Count(b.log.text(), line); n != 1 {
		t.Errorf("the log says %d times that the supervisor is too old", n)
	}
	b.mustKeepPID(0, pid)
}
