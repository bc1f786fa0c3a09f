// Package proc identifies processes, and signals whole sessions of processes. A pid alone does not identify a process,
// because the kernel uses pids again.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Stat is a part of /proc/<pid>/stat (proc_pid_stat(5)).
type Stat struct {
	PID, PPID, PGID, SID int
	State                byte
	Threads              int
	Start                uint64 // clock ticks between boot and the start of the process
}

const maxEnviron = 256 << 10

// bears reports whether the process was started with a variable, KEY=value. It reads the environment each time, because
// a process gets a new environment when it executes another program.
func (s Stat) bears(variable string) bool {
	f, err := os.Open("/proc/" + strconv.Itoa(s.PID) + "/environ")
	if err != nil {
		return false // the process has ended, or belongs to another user
	}
	defer func() { _ = f.Close() }()
	// If the pid belongs to another process by now, no harm is done, because Signal compares the start time.
	data, _ := io.ReadAll(io.LimitReader(f, maxEnviron))
	return slices.Contains(strings.Split(string(data), "\x00"), variable)
}

// Dead reports whether the process is a zombie. If only its first thread has ended, the state is the same.
func (s Stat) Dead() bool { return (s.State == 'Z' || s.State == 'X') && s.Threads <= 1 }

// Signal signals the process, unless its pid belongs to another process by now.
func (s Stat) Signal(sig unix.Signal) error {
	if s.PID < 1 { // 0 stands for a process that this process cannot see; negative numbers mean groups
		return nil
	}
	fd, err := unix.PidfdOpen(s.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", s.PID, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if now, err := ReadStat(s.PID); err != nil || now.Start != s.Start {
		return nil // the process has ended
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("send %s to process %d: %w", unix.SignalName(sig), s.PID, err)
	}
	return nil
}

// The command name can contain any characters, even brackets and spaces.
func parseStat(data []byte) (Stat, error) {
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || end < open {
		return Stat{}, fmt.Errorf("read process state %q: no command name", data)
	}
	fields := bytes.Fields(data[end+1:])
	const first, last = 3, 22 // field numbers of the manual: state, starttime
	if len(fields) <= last-first {
		return Stat{}, fmt.Errorf("read process state %q: %d fields after the name, want %d", data,
			len(fields), last-first+1)
	}
	var s Stat
	var err error
	number := func(field int) int {
		n, e := strconv.Atoi(string(fields[field-first]))
		err = errors.Join(err, e)
		return n
	}
	s.State = fields[0][0]
	s.PPID, s.PGID, s.SID, s.Threads = number(4), number(5), number(6), number(20)
	start, e := strconv.ParseUint(string(fields[last-first]), 10, 64)
	s.Start = start
	pid, e2 := strconv.Atoi(string(bytes.TrimSpace(data[:open])))
	s.PID = pid
	if err = errors.Join(err, e, e2); err != nil {
		return Stat{}, fmt.Errorf("read process state %q: %w", data, err)
	}
	return s, nil
}

// ReadStat returns fs.ErrNotExist if there is no such process.
func ReadStat(pid int) (Stat, error) {
	fd, err := retryInterrupted(func() (int, error) {
		return unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return Stat{}, procError(pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var buf [1024]byte // 52 numbers and a name of at most 64 bytes
	n, err := retryInterrupted(func() (int, error) { return unix.Read(fd, buf[:]) })
	if err != nil {
		return Stat{}, procError(pid, err)
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

// BootID returns the id of the current boot, in which pids and start times are valid.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
