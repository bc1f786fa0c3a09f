package oneshot

import (
	"bufio"
	"context"
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

	"github.com/rcfarm/rcfarm/pkg/consultest"
	rt "github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
)

const patience = time.Minute

// callerArg, with a working directory, is a caller that waits for ever.
const callerArg = "caller"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case Arg:
			Exec()
		case callerArg:
			_, err := Run(context.Background(), script(os.Args[2], family))
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		case callerOfArg:
			fmt.Fprintln(os.Stderr, callerOf(os.Args[2], os.Args[3], os.Args[4]))
			os.Exit(1)
		case inheritArg:
			fmt.Fprintln(os.Stderr, runInherited())
			os.Exit(1)
		case parentArg:
			fmt.Fprintln(os.Stderr, parentOfStub())
			os.Exit(1)
		}
	}
	os.Exit(consultest.NoLeaks(m.Run()))
}

func script(dir, text string) Command {
	return Command{Argv: []string{"/bin/sh", "-c", text}, Env: []string{"PATH=/usr/bin:/bin", "WHO=me"}, Dir: dir}
}

// family has a child, and a grandchild in another session whose parent has ended. All write their pids to files.
const family = `
sleep 1000 & echo $! >child
setsid sh -c 'setsid sleep 1000 & echo $! >orphan' 
echo $$ >self.new; mv self.new self
wait`

func pids(t *testing.T, dir string) map[string]int {
	t.Helper()
	found := map[string]int{}
	eventually(t, func() error {
		for _, name := range []string{"child", "orphan", "self"} {
			data, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return err
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
			if err != nil {
				return err
			}
			found[name] = pid
		}
		return nil
	})
	return found
}

func eventually(t *testing.T, condition func() error) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatal(err)
		case <-tick.C:
		}
	}
}

// A zombie does not count as alive; it remains if no process reaps orphans.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func mustBeGone(t *testing.T, pids map[string]int) {
	t.Helper()
	for name, pid := range pids {
		if alive(pid) {
			t.Errorf("%s, process %d, still runs", name, pid)
		}
	}
}

func TestExits(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]rt.Exit{
		"true":          {},
		"exit 7":        {Code: 7},
		"kill -SEGV $$": {Code: -1, Signal: "SIGSEGV"},
	} {
		got, err := Run(t.Context(), script("/", text))
		if err != nil || got != want {
			t.Errorf("%s: %+v (%v), want %+v", text, got, err, want)
		}
		if got.OK() != (text == "true") {
			t.Errorf("%s: OK is %t", text, got.OK())
		}
	}
}

func TestEnvironmentAndOutput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	out, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	c := script(dir,
		`pwd; env | grep -v -e ^_= -e ^PWD= -e ^SHLVL= -e ^OLDPWD= | sort; echo oops >&2; ls /proc/self/fd | wc -l; cat`)
	c.Streams.Output = out
	if exit, err := Run(t.Context(), c); err != nil || !exit.OK() {
		t.Fatal(exit, err)
	}
	text, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	// ls has descriptors 0, 1, 2 and its directory.
	if want := dir + "\nPATH=/usr/bin:/bin\nWHO=me\noops\n4\n"; string(text) != want {
		t.Errorf("output %q, want %q", text, want)
	}
	c = script(dir, `head -c 3000000 /dev/zero | tr '\0' x`)
	c.Streams = rt.Streams{Output: out, MaxBytes: 1000}
	if exit, err := Run(t.Context(), c); err != nil || !exit.OK() {
		t.Fatal(exit, err)
	}
	more, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	if more = more[len(text):]; strings.Count(string(more), "x") != 1000 ||
		!strings.Contains(string(more), "2999000 more bytes") {
		t.Errorf("%d bytes of output, want 1000 and a remark", len(more))
	}
}

func TestNotStarted(t *testing.T) {
	t.Parallel()
	orphan := filepath.Join(t.TempDir(), "orphan")
	if err := os.WriteFile(orphan, []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]Command{
		"is not on this node": {Argv: []string{orphan}, Dir: "/"},
		"no such file":        {Argv: []string{"/does/not/exist"}, Dir: "/"},
		"permission denied":   {Argv: []string{"/etc/passwd"}, Dir: "/"},
		"working directory":   {Argv: []string{"/bin/true"}, Dir: "/does/not/exist"},
		"not below a mount of cgroup v2": {
			Argv: []string{"/bin/true"}, Dir: "/",
			Isolation: &confine.Confinement{Cgroup: "/no/such/cgroup"},
		},
	} {
		_, err := Run(t.Context(), c)
		if !errors.Is(err, rt.ErrNotStarted) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
		if missing := c.Argv[0] == "/does/not/exist"; errors.Is(err, rt.ErrNoProgram) != missing {
			t.Errorf("%s: got %v, want that the program is missing: %t", name, err, missing)
		}
	}
	for _, c := range []Command{
		{Dir: "/"},
		{Argv: []string{"true"}, Dir: "/"},
		{Argv: []string{"/bin/true"}, Dir: "x"},
	} {
		if _, err := Run(t.Context(), c); !errors.Is(err, rt.ErrInvalid) {
			t.Errorf("%+v: got %v", c, err)
		}
	}
}

// Processes that a successful program leaves behind are killed.
func TestLeftoversAreKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	exit, err := Run(t.Context(), script(dir, strings.TrimSuffix(family, "wait")))
	if err != nil || !exit.OK() {
		t.Fatal(exit, err)
	}
	mustBeGone(t, pids(t, dir))
}

func TestEndOfContextKillsEverything(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	late := errors.New("too late")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	ended := make(chan error, 1)
	go func() {
		_, err := Run(ctx, script(dir, "trap '' TERM INT HUP\n"+family))
		ended <- err
	}()
	found := pids(t, dir)
	for name, pid := range found {
		if !alive(pid) {
			t.Errorf("%s does not run", name)
		}
	}
	cancel(late)
	if err := <-ended; !errors.Is(err, late) {
		t.Errorf("got %v, want %v", err, late)
	}
	mustBeGone(t, found)
	if _, err := Run(ctx, script(dir, "touch started")); !errors.Is(err, late) {
		t.Errorf("after the end: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "started")); err == nil {
		t.Error("a program was started after the end of the context")
	}
}

// After kill -9 of the caller, the program and all its processes end.
func TestDeathOfTheCallerKillsEverything(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	caller := exec.Command(os.Args[0], callerArg, dir)
	stderr, err := caller.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := caller.Start(); err != nil {
		t.Fatal(err)
	}
	found := pids(t, dir)
	if err := caller.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(stderr).ReadString('\n'); err == nil {
		t.Error("the caller had something to say before it was killed")
	}
	_ = caller.Wait() // it was killed
	eventually(t, func() error {
		for name, pid := range found {
			if alive(pid) {
				return fmt.Errorf("%s, process %d, still runs", name, pid)
			}
		}
		return nil
	})
}

// After kill -9 of the guard the program ends, even as another user. The caller does not wait for a surviving process
// that holds the streams.
func TestDeathOfTheGuardKillsTheProgram(t *testing.T) {
	t.Parallel()
	out, err := os.OpenFile(filepath.Join(t.TempDir(), "out"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	c := script("/", "setsid sleep 1000 & echo $$ $PPID $!; exec sleep 1000")
	c.Streams.Output, c.Isolation = out, &confine.Confinement{Isolation: rt.Isolation{
		UID: os.Getuid(),
		GID: os.Getgid(),
	}}
	if os.Getuid() == 0 {
		c.Isolation.UID, c.Isolation.GID = 65534, 65534
	}
	ended := make(chan error, 1)
	go func() {
		_, err := Run(t.Context(), c)
		ended <- err
	}()
	var program, guard, orphan int
	eventually(t, func() error {
		text, err := os.ReadFile(out.Name())
		if err == nil {
			_, err = fmt.Sscanln(string(text), &program, &guard, &orphan)
		}
		return err
	})
	t.Cleanup(func() { _, _ = unix.Kill(program, unix.SIGKILL), unix.Kill(orphan, unix.SIGKILL) })
	if err := unix.Kill(guard, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "without a result") {
		t.Errorf("run of a guard that was killed: %v", err)
	}
	if !alive(orphan) {
		t.Error("nothing is left that holds the streams")
	}
	eventually(t, func() error {
		if alive(program) {
			return fmt.Errorf("the program, process %d, still runs", program)
		}
		return nil
	})
}
