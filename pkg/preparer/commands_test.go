package preparer_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// stubborn prints its pid and the pid of a child in another session. Only SIGKILL ends them.
var stubborn = []string{
	"/bin/sh", "-c",
	`trap "" TERM INT HUP
	setsid sh -c 'trap "" TERM; while :; do sleep 0.05; done' & echo $$ $!
	while :; do sleep 0.05; done`,
}

func (b *bench) commandOf(index int) (pids []int, ended <-chan error) {
	b.t.Helper()
	out, outEnd, err := os.Pipe()
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { out.Close() })
	done := make(chan error, 1)
	go func() {
		defer outEnd.Close()
		command, err := b.current.Command(identity(index), "", stubborn)
		if err == nil {
			_, err = command(b.t.Context(), runtime.Streams{Output: outEnd})
		}
		done <- err
	}()
	line, _ := bufio.NewReader(out).ReadString('\n')
	var shell, child int
	if _, err := fmt.Sscan(line, &shell, &child); err != nil {
		b.t.Fatalf("%q: %v; %v", line, err, <-done)
	}
	return []int{shell, child}, done
}

// All processes of an operator's command in a pod end before the pod's stop is confirmed, even those that only the
// command's guard knows.
func TestCommandsEndBeforeAStopIsConfirmed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	m := b.sleeper("1")
	first := b.upload(m)
	b.write(intent(0, first, pod.Running, 10))
	b.awaitReady(0, first, 10)
	pids, ended := b.commandOf(0)
	m.Launchables[0].Env["VERSION"] = "2"
	second := b.upload(m)
	b.write(intent(0, second, pod.Running, 20))
	b.awaitReady(0, second, 20)
	b.allGone(pids, ended, "the version was replaced")

	pids, ended = b.commandOf(0)
	b.write(intent(0, second, pod.Stopped, 30))
	b.awaitState(0, pod.StateStopped, 30, "")
	b.allGone(pids, ended, "the stop was confirmed")
}

func (b *bench) allGone(pids []int, ended <-chan error, when string) {
	b.t.Helper()
	for _, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			b.t.Errorf("process %d of a command was there when %s: %v", pid, when, err)
		}
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		b.t.Errorf("the command ended with %v", err)
	}
}

// Commands of an earlier preparer delay the confirmation of a pod's stop.
func TestStopWaitsForCommandsOfAnEarlierPreparer(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	digest := b.upload(b.sleeper("1"))
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	held := filepath.Join(b.runtimeDir(), "commands", b.procs(0)[0].Spec.ID)
	if err := os.MkdirAll(filepath.Dir(held), 0o700); err != nil {
		t.Fatal(err)
	}
	guard, err := os.Create(held)
	if err == nil {
		err = unix.Flock(int(guard.Fd()), unix.LOCK_SH)
	}
	if err != nil {
		t.Fatal(err)
	}
	b.write(intent(0, digest, pod.Stopped, 20))
	b.awaitState(0, pod.StateStopping, 20, "killed, and not dead yet")
	if err := guard.Close(); err != nil {
		t.Fatal(err)
	}
	b.awaitState(0, pod.StateStopped, 20, "")
}
