package shim_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/shim"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/stub"
)

// idler appends its pid to <id>.pids.
func (n *node) idler(id string) runtime.Spec {
	spec := n.script(id, `echo $$ >> "$0.pids"; exec sleep 1000`)
	spec.Command = append(spec.Command, filepath.Join(n.Dir, id)) // $0
	return spec
}

func (n *node) pids(t testing.TB, id string) []int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(n.Dir, id+".pids"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var pids []int
	for line := range strings.FieldsSeq(string(data)) {
		pid, err := strconv.Atoi(line)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// A running program's pid is on the disk before it begins (R12).
func TestPIDIsRecordedBeforeExec(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	seen := filepath.Join(n.Dir, "seen")
	spec := n.script("p", `cat state/p.json > seen.new; mv seen.new seen; exec sleep 1000`)
	n.start(t, spec)
	st := n.await(t, "p", "running", running)
	Eventually(t, "the program has looked", func() bool { _, err := os.Stat(seen); return err == nil })
	data, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if s.PID != st.PID || s.Start == 0 || s.Boot != strings.TrimSpace(string(boot)) || s.Desired != "run" {
		t.Errorf("the program read %+v, want its pid %d with start time and boot id", s, st.PID)
	}
}

// A stub without an order, because the supervisor died before it recorded the pid, runs no program.
func TestStubWithoutOrderRunsNothing(t *testing.T) {
	t.Parallel()
	ran := filepath.Join(t.TempDir(), "ran")
	full := fmt.Sprintf(`{"command":["/bin/sh","-c",": > %s"],"env":[],"dir":"/"}`, ran)
	for name, sent := range map[string]string{"nothing": "", "half an order": full[:len(full)-1], "no command": "{}"} {
		t.Run(name, func(t *testing.T) {
			orders, err := os.CreateTemp(t.TempDir(), "order")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = orders.Close() }()
			if _, err := orders.WriteAt([]byte(sent), 0); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe", stub.Arg)
			cmd.ExtraFiles = []*os.File{orders, orders}
			var exit *exec.ExitError
			if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("the stub ended with %v, want exit status 1", err)
			}
			if _, err := os.Stat(ran); err == nil {
				t.Error("the program ran")
			}
		})
	}
}

func TestOneSupervisorPerDirectory(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start(t, n.idler("p"))
	if err := shim.Serve(t.Context(), shim.Config{Dir: n.Dir}); !errors.Is(err, shim.ErrRunning) {
		t.Errorf("second supervisor: %v, want ErrRunning", err)
	}
	if pid := n.supervisorPID(t); pid == 0 || pid == os.Getpid() {
		t.Errorf("the socket belongs to process %d, want the first supervisor", pid)
	}
}

func TestSocketPathLimit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ dir, want string }{
		{"/tmp/" + strings.Repeat("x", 100), "path of 115 bytes; allowed: at most 107 bytes"},
		{"relative", `"relative": not valid; allowed: an absolute path`},
	} {
		_, dialErr := shim.Dial(shim.ClientConfig{Dir: tt.dir})
		serveErr := shim.Serve(t.Context(), shim.Config{Dir: tt.dir})
		for _, err := range []error{dialErr, serveErr} {
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.dir) {
				t.Errorf("got %v, want an error with %q and the path", err, tt.want)
			}
		}
	}
}

func TestSocketIsPrivate(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start(t, n.idler("p"))
	for _, name := range []string{"shim.sock", "lock", "state/p.json", "supervisor.log"} {
		info, err := os.Stat(filepath.Join(n.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %04o, want 0600", name, info.Mode().Perm())
		}
	}
}

// After SIGTERM to the supervisor its processes continue to run, so that a newer one can replace it.
func TestTerminatedSupervisorLeavesItsProcessesRunning(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start(t, n.idler("p"))
	first := n.await(t, "p", "running", running)
	n.endSupervisors(t, unix.SIGTERM)
	if !Alive(first.PID) {
		t.Fatal("the process ended with its supervisor")
	}
	if _, err := os.Stat(filepath.Join(n.Dir, "state", "p.json")); err != nil {
		t.Error(err)
	}
	if st := n.await(t, "p", "taken over", running); st.PID != first.PID || st.Restarts != 0 {
		t.Errorf("taken over as pid %d with %d restarts, want pid %d", st.PID, st.Restarts, first.PID)
	}
}

func TestKillAll(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(s *settings) { s.KillWithStdin = true })
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", n.args()...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// this client starts no supervisor
	client, err := shim.Dial(shim.ClientConfig{Dir: n.Dir, ConnectTimeout: Timeout})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	n.Client = client
	var pids []int
	for _, id := range []string{"a", "b", "c"} {
		n.start(t,
			n.script(id, `trap '' TERM; (trap '' TERM; while :; do sleep 0.01; done) & while :; do sleep 0.01; done`))
		pids = append(pids, n.await(t, id, "running", running).PID)
	}
	Eventually(t, "they have children", func() bool { return len(session(t, pids[0])) > 1 })
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the supervisor ended with %v", err)
	}
	for _, pid := range pids {
		if left := session(t, pid); len(left) > 0 {
			t.Errorf("left of session %d: %v", pid, left)
		}
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", testDirs)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	broken := errors.New("no such binary")
	c, err := shim.Dial(shim.ClientConfig{
		Dir: dir, ConnectTimeout: 50 * time.Millisecond,
		Spawn: func() error { return broken },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Stop(t.Context(), "p"); !errors.Is(err, shim.ErrUnreachable) || !errors.Is(err, broken) {
		t.Errorf("got %v, want ErrUnreachable and why none was started", err)
	}
}

func TestSpawnReturnsWhyItFailed(t *testing.T) {
	t.Parallel()
	if err := shim.Spawn("/no/such/binary", nil, t.TempDir()); err == nil ||
		!strings.Contains(err.Error(), "/no/such/binary") {
		t.Errorf("got %v, want an error that names the binary", err)
	}
}

// The supervisor has its own session, and none of its starter's descriptors.
func TestSpawnDetaches(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	inherited, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = inherited.Close() }()
	if _, err := unix.FcntlInt(inherited.Fd(), unix.F_SETFD, 0); err != nil { // makes the descriptor inheritable
		t.Fatal(err)
	}
	n.start(t, n.script("p", `for f in /proc/$$/fd/*; do readlink "$f"; done; echo end; exec sleep 1000`))
	if _, err := unix.FcntlInt(inherited.Fd(), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	pid := n.supervisorPID(t)
	if sid, err := unix.Getsid(pid); err != nil || sid != pid {
		t.Errorf("supervisor %d is in session %d, %v; want its own", pid, sid, err)
	}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, _ := os.Readlink(fd); to == "/" {
			t.Errorf("the supervisor inherited %s", fd)
		}
	}
	Eventually(t, "the pod lists its descriptors", func() bool {
		data, _ := os.ReadFile(filepath.Join(n.Dir, "p.log"))
		return bytes.HasSuffix(data, []byte("end\n"))
	})
	if data, _ := os.ReadFile(filepath.Join(n.Dir, "p.log")); bytes.Count(data, []byte("\n")) != 4 {
		t.Errorf("the pod's descriptors:\n%swant three", data)
	}
}

// Orphans that left their session become the supervisor's children, which it must reap.
func TestOrphansAreReaped(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start(t,
		n.script("p",
			`for i in 1 2 3; do setsid sh -c 'sleep 0.05 & echo $! >> orphans' & done; wait; exec sleep 1000`))
	var orphans []string
	Eventually(t, "three orphans", func() bool {
		data, _ := os.ReadFile(filepath.Join(n.Dir, "orphans"))
		orphans = strings.Fields(string(data))
		return len(orphans) == 3
	})
	for _, pid := range orphans {
		Eventually(t, "orphan "+pid+" is reaped", func() bool {
			_, err := os.Stat("/proc/" + pid)
			return os.IsNotExist(err)
		})
	}
	if st := n.await(t, "p", "running", running); st.Restarts != 0 {
		t.Errorf("%d restarts", st.Restarts)
	}
}

// The pauses between restarts grow. Only the least length is checked, because the machine may be busy.
func TestRestartsSlowDown(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(s *settings) { s.RestartDelay, s.MaxRestartDelay = 50*time.Millisecond, 200*time.Millisecond })
	n.start(t, n.script("p", `date +%s%N >> times; exit 1`))
	var times []time.Time
	Eventually(t, "five runs", func() bool {
		data, _ := os.ReadFile(filepath.Join(n.Dir, "times"))
		times = times[:0]
		for line := range strings.Lines(string(data)) {
			ns, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
			if err != nil {
				return false
			}
			times = append(times, time.Unix(0, ns))
		}
		return len(times) >= 5
	})
	for i, least := range []time.Duration{50, 100, 200, 200} {
		if gap := times[i+1].Sub(times[i]); gap < least*time.Millisecond {
			t.Errorf("restart %d came after %s, want at least %dms", i+1, gap, least)
		}
	}
}

// A small Restart.Max keeps the pauses short.
func TestRestartBoundOfSpec(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(s *settings) { s.RestartDelay, s.MaxRestartDelay = time.Millisecond, time.Hour })
	spec := n.script("p", `exit 1`)
	spec.Restart.Max = 2 * time.Millisecond
	n.start(t, spec)
	// Doubled pauses would take a minute.
	n.await(t, "p", "restarted sixteen times", func(st runtime.Status) bool { return st.Restarts >= 16 })
}

// A long enough run makes the next pause short again.
func TestStableRunResetsDelay(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(s *settings) {
		s.RestartDelay, s.MaxRestartDelay, s.StableAfter = time.Millisecond, time.Hour, 40*time.Millisecond
	})
	// Doubled pauses would take a minute.
	n.start(t, n.script("p", `sleep 0.06; exit 1`))
	n.await(t, "p", "restarted sixteen times", func(st runtime.Status) bool { return st.Restarts >= 16 })
}

func TestStartRefusesBadSpecs(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for want, change := range map[string]func(*runtime.Spec){
		"id: \"../x\"":            func(s *runtime.Spec) { s.ID = "../x" },
		"id: \"\"":                func(s *runtime.Spec) { s.ID = "" },
		"id: \".tmp-x\"":          func(s *runtime.Spec) { s.ID = ".tmp-x" },
		"command: \"[]\"":         func(s *runtime.Spec) { s.Command = nil },
		"command: \"[sh]\"":       func(s *runtime.Spec) { s.Command = []string{"sh"} },
		"dir: \"x\"":              func(s *runtime.Spec) { s.Dir = "x" },
		"log_path: \"x\"":         func(s *runtime.Spec) { s.LogPath = "x" },
		"log_bytes: \"-1\"":       func(s *runtime.Spec) { s.LogBytes = -1 },
		"log_keep: \"-1\"":        func(s *runtime.Spec) { s.LogKeep = -1 },
		"stop_grace: \"-1s\"":     func(s *runtime.Spec) { s.StopGrace = -time.Second },
		"restart.policy: \"x\"":   func(s *runtime.Spec) { s.Restart.Policy = "x" },
		"restart.min: \"-1s\"":    func(s *runtime.Spec) { s.Restart.Min = -time.Second },
		"restart.stable: \"-1s\"": func(s *runtime.Spec) { s.Restart.Stable = -time.Second },
		"restart.max: \"1s\"":     func(s *runtime.Spec) { s.Restart.Min, s.Restart.Max = time.Minute, time.Second },
		"stop_signal: \"INT\"":    func(s *runtime.Spec) { s.StopSignal = "INT" },
		"env: \"NAME\"":           func(s *runtime.Spec) { s.Env = []string{"NAME"} },
		"without a zero byte":     func(s *runtime.Spec) { s.Env = []string{"A=\x00"} },
	} {
		spec := n.idler("p")
		change(&spec)
		err := n.Start(t.Context(), spec)
		if !errors.Is(err, runtime.ErrInvalid) || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "allowed: ") {
			t.Errorf("got %v, want ErrInvalid with %q and what is allowed", err, want)
		}
	}
	if states := n.states(t); len(states) != 0 {
		t.Errorf("refused specs left state: %+v", states)
	}
}

func TestRemoveRefusesWhatRuns(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start(t, n.idler("p"))
	if err := n.Remove(t.Context(), "p"); !errors.Is(err, runtime.ErrNotStopped) {
		t.Errorf("got %v, want ErrNotStopped", err)
	}
}

// Start during a stop waits for the end of the stop, and then starts the process again.
func TestStartDuringStop(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	spec := n.script("p", `trap '' TERM; echo $$ >> pids; : > ready; while :; do sleep 0.01; done`)
	spec.StopGrace = 3 * time.Second // the test must see the phase stopping in this time
	n.start(t, spec)
	Eventually(t, "it is ready", func() bool { _, err := os.Stat(filepath.Join(n.Dir, "ready")); return err == nil })
	first := n.await(t, "p", "running", running)
	stopped := make(chan error, 1)
	go func() { stopped <- n.Stop(t.Context(), "p") }()
	n.await(t, "p", "stopping", func(st runtime.Status) bool { return st.Phase == runtime.Stopping })
	n.start(t, spec)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if Alive(first.PID) {
		t.Error("two runs at a time")
	}
	n.await(t, "p", "running again", func(st runtime.Status) bool { return running(st) && st.PID != first.PID })
}

// The number of short runs in a row survives the death of the supervisor. A long run resets it.
func TestShortRuns(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(s *settings) {
		s.RestartDelay, s.MaxRestartDelay, s.StableAfter = time.Millisecond, 10*time.Millisecond, time.Millisecond
	})
	spec := n.script("p", `[ -e well ] && exec sleep 1000; sleep 0.05; exit 1`)
	spec.Restart.Stable = time.Minute // by the supervisor's own setting, no run would be short
	n.start(t, spec)
	n.await(t, "p", "three short runs", func(st runtime.Status) bool { return st.ShortRuns >= 3 })
	n.killSupervisor(t)
	n.await(t, "p", "short runs are remembered", func(st runtime.Status) bool { return st.ShortRuns >= 3 })

	other := n.script("q", `[ -e well ] && exec sleep 1000; exit 1`)
	other.Restart.Stable = 300 * time.Millisecond
	n.start(t, other)
	n.await(t, "q", "three short runs", func(st runtime.Status) bool { return st.ShortRuns >= 3 })
	if err := os.WriteFile(filepath.Join(n.Dir, "well"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	up := n.await(t, "q", "running for long enough",
		func(st runtime.Status) bool { return running(st) && st.ShortRuns == 0 })
	// By the wall clock, which must not be set meanwhile.
	if ran := time.Since(up.StartedAt); ran < other.Restart.Stable {
		t.Errorf("forgotten after %s", ran)
	}
	if st := n.await(t, "p", "running", running); st.ShortRuns < 3 {
		t.Errorf("%d short runs left, though it runs for a moment only", st.ShortRuns)
	}
}

// After a process's end, clients never see a first start again.
func TestAnEndIsNotTakenBack(t *testing.T) {
	t.Parallel()
	n := newNode(t, func(s *settings) { s.RestartDelay, s.MaxRestartDelay = time.Millisecond, time.Millisecond })
	n.start(t, n.script("p", `exit 1`))
	var cursor uint64
	var ended bool
	for seen := 0; seen < 5; {
		all, next, err := n.Watch(t.Context(), cursor)
		if err != nil {
			t.Fatal(err)
		}
		cursor = next
		for _, st := range all {
			if ended = ended || st.LastExit != nil; ended && st.Phase != runtime.Backoff && st.Restarts == 0 {
				t.Fatalf("%+v", st)
			}
			seen = st.Restarts
		}
	}
}
