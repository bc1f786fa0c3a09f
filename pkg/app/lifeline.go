package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Lifeline ties the processes of a development cluster to their starter by two named pipes. Only the starter has the
// first pipe open for writing; all others read it, and end when the writing end is closed. The kernel closes it even if
// the starter is killed. All others, also indirectly started ones, have the second pipe open for writing. When its last
// writing end is closed, the starter knows that they have ended.
type Lifeline struct {
	alive, held *os.File
	broken      chan struct{}
}

const heldPipe = ".held"

// HoldLifeline holds the lifeline at path. It fails if no starter has it open.
func HoldLifeline(path string) (*Lifeline, error) {
	held, err := os.OpenFile(path+heldPipe, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("lifeline: %w", err)
	}
	alive, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		_ = held.Close() // nothing is ever written
		return nil, fmt.Errorf("lifeline: %w", err)
	}
	l := &Lifeline{alive: alive, held: held, broken: make(chan struct{})}
	go func() {
		defer close(l.broken)
		_, _ = alive.Read(make([]byte, 1)) // Read returns when either end is closed
	}()
	return l, nil
}

// Broken is closed when the starter has ended, or has broken the lifeline.
func (l *Lifeline) Broken() <-chan struct{} { return l.broken }

// Close lets go of the lifeline: the starter does not wait for this process any more.
func (l *Lifeline) Close() {
	_ = l.alive.Close()
	<-l.broken
	_ = l.held.Close() // nothing is ever written
}

// LifelineServer is the starter's end.
type LifelineServer struct {
	path        string
	alive, held *os.File
}

// ListenLifeline makes the pipes at path.
func ListenLifeline(path string) (*LifelineServer, error) {
	alive, err := makePipe(path, os.O_RDWR) // write-only would fail without a reader
	held, heldErr := makePipe(path+heldPipe, os.O_RDONLY)
	return &LifelineServer{path: path, alive: alive, held: held}, errors.Join(err, heldErr)
}

func makePipe(name string, mode int) (*os.File, error) {
	err := os.Remove(name)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		err = unix.Mkfifo(name, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("lifeline %s: %w", name, err)
	}
	return os.OpenFile(name, mode|unix.O_NONBLOCK, 0)
}

// End breaks the lifeline, and waits until all processes that hold it have ended, or ctx ends.
func (l *LifelineServer) End(ctx context.Context) error {
	_ = l.alive.Close() // on a second try it is closed already
	err := l.held.SetReadDeadline(time.Time{})
	if err != nil {
		return fmt.Errorf("lifeline: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = l.held.SetReadDeadline(time.Unix(1, 0)) })()
	if _, err = l.held.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("processes that hold the lifeline have not ended: %w", context.Cause(ctx))
	}
	return errors.Join(l.held.Close(), os.Remove(l.path), os.Remove(l.path+heldPipe))
}
