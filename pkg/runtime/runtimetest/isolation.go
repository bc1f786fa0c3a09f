package runtimetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/confine"
	"github.com/rcfarm/rcfarm/pkg/runtime/isolate"
)

// isolationTests are about what keeps a process from the rest of the node. What the host cannot do must be refused with a
// reason, or left out where the seam says so: that is asserted too, so that no host passes without being tested.
func isolationTests() []test {
	return []test{
		{"IsolationUser", testIsolationUser},
		{"IsolationUserIsAskedForFiles", testIsolationUserIsAskedForFiles},
		{"IsolationTmp", testIsolationTmp},
		{"IsolationFails", testIsolationFails},
		{"IsolationStopEndsCgroup", testIsolationStopEndsCgroup},
		{"IsolationCrashEndsCgroup", testIsolationCrashEndsCgroup},
		{"IsolationSupervisorDies", testIsolationSupervisorDies},
		{"IsolationLimits", testIsolationLimits},
	}
}

// The user that tests run processes as. Nobody has the number.
const (
	someUID  = 1_900_000_017
	someGID  = 1_900_000_018
	moreGID  = 1_900_000_019
	lastSome = moreGID
)

// isolated returns the spec of a script that lives apart as far as the host allows, and what it allows.
func (b *bench) isolated(t *testing.T, id, script string) (runtime.Spec, isolate.Host) {
	t.Helper()
	host := isolate.Probe("rcfarm-test-" + filepath.Base(filepath.Dir(b.dir)))
	t.Cleanup(func() {
		if host.Cgroup == "" {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Timeout)
		defer cancel()
		if err := b.Runtime.Stop(ctx, id); err != nil { // else it would be started again
			t.Errorf("stop %s: %v", id, err)
		}
		Eventually(t, "the test's cgroup is empty", func() bool { return isolate.Kill(host.Cgroup) == nil && isolate.Remove(host.Cgroup) == nil })
	})
	spec := b.script(id, script)
	spec.Isolation = &runtime.Isolation{UID: os.Getuid(), GID: os.Getgid()}
	if host.Cgroup != "" {
		spec.Isolation.Cgroup = filepath.Join(host.Cgroup, id)
	}
	return spec, host
}

// refused waits until the runtime says that the process cannot be started for one of the reasons.
func (b *bench) refused(t *testing.T, id string, reasons ...string) {
	t.Helper()
	st := b.await(t, id, fmt.Sprintf("refused for one of %q", reasons), func(st runtime.Status) bool {
		named := slices.ContainsFunc(reasons, func(r string) bool { return strings.Contains(st.Message, r) })
		return st.Phase == runtime.Backoff && named
	})
	if st.PID != 0 || b.exists("ready") {
		t.Errorf("status %+v, the program ran: %t; want no run", st, b.exists("ready"))
	}
	b.stop(t, id)
}

// open lets every user of the node into the test's directory.
func (b *bench) open(t *testing.T) {
	t.Helper()
	for dir, mode := range map[string]os.FileMode{filepath.Dir(b.dir): 0o755, b.dir: 0o777} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
	}
}

func testIsolationUser(t *testing.T, b *bench) {
	spec, host := b.isolated(t, "p", `
exec > facts.new
id -u; id -g; id -G
grep -E '^(Uid|Gid|NoNewPrivs|CapEff|CapPrm)' /proc/self/status
echo again > /dev/stderr
mv facts.new facts; : > ready; exec sleep 1000`)
	b.open(t)
	spec.Isolation.UID, spec.Isolation.GID, spec.Isolation.Groups = someUID, someGID, []int{moreGID}
	spec.Isolation.NoNewPrivileges = true
	b.start(t, spec)
	if !host.Mapped(someUID, lastSome) {
		b.refused(t, "p", "take groups", "become group", "become user", "join cgroup", "open log")
		return
	}
	Eventually(t, "it is ready", func() bool { return b.exists("ready") })
	four := func(id int) string { return strings.Repeat(fmt.Sprintf("\t%d", id), 4) }
	want := fmt.Sprintf("%d\n%d\n%d %d\nUid:%s\nGid:%s\nCapPrm:\t%016x\nCapEff:\t%016x\nNoNewPrivs:\t1\n",
		someUID, someGID, someGID, moreGID, four(someUID), four(someGID), 0, 0)
	if got := b.read(t, "facts"); got != want {
		t.Errorf("it is\n%swant\n%s", got, want)
	}
	if log := b.read(t, "p.log"); log != "again\n" {
		t.Errorf("log %q, want what was written to the reopened stderr", log)
	}
	info, err := os.Stat(b.path("p.log"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm()&0o007 != 0 {
		t.Errorf("log has mode %04o, open to others", info.Mode().Perm())
	}
}

// Program, directory and files are opened as the user that the program runs as, not as root.
func testIsolationUserIsAskedForFiles(t *testing.T, b *bench) {
	closed := b.path("closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	spec, host := b.isolated(t, "p", `: > ../ready; exec sleep 1000`)
	b.open(t)
	spec.Dir = closed
	spec.Isolation.UID, spec.Isolation.GID = someUID, someGID
	b.start(t, spec)
	if !host.Mapped(someUID, lastSome) {
		b.refused(t, "p", "take groups", "become group", "become user", "join cgroup", "open log")
		return
	}
	b.refused(t, "p", closed)
}

func testIsolationTmp(t *testing.T, b *bench) {
	tmp, mark := b.path("tmp"), "mark-"+filepath.Base(filepath.Dir(b.dir))
	if err := os.Mkdir(tmp, 0o777); err != nil {
		t.Fatal(err)
	}
	spec, host := b.isolated(t, "p", `: > /tmp/`+mark+`; ls -a /var/tmp; grep -c ' /tmp .*nosuid,nodev' /proc/self/mountinfo; echo end; exec sleep 1000`)
	spec.Dir = "/"
	spec.Isolation.Tmp = tmp
	b.start(t, spec)
	if !host.Tmp {
		b.refused(t, "p", "make a mount namespace", "detach from the node's mounts", "mount private tmp", "join cgroup")
		return
	}
	Eventually(t, "it has looked", func() bool { return strings.HasSuffix(b.read(t, "p.log"), "end\n") })
	if got, want := b.read(t, "p.log"), ".\n..\n"+mark+"\n1\nend\n"; got != want {
		t.Errorf("it sees\n%swant\n%s", got, want)
	}
	if !b.exists("tmp/" + mark) {
		t.Error("what it wrote is not in its directory")
	}
	if _, err := os.Stat("/tmp/" + mark); err == nil {
		t.Error("what it wrote is in the node's /tmp")
	}
}

// A program never runs less isolated than asked.
func testIsolationFails(t *testing.T, b *bench) {
	spec, host := b.isolated(t, "p", `: > ready; exec sleep 1000`)
	spec.Isolation.Tmp = b.path("no-such-directory")
	b.start(t, spec)
	want := "make a mount namespace"
	if host.Tmp {
		want = spec.Isolation.Tmp
	}
	b.refused(t, "p", want, "join cgroup")
	outside, _ := b.isolated(t, "outside", `: > ready; exec sleep 1000`)
	outside.Isolation.Cgroup = b.path("no-cgroup")
	b.start(t, outside)
	b.refused(t, "outside", "make cgroup "+outside.Isolation.Cgroup)
}

// escape leaves a process behind that has left session and group of its leader, and its parent too.
const escape = `
: > pids
export LOOP='trap "" TERM; echo $$ >> pids; while :; do sleep 0.01; done'
setsid sh -c 'sh -c "$LOOP" & eval "$LOOP"' &
while [ $(wc -l < pids) -lt 2 ]; do sleep 0.01; done
`

func testIsolationStopEndsCgroup(t *testing.T, b *bench) {
	spec, host := b.isolated(t, "p", `trap 'exit 0' TERM;`+escape+`: > ready; while :; do sleep 0.01; done`)
	spec.StopGrace = leaderGrace
	st := b.startReady(t, spec)
	if host.Cgroup == "" {
		b.stop(t, "p")
		endEscaped(t, b)
		return
	}
	if in, err := isolate.Members(spec.Isolation.Cgroup); err != nil || !slices.Contains(in, st.PID) || len(in) < 3 {
		t.Errorf("cgroup holds %v, %v; want %d and two that left its session", in, err, st.PID)
	}
	b.stop(t, "p")
	wantGone(t, append(b.pids(t, "pids"), st.PID)...)
	b.wantNoCgroup(t, spec)
}

func testIsolationCrashEndsCgroup(t *testing.T, b *bench) {
	spec, host := b.isolated(t, "p", `[ -e second ] && exec sleep 1000; : > second;`+escape+`: > ready; exit 1`)
	b.startReady(t, spec)
	st := b.await(t, "p", "restarted", func(st runtime.Status) bool { return st.Restarts == 1 && st.Phase == runtime.Running })
	if host.Cgroup == "" {
		b.stop(t, "p")
		endEscaped(t, b)
		return
	}
	wantGone(t, b.pids(t, "pids")...)
	if in, err := isolate.Members(spec.Isolation.Cgroup); err != nil || !slices.Equal(in, []int{st.PID}) {
		t.Errorf("cgroup holds %v, %v; want %d alone", in, err, st.PID)
	}
	kill(t, st.PID)
	b.stop(t, "p")
	b.wantNoCgroup(t, spec)
}

func testIsolationSupervisorDies(t *testing.T, b *bench) {
	spec, host := b.isolated(t, "p", escape+`: > ready; while :; do sleep 0.01; done`)
	spec.Restart.Policy = runtime.Never // another run would join the same cgroup
	st := b.startReady(t, spec)
	b.KillSupervisor(t)
	kill(t, st.PID) // what it leaves behind is found by the cgroup alone
	b.await(t, "p", "exited", exited)
	if host.Cgroup == "" {
		endEscaped(t, b)
		return
	}
	wantGone(t, b.pids(t, "pids")...)
	b.wantNoCgroup(t, spec)
}

// endEscaped ends what a runtime cannot find without cgroups.
func endEscaped(t *testing.T, b *bench) {
	t.Helper()
	for _, pid := range b.pids(t, "pids") {
		if !Alive(pid) {
			t.Errorf("process %d was ended without a cgroup: the note about this gap is out of date", pid)
			continue
		}
		kill(t, pid)
	}
}

func (b *bench) wantNoCgroup(t *testing.T, spec runtime.Spec) {
	t.Helper()
	if _, err := os.Stat(spec.Isolation.Cgroup); err == nil {
		t.Errorf("cgroup %s is left behind", spec.Isolation.Cgroup)
	}
}

// Limits hold where the host has their controllers; where it has not, the process runs without.
func testIsolationLimits(t *testing.T, b *bench) {
	spec, host := b.isolated(t, "p", `: > ready; exec sleep 1000`)
	if host.Cgroup == "" {
		if len(host.Limits) > 0 || !slices.ContainsFunc(host.Without, func(s string) bool { return strings.HasPrefix(s, "cgroup: ") }) {
			t.Errorf("without cgroups the host offers limits %v, and says %q", host.Limits, host.Without)
		}
		b.startReady(t, spec)
		return
	}
	spec.Isolation.CPU, spec.Isolation.Memory, spec.Isolation.PIDs = 1500, 512<<20, 64
	b.startReady(t, spec)
	for _, limit := range []struct{ controller, file, want string }{
		{confine.CPU, "cpu.max", "150000 100000\n"},
		{confine.Memory, "memory.max", "536870912\n"},
		{confine.Memory, "memory.oom.group", "1\n"},
		{confine.PIDs, "pids.max", "64\n"},
	} {
		said := slices.ContainsFunc(host.Without, func(s string) bool { return strings.HasPrefix(s, limit.controller+" limit: ") })
		has := slices.Contains(host.Limits, limit.controller)
		if said == has {
			t.Errorf("%s: offered %t, said to be missing %t", limit.controller, has, said)
		}
		got, err := os.ReadFile(filepath.Join(spec.Isolation.Cgroup, limit.file))
		if has && string(got) != limit.want || !has && !os.IsNotExist(err) {
			t.Errorf("%s holds %q, %v; want %q if it is offered: %t", limit.file, got, err, limit.want, has)
		}
	}
}
