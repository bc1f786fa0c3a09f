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

// Process is one process: the leader of a session and of a process group that both bear its pid.
type Process struct {
	PID   int
	Start uint64 // see Stat.Start

	// Own says that the caller is its parent and has not reaped it, so that its pid cannot be used again.
	Own bool
	// Cgroup is what it and all its descendants live in; empty: none.
	Cgroup string
	// Mark is the variable, KEY=value, that it was started with and hands on to its descendants; empty: none. It is for
	// where there is no cgroup: a descendant that makes itself a session, and whose parent ends, has nothing else that
	// says whose it is.
	Mark string
	fd   *os.File // pidfd; nil when the process had gone before it could be opened
}

// Find opens the process with this pid and start time. One that has gone meanwhile comes back as exited.
func Find(pid int, start uint64) (*Process, error) {
	gone := &Process{PID: pid, Start: start}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return gone, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	// Looked at only now: if the start time is right, the descriptor belongs to the right process.
	st, err := ReadStat(pid)
	if err != nil || st.Start != start {
		_ = unix.Close(fd)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return gone, nil
	}
	return New(pid, start, false, fd)
}

// New wraps a pidfd, which it takes over, so that the Go poller waits on it: no thread is blocked per process.
func New(pid int, start uint64, own bool, fd int) (*Process, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("prepare pidfd of process %d: %w", pid, err)
	}
	return &Process{PID: pid, Start: start, Own: own, fd: os.NewFile(uintptr(fd), "pidfd")}, nil
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

// pidfdReady reports whether a pidfd polls readable, which it does from the end of the process on (pidfd_open(2)).
func pidfdReady(fd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := retryInterrupted(func() (int, error) { return unix.Poll(fds, 0) })
	return err == nil && n == 1
}

// Wait returns nil when the process has ended, and the context's error when that ends first.
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

// Close gives the pidfd back.
func (p *Process) Close() {
	if p.fd != nil {
		_ = p.fd.Close()
	}
}

// Signal sends sig to everything that runs in the session: to the process group at one stroke, so that no fork slips
// through, and to whatever made itself another group; and to everything in the cgroup, which no process can leave by making
// itself a session, or, where there is none, to whatever bears the mark. It returns how many live processes there were;
// sig 0 counts.
func (p *Process) Signal(sc *Scanner, sig unix.Signal) (live int, err error) {
	var errs []error
	// As long as the leader exists, alive or as a zombie, its number can be nobody else's group.
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
	if p.Cgroup != "" && live == 0 { // the list and the table were not read at one moment
		inside, err := isolate.Members(p.Cgroup)
		live, errs = len(inside), append(errs, err)
	}
	return live, errors.Join(errs...)
}

// members returns the live processes of the cgroup, or where there is none those with the mark; and those of the
// session while its leader is there, alive or as a zombie. The session's number alone says nothing: as soon as it is
// empty the kernel gives the number to another process, which may make itself a session, leave somebody in it, and end.
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
		case leads && st.SID == p.PID, slices.Contains(inside, st.PID), p.Cgroup == "" && p.Mark != "" && st.Start >= p.Start && st.bears(p.Mark): // none is older
			live = append(live, st)
		}
	}
	return live, nil
}
