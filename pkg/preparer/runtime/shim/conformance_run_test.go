package shim_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/shim"
)

func (b *bench) runOnce(ctx context.Context, run runtime.Once, maxBytes int64) (string, runtime.Exit, error) {
	b.Helper()
	return b.output(maxBytes, func(s runtime.Streams) (runtime.Exit, error) { return b.Runtime.RunOnce(ctx, run, s) })
}

func (b *bench) exec(ctx context.Context, script string) (string, runtime.Exit, error) {
	b.Helper()
	return b.output(1<<20, func(s runtime.Streams) (runtime.Exit, error) {
		return b.Runtime.Exec(ctx, "p", []string{"/bin/sh", "-c", script}, s)
	})
}

func (b *bench) output(maxBytes int64, run func(runtime.Streams) (runtime.Exit, error)) (string, runtime.Exit, error) {
	b.Helper()
	file, err := os.CreateTemp(b.dir, "output")
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	exit, err := run(runtime.Streams{Output: file, MaxBytes: maxBytes})
	text, readErr := os.ReadFile(file.Name())
	if readErr != nil {
		b.Fatal(readErr)
	}
	return string(text), exit, err
}

func (b *bench) once(script string) runtime.Once {
	return runtime.Once{
		Name: "once", Command: []string{"/bin/sh", "-c", script},
		Env: []string{"PATH=/usr/bin:/bin", "WHO=me"}, Dir: b.dir,
	}
}

func (b *bench) TestRunOnce() {
	for script, want := range map[string]runtime.Exit{
		"exit 0": {}, "exit 7": {Code: 7}, "kill -SEGV $$": {Code: -1, Signal: "SIGSEGV"},
	} {
		if _, got, err := b.runOnce(b.Context(), b.once(script), 100); err != nil || got != want ||
			got.OK() != (script == "exit 0") {
			b.Errorf("%s: %+v, %v; want %+v", script, got, err, want)
		}
	}
	text, exit, err := b.runOnce(b.Context(), b.once("cat; pwd; echo $WHO >&2"), 1000)
	if want := b.dir + "\nme\n"; err != nil || !exit.OK() || text != want {
		b.Errorf("%q, %s, %v; want %q", text, exit, err, want)
	}
	text, exit, err = b.runOnce(b.Context(), b.once(`head -c 3000000 /dev/zero | tr '\0' x`), 1000)
	if err != nil || !exit.OK() || strings.Count(text, "x") != 1000 || !strings.Contains(text, "2999000 more bytes") {
		b.Errorf("%d bytes of output, %s, %v; want 1000 and a remark", len(text), exit, err)
	}
	list, _, err := b.Runtime.Watch(b.Context(), 0)
	b.failIf(err != nil || len(list) > 0, "what ran once is supervised: %v, %v", list, err)
}

func (b *bench) TestRunOnceRefused() {
	for want, change := range map[error]func(*runtime.Once){
		runtime.ErrNotStarted: func(r *runtime.Once) { r.Command = []string{"/no/such/program"} },
		runtime.ErrInvalid:    func(r *runtime.Once) { r.Command = []string{"true"} },
	} {
		run := b.once("")
		change(&run)
		if _, _, err := b.runOnce(b.Context(), run, 100); !errors.Is(err, want) {
			b.Errorf("%v: %v, want %v", run.Command, err, want)
		}
	}
}

// All other processes are killed when the program or the context ends.
func (b *bench) TestRunOnceLeavesNothing() {
	_, exit, err := b.runOnce(b.Context(), b.once(escape), 100)
	b.failIf(err != nil || !exit.OK(), "%s, %v", exit, err)
	b.wantGone(b.pids("pids")...)
	ctx, cancel := context.WithCancelCause(b.Context())
	late := errors.New("late")
	go func() {
		Eventually(b, "it is ready", func() bool { return b.exists("ready") })
		cancel(late)
	}()
	_, _, err = b.runOnce(ctx, b.once(`trap "" TERM INT HUP;`+escape+`: > ready; while :; do sleep 0.01; done`), 100)
	b.failIf(!errors.Is(err, late), "it ended with %v, want %v", err, late)
	b.wantGone(b.pids("pids")...)
}

// Even after kill -9 of the caller, a program that runs once ends.
func (b *bench) TestRunOnceCallerDies() {
	run, err := json.Marshal(
		b.once(`trap "" TERM INT HUP;` + escape + `echo $$ >> pids; : > ready; while :; do sleep 0.01; done`))
	if err != nil {
		b.Fatal(err)
	}
	caller := exec.CommandContext(b.Context(), "/proc/self/exe", onceArg, b.node.args()[1], string(run))
	if err := caller.Start(); err != nil {
		b.Fatal(err)
	}
	Eventually(b, "it is ready", func() bool { return b.exists("ready") })
	if err := caller.Process.Kill(); err != nil {
		b.Fatal(err)
	}
	_ = caller.Wait() // it was killed
	pids := b.pids("pids")
	Eventually(b, "nothing of it runs", func() bool { return !slices.ContainsFunc(pids, Alive) })
}

// Programs that run once have users and limits like supervised processes.
func (b *bench) TestRunOnceIsolation() {
	spec, host := b.isolated("p", "")
	b.open()
	run := b.once(`id -u; grep -c ^0:: /proc/self/cgroup; sed -n 's/^0:://p' /proc/self/cgroup`)
	run.Isolation = spec.Isolation
	run.Isolation.UID, run.Isolation.GID = someUID, someGID
	text, exit, err := b.runOnce(b.Context(), run, 1000)
	if !host.Mapped(someUID, lastSome) {
		b.failIf(!errors.Is(err, runtime.ErrNotStarted), "%q, %v, want a refusal", text, err)
		return
	}
	b.failIf(err != nil || !exit.OK() || !strings.HasPrefix(text, fmt.Sprintln(someUID)), "%q, %s, %v; want user %d",
		text, exit, err, someUID)
	if host.Cgroup != "" {
		own := "/" + filepath.Base(host.Cgroup) + "/hooks/once\n"
		b.failIf(!strings.HasSuffix(text, own), "it is in the cgroup %q, want one that ends with %q", text, own)
		b.wantNoCgroup(filepath.Join(host.Cgroup, "hooks", "once"))
	}
}

// A command has the environment, directory and isolation of its process.
func (b *bench) TestExec() {
	spec, host := b.isolated("p", `: > ready; exec sleep 1000`)
	spec.Env = append(spec.Env, "WHO=p")
	if host.Mapped(someUID, lastSome) {
		b.open()
		spec.Isolation.UID, spec.Isolation.GID = someUID, someGID
	}
	st := b.startReady(spec)
	text, exit, err := b.exec(b.Context(), `echo $WHO; pwd; id -u; cat; exit 3`)
	if want := fmt.Sprintf("p\n%s\n%d\n", b.dir, spec.Isolation.UID); err != nil || exit.Code != 3 || text != want {
		b.Errorf("%q, %s, %v; want %q and exit status 3", text, exit, err, want)
	}
	if host.Cgroup != "" {
		text, _, err := b.exec(b.Context(), `echo $$; cat `+filepath.Join(host.Cgroup, "p", "cgroup.procs"))
		pids := strings.Fields(text)
		b.failIf(err != nil || len(pids) < 3 || !slices.Contains(pids[1:], pids[0]),
			"in the process's cgroup are %q, %v", text, err)
		in, err := isolate.Members(filepath.Join(host.Cgroup, "p"))
		b.failIf(err != nil || !slices.Equal(in, []int{st.PID}),
			"after the command are %v, %v; want %d alone", in, err, st.PID)
	}
	// A client without a snapshot of the process asks the supervisor.
	b.Runtime = b.node.dial(b.T)
	text, _, err = b.exec(b.Context(), "echo $WHO")
	b.failIf(err != nil || text != "p\n", "beside a process that was not seen yet: %q, %v", text, err)
	after, _ := b.status()
	b.failIf(after.PID != st.PID || after.Restarts > 0, "the process was %+v and is %+v", st, after)
}

// Without MaxBytes, a command has the caller's streams.
func (b *bench) TestExecStreams() {
	b.startReady(b.script("p", idle))
	in, inEnd, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		_, _ = io.WriteString(inEnd, strings.Repeat("x", 1<<20)) // lost bytes are noticed below
		inEnd.Close()
	}()
	defer in.Close()
	var out, errs *os.File
	for name, file := range map[string]**os.File{"out": &out, "errs": &errs} {
		if *file, err = os.Create(b.path(name)); err != nil {
			b.Fatal(err)
		}
		defer (*file).Close()
	}
	exit, err := b.Runtime.Exec(b.Context(), "p", []string{"/bin/sh", "-c", "cat; echo trouble >&2"},
		runtime.Streams{Input: in, Output: out, Errors: errs})
	b.failIf(err != nil || !exit.OK(), "%s, %v", exit, err)
	b.failIf(len(b.read("out")) != 1<<20 || b.read("errs") != "trouble\n", "%d bytes of stdout, stderr %q",
		len(b.read("out")), b.read("errs"))
}

func (b *bench) TestExecRefused() {
	refused := func(when string) {
		b.Helper()
		_, _, err := b.exec(b.Context(), ": > ran")
		b.failIf(!errors.Is(err, runtime.ErrNotRunning) || b.exists("ran"), "%s: %v, want ErrNotRunning", when, err)
	}
	refused("of an unknown process")
	spec := b.script("p", idle)
	b.startReady(spec)
	if _, err := b.Runtime.Exec(b.Context(), "p", []string{"/no/such/program"}, runtime.Streams{}); !errors.Is(err,
		runtime.ErrNotStarted) {
		b.Errorf("no program: %v", err)
	}
	b.stop("p")
	refused("after the stop")
	used := b.Runtime
	b.Runtime = b.node.dial(b.T)
	refused("after the stop, by another client")
	b.Runtime = used
	b.start(spec)
	_, exit, err := b.exec(b.Context(), "exit 5")
	b.failIf(err != nil || exit.Code != 5, "after another start: %s, %v", exit, err)
	b.stop("p")
	b.removeTwice()
	refused("of a process that was removed")
}

// A stop is confirmed only when no command beside the process is left.
func (b *bench) TestStopEndsCommands() {
	b.startReady(b.script("p", idle))
	ended := make(chan error, 1)
	go func() {
		_, _, err := b.exec(context.WithoutCancel(b.Context()),
			`trap "" TERM INT HUP;`+escape+`echo $$ >> pids; : > begun; while :; do sleep 0.01; done`)
		ended <- err
	}()
	Eventually(b, "the command has begun", func() bool { return b.exists("begun") })
	b.stop("p")
	b.wantGone(b.pids("pids")...)
	select {
	case err := <-ended:
		b.failIf(!errors.Is(err, context.Canceled), "the command ended with %v", err)
	case <-time.After(Timeout):
		b.Error("the command has not ended")
	}
}

// If a guard was killed and a process of its program is left, the process ends when the next preparer starts. This
// needs cgroups.
func (b *bench) TestBoundEndsWhatIsLeft() {
	_, host := b.isolated("p", "")
	if host.Cgroup == "" {
		return // without cgroups, only guards end such processes
	}
	left := filepath.Join(host.Cgroup, "hooks", "rc1.web.3.after_stop")
	orphan := exec.CommandContext(b.Context(), "/bin/sleep", "1000")
	err := confine.MakeCgroup(left)
	if err == nil {
		err = orphan.Start()
	}
	if err == nil {
		err = confine.Write(left, confine.MembersFile, strconv.Itoa(orphan.Process.Pid))
	}
	if err == nil {
		err = b.Runtime.(*shim.Client).Bound(0, 0)
	}
	if err != nil {
		b.Fatal(err)
	}
	if err := orphan.Wait(); err == nil || err.Error() != "signal: killed" {
		b.Errorf("it ended with %v, want a kill", err)
	}
}
