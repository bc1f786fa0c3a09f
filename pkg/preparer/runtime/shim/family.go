package shim

import (
	"context"
	"errors"
	"fmt"
	"math"
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
	// births has, for each container that is being created, when its creation began, in the unit of proc.Stat.Start.
	// The container's first process is no child of this process at first, and becomes one when runc ends. So reap takes
	// no child that is younger.
	births map[*birth]struct{}
	again  chan struct{} // full when reap must be called although no child has ended
}

type birth struct{ since uint64 }

func newFamily() family {
	return family{own: map[int]struct{}{}, births: map[*birth]struct{}{}, again: make(chan struct{}, 1)}
}

// ticks is how many units of proc.Stat.Start a second has (sysconf(3), _SC_CLK_TCK; the same on all Linux machines).
const ticks = 100

// expect begins the creation of a container. The creation is over when the returned function is called.
func (f *family) expect(now proc.Moment) (over func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := &birth{since: uint64(now.Up / (time.Second / ticks))}
	f.births[b] = struct{}{}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.births, b)
		select {
		case f.again <- struct{}{}: // for the orphans that reap has left meanwhile
		default:
		}
	}
}

// adopt makes a process, which has become a child of this process during its creation, one of its own.
func (f *family) adopt(pid int) (*child, error) {
	f.mu.Lock()
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err == nil {
		f.own[pid] = struct{}{}
	}
	f.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	c, err := f.identify(pid, pidfd)
	if err == nil {
		var st proc.Stat
		if st, err = proc.ReadStat(pid); err == nil && st.PPID != os.Getpid() {
			err = fmt.Errorf("process %d is a child of %d, and not of this supervisor", pid, st.PPID)
		}
	}
	if err != nil {
		f.forget(pid)
		return nil, err
	}
	return c, nil
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
		case <-f.again:
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
	oldest := uint64(math.MaxUint64)
	for b := range f.births {
		oldest = min(oldest, b.since)
	}
	for _, st := range table {
		if _, mine := f.own[st.PID]; mine || st.PPID != self || !st.Dead() || st.Start >= oldest {
			continue
		}
		if _, err := unix.Wait4(st.PID, nil, unix.WNOHANG, nil); err != nil && !errors.Is(err, unix.ECHILD) &&
			!errors.Is(err, unix.EINTR) {
			return fmt.Errorf("reap process %d: %w", st.PID, err)
		}
	}
	return nil
}
