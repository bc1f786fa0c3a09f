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

// limited sets all limits that the host supports. Pods run as the preparer's user.
func (b *bench) limited() isolate.Host {
	b.t.Helper()
	host := b.isolated()
	b.cfg.Isolation.Users = install.UserRange{}
	return host
}

func with(m manifest.Manifest, cpu, memory int64) manifest.Manifest {
	m.Launchables = slices.Clone(m.Launchables)
	m.Launchables[0].Resources = manifest.Resources{CPU: manifest.Millicores(cpu), Memory: manifest.Bytes(memory)}
	return m
}

// wantLimits: the runtime, and the kernel if it has the controllers, must have these limits.
func (b *bench) wantLimits(host isolate.Host, name string, cpu, memory int64) {
	b.t.Helper()
	b.eventually(func() error {
		for _, s := range b.procs(0) {
			if s.Spec.Name != name || s.Phase != runtime.Running {
				continue
			}
			if iso := s.Spec.Isolation; iso == nil || iso.CPU != cpu || iso.Memory != memory {
				return fmt.Errorf("%s: isolation %+v, want cpu %d and memory %d", name, iso, cpu, memory)
			}
			for _, l := range []struct{ controller, file, want string }{
				{confine.CPU, "cpu.max", orMax(cpu*100) + " 100000\n"},
				{confine.Memory, "memory.max", orMax(memory) + "\n"},
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

// orMax writes a limit as cgroups do; zero means none.
func orMax(limit int64) string {
	if limit == 0 {
		return "max"
	}
	return strconv.FormatInt(limit, 10)
}

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

// If only CPU and memory change, no process restarts, and the pod stays available. The limits outlive a restart of the
// preparer and a crash of a process.
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
	b.write(intent(0, first, pod.Running, 10))
	b.awaitReady(0, first, 10)
	main, side := b.pidOf("main"), b.pidOf("side")
	const away = "available=false"
	absences := strings.Count(b.log.text(), away)

	b.write(intent(0, second, pod.Running, 20))
	b.awaitReady(0, second, 20)
	if !b.cfg.Isolation.Limits {
		if b.pidOf("main") == main {
			t.Error("it runs on without its limits")
		}
		return
	}
	same := func(what string) {
		t.Helper()
		if now := [2]int{b.pidOf("main"), b.pidOf("side")}; now != [2]int{main, side} {
			t.Errorf("%s: it runs as %v, want %v", what, now, [2]int{main, side})
		}
		if now := strings.Count(b.log.text(), away); now != absences {
			t.Errorf("%s: the pod was not available meanwhile", what)
		}
	}
	same("larger")
	b.wantLimits(host, "main", 700, 512<<20)
	b.wantLimits(host, "side", 0, 0)
	a.stop()
	a = b.start()
	b.awaitServing()
	b.write(intent(0, first, pod.Running, 30))
	b.awaitReady(0, first, 30)
	same("as before, after a restart of the preparer")
	b.wantLimits(host, "main", 500, 256<<20)
	b.write(intent(0, second, pod.Running, 40))
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
	b.write(intent(0, third, pod.Running, 50))
	b.awaitReady(0, third, 50)
	if b.pidOf("side") == side {
		t.Error("a changed variable did not restart the process")
	}
	a.stop()
	b.start()
	b.write(intent(0, third, pod.Stopped, 60))
	b.awaitState(0, pod.StateStopped, 60, "")
	if names := b.names("versions"); len(names) > 1 {
		t.Errorf("versions %v", names)
	}
}

// A limit that cannot change while the pod runs restarts it.
func TestLimitsThatCannotChangeRestartThePod(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	host := b.limited()
	if !b.cfg.Isolation.Limits {
		return // TestLimitsChangeWithoutRestart covers this host
	}
	refusing := &refuser{Runtime: b.runtime}
	b.cfg.Runtime = refusing
	b.start()
	m := b.sleeper("1")
	m.Launchables = append(m.Launchables, b.sleeper("1").Launchables[0])
	m.Launchables[1].Name = "side"
	digest, revision := b.upload(with(m, 100, 64<<20)), int64(10)
	b.write(intent(0, digest, pod.Running, revision))
	b.awaitReady(0, digest, revision)
	for i, c := range []struct {
		name    string
		refuses error // error for the second process
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
		b.write(intent(0, digest, pod.Running, revision))
		b.awaitReady(0, digest, revision)
		if b.pidOf("main") == main || b.pidOf("side") == side {
			t.Errorf("%s: not all processes were started again", c.name)
		}
		b.wantLimits(host, "main", int64(200+i), 128<<20)
		if n := strings.Count(b.log.text(), "stopped and started for its new limits"); n != min(i+1, 2) {
			t.Errorf("%s: the log says %d times that limits could not be changed", c.name, n)
		}
	}
}

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

// fullDisk, while full, does not save versions whose limits were changed.
type fullDisk struct {
	preparer.State
	full atomic.Bool
}

func (f *fullDisk) Save(rec preparer.Record) error {
	if f.full.Load() && rec.Installed != nil && len(rec.Installed.Former) > 0 {
		return errors.New("no space left")
	}
	return f.State.Save(rec)
}

// If the preparer dies between a process's new limits and the record, the next one gives the process the intent's
// limits, old or new.
func TestChangeOfLimitsIsCompletedAfterACrash(t *testing.T) {
	t.Parallel()
	for name, back := range map[string]bool{"forth": false, "back": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			host := b.limited()
			if !b.cfg.Isolation.Limits {
				return // this host cannot change limits of running processes
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
			b.write(intent(0, first, pod.Running, 10))
			b.awaitReady(0, first, 10)
			pid := b.pid(0)
			disk.full.Store(true)
			b.write(intent(0, second, pod.Running, 20))
			b.awaitState(0, pod.StateFailed, 20, "no space left")
			a.stop()
			disk.full.Store(false)
			// As if it was killed when the process had the new limits.
			larger := runtime.LimitRequest{ID: b.procs(0)[0].Spec.ID, CPU: 700, Memory: 512 << 20}
			if err := b.runtime.Relimit(t.Context(), larger); err != nil {
				t.Fatal(err)
			}
			if back {
				b.write(intent(0, first, pod.Running, 30))
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

// A crash-looping process that gets other limits is started at once.
func TestNewLimitsStartACrashLoopingPodAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	host := b.limited()
	b.start()
	m := b.pod(`[ -e "$POD_HOME/well" ] && exec sleep 1000000; exit 3`, "1")
	fast, slow := field.Duration(manifest.MinBackoff), field.Duration(manifest.MaxBackoff)
	m.Launchables[0].Restart = &manifest.Restart{BackoffMin: &fast, BackoffMax: &slow}
	first, second := b.upload(with(m, 500, 256<<20)), b.upload(with(m, 700, 512<<20))
	b.write(intent(0, first, pod.Running, 10))
	b.awaitState(0, pod.StateCrashLooping, 10, "")
	if err := os.WriteFile(b.homeFile(0, "well"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.write(intent(0, second, pod.Running, 20))
	r := b.awaitReady(0, second, 20)
	if r.Restarts != 0 {
		t.Errorf("%+v, want a first run", r)
	}
	if b.cfg.Isolation.Limits {
		b.wantLimits(host, "main", 700, 512<<20)
	}
}

// A pod that runs once continues with other limits, and is not started again.
func TestNewLimitsDoNotRestartAPodThatRunsOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	host := b.limited()
	if !b.cfg.Isolation.Limits {
		return // on this host, new limits make a new version, which runs once more
	}
	a := b.start()
	m := b.pod(`echo $$ >> "$POD_HOME/runs"; while [ ! -e "$POD_HOME/end" ]; do sleep 0.05; done`, "1")
	m.Launchables[0].Restart = &manifest.Restart{Policy: manifest.RestartNever}
	first, second := b.upload(with(m, 500, 256<<20)), b.upload(with(m, 700, 512<<20))
	b.write(intent(0, first, pod.Running, 10))
	b.awaitReady(0, first, 10)
	b.write(intent(0, second, pod.Running, 20))
	b.awaitReady(0, second, 20)
	b.wantLimits(host, "main", 700, 512<<20)
	if err := os.WriteFile(b.homeFile(0, "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.awaitState(0, pod.StateEnded, 20, "")
	a.stop()
	b.start()
	b.write(intent(0, second, pod.Running, 30))
	b.awaitState(0, pod.StateEnded, 30, "")
	b.write(intent(0, first, pod.Running, 40))
	b.awaitState(0, pod.StateEnded, 40, "")
	if runs := b.text(b.homeFile(0, "runs")); strings.Count(runs, "\n") != 1 {
		t.Errorf("it ran as %q, want one run", runs)
	}
}

// A manifest with other limits needs a signature, too.
func TestNewLimitsNeedASignatureUnderATrustPolicy(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	host := b.limited()
	b.trustOnly("key_ed25519")
	b.start()
	m := b.sleeper("1")
	first := b.uploadSigned(with(m, 500, 256<<20), "key_ed25519")
	b.write(intent(0, first, pod.Running, 10))
	b.awaitReady(0, first, 10)
	pid := b.pid(0)
	larger := with(m, 700, 512<<20)
	second := b.uploadSigned(larger, "")
	b.write(intent(0, second, pod.Running, 20))
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
