package shim_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/internal/disktest"
	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
)

// Even a busy machine starts a process within dogTimeout.
const dogTimeout = 3 * time.Second

// On a busy machine a process may stop late.
const late = 20 * time.Second

const longAgo = 2 * dogTimeout

// renew dates the note back. The machine must be up for that long.
func (b *bench) renew(ago time.Duration) (at proc.Moment) {
	b.Helper()
	Eventually(b, fmt.Sprintf("the machine is up for %s", ago), func() bool { at = b.now(); return at.Up > ago })
	at.Up -= ago
	if err := proc.WriteNote(b.path("note"), at); err != nil {
		b.Fatal(err)
	}
	return at
}

func (b *bench) now() proc.Moment {
	b.Helper()
	now, err := proc.Now()
	if err != nil {
		b.Fatal(err)
	}
	return now
}

func (b *bench) watched(spec runtime.Spec) runtime.Spec {
	b.Helper()
	b.renew(0)
	spec.Watchdog = &runtime.Watchdog{Note: b.path("note"), Timeout: dogTimeout}
	return spec
}

// wantExpired waits until "p" has stopped by itself, dogTimeout to dogTimeout+late after the note's time.
func (b *bench) wantExpired(note proc.Moment) {
	b.Helper()
	st := b.await("p", "stopped by itself", func(st runtime.Status) bool { return st.Phase == runtime.Stopped })
	if took := b.now().Since(note); took < dogTimeout || took > dogTimeout+late {
		b.Errorf("stopped %s after the note, want %s", took, dogTimeout)
	}
	b.failIf(st.PID != 0, "stopped with pid %d", st.PID)
}

// wantDown: two more supervisors do not start the process, but Start does.
func (b *bench) wantDown(spec runtime.Spec) {
	b.Helper()
	runs := len(b.pids("pid"))
	b.renew(0)
	for range 2 { // the second supervisor must do the same
		b.await("p", "still stopped", func(st runtime.Status) bool { return st.Phase == runtime.Stopped })
		b.node.killSupervisor(b.T)
	}
	b.await("p", "still stopped", func(st runtime.Status) bool { return st.Phase == runtime.Stopped })
	b.failIf(len(b.pids("pid")) != runs, "it ran again")
	b.renew(0)
	b.start(spec)
	b.awaitPIDs(runs + 1)
}

// Without renewed notes, only this process and all that it has started end, even if they ignore signals.
func (b *bench) TestWatchdogStops() {
	other := b.script("other", `echo $$ >> other; exec sleep 1000`)
	b.start(other)
	spec := b.script("p", `: > pids; echo $$ >> pid; trap 'echo asked' TERM;`+family+`while :; do sleep 0.01; done`)
	spec.StopGrace = 300 * time.Millisecond
	spec = b.watched(spec)
	note := b.renew(0)
	st := b.startReady(spec)
	b.failIf(!b.Runtime.Features().Watchdogs, "the runtime does not say that it knows watchdogs")
	b.failIf(st.Spec.Watchdog == nil || *st.Spec.Watchdog != *spec.Watchdog, "its watchdog is %+v", st.Spec.Watchdog)
	b.wantExpired(note)
	b.wantGone(append(b.pids("pids"), st.PID)...)
	b.wantStopped("-1 SIGKILL")
	b.wantLog("p.log", strings.Contains, "asked")
	b.wantDown(spec)
	b.failIf(len(b.pids("other")) != 1 || !Alive(b.pids("other")[0]), "a process without a watchdog was touched")
}

// With a cgroup, descendants in any session end too.
func (b *bench) TestWatchdogStopsWhatEscaped() {
	spec, host := b.isolated("p", `
setsid sh -c 'trap "" TERM; echo $$ >> escaped; while :; do sleep 0.01; done' &
while ! [ -s escaped ]; do sleep 0.01; done
echo $$ >> pid; : > ready; exec sleep 1000`)
	spec.StopGrace = 300 * time.Millisecond
	spec = b.watched(spec)
	note := b.renew(0)
	b.startReady(spec)
	b.wantExpired(note)
	escaped := b.pids("escaped")
	if host.Cgroup == "" { // without a cgroup, the watchdog may not find it
		for _, pid := range escaped {
			b.kill(pid)
		}
		return
	}
	b.wantGone(escaped...)
}

func (b *bench) TestWatchdogRenewed() {
	spec := b.watched(b.script("p", idle))
	first := b.startReady(spec)
	began := b.now()
	Eventually(b, "twice the timeout has passed", func() bool { return b.renew(0).Since(began) > 2*dogTimeout })
	st, _ := b.status()
	b.failIf(st.PID != first.PID || st.Phase != runtime.Running, "it is %s with pid %d, want it to run on as %d",
		st.Phase, st.PID, first.PID)
	b.node.killSupervisor(b.T) // the next supervisor reads the note too
	note := b.renew(0)
	st = b.await("p", "taken over", func(st runtime.Status) bool { return st.Phase == runtime.Running })
	b.failIf(st.PID != first.PID, "it runs as %d, want %d", st.PID, first.PID)
	b.wantExpired(note)
}

// After an invalid note, the latest valid time applies.
func (b *bench) TestWatchdogWithoutNote() {
	future, elsewhere := b.now(), b.now()
	future.Up += time.Hour
	elsewhere.Boot = "another"
	for name, spoil := range map[string]func(path string) error{
		"missing": os.Remove,
		"empty":   func(path string) error { return os.Truncate(path, 0) },
		"garbage": func(path string) error {
			return os.WriteFile(path, []byte("{"), 0o600)
		},
		"nothing": func(path string) error {
			return os.WriteFile(path, []byte("null"), 0o600)
		},
		"half written":                         func(path string) error { return os.Truncate(path, 20) },
		"of the future, as the clock never is": func(path string) error { return proc.WriteNote(path, future) },
		"of another start of the machine":      func(path string) error { return proc.WriteNote(path, elsewhere) },
		"a directory": func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.Mkdir(path, 0o700)
		},
		"on a disk that hangs": func(path string) error { // an open of this pipe waits for a writer
			if err := os.Remove(path); err != nil {
				return err
			}
			return unix.Mkfifo(path, 0o600)
		},
	} {
		b.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &bench{T: t, node: newNode(t), dir: t.TempDir()}
			b.Runtime = b.node.Client
			spec := b.watched(b.script("p", idle))
			note := b.renew(0)
			b.startReady(spec)
			if err := spoil(b.path("note")); err != nil {
				t.Fatal(err)
			}
			b.wantExpired(note)
			b.wantStopped("-1 SIGTERM")
			if err := os.RemoveAll(b.path("note")); err != nil {
				t.Fatal(err)
			}
			b.wantDown(spec)
		})
	}
}

// Without any note, time counts from the process's start.
func (b *bench) TestWatchdogWithoutAnyNote() {
	spec := b.watched(b.script("p", idle))
	if err := os.Remove(b.path("note")); err != nil {
		b.Fatal(err)
	}
	before := b.now()
	b.startReady(spec)
	b.wantExpired(before)
}

// The time runs on without a supervisor, and the next one does not begin again.
func (b *bench) TestWatchdogOfAnEarlierSupervisor() {
	spec := b.watched(b.script("p", idle))
	st := b.startReady(spec)
	b.node.killSupervisor(b.T)
	note := b.renew(longAgo)
	b.await("p", "stopped at once", func(st runtime.Status) bool { return st.Phase == runtime.Stopped })
	b.failIf(b.now().Since(note) > longAgo+late, "it counted anew")
	b.wantGone(st.PID)
	b.wantDown(spec)
}

// A crashed process is started again as long as the note is valid. After that, the next supervisor does not start it
// either.
func (b *bench) TestWatchdogInACrashLoop() {
	spec := b.watched(b.script("p", `echo $$ >> pid; exit 1`))
	note := b.renew(0)
	b.start(spec)
	Eventually(b, "three runs", func() bool {
		note = b.renew(0) // on a busy machine, three runs take longer than the time of one note
		return strings.Count(b.read("pid"), "\n") >= 3
	})
	b.wantExpired(note)
	spec.Restart = runtime.Restart{Min: time.Hour, Max: time.Hour}
	b.stop("p")
	b.removeTwice()
	runs := len(b.pids("pid"))
	b.renew(0)
	b.start(spec)
	b.await("p", "waiting for its next start", func(st runtime.Status) bool { return st.Phase == runtime.Backoff })
	b.node.killSupervisor(b.T)
	b.renew(0)
	b.await("p", "stopped", func(st runtime.Status) bool { return st.Phase == runtime.Stopped })
	b.failIf(len(b.pids("pid")) != runs+1, "it ran again")
	b.wantDown(spec)
}

// While a process stops by itself, Stop and Start work as usual.
func (b *bench) TestWatchdogAndRequests() {
	spec := b.watched(
		b.script("p",
			`echo $$ >> pid; trap 'while ! [ -e go ]; do sleep 0.01; done; exit 0' TERM; : > ready; while :; do sleep 0.01; done`))
	spec.StopGrace = Timeout
	first := b.startReady(spec)
	b.renew(longAgo)
	b.await("p", "stopping", func(st runtime.Status) bool { return st.Phase == runtime.Stopping })
	if err := b.Runtime.Remove(b.Context(), "p"); err == nil {
		b.Error("a process was removed that still runs")
	}
	ended := make(chan error, 2)
	b.renew(0)
	go func() { ended <- b.Runtime.Stop(b.Context(), "p") }()
	if err := os.WriteFile(b.path("go"), nil, 0o600); err != nil {
		b.Fatal(err)
	}
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
	b.wantGone(first.PID)
	b.wantStopped("0")
	b.start(spec)
	b.awaitPIDs(2)
	b.stop("p")
	b.removeTwice()
}

func (b *bench) TestWatchdogInvalid() {
	for _, dog := range []runtime.Watchdog{{Note: "note", Timeout: 1}, {Note: "/note"}, {Note: "/note", Timeout: -1}} {
		spec := b.script("p", idle)
		spec.Watchdog = &dog
		err := b.Runtime.Start(b.Context(), spec)
		b.failIf(err == nil || !strings.Contains(err.Error(), "watchdog."), "%+v: %v", dog, err)
	}
	spec := b.watched(b.script("p", idle))
	b.start(spec)
	b.start(spec)
	spec.Watchdog = nil
	b.wantOther(spec)
}

// On a full disk, an expired process still stops.
func TestWatchdogOnAFullDisk(t *testing.T) {
	disktest.Run(t, 4<<20, func(t *testing.T, disk string) {
		t.Setenv("TMPDIR", disk)
		n := newNode(t)
		b := &bench{T: t, Runtime: n.Client, node: n, dir: n.Dir}
		spec := b.watched(b.script("p", idle))
		spec.Watchdog.Timeout = late // so long that the disk is full before
		st := b.startReady(spec)
		spare := b.path("state/p.json" + durable.SpareSuffix)
		if err := os.Truncate(spare, 0); err != nil { // removes the space that was reserved for the record
			t.Fatal(err)
		}
		filler := disktest.Fill(t, disk)
		b.renew(late + time.Second) // written in place, which needs no space
		n.killSupervisor(t)
		ended := func(st runtime.Status) bool { return st.Phase == runtime.Stopping && st.PID == 0 }
		b.await("p", "ended", ended)
		b.wantGone(st.PID)
		n.killSupervisor(t) // the disk does not have the stop
		b.renew(0)
		b.await("p", "not started", ended)
		b.failIf(os.Remove(filler) != nil, "no room was made")
		b.await("p", "stopped", stopped)
		b.failIf(len(b.pids("pid")) != 1, "it ran again")
	})
}

// A supervisor that was suspended stops expired processes when it continues.
func TestWatchdogOfASuspendedSupervisor(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	b := &bench{T: t, Runtime: n.Client, node: n, dir: n.Dir}
	spec := b.watched(b.script("p", idle))
	note := b.renew(0)
	b.startReady(spec)
	for _, sig := range []unix.Signal{unix.SIGSTOP, unix.SIGCONT} {
		for _, pid := range n.supervisors(t) {
			if err := unix.Kill(pid, sig); err != nil {
				t.Fatal(fmt.Errorf("signal %d: %w", pid, err))
			}
		}
		if sig == unix.SIGSTOP {
			Eventually(t, "its time has passed", func() bool { return b.now().Since(note) > dogTimeout })
		}
	}
	b.wantExpired(note)
}
