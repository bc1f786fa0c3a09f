// Package consultest gives tests a real Consul: one server for each test package, and a random prefix for each test.
package consultest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/goleak"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consul/devserver"
)

// Server is a running Consul.
type Server struct {
	Addr string // host:port of its HTTP API
	Proc *os.Process
	Dir  string // its files; a server on disk keeps its state in data below it
	bin  string
	own  *devserver.Server
	done chan struct{}
}

const startTries = 3

// Start runs a Consul in dev mode until Stop, or the end of this process. extra is configuration, a JSON object.
func Start(extra string) (*Server, error) {
	return startTimes(devserver.Config{ExtraJSON: extra})
}

// StartOnDisk is like Start, but Kill and StartAgain lose nothing.
func StartOnDisk(extra string) (*Server, error) {
	return startTimes(devserver.Config{ExtraJSON: extra, OnDisk: true})
}

func startTimes(cfg devserver.Config) (s *Server, err error) {
	if cfg.Bin, err = devserver.Find(filepath.Join(repoRoot(), "bin")); err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		s, err := start(cfg)
		if err == nil || try == startTries {
			return s, err
		}
	}
}

func start(cfg devserver.Config) (_ *Server, err error) {
	s := &Server{bin: cfg.Bin}
	if s.Dir, err = os.MkdirTemp("", "consultest-"); err != nil {
		return nil, err
	}
	cfg.Dir = s.Dir
	if s.own, err = devserver.New(context.Background(), cfg); err == nil {
		s.Addr = s.own.Addr
		err = s.run()
	}
	if err != nil {
		_ = os.RemoveAll(s.Dir) // the error of start is more important
		return nil, err
	}
	return s, nil
}

func (s *Server) run() error {
	log, err := os.OpenFile(filepath.Join(s.Dir, "consul.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.bin, s.own.Args...) //nolint:noctx // StartTied ends it
	cmd.Stdout, cmd.Stderr = log, log
	done := make(chan struct{})
	if err := StartTied(cmd, func(error) { close(done) }); err != nil {
		return fmt.Errorf("start %s: %w", s.bin, err)
	}
	s.Proc, s.done = cmd.Process, done
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, fmt.Errorf("not ready after %s", patience))
	defer cancel()
	ctx, exited := context.WithCancelCause(ctx)
	defer exited(nil)
	go func() {
		select {
		case <-done: // for example because another program took one of the ports
			exited(errors.New("consul ended"))
		case <-ctx.Done():
		}
	}()
	if err := devserver.WaitReady(ctx, s.own.Identity); err != nil {
		text, _ := os.ReadFile(log.Name())
		s.Kill()
		return fmt.Errorf("%w\n%s", err, text)
	}
	return nil
}

// Kill ends the server as kill -9 does.
func (s *Server) Kill() {
	_ = s.Proc.Kill() // it may have ended already
	<-s.done
}

// StartAgain starts a killed server on the same ports.
func (s *Server) StartAgain() error { return s.run() }

// StartTied starts a command that gets SIGKILL when this process ends, even by SIGKILL. exited is called once, after
// the command has ended. The kernel ties a child to the thread that started it.
func StartTied(cmd *exec.Cmd, exited func(error)) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			exited(cmd.Wait())
		}
	}()
	return <-started
}

// Stop kills the server and removes its files.
func (s *Server) Stop() {
	s.Kill()
	_ = os.RemoveAll(s.Dir)
}

// repoRoot uses the path of this source file.
func repoRoot() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

type shared struct {
	once   sync.Once
	server *Server
	err    error
}

var perPackage shared

// By default Consul allows 200 connections from one address.
const manyClients = `{"limits": {"http_max_conns_per_client": 5000}}`

// Main runs a package's tests and stops the shared server. Call it as os.Exit(consultest.Main(m)).
func Main(m *testing.M) int {
	forgetOtherConsul()
	code := m.Run()
	if perPackage.server != nil {
		perPackage.server.Stop()
	}
	return code
}

// forgetOtherConsul keeps programs under test from using another Consul. It keeps CONSUL_BIN.
func forgetOtherConsul() {
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "CONSUL_") && name != "CONSUL_BIN" {
			_ = os.Unsetenv(name) // fails only for names that no variable can have
		}
	}
}

// patience bounds a call on a busy machine, and the end of goroutines after the tests.
const patience = time.Minute

// NoLeaks returns 1 if some goroutines do not end within patience, else code. (goleak itself waits only half a second.)
func NoLeaks(code int) int {
	if code != 0 {
		return code
	}
	for deadline := time.Now().Add(patience); ; {
		err := goleak.Find()
		if err == nil {
			return code
		}
		if time.Now().After(deadline) {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
}

// Shared returns the package's server. The package's TestMain must call Main.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	perPackage.once.Do(func() { perPackage.server, perPackage.err = Start(manyClients) })
	if perPackage.err != nil {
		tb.Fatalf("these tests need a real Consul: %v", perPackage.err)
	}
	return perPackage.server
}

// Client returns a client and a key prefix that no other test uses.
func Client(tb testing.TB) (client *consul.Client, prefix string) {
	tb.Helper()
	client, err := consul.New(consul.Config{Address: Shared(tb).Addr, CallTimeout: patience})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(client.Close)
	return client, "test-" + strings.ToLower(ulid.Make().String()) + "/"
}

// Eventually waits until the condition returns nil, and fails the test after the limit. It pauses from 10 to 30 ms,
// because each call takes time from the code under test.
func Eventually(tb testing.TB, limit time.Duration, condition func() error) {
	tb.Helper()
	for began := time.Now(); ; {
		err := condition()
		if err == nil {
			return
		}
		waited := time.Since(began)
		if waited > limit {
			tb.Fatalf("not within %s: %v", limit, err)
		}
		<-time.After(min(max(waited/10, 10*time.Millisecond), 30*time.Millisecond))
	}
}
