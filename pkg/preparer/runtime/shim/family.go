package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/stub"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

const orphanGap = 500 * time.Millisecond

// family has the pids of the children that the supervisor started itself. The run loops of these children reap them.
// All other children are orphans, which the supervisor inherits as a child subreaper, and reap reaps them. No code
// waits for "any child".
type family struct {
	mu  sync.Mutex
	own map[int]struct{} // pids that are started and not reaped yet
}

// fork starts a stub with the given files as its descriptors from 0 on.
func (f *family) fork(stdio [3]*os.File) (*child, *stub.Started, error) {
	// mu is held during the fork, so that reap cannot see the child before own has its pid.
	f.mu.Lock()
	s, err := stub.Start(stdio, 0)
	if err == nil {
		f.own[s.PID] = struct{}{}
	}
	f.mu.Unlock()
	if err != nil {
		return nil, nil, err
	}
	c, err := f.identify(s.PID, s.PIDFD)
	if err != nil {
		s.Close() // the stub gets no order, so it exits by itself, and reap reaps it
		f.forget(s.PID)
	}
	return c, s, err
}

func (f *family) identify(pid, pidfd int) (*child, error) {
	if pidfd < 0 {
		return nil, errors.New("start a stub: this kernel has no pidfd; needs Linux 5.4")
	}
	st, err := proc.ReadStat(pid) // the process exists, at least as a zombie, because only the supervisor reaps it
	if err != nil {
		_ = unix.Close(pidfd)
		return nil, err
	}
	p, err := proc.NewOwn(pid, st.Start, pidfd)
	return &child{Process: p}, err
}

// forget removes a pid that was reaped, or that no run loop will reap.
func (f *family) forget(pid int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.own, pid)
}

func (f *family) reapOrphans(ctx context.Context, sc *proc.Scanner, log func(error)) {
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	defer signal.Stop(died)
	for more := true; more; more = wait.Pause(ctx, orphanGap) == nil {
		select {
		case <-died:
			if err := f.reap(sc); err != nil {
				log(err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// reap reaps each zombie child that this supervisor did not start.
func (f *family) reap(sc *proc.Scanner) error {
	table, err := sc.Scan()
	if err != nil {
		return err
	}
	self := os.Getpid()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, st := range table {
		if _, mine := f.own[st.PID]; mine || st.PPID != self || !st.Dead() {
			continue
		}
		if _, err := unix.Wait4(st.PID, nil, unix.WNOHANG, nil); err != nil && !errors.Is(err, unix.ECHILD) &&
			!errors.Is(err, unix.EINTR) {
			return fmt.Errorf("reap process %d: %w", st.PID, err)
		}
	}
	return nil
}
