package shim

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// stat is the part of /proc/<pid>/stat that identifies a process and its relations (proc_pid_stat(5)).
type stat struct {
	pid, ppid, pgid, sid int
	state                byte
	threads              int
	start                uint64 // clock ticks between boot and the start of the process
}

// dead reports whether nothing of the process runs: a zombie that waits for its parent. A process whose first thread
// has ended shows as a zombie too, but has other threads.
func (s stat) dead() bool { return (s.state == 'Z' || s.state == 'X') && s.threads <= 1 }

// parseStat reads one line of /proc/<pid>/stat. The command name in it may hold anything, brackets and blanks too.
func parseStat(data []byte) (stat, error) {
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || end < open {
		return stat{}, fmt.Errorf("read process state %q: no command name", data)
	}
	fields := bytes.Fields(data[end+1:])
	const first, last = 3, 22 // field numbers of the manual: state, starttime
	if len(fields) <= last-first {
		return stat{}, fmt.Errorf("read process state %q: %d fields after the name, want %d", data, len(fields), last-first+1)
	}
	var s stat
	var err error
	number := func(field int) int {
		n, e := strconv.Atoi(string(fields[field-first]))
		err = errors.Join(err, e)
		return n
	}
	s.state = fields[0][0]
	s.ppid, s.pgid, s.sid, s.threads = number(4), number(5), number(6), number(20)
	start, e := strconv.ParseUint(string(fields[last-first]), 10, 64)
	s.start = start
	pid, e2 := strconv.Atoi(string(bytes.TrimSpace(data[:open])))
	s.pid = pid
	if err = errors.Join(err, e, e2); err != nil {
		return stat{}, fmt.Errorf("read process state %q: %w", data, err)
	}
	return s, nil
}

// readStat returns the state of one process, fs.ErrNotExist when there is none.
func readStat(pid int) (stat, error) {
	fd, err := retryInterrupted(func() (int, error) {
		return unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return stat{}, procError(pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var buf [1024]byte // 52 numbers and a name of at most 64 bytes
	n, err := retryInterrupted(func() (int, error) { return unix.Read(fd, buf[:]) })
	if err != nil {
		return stat{}, procError(pid, err)
	}
	return parseStat(buf[:n])
}

func procError(pid int, err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: %w", pid, fs.ErrNotExist)
	}
	return fmt.Errorf("read state of process %d: %w", pid, err)
}

func retryInterrupted[T any](call func() (T, error)) (T, error) {
	for {
		v, err := call()
		if !errors.Is(err, unix.EINTR) {
			return v, err
		}
	}
}

// bootID names the current boot: pids and start times mean nothing after another one.
func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// scanner reads the table of all processes. Callers that ask at the same time share one reading, because stopping a
// hundred pods would otherwise read the table some hundred times over.
type scanner struct {
	begun atomic.Uint64 // number of the newest reading that has begun

	mu     sync.Mutex
	latest uint64 // number of the reading that table and err come from
	table  []stat
	err    error
}

// scan returns a table whose reading began after the call did. The result is shared: read only.
func (s *scanner) scan() ([]stat, error) {
	want := s.begun.Load() + 1
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.latest < want {
		s.latest = s.begun.Add(1)
		s.table, s.err = readTable()
	}
	return s.table, s.err
}

func readTable() ([]stat, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("read process table: %w", err)
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("read process table: %w", err)
	}
	table := make([]stat, 0, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		s, err := readStat(pid)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		table = append(table, s)
	}
	return table, nil
}
