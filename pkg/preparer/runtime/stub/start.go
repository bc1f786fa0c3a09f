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

// maxReport bounds what a stub may say about its failure, in bytes.
const maxReport = 32 << 10

// A stub has next to nothing to do before it is its program. One that takes longer than Timeout was stopped, which its
// pod can do as soon as it has the pod's user, or cannot read its binary. hurried is the time that it has once the
// caller no longer wants it.
const (
	Timeout = 30 * time.Second
	hurried = time.Second
)

// Started is a stub that waits for its order. It ends without one when this is closed.
type Started struct {
	PID   int
	PIDFD int // negative where the kernel has none

	order  *os.File // write end: sending the order lets the stub go, closing it without makes it exit
	result *os.File // read end: the stub's complaint, or nothing when the program runs
}

// Start starts this binary as a stub, in a session of its own, with these files as its descriptors from 0 on. The signal, if it is none
// of 0, is sent to it when the thread ends that called Start.
func Start(stdio [3]*os.File, deathSignal syscall.Signal) (*Started, error) {
	orderEnd, order, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = orderEnd.Close() }() // ours would keep the pipes open beyond the stub's life
	result, resultEnd, err := os.Pipe()
	if err != nil {
		_ = order.Close()
		return nil, err
	}
	defer func() { _ = resultEnd.Close() }()
	s := &Started{PIDFD: -1, order: order, result: result}
	s.PID, err = syscall.ForkExec("/proc/self/exe", []string{os.Args[0], Arg}, &syscall.ProcAttr{
		Dir: "/", Env: []string{}, Files: []uintptr{stdio[0].Fd(), stdio[1].Fd(), stdio[2].Fd(), orderEnd.Fd(), resultEnd.Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true, PidFD: &s.PIDFD, Pdeathsig: deathSignal},
	})
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("start a stub: %w", err)
	}
	return s, nil
}

// NoProgramError is what Release returns where there is no file of the program's name.
type NoProgramError struct{ text string }

func (e *NoProgramError) Error() string { return e.text }

// complained returns what a stub said of its failure. What was cut off is no complaint of ours to read, and is said as
// it came.
func complained(said []byte) error {
	var c complaint
	switch {
	case json.Unmarshal(said, &c) != nil:
		return errors.New(string(said))
	case c.NoProgram:
		return &NoProgramError{c.Text}
	default:
		return errors.New(c.Text)
	}
}

// Close gives up what Release needs.
func (s *Started) Close() { _, _ = s.order.Close(), s.result.Close() }

// Release sends the order and returns nil once the program runs in place of the stub, which must be within Timeout, and
// within a second when unwanted is closed. After an error the caller kills the stub: it may be stopped.
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
			_ = s.result.SetDeadline(time.Now().Add(hurried))
		case <-released:
		}
	}()
	_, err = s.order.Write(data)
	err = errors.Join(err, s.order.Close())
	said, readErr := io.ReadAll(io.LimitReader(s.result, maxReport))
	if len(said) > 0 {
		return complained(said)
	}
	if err = errors.Join(err, readErr); err != nil {
		return fmt.Errorf("start the program: %w", err)
	}
	return nil
}
