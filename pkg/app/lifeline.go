package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Lifeline ties the processes of a development cluster to the one that started them, by two named pipes. The starter alone can write to the
// first: everybody else reads it and ends when it ends, which the kernel sees to even when the starter is killed. Everybody else holds
// the second open for writing, processes that were started indirectly too: when it ends, the starter knows that all of them have ended.
type Lifeline struct {
	alive, held *os.File
	broken      chan struct{}
}

// heldPipe ends the name of the second pipe.
const heldPipe = ".held"

// HoldLifeline holds the lifeline at path. It fails where nobody waits for its holders.
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
		_, _ = alive.Read(make([]byte, 1)) // it returns when an end is closed
	}()
	return l, nil
}

// Broken is closed when the other end is gone.
func (l *Lifeline) Broken() <-chan struct{} { return l.broken }

// Close tells the other end that this process is done.
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
	alive, err := makePipe(path, os.O_RDWR) // to open it for writing alone takes a reader
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

// End breaks the lifeline and returns when all processes that hold it have ended, or ctx has.
func (s *LifelineServer) End(ctx context.Context) error {
	_ = s.alive.Close() // closed before, when this is tried again
	err := s.held.SetReadDeadline(time.Time{})
	if err != nil {
		return fmt.Errorf("lifeline: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = s.held.SetReadDeadline(time.Unix(1, 0)) })()
	if _, err = s.held.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("processes that hold the lifeline have not ended: %w", context.Cause(ctx))
	}
	return errors.Join(s.held.Close(), os.Remove(s.path), os.Remove(s.path+heldPipe))
}
