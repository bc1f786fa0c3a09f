package preparer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
)

// limited makes the preparer hold its pods to limits, as far as the host can. They run as its own user.
func (b *bench) limited() isolate.Host {
	b.t.Helper()
	host := b.isolated()
	b.cfg.Isolation.Users = install.UserRange{}
	return host
}

// with returns the manifest with limits of its first process.
func with(m manifest.Manifest, cpu, memory int64) manifest.Manifest {
	m.Launchables = slices.Clone(m.Launchables)
	m.Launchables[0].Resources = manifest.Resources{CPU: manifest.Millicores(cpu), Memory: manifest.Bytes(memory)}
	return m
}

// wantLimits fails the test unless the runtime, and the kernel as far as the host has the controllers, hold a process
// of the pod to these limits.
func (b *bench) wantLimits(host isolate.Host, name string, cpu, memory int64) {
	b.t.Helper()
	b.eventually(func() error { // what the runtime has is read once in a while
		for _, s := range b.procs(0) {
			if s.Spec.Name != name || s.Phase != runtime.Running {
				continue
			}
			if iso := s.Spec.Isolation; iso == nil || iso.CPU != cpu || iso.Memory != memory {
				return fmt.Errorf("%s: isolation %+v, want cpu %d and memory %d", name, iso, cpu, memory)
			}
			for _, l := range []struct{ controller, file, want string }{
				{confine.CPU, "cpu.max", orMax(cpu*100) + " 100000\n"}, {confine.Memory, "memory.max", orMax(memory) + "\n"},
			} {
				got, err := os.ReadFile(filepath.Join(host.Cgroup, s.Spec.ID, l.file))
				if slices.Contains(host.Limits, l.controller) && string(got) != l.want {
					return fmt.Errorf("%s: %s holds %q, %w; want %q", name, l.file, got, err, l.want)
				}
			}
			return nil
		}
		return fmt.Errorf("%s does not run: %+v", name, b.procs(0))
	})
}

// orMax is a limit as a cgroup shows it; zero is none.
func orMax(limit int64) string {
	if limit == 0 {
		return "max"
	}
	return strconv.FormatInt(limit, 10)
}

// pidOf returns the pid of one of the pod's processes.
func (b *bench) pidOf(name string) (pid int) {
	b.t.Helper()
	b.eventually(func() error {
		for _, s := range b.procs(0) {
			if s.Spec.Name == name && s.Phase == runtime.Running {
				pid = s.PID
				return nil
			}
		}
		return fmt.Errorf("%s does not run: %+v", name, b.procs(0))
	})
	return pid
}

// Limits of CPU and memory alone change while the pod runs: it stays available, through a restart of the preparer and
// a crash of a process too.
func TestLimitsChangeWithoutRestart(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	host := b.limited()
	a := b.start()
	m := b.server("1")
	m.Launchables = append(m.Launchables, b.sleeper("1").Launchables[0])
	m.Launchables[1].Name = "side"
	small, large := with(m, 500, 256<<20), with(m, 700, 512<<20)
	first, second := b.upload(small), b.upload(large)
	b.tell(intent(0, first, pod.Running, 10))
	b.awaitReady(0, first, 10)
	main, side := b.pidOf("main"), b.pidOf("side")
	const away = "available=false"
	absences := strings.Count(b.log.text(), away)

	b.tell(intent(0, second, pod.Running, 20))
	b.awaitReady(0, second, 20)
	if !b.cfg.Isolation.Limits {
		if b.pidOf("main") == main {
			t.Error("it runs on, and nothing holds it to its limits")
		}
		return
	}
	same := func(what string) {
		t.Helper()
		if now := [2]int{b.pidOf("main"), b.pidOf("side")}; now != [2]int{main, side} {
			t.Errorf("%s: it runs as %v, want %v", what, now, [2]int{main, side})
		}
		if now := strings.Count(b.log.text(), away); now != absences {
			t.Errorf("%s: it was not available meanwhile", what)
		}
	}
	same("larger")
	b.wantLimits(host, "main", 700, 512<<20)
	b.wantLimits(host, "side", 0, 0)
	a.stop()
	a = b.start()
	b.awaitServing()
	b.tell(intent(0, first, pod.Running, 30))
	b.awaitReady(0, first, 30)
	same("as before, told to another preparer")
	b.wantLimits(host, "main", 500, 256<<20)
	b.tell(intent(0, second, pod.Running, 40))
	b.awaitReady(0, second, 40)
	same("once more")

	if err := syscall.Kill(main, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.eventually(func() error {
		if b.pidOf("main") == main {
			return errors.New("it was not started again")
		}
		return nil
	})
	b.wantLimits(host, "main", 700, 512<<20)
	b.awaitReady(0, second, 40)

	large.Launchables[0].Env = map[string]string{"VERSION": "2"}
	third := b.upload(large)
	b.tell(intent(0, third, pod.Running, 50))
	b.awaitReady(0, third, 50)
	if b.pidOf("side") == side {
		t.Error("another variable started nothing")
	}
	a.stop()
	b.start()
	b.tell(intent(0, third, pod.Stopped, 60))
	b.awaitState(0, pod.StateStopped, 60, "")
	if names := b.names("versions"); len(names) > 1 {
		t.Errorf("versions %v", names)
	}
}

// What cannot change while the pod runs is there after a start.
func TestLimitsChangeWithRestart(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	host := b.limited()
	if !b.cfg.Isolation.Limits {
		return // TestLimitsChangeWithoutRestart shows that it is started again
	}
	refusing := &refuser{Runtime: b.runtime}
	b.cfg.Runtime = refusing
	b.start()
	m := b.sleeper("1")
	m.Launchables = append(m.Launchables, b.sleeper("1").Launchables[0])
	m.Launchables[1].Name = "side"
	digest, revision := b.upload(with(m, 100, 64<<20)), int64(10)
	b.tell(intent(0, digest, pod.Running, revision))
	b.awaitReady(0, digest, revision)
	for i, c := range []struct {
		name    string
		refuses error // of the second process
		change  func(m *manifest.Manifest)
	}{
		{"refused", runtime.ErrKeepsLimits, func(m *manifest.Manifest) { m.Launchables[1].Resources.CPU = 300 }},
		{"an old supervisor", runtime.ErrTooOld, func(m *manifest.Manifest) { m.Launchables[1].Resources.CPU = 400 }},
		{"PIDs", nil, func(m *manifest.Manifest) { m.Launchables[0].Resources.PIDs = 70 }},
	} {
		main, side := b.pidOf("main"), b.pidOf("side")
		next := with(m, int64(200+i), 128<<20)
		c.change(&next)
		refusing.with.Store(&c.refuses)
		digest, revision = b.upload(next), revision+10
		b.tell(intent(0, digest, pod.Running, revision))
		b.awaitReady(0, digest, revision)
		if b.pidOf("main") == main || b.pidOf("side") == side {
			t.Errorf("%s: not all of it was started again", c.name)
		}
		b.wantLimits(host, "main", int64(200+i), 128<<20)
		if said := strings.Count(b.log.text(), "stopped and started for its new limits"); said != min(i+1, 2) {
			t.Errorf("%s: the log says %d times that limits could not be changed", c.name, said)
		}
	}
}

// refuser is a runtime that does not let the limits of one process be changed.
type refuser struct {
	runtime.Runtime
	with atomic.Pointer[error]
}

func (r *refuser) Relimit(ctx context.Context, to runtime.LimitRequest) error {
	if with := r.with.Load(); with != nil && *with != nil && strings.Contains(to.ID, ".side.") {
		return *with
	}
	return r.Runtime.Relimit(ctx, to)
}

// fullDisk takes no record while it is full.
type fullDisk struct {
	preparer.State
	full atomic.Bool
}

func (d *fullDisk) Save(rec preparer.Record) error {
	if d.full.Load() && rec.Installed != nil && len(rec.Installed.Former) > 0 {
		return errors.New("no space left")
	}
	return d.State.Save(rec)
}

// A preparer that dies when a pod has its new limits, and before that is on the disk, leaves a pod that has what its
// intent says in the end, whatever that is by then.
func TestPreparerDiesAmidLimits(t *testing.T) {
	t.Parallel()
	for name, back := range map[string]bool{"forth": false, "back": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			host := b.limited()
			if !b.cfg.Isolation.Limits {
				return // nothing changes in what runs
			}
			kept, err := preparer.NewDisk(filepath.Join(b.cfg.Dir, "pods"))
			if err != nil {
				t.Fatal(err)
			}
			disk := &fullDisk{State: kept}
			b.cfg.State = disk
			a := b.start()
			m := b.sleeper("1")
			first, second := b.upload(with(m, 500, 256<<20)), b.upload(with(m, 700, 512<<20))
			b.tell(intent(0, first, pod.Running, 10))
			b.awaitReady(0, first, 10)
			pid := b.pid(0)
			disk.full.Store(true)
			b.tell(intent(0, second, pod.Running, 20))
			b.awaitState(0, pod.StateFailed, 20, "no space left")
			a.stop()
			disk.full.Store(false)
			// As if it had been killed when what runs had the new limits.
			if err := b.runtime.Relimit(t.Context(), runtime.LimitRequest{ID: b.procs(0)[0].Spec.ID, CPU: 700, Memory: 512 << 20}); err != nil {
				t.Fatal(err)
			}
			if back {
				b.tell(intent(0, first, pod.Running, 30))
			}
			b.start()
			if back {
				b.awaitReady(0, first, 30)
				b.wantLimits(host, "main", 500, 256<<20)
			} else {
				b.awaitReady(0, second, 20)
				b.wantLimits(host, "main", 700, 512<<20)
			}
			b.mustKeepPID(0, pid)
		})
	}
}

// A process that waits for its next start, as it ends again and again, does not wait on when it gets other limits.
func TestLimitsOfACrashingPod(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	host := b.limited()
	b.start()
	m := b.pod(`[ -e "$POD_HOME/well" ] && exec sleep 1000000; exit 3`, "1")
	fast, slow := field.Duration(manifest.MinBackoff), field.Duration(manifest.MaxBackoff)
	m.Launchables[0].Restart = &manifest.Restart{BackoffMin: &fast, BackoffMax: &slow}
	first, second := b.upload(with(m, 500, 256<<20)), b.upload(with(m, 700, 512<<20))
	b.tell(intent(0, first, pod.Running, 10))
	b.awaitState(0, pod.StateCrashLooping, 10, "")
	if err := os.WriteFile(b.homeFile(0, "well"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.tell(intent(0, second, pod.Running, 20))
	r := b.awaitReady(0, second, 20)
	if r.Restarts != 0 {
		t.Errorf("%+v, want a first run", r)
	}
	if b.cfg.Isolation.Limits {
		b.wantLimits(host, "main", 700, 512<<20)
	}
}

// A pod that runs once runs on with other limits, and never runs again with them.
func TestLimitsOfAPodThatRunsOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	host := b.limited()
	if !b.cfg.Isolation.Limits {
		return // another version of it runs once, as ever
	}
	a := b.start()
	m := b.pod(`echo $$ >> "$POD_HOME/runs"; while [ ! -e "$POD_HOME/end" ]; do sleep 0.05; done`, "1")
	m.Launchables[0].Restart = &manifest.Restart{Policy: manifest.RestartNever}
	first, second := b.upload(with(m, 500, 256<<20)), b.upload(with(m, 700, 512<<20))
	b.tell(intent(0, first, pod.Running, 10))
	b.awaitReady(0, first, 10)
	b.tell(intent(0, second, pod.Running, 20))
	b.awaitReady(0, second, 20)
	b.wantLimits(host, "main", 700, 512<<20)
	if err := os.WriteFile(b.homeFile(0, "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.awaitState(0, pod.StateEnded, 20, "")
	a.stop()
	b.start()
	b.tell(intent(0, second, pod.Running, 30))
	b.awaitState(0, pod.StateEnded, 30, "")
	b.tell(intent(0, first, pod.Running, 40))
	b.awaitState(0, pod.StateEnded, 40, "")
	if runs := b.text(b.homeFile(0, "runs")); strings.Count(runs, "\n") != 1 {
		t.Errorf("it ran as %q, want one run", runs)
	}
}

// Other limits are as other manifests: what the node does not trust changes nothing.
func TestLimitsAreSigned(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	host := b.limited()
	b.trustOnly("key_ed25519")
	b.start()
	m := b.sleeper("1")
	first := b.uploadSigned(with(m, 500, 256<<20), "key_ed25519")
	b.tell(intent(0, first, pod.Running, 10))
	b.awaitReady(0, first, 10)
	pid := b.pid(0)
	larger := with(m, 700, 512<<20)
	second := b.uploadSigned(larger, "")
	b.tell(intent(0, second, pod.Running, 20))
	b.awaitState(0, pod.StateFailed, 20, "cannot install "+second[:12])
	b.mustKeepPID(0, pid)
	if !b.cfg.Isolation.Limits {
		return
	}
	b.wantLimits(host, "main", 500, 256<<20)
	b.uploadSigned(larger, "key_ed25519")
	b.awaitReady(0, second, 20)
	b.wantLimits(host, "main", 700, 512<<20)
	b.mustKeepPID(0, pid)
}
