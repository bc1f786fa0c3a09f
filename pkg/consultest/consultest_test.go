package consultest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consul/devserver"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

// parentEnv makes this test program act as the parent of a tied process. It then runs no tests.
const parentEnv = "CONSULTEST_PLAY_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(parentEnv) != "" {
		playParent()
	}
	os.Exit(consultest.Main(m))
}

// playParent starts a tied process, prints its id, and waits until it is killed.
func playParent() {
	child := exec.Command("sleep", "1000")
	if err := consultest.StartTied(child, func(error) {}); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(child.Process.Pid)
	select {}
}

// A test must not leave a Consul behind, even if the test program is killed.
func TestTiedProcessDiesWithItsParent(t *testing.T) {
	t.Parallel()
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), parentEnv+"=1")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(child, 0); err != nil {
		t.Fatalf("the child does not run: %v", err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // it was killed
	consultest.Eventually(t, 20*time.Second, func() error {
		// If no process reaps orphans, the child remains as a zombie.
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return nil //nolint:nilerr // a process that is gone has no stat
		}
		return errors.New("the child outlived its parent")
	})
}

// Tests do not use the Consul that variables of a developer's shell, or of CI, name.
func TestTheConsulOfTheShellIsForgotten(t *testing.T) {
	if os.Getenv("PLAY_SHELL") == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "PLAY_SHELL=1", "CONSUL_HTTP_ADDR=127.0.0.1:1", "CONSUL_HTTP_SSL=true",
			"CONSUL_HTTP_TOKEN=x", "CONSUL_BIN=y")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	for _, name := range []string{"CONSUL_HTTP_ADDR", "CONSUL_HTTP_SSL", "CONSUL_HTTP_TOKEN"} {
		if value, set := os.LookupEnv(name); set {
			t.Errorf("%s is %q", name, value)
		}
	}
	if got := os.Getenv("CONSUL_BIN"); got != "y" {
		t.Errorf("CONSUL_BIN is %q", got)
	}
}

func TestTwoServersRunSideBySide(t *testing.T) {
	t.Parallel()
	shared, prefix := consultest.Client(t)
	other, err := consultest.Start(`{"datacenter": "elsewhere"}`)
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	defer func() {
		if !stopped {
			other.Stop()
		}
	}()
	c, err := consul.New(consul.Config{Address: other.Addr, CallTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Commit(t.Context(), []consul.Op{consul.Set(prefix+"k", nil)}); err != nil {
		t.Fatal(err)
	}
	if _, err := shared.Get(t.Context(), prefix+"k", consul.Consistent); !errors.Is(err, consul.ErrNotFound) {
		t.Fatalf("both servers are one: %v", err)
	}
	// When Start returns, the server's own node is in the catalog, so sessions can be made.
	if node, err := c.AgentNode(t.Context()); err != nil || node == "" {
		t.Fatalf("%q %v", node, err)
	}
	other.Stop()
	stopped = true
	if conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", other.Addr); err == nil {
		_ = conn.Close()
		t.Fatal("it answers after Stop")
	}
}

// If Consul ends right after its start, Start returns an error at once, with Consul's output, and leaves no files.
func TestStartReportsABadConfiguration(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	server, err := consultest.Start(`{"no_such_setting": 1}`)
	if err == nil {
		server.Stop()
		t.Fatal("it started")
	}
	if !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("the error does not say why: %v", err)
	}
	if strings.Contains(err.Error(), "not ready after") {
		t.Errorf("it waited for a server that had ended: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, "*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestFreePortsAreDistinct(t *testing.T) {
	t.Parallel()
	ports, err := devserver.FreePorts(t.Context(), 50)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, port := range ports {
		if seen[port] || port == 0 {
			t.Fatalf("ports %v", ports)
		}
		seen[port] = true
	}
}

func TestWaitReadyEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ports, err := devserver.FreePorts(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(enough)
	if err := devserver.WaitReady(ctx, devserver.Identity{Addr: fmt.Sprint("127.0.0.1:", ports[0])}); !errors.Is(err,
		enough) {
		t.Fatalf("got %v", err)
	}
}

// WaitReady notices that another server answers, even if that server does not show its identity.
func TestAnotherConsulIsNotTheOneStarted(t *testing.T) {
	t.Parallel()
	for name, extra := range map[string]string{
		"open": "", "denies": `{"acl": {"enabled": true, "default_policy": "deny"}}`,
	} {
		there, err := consultest.Start(extra)
		if err != nil {
			t.Fatal(err)
		}
		defer there.Stop()
		mine, err := devserver.New(t.Context(), devserver.Config{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		mine.Addr = there.Addr
		if err := devserver.WaitReady(t.Context(), mine.Identity); !errors.Is(err, devserver.ErrForeign) {
			t.Errorf("%s: %v, want ErrForeign", name, err)
		}
	}
}

// A port is taken if a program has it for TCP or for UDP.
func TestCheckFree(t *testing.T) {
	t.Parallel()
	ports, err := devserver.FreePorts(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", ports[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", fmt.Sprint("127.0.0.1:", ports[1]))
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range ports {
		if err := devserver.CheckFree(t.Context(), port); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("port %d of %v: %v", port, ports, err)
		}
	}
	udp.Close()
	if err := devserver.CheckFree(t.Context(), ports[1]); err != nil {
		t.Errorf("port %d is free: %v", ports[1], err)
	}
}

func TestFindSaysWhatToDo(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("PATH", folder)
	t.Setenv("CONSUL_BIN", "")
	if _, err := devserver.Find(folder); err == nil || !strings.Contains(err.Error(), "CONSUL_BIN") {
		t.Errorf("nothing there: %v", err)
	}
	bin := filepath.Join(folder, "consul")
	if err := os.WriteFile(bin, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := devserver.Find(folder); err != nil || got != bin {
		t.Errorf("in a folder: %q %v", got, err)
	}
	if got, err := devserver.Find(); err != nil || got != bin {
		t.Errorf("on PATH: %q %v", got, err)
	}
	t.Setenv("CONSUL_BIN", filepath.Join(folder, "missing"))
	if _, err := devserver.Find(folder); err == nil || !strings.Contains(err.Error(), "CONSUL_BIN") {
		t.Errorf("CONSUL_BIN that is missing: %v", err)
	}
}
