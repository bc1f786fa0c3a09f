package stub

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// maxReport is the longest complaint of a stub that is read, in bytes.
const maxReport = 32 << 10

// A stub usually becomes its program at once. After Timeout, it cannot read its binary, or a process of the pod has
// stopped it by a signal. hurried is the wait after unwanted is closed.
const (
	Timeout = 30 * time.Second
	hurried = time.Second
)

// Started is a stub that waits for its order. If Close is called before Release, the stub ends.
type Started struct {
	PID   int
	PIDFD int // negative if the kernel has no pidfds

	order  *os.File // write end: the stub reads its order here, and exits if there is none
	result *os.File // read end: the stub's complaint; empty if the program runs
}

// Start starts this binary as a stub, in a session of its own, with descriptors 0 to 2. The kernel sends deathSignal,
// if it is not 0, to the stub when the thread that called Start ends.
func Start(stdio [3]*os.File, deathSignal syscall.Signal) (*Started, error) {
	orderEnd, order, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = orderEnd.Close() }() // else the pipe would stay open after the stub has ended
	result, resultEnd, err := os.Pipe()
	if err != nil {
		_ = order.Close()
		return nil, err
	}
	defer func() { _ = resultEnd.Close() }()
	s := &Started{PIDFD: -1, order: order, result: result}
	s.PID, err = syscall.ForkExec("/proc/self/exe", []string{os.Args[0], Arg}, &syscall.ProcAttr{
		Dir: "/", Env: []string{}, Files: []uintptr{
			stdio[0].Fd(), stdio[1].Fd(), stdio[2].Fd(),
			orderEnd.Fd(), resultEnd.Fd(),
		},
		Sys: &syscall.SysProcAttr{Setsid: true, PidFD: &s.PIDFD, Pdeathsig: deathSignal},
	})
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("start a stub: %w", err)
	}
	return s, nil
}

// NoProgramError is returned by Release if no file has the program's name.
type NoProgramError struct{ text string }

func (n *NoProgramError) Error() string { return n.text }

func complained(report []byte) error {
	var c complaint
	switch {
	case json.Unmarshal(report, &c) != nil:
		return errors.New(string(report))
	case c.NoProgram:
		return &NoProgramError{c.Text}
	default:
		return errors.New(c.Text)
	}
}

// Close is for the descriptors that Release needs.
func (s *Started) Close() { _, _ = s.order.Close(), s.result.Close() }

// Release returns nil when the program runs in place of the stub. It fails after Timeout, or a second after unwanted is
// closed. After an error the caller must kill the stub, because a signal may have stopped it.
func (s *Started) Release(o Order, unwanted <-chan struct{}) error {
	deadline := time.Now().Add(Timeout)
	data, err := json.Marshal(o)
	if err == nil {
		err = errors.Join(s.order.SetDeadline(deadline), s.result.SetDeadline(deadline))
	}
	if err != nil {
		return fmt.Errorf("start the program: %w", err)
	}
	released := make(chan struct{})
	defer close(released)
	go func() {
		select {
		case <-unwanted:
			soon := time.Now().Add(hurried)
			_, _ = s.order.SetWriteDeadline(soon), s.result.SetReadDeadline(soon)
		case <-released:
		}
	}()
	_, err = s.order.Write(data)
	err = errors.Join(err, s.order.Close())
	report, readErr := io.ReadAll(io.LimitReader(s.result, maxReport))
	if len(report) > 0 {
		return complained(report)
	}
	if err = errors.Join(err, readErr); err != nil {
		return fmt.Errorf("start the program: %w", err)
	}
	return nil
}
