package runit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/proc"
	"github.com/rcfarm/rcfarm/pkg/runtime/runit"
	"github.com/rcfarm/rcfarm/pkg/runtime/runtimetest"
)

// clientArg turns the test binary into a client: then settings and a Spec as JSON; it starts it and waits to be killed.
const clientArg = "client"

// testDirs is where all services of this run of the tests are; what runs afterwards with it in its command line leaked.
var testDirs = fmt.Sprintf("runittest-%d-", os.Getpid())

// settings is what a runtime of a test is told.
type settings struct {
	Dir             string
	RestartDelay    time.Duration
	MaxRestartDelay time.Duration
	StableAfter     time.Duration
	LogCheck        time.Duration
}

func (set settings) open(log func(string, map[string]any)) (*runit.Runtime, error) {
	return runit.Open(runit.Config{
		Dir: set.Dir, RestartDelay: set.RestartDelay, MaxRestartDelay: set.MaxRestartDelay, StableAfter: set.StableAfter,
		LogCheck: set.LogCheck, Log: log,
		Env: []string{"GORACE=atexit_sleep_ms=0"}, // else each stub that ends would wait for a second
	})
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case runit.StubArg:
			runit.ExecStub()
		case clientArg:
			exitOn(startAndWait(os.Args[2], os.Args[3]))
		}
	}
	// The tests mostly wait for runsvdir, which looks for new services every five seconds.
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
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

func startAndWait(arg, specArg string) error {
	var set settings
	var spec runtime.Spec
	if err := json.Unmarshal([]byte(arg), &set); err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(specArg), &spec); err != nil {
		return err
	}
	r, err := set.open(nil)
	if err != nil {
		return err
	}
	if err := r.Start(context.Background(), spec); err != nil {
		return err
	}
	fmt.Println("started")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// leaked lists processes that belong to a test and do not end.
func leaked() []string {
	deadline := time.Now().Add(runtimetest.Timeout)
	for {
		left := leftNow()
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		<-time.After(10 * time.Millisecond)
	}
}

// leftNow lists the processes that belong to a test: stubs by their binary, the others by their directory.
func leftNow() []string {
	self, _ := os.Readlink("/proc/self/exe")
	var lines []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if dir == "/proc/"+strconv.Itoa(os.Getpid()) || dir == "/proc/"+strconv.Itoa(os.Getppid()) { // see disktest.Run
			continue
		}
		exe, _ := os.Readlink(dir + "/exe")
		cwd, _ := os.Readlink(dir + "/cwd")
		cmdline, _ := os.ReadFile(dir + "/cmdline")
		if exe == self || strings.Contains(cwd, testDirs) || bytes.Contains(cmdline, []byte(testDirs)) {
			lines = append(lines, fmt.Sprintf("%s %s %q", dir, cwd, bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '})))
		}
	}
	return lines
}

// node is one runtime's directory with whatever runs in it.
type node struct {
	settings
	*runit.Runtime
	base string // of Dir and of what the processes write, which goes after they have ended

	mu  sync.Mutex
	log bytes.Buffer
}

// newNode makes an empty node. Everything that it starts is ended by pid.
func newNode(t *testing.T, change ...func(*settings)) *node {
	t.Helper()
	base, err := os.MkdirTemp("", testDirs)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(base, "runit")
	n := &node{base: base, settings: settings{
		Dir: dir, RestartDelay: 20 * time.Millisecond, MaxRestartDelay: 200 * time.Millisecond, StableAfter: 10 * time.Second,
		LogCheck: 20 * time.Millisecond,
	}}
	for _, c := range change {
		c(&n.settings)
	}
	t.Cleanup(func() {
		n.killAll(t)
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "runsvdir.log"))
			n.mu.Lock()
			t.Logf("runtime's log:\n%srunsvdir's log:\n%s", n.log.String(), log)
			n.mu.Unlock()
		}
		if err := os.RemoveAll(base); err != nil {
			t.Error(err)
		}
	})
	n.Runtime = n.open(t)
	return n
}

func (n *node) open(t *testing.T) *runit.Runtime {
	t.Helper()
	r, err := n.settings.open(func(msg string, fields map[string]any) {
		n.mu.Lock()
		defer n.mu.Unlock()
		fmt.Fprintln(&n.log, time.Now().Format("15:04:05.000"), msg, fields)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close) // before the node's own cleanup
	return r
}

func (n *node) killAll(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), runtimetest.Timeout)
	defer cancel()
	if err := runit.KillAll(ctx, n.Dir); err != nil {
		t.Error(err)
	}
}

// supervisors lists the processes of this name that work for the node, by the name of their directory. What such a process
// has forked bears its name until it becomes another program, and does not count.
func (n *node) supervisors(t *testing.T, program string) map[string]int {
	t.Helper()
	all := map[int]string{}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		cwd, _ := os.Readlink(dir + "/cwd")
		cmdline, _ := os.ReadFile(dir + "/cmdline")
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			t.Fatal(err)
		}
		if programName(pid) != program || !strings.HasPrefix(cwd, n.Dir+"/") && !bytes.Contains(cmdline, []byte(n.Dir+"/")) {
			continue
		}
		if st, err := proc.ReadStat(pid); err != nil || programName(st.PPID) == "runsv" {
			continue // it has ended, or it is about to become a stub
		}
		all[pid] = filepath.Base(cwd)
	}
	found := map[string]int{}
	for pid, dir := range all {
		st, err := proc.ReadStat(pid)
		if _, forked := all[st.PPID]; err != nil || forked {
			continue // it has ended, or is about to be something else
		}
		if other, twice := found[dir]; twice {
			t.Errorf("two of %s in %s: %d and %d", program, dir, other, pid)
		}
		found[dir] = pid
	}
	return found
}

func programName(pid int) string {
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // none: it has ended
	return strings.TrimSpace(string(comm))
}

func (n *node) killProgram(t *testing.T, program string) {
	t.Helper()
	for _, pid := range n.supervisors(t, program) {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && err != unix.ESRCH {
			t.Fatalf("kill %s %d: %v", program, pid, err)
		}
		runtimetest.Eventually(t, program+" is gone", func() bool { return !runtimetest.Alive(pid) })
	}
}

// killSupervisors ends all of runit.
func (n *node) killSupervisors(t *testing.T) {
	t.Helper()
	n.killProgram(t, "runsvdir")
	n.killProgram(t, "runsv")
}

// state is the part of a record that tests look at.
type state struct {
	Spec    runtime.Spec `json:"spec"`
	Desired string       `json:"desired"`
	PID     int          `json:"pid"`
	Start   uint64       `json:"start"`
	Boot    string       `json:"boot"`
}

func (n *node) state(t *testing.T, id string) state {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(n.Dir, "sv", id, "record.json"))
	if err != nil {
		t.Fatal(err)
	}
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// script returns the spec of a shell script that works in a directory of its own.
func (n *node) script(t *testing.T, id, script string) runtime.Spec {
	t.Helper()
	dir, err := os.MkdirTemp(n.base, id+"-")
	if err != nil {
		t.Fatal(err)
	}
	return runtime.Spec{
		ID: id, Name: "main", Command: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"},
		Dir: dir, LogPath: filepath.Join(dir, id+".log"), LogBytes: 1 << 20, StopGrace: 5 * time.Second,
	}
}

func (n *node) start(t *testing.T, spec runtime.Spec) {
	t.Helper()
	if err := n.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
}

// await returns the state of a process as soon as it is as wanted.
func (n *node) await(t *testing.T, id, what string, ok func(runtime.Status) bool) (found runtime.Status) {
	t.Helper()
	runtimetest.Eventually(t, id+" "+what, func() bool {
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

func TestConformance(t *testing.T) {
	runtimetest.Run(t, func(t *testing.T) *runtimetest.Target {
		n := newNode(t)
		return &runtimetest.Target{
			Runtime:        n.Runtime,
			Reopen:         func(t *testing.T) runtime.Runtime { return n.open(t) },
			KillSupervisor: n.killSupervisors,
			RestartPause:   time.Second, // runsv's own
			StartFromDyingClient: func(t *testing.T, spec runtime.Spec) {
				startFromDyingClient(t, n.settings, spec)
			},
		}
	})
}

// clientCommand returns a process of its own that starts spec and then waits.
func clientCommand(t *testing.T, set settings, spec runtime.Spec) *exec.Cmd {
	t.Helper()
	settingsJSON, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	specJSON, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", clientArg, string(settingsJSON), string(specJSON))
	if _, err := cmd.StdinPipe(); err != nil { // held open: it waits for it
		t.Fatal(err)
	}
	return cmd
}

func startFromDyingClient(t *testing.T, set settings, spec runtime.Spec) {
	t.Helper()
	cmd := clientCommand(t, set, spec)
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

func (n *node) record(id string) string { return filepath.Join(n.Dir, "sv", id, "record.json") }

// changeRecord rewrites a record that nobody else writes now.
func (n *node) changeRecord(t *testing.T, id string, change func(map[string]any)) {
	t.Helper()
	data, err := os.ReadFile(n.record(id))
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var fields map[string]any
	if err := decoder.Decode(&fields); err != nil {
		t.Fatal(err)
	}
	change(fields)
	if data, err = json.Marshal(fields); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.record(id), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func startTime(t *testing.T, pid int) uint64 {
	t.Helper()
	st, err := proc.ReadStat(pid)
	if err != nil {
		t.Fatal(err)
	}
	return st.Start
}
