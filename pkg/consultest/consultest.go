// Package consultest gives tests a real Consul: one server per test package, a random prefix per test. A Consul that
// cannot be started fails the tests; it never skips them.
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
	Dir  string // of its files; what a server on disk keeps is below data
	bin  string
	own  *devserver.Server
	done chan struct{}
}

const startTries = 3

// Start runs a Consul in dev mode. extra is more configuration as a JSON object. Stop ends it; it also ends when this
// process does, however that happens.
func Start(extra string) (*Server, error) {
	return startTimes(devserver.Config{ExtraJSON: extra})
}

// StartOnDisk is Start for a server that keeps its state on the disk, so that Kill and StartAgain lose none of it.
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
		_ = os.RemoveAll(s.Dir) // the error at hand matters more
		return nil, err
	}
	return s, nil
}

// run starts the server and waits until it answers.
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
		case <-done: // another program took one of the ports, say
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

// Kill ends the server as kill -9 does. StartAgain starts it again.
func (s *Server) Kill() {
	_ = s.Proc.Kill() // it may have ended already
	<-s.done
}

// StartAgain starts a killed server on the same ports and returns when it answers.
func (s *Server) StartAgain() error { return s.run() }

// StartTied starts a command that gets SIGKILL when this process ends, even by SIGKILL. exited is called once, after the
// command was waited for. The kernel ties a child to the thread that started it, so that thread waits here.
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

// repoRoot is the folder that holds go.mod, found from this source file.
func repoRoot() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// shared is the server of one test package.
type shared struct {
	once   sync.Once
	server *Server
	err    error
}

var perPackage shared

// manyClients lets tests run in parallel: all of their daemons share one address, and Consul allows 200 connections for each.
const manyClients = `{"limits": {"http_max_conns_per_client": 5000}}`

// Main runs a package's tests and stops the shared server afterwards. Call it as os.Exit(consultest.Main(m)).
func Main(m *testing.M) int {
	forgetOtherConsul()
	code := m.Run()
	if perPackage.server != nil {
		perPackage.server.Stop()
	}
	return code
}

// forgetOtherConsul removes what the shell says of a Consul of its own (CONSUL_HTTP_ADDR, a token, TLS), because
// clients and programs under test would turn to that one. CONSUL_BIN is the program that tests start.
func forgetOtherConsul() {
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "CONSUL_") && name != "CONSUL_BIN" {
			_ = os.Unsetenv(name) // fails for names that no environment has
		}
	}
}

// patience is how long a call may take, and goroutines may take to end after the tests, on a busy machine.
const patience = time.Minute

// NoLeaks returns the exit code of a package's tests: the given one, or 1 when they passed and goroutines are left that do
// not end. goleak itself gives them half a second.
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

// Shared returns the package's server, started on first use. The package's TestMain must call Main.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	perPackage.once.Do(func() { perPackage.server, perPackage.err = Start(manyClients) })
	if perPackage.err != nil {
		tb.Fatalf("these tests need a real Consul: %v", perPackage.err)
	}
	return perPackage.server
}

// Client returns a client of the package's server and a key prefix that no other test uses.
func Client(tb testing.TB) (client *consul.Client, prefix string) {
	tb.Helper()
	client, err := consul.New(consul.Config{Address: Shared(tb).Addr, CallTimeout: patience})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(client.Close)
	return client, "test-" + strings.ToLower(ulid.Make().String()) + "/"
}

// Eventually waits until the condition holds, asking every 10 ms, and fails the test when it does not within the limit.
// The condition returns nil, or what is still missing.
func Eventually(tb testing.TB, limit time.Duration, condition func() error) {
	tb.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			tb.Fatalf("not within %s: %v", limit, err)
		case <-ticker.C:
		}
	}
}
