package proc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
)

// Process leads a session and a process group, which both have its pid as their number.
type Process struct {
	PID   int
	Start uint64 // see Stat.Start

	// Own: the caller is the parent and has not reaped the process. So the pid cannot be used again.
	Own bool
	// Cgroup is the cgroup of the process and its descendants; empty: none.
	Cgroup string
	// Mark is an environment variable, KEY=value, that descendants inherit; empty: none. Without a cgroup, only the
	// mark identifies a descendant with a session of its own whose parent has ended.
	Mark string
	// Contained: the process is the first of a container. Signals except SIGKILL go to it alone, and its descendants
	// are those in Cgroup.
	Contained bool

	fd *os.File // pidfd; nil if the process had ended before it was opened
}

// Find opens the process with this pid and start time. If it is gone, Exited of the result returns true.
func Find(pid int, start uint64) (*Process, error) {
	gone := &Process{PID: pid, Start: start}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return gone, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	// The start time is compared after the pidfd was opened, so that the pidfd belongs to the right process.
	st, err := ReadStat(pid)
	if err != nil || st.Start != start {
		_ = unix.Close(fd)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return gone, nil
	}
	return take(pid, start, fd)
}

// NewOwn takes over the pidfd of a child that the caller has not reaped; see Process.Own.
func NewOwn(pid int, start uint64, fd int) (*Process, error) {
	p, err := take(pid, start, fd)
	if err == nil {
		p.Own = true
	}
	return p, err
}

// take takes over a pidfd. The Go poller can wait for the result, so that no process needs a blocked thread.
func take(pid int, start uint64, fd int) (*Process, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("prepare pidfd of process %d: %w", pid, err)
	}
	return &Process{PID: pid, Start: start, fd: os.NewFile(uintptr(fd), "pidfd")}, nil
}

// Exited reports whether the process has ended.
func (p *Process) Exited() bool {
	if p.fd == nil {
		return true
	}
	ended := false
	conn, err := p.fd.SyscallConn()
	if err != nil {
		return false
	}
	if err := conn.Control(func(fd uintptr) { ended = pidfdReady(fd) }); err != nil {
		return false
	}
	return ended
}

// A pidfd is readable when the process has ended (pidfd_open(2)).
func pidfdReady(fd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := retryInterrupted(func() (int, error) { return unix.Poll(fds, 0) })
	return err == nil && n == 1
}

// Wait returns nil when the process has ended, or the context's error.
func (p *Process) Wait(ctx context.Context) error {
	if p.fd == nil {
		return nil
	}
	conn, err := p.fd.SyscallConn()
	if err != nil {
		return fmt.Errorf("wait for process %d: %w", p.PID, err)
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = p.fd.SetReadDeadline(time.Unix(1, 0))
	})
	err = conn.Read(pidfdReady)
	if !stop() {
		<-interrupted
		_ = p.fd.SetReadDeadline(time.Time{}) // so that the next wait works
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("wait for process %d: %w", p.PID, err)
	}
	return nil
}

// Close closes the pidfd.
func (p *Process) Close() {
	if p.fd != nil {
		_ = p.fd.Close()
	}
}

// Signal sends sig to all processes of the session, and to all in the cgroup or, without a cgroup, with the mark. It
// signals the process group in one call, so that no fork escapes. It returns how many of these processes were alive.
// With sig 0, it only counts them.
func (p *Process) Signal(sc *Scanner, sig unix.Signal) (live int, err error) {
	if p.Contained {
		return p.signalContainer(sig)
	}
	var errs []error
	// While the leader exists, alive or as a zombie, no other group can have its number.
	ours := p.Own || !p.Exited()
	if ours && sig != 0 {
		if err := unix.Kill(-p.PID, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("send %s to process group %d: %w", unix.SignalName(sig), p.PID, err))
		}
	}
	if p.Cgroup != "" && sig == unix.SIGKILL {
		errs = append(errs, isolate.Kill(p.Cgroup))
	}
	members, err := p.members(sc)
	errs = append(errs, err)
	for _, m := range members {
		if sig != 0 && !(ours && m.PGID == p.PID) {
			errs = append(errs, m.Signal(sig))
		}
	}
	live = len(members)
	if p.Cgroup != "" && live == 0 { // the list and the table were read at different moments
		inside, err := isolate.Members(p.Cgroup)
		live, errs = len(inside), append(errs, err)
	}
	return live, errors.Join(errs...)
}

// signalContainer is Signal for a container.
func (p *Process) signalContainer(sig unix.Signal) (live int, err error) {
	var errs []error
	if sig == unix.SIGKILL {
		errs = append(errs, isolate.Kill(p.Cgroup))
	}
	if sig != 0 && (p.Own || !p.Exited()) {
		errs = append(errs, Stat{PID: p.PID, Start: p.Start}.Signal(sig))
	}
	inside, err := isolate.Members(p.Cgroup)
	if live = len(inside); live == 0 && !p.Exited() {
		live = 1
	}
	return live, errors.Join(append(errs, err)...)
}

// members returns the live processes that Signal must signal. After the leader has gone, the session's number proves
// nothing: the kernel may give it to another process, which may start a session with this number, leave a process in
// it, and end.
func (p *Process) members(sc *Scanner) (live []Stat, err error) {
	table, err := sc.Scan()
	var inside []int
	if err == nil && p.Cgroup != "" {
		inside, err = isolate.Members(p.Cgroup)
	}
	if err != nil {
		return nil, err
	}
	leads := slices.ContainsFunc(table, func(st Stat) bool { return st.PID == p.PID && st.Start == p.Start })
	for _, st := range table {
		switch {
		case st.Dead():
		case leads && st.SID == p.PID,
			slices.Contains(inside, st.PID),
			p.Cgroup == "" && p.Mark != "" && st.Start >= p.Start && st.bears(p.Mark): // a descendant is not older
			live = append(live, st)
		}
	}
	return live, nil
}
