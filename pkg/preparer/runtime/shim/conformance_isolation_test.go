package shim_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
)

// If the host cannot apply a part of isolation, the runtime must refuse with a reason, or leave it out if the interface
// allows that. So these tests are useful on any host.

// No account has these numbers.
const (
	someUID  = 1_900_000_017
	someGID  = 1_900_000_018
	moreGID  = 1_900_000_019
	lastSome = moreGID
)

// isolated has all isolation that the host allows.
func (b *bench) isolated(id, script string) (runtime.Spec, isolate.Host) {
	b.Helper()
	host := isolate.Probe("rcfarm-test-" + filepath.Base(filepath.Dir(b.dir)))
	b.Cleanup(func() {
		if host.Cgroup == "" {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Context()), Timeout)
		defer cancel()
		if err := b.Runtime.Stop(ctx, id); err != nil { // otherwise it would be started again
			b.Errorf("stop %s: %v", id, err)
		}
		Eventually(b, "the test's cgroup is empty",
			func() bool { return isolate.Kill(host.Cgroup) == nil && isolate.Remove(host.Cgroup) == nil })
	})
	spec := b.script(id, script)
	spec.Isolation = &runtime.Isolation{UID: os.Getuid(), GID: os.Getgid()}
	b.within(host.Cgroup)
	return spec, host
}

func (b *bench) within(cgroup string) {
	b.Helper()
	b.node.Cgroup = cgroup
	b.Runtime = b.node.dial(b.T)
}

func (b *bench) refused(id string, reasons ...string) {
	b.Helper()
	st := b.await(id, fmt.Sprintf("refused for one of %q", reasons), func(st runtime.Status) bool {
		named := slices.ContainsFunc(reasons, func(r string) bool { return strings.Contains(st.Message, r) })
		return st.Phase == runtime.Backoff && named
	})
	b.failIf(st.PID != 0 || b.exists("ready"), "status %+v, the program ran: %t; want no run", st, b.exists("ready"))
	b.stop(id)
}

func (b *bench) open() {
	b.Helper()
	for dir, mode := range map[string]os.FileMode{filepath.Dir(b.dir): 0o755, b.dir: 0o777} {
		if err := os.Chmod(dir, mode); err != nil {
			b.Fatal(err)
		}
	}
}

func (b *bench) TestIsolationUser() {
	spec, host := b.isolated("p", `
exec > facts.new
id -u; id -g; id -G
grep -E '^(Uid|Gid|NoNewPrivs|CapEff|CapPrm)' /proc/self/status
echo again > /dev/stderr
mv facts.new facts; : > ready; exec sleep 1000`)
	b.open()
	spec.Isolation.UID, spec.Isolation.GID, spec.Isolation.Groups = someUID, someGID, []int{moreGID}
	spec.Isolation.NoNewPrivileges = true
	b.start(spec)
	if !host.Mapped(someUID, lastSome) {
		b.refused("p", "take groups", "become group", "become user", "join cgroup", "open log")
		return
	}
	Eventually(b, "it is ready", func() bool { return b.exists("ready") })
	four := func(id int) string { return strings.Repeat(fmt.Sprintf("\t%d", id), 4) }
	want := fmt.Sprintf("%d\n%d\n%d %d\nUid:%s\nGid:%s\nCapPrm:\t%016x\nCapEff:\t%016x\nNoNewPrivs:\t1\n",
		someUID, someGID, someGID, moreGID, four(someUID), four(someGID), 0, 0)
	if got := b.read("facts"); got != want {
		b.Errorf("it is\n%swant\n%s", got, want)
	}
	if log := b.read("p.log"); log != "again\n" {
		b.Errorf("log %q, want what was written to the reopened stderr", log)
	}
	info, err := os.Stat(b.path("p.log"))
	if err != nil {
		b.Fatal(err)
	}
	b.failIf(info.Mode().Perm()&0o007 != 0, "log has mode %04o, open to others", info.Mode().Perm())
}

// The program and its directory are opened with its user's rights.
func (b *bench) TestIsolationUserIsAskedForFiles() {
	closed := b.path("closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		b.Fatal(err)
	}
	spec, host := b.isolated("p", `: > ../ready; exec sleep 1000`)
	b.open()
	spec.Dir = closed
	spec.Isolation.UID, spec.Isolation.GID = someUID, someGID
	b.start(spec)
	if !host.Mapped(someUID, lastSome) {
		b.refused("p", "take groups", "become group", "become user", "join cgroup", "open log")
		return
	}
	b.refused("p", closed)
}

func (b *bench) TestIsolationTmp() {
	tmp, mark := b.path("tmp"), "mark-"+filepath.Base(filepath.Dir(b.dir))
	if err := os.Mkdir(tmp, 0o777); err != nil {
		b.Fatal(err)
	}
	spec, host := b.isolated("p", `: > /tmp/`+mark+
		`; ls -a /var/tmp; grep -c ' /tmp .*nosuid,nodev' /proc/self/mountinfo; echo end; exec sleep 1000`)
	spec.Dir = "/"
	spec.Isolation.Tmp = tmp
	b.start(spec)
	if !host.Tmp {
		b.refused("p", "make a mount namespace", "detach from the node's mounts", "mount private tmp", "join cgroup")
		return
	}
	Eventually(b, "it has looked", func() bool { return strings.HasSuffix(b.read("p.log"), "end\n") })
	if got, want := b.read("p.log"), ".\n..\n"+mark+"\n1\nend\n"; got != want {
		b.Errorf("it sees\n%swant\n%s", got, want)
	}
	b.failIf(!b.exists("tmp/"+mark), "what it wrote is not in its directory")
	if _, err := os.Stat("/tmp/" + mark); err == nil {
		b.Error("what it wrote is in the node's /tmp")
	}
}

// Without its isolation, the program does not run.
func (b *bench) TestIsolationFails() {
	spec, host := b.isolated("p", `: > ready; exec sleep 1000`)
	spec.Isolation.Tmp = b.path("no-such-directory")
	b.start(spec)
	want := "make a mount namespace"
	if host.Tmp {
		want = spec.Isolation.Tmp
	}
	b.refused("p", want, "join cgroup")
	outside, _ := b.isolated("outside", `: > ready; exec sleep 1000`)
	b.within(b.path("no-cgroup"))
	b.start(outside)
	b.refused("outside", "make cgroup "+b.path("no-cgroup/outside"))
}

// escape leaves processes outside of their leader's session and group, without a parent there.
const escape = `
: > pids
export LOOP='trap "" TERM; echo $$ >> pids; while :; do sleep 0.01; done'
setsid sh -c 'sh -c "$LOOP" & eval "$LOOP"' &
while [ $(wc -l < pids) -lt 2 ]; do sleep 0.01; done
`

func (b *bench) TestIsolationStopEndsCgroup() {
	spec, host := b.isolated("p", `trap 'exit 0' TERM;`+escape+`: > ready; while :; do sleep 0.01; done`)
	spec.StopGrace = leaderGrace
	st := b.startReady(spec)
	if in, err := isolate.Members(filepath.Join(host.Cgroup, spec.ID)); host.Cgroup != "" &&
		(err != nil || !slices.Contains(in, st.PID) || len(in) < 3) {
		b.Errorf("cgroup holds %v, %v; want %d and two that left its session", in, err, st.PID)
	}
	b.stop("p")
	b.wantGone(append(b.pids("pids"), st.PID)...)
	b.wantNoCgroup(filepath.Join(host.Cgroup, spec.ID))
}

func (b *bench) TestIsolationCrashEndsCgroup() {
	spec, host := b.isolated("p", `[ -e second ] && exec sleep 1000; : > second;`+escape+`: > ready; exit 1`)
	b.startReady(spec)
	st := b.await("p", "restarted",
		func(st runtime.Status) bool { return st.Restarts == 1 && st.Phase == runtime.Running })
	b.wantGone(b.pids("pids")...)
	if in, err := isolate.Members(filepath.Join(host.Cgroup, spec.ID)); host.Cgroup != "" &&
		(err != nil || !slices.Equal(in, []int{st.PID})) {
		b.Errorf("cgroup holds %v, %v; want %d alone", in, err, st.PID)
	}
	b.kill(st.PID)
	b.stop("p")
	b.wantNoCgroup(filepath.Join(host.Cgroup, spec.ID))
}

func (b *bench) TestIsolationSupervisorDies() {
	spec, host := b.isolated("p", escape+`: > ready; while :; do sleep 0.01; done`)
	spec.Restart.Policy = runtime.Never // because another run would use the same cgroup
	st := b.startReady(spec)
	b.node.killSupervisor(b.T)
	b.kill(st.PID) // the processes left behind are found by their cgroup or their environment
	b.await("p", "exited", exited)
	b.wantGone(b.pids("pids")...)
	b.wantNoCgroup(filepath.Join(host.Cgroup, spec.ID))
}

// A process without a cgroup that leaves its session is recognised by its environment, and ended at a restart and a
// stop, also by another supervisor.
func (b *bench) TestEscapeWithoutCgroup() {
	b.startReady(b.script("p", escape+`cat pids >> all; : > ready; sleep 0.1`))
	b.await("p", "restarted twice", func(st runtime.Status) bool { return st.Restarts >= 2 })
	b.node.killSupervisor(b.T)
	b.await("p", "restarted again", func(st runtime.Status) bool { return st.Restarts >= 3 })
	b.stop("p")
	escaped := b.pids("all")
	b.failIf(len(escaped) < 6, "%d have escaped", len(escaped))
	b.wantGone(escaped...)
	b.wantGone(b.pids("pids")...)
}

func (b *bench) wantNoCgroup(dir string) {
	b.Helper()
	if _, err := os.Stat(dir); err == nil {
		b.Errorf("cgroup %s is left behind", dir)
	}
}

// If the host has the controllers, the limits apply. If not, the process runs without limits.
func (b *bench) TestIsolationLimits() {
	spec, host := b.isolated("p", `: > ready; exec sleep 1000`)
	if host.Cgroup == "" {
		if len(host.Limits) > 0 ||
			!slices.ContainsFunc(host.Without, func(s string) bool { return strings.HasPrefix(s, "cgroup: ") }) {
			b.Errorf("without cgroups the host offers limits %v, and says %q", host.Limits, host.Without)
		}
		b.startReady(spec)
		return
	}
	spec.Isolation.CPU, spec.Isolation.Memory, spec.Isolation.PIDs = 1500, 512<<20, 64
	b.startReady(spec)
	for _, limit := range []struct{ controller, file, want string }{
		{confine.CPU, "cpu.max", "150000 100000\n"},
		{confine.Memory, "memory.max", "536870912\n"},
		{confine.Memory, "memory.oom.group", "1\n"},
		{confine.PIDs, "pids.max", "64\n"},
	} {
		said := slices.ContainsFunc(host.Without,
			func(s string) bool { return strings.HasPrefix(s, limit.controller+" limit: ") })
		has := slices.Contains(host.Limits, limit.controller)
		b.failIf(said == has, "%s: offered %t, reported as missing %t", limit.controller, has, said)
		got, err := os.ReadFile(filepath.Join(host.Cgroup, spec.ID, limit.file))
		if has && string(got) != limit.want || !has && !os.IsNotExist(err) {
			b.Errorf("%s holds %q, %v; want %q if it is offered: %t", limit.file, got, err, limit.want, has)
		}
	}
}

// If the kernel kills a process at its memory limit, the exit has this reason. On a host without the controller, the
// process kills itself, and the exit does not have the reason.
func (b *bench) TestIsolationOutOfMemory() {
	// The script's variable doubles. ulimit protects the host if the limit does not work.
	const limit, hungry = 32 << 20, `ulimit -v 1000000; : > ready; x=0123456789abcdef; while :; do x=$x$x; done`
	spec, host := b.isolated("p", `: > ready; kill -KILL $$`)
	enforced := host.Cgroup != "" && slices.Contains(host.Limits, confine.Memory)
	want := "ended by SIGKILL"
	if enforced {
		spec.Command[2], want = hungry, fmt.Sprintf("was killed by the kernel at its memory limit of %d bytes", limit)
	}
	spec.Isolation.Memory = limit
	spec.Restart.Policy = runtime.Never
	b.start(spec)
	st := b.await("p", "exited", exited)
	b.failIf(st.LastExit == nil || st.LastExit.String() != want || st.LastExit.OutOfMemory != enforced,
		"it ended as %+v, want %q", st.LastExit, want)
}

// wantLimits: the runtime, and the cgroup if there are controllers, have these limits of "p".
func (b *bench) wantLimits(host isolate.Host, cpu, memory int64) {
	b.Helper()
	st, _ := b.status()
	if iso := st.Spec.Isolation; iso == nil || iso.CPU != cpu || iso.Memory != memory {
		b.Errorf("its isolation is %+v, want cpu %d and memory %d", iso, cpu, memory)
	}
	for _, limit := range []struct{ controller, file, want string }{
		{confine.CPU, "cpu.max", fmt.Sprintf("%d 100000\n", cpu*100)},
		{confine.Memory, "memory.max", fmt.Sprintf("%d\n", memory)},
	} {
		got, err := os.ReadFile(filepath.Join(host.Cgroup, "p", limit.file))
		if has := slices.Contains(host.Limits, limit.controller); has && string(got) != limit.want {
			b.Errorf("%s holds %q, %v; want %q", limit.file, got, err, limit.want)
		}
	}
}

func (b *bench) keepsLimits(to runtime.LimitRequest, why string) {
	b.Helper()
	err := b.Runtime.Relimit(b.Context(), to)
	b.failIf(!errors.Is(err, runtime.ErrKeepsLimits) || !strings.Contains(err.Error(), why),
		"relimit to %+v: %v, want ErrKeepsLimits because of %q", to, err, why)
}

// CPU and memory can change while the process runs, and outlive the supervisor and the process.
func (b *bench) TestRelimit() {
	spec, host := b.isolated("p", `echo $$ >> pid; : > ready; exec sleep 1000`)
	spec.Isolation.PIDs = 64
	if host.Cgroup == "" {
		b.startReady(spec)
		b.keepsLimits(runtime.LimitRequest{ID: "p", CPU: 500}, "has no cgroup")
		return
	}
	spec.Isolation.CPU, spec.Isolation.Memory = 1500, 512<<20
	st := b.startReady(spec)
	to := runtime.LimitRequest{ID: "p", CPU: 700, Memory: 256 << 20}
	for range 2 { // twice, because a client repeats a request whose answer was lost
		if err := b.Runtime.Relimit(b.Context(), to); err != nil {
			b.Fatal(err)
		}
		b.wantLimits(host, 700, 256<<20)
	}
	b.node.killSupervisor(b.T)
	b.wantLimits(host, 700, 256<<20)
	after := b.await("p", "running", func(st runtime.Status) bool { return st.Phase == runtime.Running })
	b.failIf(after.PID != st.PID || after.Restarts != 0, "it runs as %+v, want pid %d", after.State, st.PID)

	again := spec
	relimited := *spec.Isolation
	relimited.CPU, relimited.Memory = 700, 256<<20
	again.Isolation = &relimited
	b.start(again) // the same as the present spec
	err := b.Runtime.Start(b.Context(), spec)
	b.failIf(!errors.Is(err, runtime.ErrExists), "start as it was: %v, want ErrExists", err)

	b.kill(st.PID)
	b.awaitPIDs(2)
	b.await("p", "restarted", func(st runtime.Status) bool { return st.Restarts == 1 && st.Phase == runtime.Running })
	b.wantLimits(host, 700, 256<<20)
}

// If a supervisor dies between a process's new limits and the record, the next one restores the record's. The client
// has no answer, and asks again.
func (b *bench) TestRelimitSupervisorDies() {
	spec, host := b.isolated("p", `: > ready; exec sleep 1000`)
	spec.Isolation.CPU, spec.Isolation.Memory = 1500, 512<<20
	st := b.startReady(spec)
	dir := filepath.Join(host.Cgroup, "p")
	if slices.Contains(host.Limits, confine.CPU) {
		if err := confine.Write(dir, "cpu.max", "70000 100000"); err != nil {
			b.Fatal(err)
		}
	}
	if slices.Contains(host.Limits, confine.Memory) {
		if err := confine.Write(dir, "memory.max", fmt.Sprint(1<<30)); err != nil {
			b.Fatal(err)
		}
	}
	b.node.killSupervisor(b.T)
	after := b.await("p", "running", func(st runtime.Status) bool { return st.Phase == runtime.Running })
	b.failIf(after.PID != st.PID, "it runs as %d, want %d", after.PID, st.PID)
	if host.Cgroup != "" {
		b.wantLimits(host, 1500, 512<<20)
	}
}

// Memory is not limited below its use, and a process without a cgroup keeps its limits.
func (b *bench) TestRelimitRefused() {
	const uses = 64 << 20
	spec, host := b.isolated("p",
		fmt.Sprintf(`x=$(head -c %d /dev/zero | tr '\0' x); : > ready; while :; do sleep 1000; done`, uses))
	st := b.startReady(spec)
	to := runtime.LimitRequest{ID: "p", CPU: 500, Memory: 16 << 20}
	switch {
	case host.Cgroup == "":
		b.keepsLimits(to, "has no cgroup")
	case slices.Contains(host.Limits, confine.Memory):
		b.keepsLimits(to, "it uses more memory than that")
		b.wantNoLimits(filepath.Join(host.Cgroup, "p"), host)
	default: // without the controller, memory is neither counted nor limited
		if err := b.Runtime.Relimit(b.Context(), to); err != nil {
			b.Error(err)
		}
		b.wantLimits(host, 500, 16<<20)
	}
	b.keepsLimits(runtime.LimitRequest{ID: "another"}, "no process")
	if err := b.Runtime.Relimit(b.Context(), runtime.LimitRequest{ID: "p", CPU: -1}); host.Cgroup != "" &&
		!errors.Is(err, runtime.ErrInvalid) {
		b.Errorf("a negative limit: %v, want ErrInvalid", err)
	}
	after, _ := b.status()
	b.failIf(after.PID != st.PID, "it runs as %d, want %d", after.PID, st.PID)
	b.stop("p")

	free := b.script("free", `: > ready; exec sleep 1000`)
	b.startReady(free)
	b.keepsLimits(runtime.LimitRequest{ID: "free", CPU: 500}, "has no cgroup")
	b.stop("free")
}

// wantNoLimits checks the controllers that the host has.
func (b *bench) wantNoLimits(dir string, host isolate.Host) {
	b.Helper()
	for controller, want := range map[string][2]string{
		confine.CPU:    {"cpu.max", "max 100000\n"},
		confine.Memory: {"memory.max", "max\n"},
	} {
		got, err := os.ReadFile(filepath.Join(dir, want[0]))
		if slices.Contains(host.Limits, controller) && string(got) != want[1] {
			b.Errorf("%s holds %q, %v; want %q", want[0], got, err, want[1])
		}
	}
}

// If the limits change between two runs, the next run has the new limits.
func (b *bench) TestRelimitBetweenRuns() {
	spec, host := b.isolated("p", `[ -e go ] || exit 1; : > ready; exec sleep 1000`)
	spec.Restart.Min, spec.Restart.Max = 20*time.Millisecond, 20*time.Millisecond
	b.start(spec)
	b.await("p", "in backoff",
		func(st runtime.Status) bool { return st.Phase == runtime.Backoff && st.LastExit != nil })
	if host.Cgroup == "" {
		b.keepsLimits(runtime.LimitRequest{ID: "p", CPU: 700}, "has no cgroup")
		return
	}
	if err := b.Runtime.Relimit(b.Context(), runtime.LimitRequest{ID: "p", CPU: 700, Memory: 256 << 20}); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(b.path("go"), nil, 0o600); err != nil {
		b.Fatal(err)
	}
	Eventually(b, "it is ready", func() bool { return b.exists("ready") })
	b.await("p", "running", func(st runtime.Status) bool { return st.Phase == runtime.Running })
	b.wantLimits(host, 700, 256<<20)
}
