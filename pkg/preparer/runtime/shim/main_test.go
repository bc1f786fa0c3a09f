package shim_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/oneshot"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/shim"
)

// The test binary runs as another program.
const (
	superviseArg = "supervise" // next argument: settings as JSON
	onceArg      = "once"      // next: settings and a Once as JSON; runs it and waits to be killed
	clientArg    = "client"    // next: settings and a Spec as JSON; starts it and waits to be killed
)

// testDirs is in the names of all directories of this run, so a process with it in its command line has leaked.
var testDirs = fmt.Sprintf("shimtest-%d-", os.Getpid())

type settings struct {
	Dir             string
	Cgroup          string // for the clients
	RestartDelay    time.Duration
	MaxRestartDelay time.Duration
	StableAfter     time.Duration
	LogCheck        time.Duration
	KillWithStdin   bool // development mode: at the end of stdin, all processes are killed
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case oneshot.Arg:
			oneshot.Exec()
		case superviseArg:
			exitOn(supervise(os.Args[2]))
		case onceArg:
			exitOn(runOnce(os.Args[2], os.Args[3]))
		case clientArg:
			exitOn(startAndWait(os.Args[2], os.Args[3]))
		}
	}
	// Else the race detector makes each process wait for a second at its end.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
		exitOn(err)
	}
	code := consultest.NoLeaks(m.Run())
	for _, line := range leaked() {
		fmt.Fprintln(os.Stderr, "left running:", line)
		code = 1
	}
	os.Exit(code)
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func supervise(arg string) error {
	var set settings
	if err := json.Unmarshal([]byte(arg), &set); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	cfg := shim.Config{
		Dir: set.Dir, RestartDelay: set.RestartDelay, MaxRestartDelay: set.MaxRestartDelay,
		StableAfter: set.StableAfter, LogCheck: set.LogCheck,
		Log: func(msg string, fields map[string]any) {
			fmt.Println(time.Now().Format("15:04:05.000"), os.Getpid(), msg, fields)
		},
	}
	if set.KillWithStdin {
		ended := make(chan struct{})
		cfg.KillAll = ended
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			close(ended)
		}()
	}
	return shim.Serve(ctx, cfg)
}

func startAndWait(arg, specArg string) error {
	var set settings
	var spec runtime.Spec
	if err := json.Unmarshal([]byte(arg), &set); err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(specArg), &spec); err != nil {
		return err
	}
	c, err := shim.Dial(shim.ClientConfig{Dir: set.Dir, Cgroup: set.Cgroup, Spawn: set.spawn})
	if err != nil {
		return err
	}
	if err := c.Start(context.Background(), spec); err != nil {
		return err
	}
	fmt.Println("started")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func runOnce(arg, runArg string) error {
	var set settings
	var run runtime.Once
	if err := json.Unmarshal([]byte(arg), &set); err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(runArg), &run); err != nil {
		return err
	}
	c, err := shim.Dial(shim.ClientConfig{Dir: set.Dir})
	if err != nil {
		return err
	}
	_, err = c.RunOnce(context.Background(), run, runtime.Streams{})
	return err
}

// leaked returns the processes of tests that do not end by themselves. (A stub ends when its supervisor is dead.)
func leaked() []string {
	deadline := time.Now().Add(Timeout)
	for {
		left := leftNow()
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		<-time.After(10 * time.Millisecond)
	}
}

// leftNow finds supervisors and stubs by their binary, and pods by their directory.
func leftNow() []string {
	self, _ := os.Readlink("/proc/self/exe")
	var lines []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		// A test with its own disk has a test binary as its parent.
		if dir == "/proc/"+strconv.Itoa(os.Getpid()) || dir == "/proc/"+strconv.Itoa(os.Getppid()) {
			continue
		}
		exe, _ := os.Readlink(dir + "/exe")
		cwd, _ := os.Readlink(dir + "/cwd")
		cmdline, _ := os.ReadFile(dir + "/cmdline")
		if exe == self || bytes.Contains([]byte(cwd), []byte(testDirs)) || bytes.Contains(cmdline, []byte(testDirs)) {
			lines = append(lines, fmt.Sprintf("%s %s %q", dir, cwd, bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '})))
		}
	}
	return lines
}

func (s settings) args() []string {
	data, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return []string{superviseArg, string(data)}
}

func (s settings) spawn() error { return shim.Spawn("/proc/self/exe", s.args(), s.Dir) }

type node struct {
	settings
	*shim.Client
}

// newNode is empty. A client's first call starts a supervisor, which ends with the test, as do all processes.
func newNode(t testing.TB, change ...func(*settings)) *node {
	t.Helper()
	// A socket's path has at most 107 bytes, too few for t.TempDir.
	dir, err := os.MkdirTemp("", testDirs)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{settings: settings{
		Dir: dir, RestartDelay: 20 * time.Millisecond, MaxRestartDelay: 200 * time.Millisecond,
		StableAfter: 10 * time.Second, LogCheck: 20 * time.Millisecond,
	}}
	for _, c := range change {
		c(&n.settings)
	}
	t.Cleanup(func() {
		n.killSupervisor(t)
		n.killPods(t)
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "supervisor.log"))
			t.Logf("supervisor's log:\n%s", log)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	n.Client = n.dial(t)
	return n
}

func (n *node) dial(t testing.TB) *shim.Client {
	t.Helper()
	c, err := shim.Dial(shim.ClientConfig{Dir: n.Dir, Cgroup: n.Cgroup, Spawn: n.spawn, ConnectTimeout: Timeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// supervisorPID returns the listener on the socket, or 0.
func (n *node) supervisorPID(t testing.TB) int {
	t.Helper()
	conn, err := net.Dial("unix", filepath.Join(n.Dir, "shim.sock"))
	if err != nil {
		return 0
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	pid := 0
	if err := raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil {
			pid = int(cred.Pid)
		}
	}); err != nil {
		t.Fatal(err)
	}
	return pid
}

func (n *node) killSupervisor(t testing.TB) {
	t.Helper()
	n.endSupervisors(t, unix.SIGKILL)
}

// A slow client may have started several supervisors. One that has not tried the lock yet would get it when the first
// ends.
func (n *node) endSupervisors(t testing.TB, sig unix.Signal) {
	t.Helper()
	Eventually(t, "no supervisor is left", func() bool {
		pids := n.supervisors(t)
		for _, pid := range pids {
			_ = unix.Kill(pid, sig) // the process may have ended
		}
		return len(pids) == 0
	})
}

// A zombie has no command line.
func (n *node) supervisors(t testing.TB) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, file := range files {
		line, _ := os.ReadFile(file) // empty if the process has ended
		args := bytes.Split(line, []byte{0})
		at := slices.IndexFunc(args, func(arg []byte) bool { return string(arg) == superviseArg })
		if at < 0 || at+1 == len(args) || !bytes.Contains(args[at+1], []byte(strconv.Quote(n.Dir))) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

type state struct {
	Spec    runtime.Spec `json:"spec"`
	Desired string       `json:"desired"`
	PID     int          `json:"pid"`
	Start   uint64       `json:"start"`
	Boot    string       `json:"boot"`
}

func (n *node) states(t testing.TB) []state {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(n.Dir, "state", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	var states []state
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var s state
		if json.Unmarshal(data, &s) == nil { // a test may have damaged the file
			states = append(states, s)
		}
	}
	return states
}

// killPods kills all recorded sessions while no supervisor runs.
func (n *node) killPods(t testing.TB) {
	t.Helper()
	for _, s := range n.states(t) {
		if s.PID == 0 {
			continue
		}
		Eventually(t, fmt.Sprintf("session %d is empty", s.PID), func() bool {
			pids := session(t, s.PID)
			for _, pid := range pids {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			return len(pids) == 0
		})
	}
}

func session(t testing.TB, sid int) []int {
	t.Helper()
	out, err := exec.CommandContext(context.Background(), "ps", "-o", "pid=,stat=", "--sid", strconv.Itoa(sid)).Output()
	if err != nil {
		return nil // ps exits with 1 if it finds no process
	}
	var pids []int
	for line := range bytes.Lines(out) {
		fields := bytes.Fields(line)
		pid, err := strconv.Atoi(string(fields[0]))
		if err != nil {
			t.Fatal(err)
		}
		if fields[1][0] != 'Z' {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (n *node) script(id, script string) runtime.Spec {
	return runtime.Spec{Process: runtime.Process{
		ID: id, Name: "main", Command: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"},
		Dir: n.Dir, LogPath: filepath.Join(n.Dir, id+".log"), LogBytes: 1 << 20, StopGrace: 5 * time.Second,
	}}
}

func (n *node) start(t testing.TB, spec runtime.Spec) {
	t.Helper()
	if err := n.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
}

func (n *node) await(t testing.TB, id, what string, ok func(runtime.Status) bool) (found runtime.Status) {
	t.Helper()
	Eventually(t, id+" "+what, func() bool {
		list, _, err := n.Watch(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, st := range list {
			if st.Spec.ID == id && ok(st) {
				found = st
				return true
			}
		}
		return false
	})
	return found
}

func running(st runtime.Status) bool { return st.Phase == runtime.Running }

func startFromDyingClient(t *testing.T, set settings, spec runtime.Spec) {
	t.Helper()
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", clientArg, set.args()[1], string(data))
	if _, err := cmd.StdinPipe(); err != nil { // kept open, because the client waits for its end
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, len("started"))
	_, readErr := io.ReadFull(out, answer)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if readErr != nil {
		t.Fatalf("the client said %q: %v", answer, readErr)
	}
}
