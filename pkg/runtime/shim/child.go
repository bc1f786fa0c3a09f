package shim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/isolate"
)

// child is one started process: the leader of a session and of a process group that both bear its pid. It is either
// the supervisor's own child, which stays a zombie and so keeps its pid from being used again until reap, or one that
// an earlier supervisor started, which is only known by its pidfd and start time.
type child struct {
	pid   int
	start uint64   // see stat.start
	own   bool     // started by this process
	fd    *os.File // pidfd; nil when the process had gone before it could be opened

	cgroup string // that it and all its descendants live in; empty: none
}

func cgroupOf(spec runtime.Spec) string {
	if spec.Isolation == nil {
		return ""
	}
	return spec.Isolation.Cgroup
}

// adopt finds the process that an earlier supervisor started. What has gone meanwhile comes back as an exited child.
func adopt(pid int, start uint64) (*child, error) {
	gone := &child{pid: pid, start: start}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return gone, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	// Looked at only now: if the start time is right, the descriptor belongs to the right process.
	st, err := readStat(pid)
	if err != nil || st.start != start {
		_ = unix.Close(fd)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return gone, nil
	}
	return newChild(pid, start, false, fd)
}

// newChild wraps a pidfd so that the Go poller waits on it: no thread is blocked per process.
func newChild(pid int, start uint64, own bool, fd int) (*child, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("prepare pidfd of process %d: %w", pid, err)
	}
	return &child{pid: pid, start: start, own: own, fd: os.NewFile(uintptr(fd), "pidfd")}, nil
}

// exited reports whether the process has ended.
func (c *child) exited() bool {
	if c.fd == nil {
		return true
	}
	ended := false
	conn, err := c.fd.SyscallConn()
	if err != nil {
		return false
	}
	if err := conn.Control(func(fd uintptr) { ended = pidfdReady(fd) }); err != nil {
		return false
	}
	return ended
}

// pidfdReady reports whether a pidfd polls readable, which it does from the end of the process on (pidfd_open(2)).
func pidfdReady(fd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := retryInterrupted(func() (int, error) { return unix.Poll(fds, 0) })
	return err == nil && n == 1
}

// wait returns nil when the process has ended, and the context's error when that ends first.
func (c *child) wait(ctx context.Context) error {
	if c.fd == nil {
		return nil
	}
	conn, err := c.fd.SyscallConn()
	if err != nil {
		return fmt.Errorf("wait for process %d: %w", c.pid, err)
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = c.fd.SetReadDeadline(time.Unix(1, 0))
	})
	err = conn.Read(pidfdReady)
	if !stop() {
		<-interrupted
		_ = c.fd.SetReadDeadline(time.Time{}) // so that the next wait works
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("wait for process %d: %w", c.pid, err)
	}
	return nil
}

// signal sends sig to everything that runs in the session: to the process group at one stroke, so that no fork slips
// through, and to whatever made itself another group; and to everything in the cgroup, which no process can leave by making
// itself a session. It returns how many live processes there were; sig 0 counts.
func (c *child) signal(sc *scanner, sig unix.Signal) (int, error) {
	// As long as the leader exists, alive or as our zombie, its number can be nobody else's group.
	held := c.own || !c.exited()
	var errs []error
	if held && sig != 0 {
		if err := unix.Kill(-c.pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("send %s to process group %d: %w", unix.SignalName(sig), c.pid, err))
		}
	}
	if c.cgroup != "" && sig == unix.SIGKILL {
		errs = append(errs, isolate.Kill(c.cgroup))
	}
	members, err := c.members(sc)
	if err != nil {
		return 0, errors.Join(append(errs, err)...)
	}
	for _, m := range members {
		if sig != 0 && !(held && m.pgid == c.pid) {
			errs = append(errs, signalOne(m, sig))
		}
	}
	live := len(members)
	if c.cgroup != "" && live == 0 { // the list and the table were not read at one moment
		busy, err := isolate.Populated(c.cgroup)
		if busy {
			live = 1
		}
		errs = append(errs, err)
	}
	return live, errors.Join(errs...)
}

// members returns the live processes of the session and of the cgroup. Without a cgroup a process that made itself a
// session of its own is not among them.
func (c *child) members(sc *scanner) ([]stat, error) {
	var inside []int
	if c.cgroup != "" {
		var err error
		if inside, err = isolate.Members(c.cgroup); err != nil {
			return nil, err
		}
	}
	table, err := sc.scan()
	if err != nil {
		return nil, err
	}
	// The kernel uses a pid again only when the session that bears it is empty.
	usedAgain := slices.ContainsFunc(table, func(st stat) bool { return st.pid == c.pid && st.start != c.start })
	var live []stat
	for _, st := range table {
		if !st.dead() && (st.sid == c.pid && !usedAgain || slices.Contains(inside, st.pid)) {
			live = append(live, st)
		}
	}
	return live, nil
}

// signalOne signals one process of a table, unless its pid belongs to another one by now.
func signalOne(m stat, sig unix.Signal) error {
	fd, err := unix.PidfdOpen(m.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", m.pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	now, err := readStat(m.pid)
	if err != nil || now.start != m.start || now.sid != m.sid {
		return nil // it has ended or moved away: nothing to signal
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("send %s to process %d: %w", unix.SignalName(sig), m.pid, err)
	}
	return nil
}

// status returns how the exited process ended and, for an own child, gives its pid back to the kernel. It must be
// called once.
func (c *child) status(launchable string) pod.Exit {
	exit := pod.Exit{Launchable: launchable, Code: -1, Unknown: true, At: time.Now().UTC()}
	if !c.own {
		return exit // only a parent is told
	}
	var ws unix.WaitStatus
	if _, err := retryInterrupted(func() (int, error) { return unix.Wait4(c.pid, &ws, 0, nil) }); err != nil {
		return exit
	}
	exit.Unknown = false
	if ws.Signaled() {
		exit.Signal = unix.SignalName(ws.Signal())
	} else {
		exit.Code = ws.ExitStatus()
	}
	return exit
}

// close gives the pidfd back.
func (c *child) close() {
	if c.fd != nil {
		_ = c.fd.Close()
	}
}
