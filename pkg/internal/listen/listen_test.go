package listen_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/internal/listen"
)

const patience = 30 * time.Second

func TestMain(m *testing.M) { os.Exit(consultest.NoLeaks(m.Run())) }

// serve runs a server with a bound on its connections. It answers a request for /slow when slow is closed.
func serve(t *testing.T, most int) (addr string, slow, begun chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	slow, begun = serveOn(t, l, most)
	return l.Addr().String(), slow, begun
}

// serveOn is serve with a given listener.
func serveOn(t *testing.T, l net.Listener, most int) (slow, begun chan struct{}) {
	t.Helper()
	slow, begun = make(chan struct{}), make(chan struct{}, 100)
	srv := &http.Server{
		ConnContext: listen.Context,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer listen.Serving(r.Context())()
			if r.URL.Path == "/slow" {
				begun <- struct{}{}
				<-slow
			}
			fmt.Fprint(w, "ok")
		}),
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(listen.Limit(l, most)) }()
	t.Cleanup(func() { srv.Close(); <-done })
	return slow, begun
}

// ask sends a request, or a part of a request, and returns the connection.
func ask(t *testing.T, addr, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c
}

func answer(t *testing.T, c net.Conn) string {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the connection is still open")
	}
	return string(text)
}

const (
	request = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
	slowly  = "GET /slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
)

// If a new connection comes, a connection without a request, or with half a request, is closed.
func TestIdleConnectionsAreClosedForNewOnes(t *testing.T) {
	t.Parallel()
	const most = 8
	addr, _, _ := serve(t, most)
	var idle []net.Conn
	for i := range 10 * most {
		idle = append(idle, ask(t, addr, []string{"", "GET /", "GET / HTTP/1.1\r\nHost: x\r\n"}[i%3]))
	}
	for range 3 {
		if got := answer(t, ask(t, addr, request)); !strings.HasSuffix(got, "ok") {
			t.Errorf("answer %q", got)
		}
	}
	for _, c := range idle[:9*most] {
		if got := answer(t, c); got != "" {
			t.Errorf("an idle connection was told %q", got)
		}
	}
}

// A client that has sent its request gets an answer, even if many others connect before the server has read the
// request.
func TestARequestBeforeARushIsAnswered(t *testing.T) {
	t.Parallel()
	const most = 8
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	clients := []net.Conn{ask(t, addr, request)}
	for range 10 * most {
		ask(t, addr, "GET /")
	}
	clients = append(clients, ask(t, addr, request))
	for range 5 * most {
		ask(t, addr, "")
	}
	serveOn(t, l, most)
	for i, c := range clients {
		if got := answer(t, c); !strings.HasSuffix(got, "ok") {
			t.Errorf("answer %d: %q", i, got)
		}
	}
}

// A connection on which a request is being served is kept. If this is so for all connections, a new connection is
// closed. When a request has been served, a new connection is accepted.
func TestServedConnectionsAreKept(t *testing.T) {
	t.Parallel()
	const most = 4
	addr, slow, begun := serve(t, most)
	var served []net.Conn
	for range most - 1 {
		served = append(served, ask(t, addr, slowly))
		<-begun
	}
	for range 5 * most {
		ask(t, addr, "")
	}
	served = append(served, ask(t, addr, slowly))
	<-begun
	if got := answer(t, ask(t, addr, "")); got != "" {
		t.Errorf("one too many was told %q", got)
	}
	close(slow)
	for i, c := range served {
		if got := answer(t, c); !strings.HasSuffix(got, "ok") {
			t.Errorf("served connection %d: %q", i, got)
		}
	}
	consultest.Eventually(t, patience, func() error {
		if got := answer(t, ask(t, addr, request)); !strings.HasSuffix(got, "ok") {
			return fmt.Errorf("afterwards: %q", got)
		}
		return nil
	})
}

// asNobody connects as another user, and returns the answer.
func asNobody(path string) (told string, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked, so the other user's thread ends with the goroutine
		if _, _, no := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); no != 0 {
			err = no
			return
		}
		var fd int
		if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return
		}
		defer unix.Close(fd)
		if err = unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			return
		}
		buf := make([]byte, 100)
		var n int
		n, err = unix.Read(fd, buf)
		told = string(buf[:max(n, 0)])
	}()
	<-done
	return told, err
}

func TestSocket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "listen") // a short name, because a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	for range 2 { // the socket of the first run is replaced
		l, err := listen.Socket(path)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode() != 0o600|fs.ModeSocket {
			t.Errorf("socket %v, %v", info, err)
		}
		served := make(chan error, 1)
		go func() {
			c, err := listen.Own(l).Accept()
			if err == nil {
				_, err = io.WriteString(c, "hello")
				c.Close()
			}
			served <- err
		}()
		// A process of another user, such as a pod, is not accepted, even if the socket's mode allows it.
		if os.Geteuid() == 0 {
			if err := os.Chmod(path, 0o666); err != nil {
				t.Fatal(err)
			}
			if got, err := asNobody(path); got != "" || err != nil {
				t.Errorf("another user was told %q, %v", got, err)
			}
		}
		c, err := listen.Dial(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(c); string(text) != "hello" || err != nil {
			t.Errorf("%q, %v", text, err)
		}
		c.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
		l.Close()
	}
	if _, err := listen.Dial(context.Background(), path); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a socket that nobody listens at: %v", err)
	}
	if _, err := listen.Socket(filepath.Join(dir, strings.Repeat("x", 200))); err == nil ||
		!strings.Contains(err.Error(), "choose a shorter directory") {
		t.Errorf("a long path: %v", err)
	}
}
