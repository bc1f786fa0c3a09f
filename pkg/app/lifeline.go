package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// Lifeline ties the processes of a development cluster to the one that started them. The starter listens on a socket;
// everybody else holds a connection and ends when it breaks, which the kernel sees to even when the starter is killed.
// Processes that were started indirectly hold one too, so the starter can wait until every one of them has ended.
type Lifeline struct {
	conn   net.Conn
	broken chan struct{}
}

// greetingLimit is how long the starter may take to accept a connection on a busy machine.
const greetingLimit = 10 * time.Second

// HoldLifeline connects to the socket at path.
func HoldLifeline(ctx context.Context, path string) (*Lifeline, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("lifeline: %w", err)
	}
	// The greeting says that the starter knows of this process and will wait for its end.
	var b [1]byte
	err = conn.SetReadDeadline(time.Now().Add(greetingLimit))
	if err == nil {
		_, err = conn.Read(b[:])
	}
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		_ = conn.Close() // nothing was buffered
		return nil, fmt.Errorf("lifeline: no greeting: %w", err)
	}
	l := &Lifeline{conn: conn, broken: make(chan struct{})}
	go func() {
		defer close(l.broken)
		_, _ = conn.Read(b[:]) // nothing more is sent: it returns when an end is closed
	}()
	return l, nil
}

// Broken is closed when the other end is gone.
func (l *Lifeline) Broken() <-chan struct{} { return l.broken }

// Close tells the other end that this process is done.
func (l *Lifeline) Close() {
	_ = l.conn.Close() // nothing was buffered
	<-l.broken
}

// LifelineServer is the starter's end.
type LifelineServer struct {
	listener *net.UnixListener
	accepted sync.WaitGroup
	held     sync.WaitGroup

	mu     sync.Mutex
	conns  map[*net.UnixConn]bool
	ending bool
}

// ListenLifeline makes the socket at path, which must be shorter than 108 bytes.
func ListenLifeline(path string) (*LifelineServer, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("lifeline: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("lifeline: %w", err)
	}
	s := &LifelineServer{listener: l, conns: map[*net.UnixConn]bool{}}
	s.accepted.Add(1)
	go s.accept()
	return s, nil
}

func (s *LifelineServer) accept() {
	defer s.accepted.Done()
	for {
		conn, err := s.listener.AcceptUnix()
		if err != nil {
			return // closed by End
		}
		s.mu.Lock()
		s.conns[conn] = true
		_, _ = conn.Write([]byte{0}) // one that cannot be greeted has ended
		if s.ending {
			_ = conn.CloseWrite()
		}
		s.held.Add(1)
		s.mu.Unlock()
		go s.wait(conn)
	}
}

// wait returns when the process at the other end has ended.
func (s *LifelineServer) wait(conn *net.UnixConn) {
	defer s.held.Done()
	var b [1]byte
	_, _ = conn.Read(b[:]) // nothing is ever sent
	s.mu.Lock()
	delete(s.conns, conn)
	s.mu.Unlock()
	_ = conn.Close()
}

// End breaks every connection and returns when all processes at the other ends have ended, or ctx has.
func (s *LifelineServer) End(ctx context.Context) error {
	s.mu.Lock()
	s.ending = true
	for conn := range s.conns {
		_ = conn.CloseWrite() // the other end reads this as the end
	}
	s.mu.Unlock()
	_ = s.listener.Close()
	s.accepted.Wait()
	done := make(chan struct{})
	go func() { s.held.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		return fmt.Errorf("%d processes have not ended: %w", len(s.conns), context.Cause(ctx))
	}
}
