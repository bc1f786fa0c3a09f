package runit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	goruntime "runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/confine"
	"github.com/rcfarm/rcfarm/pkg/runtime/isolate"
	"github.com/rcfarm/rcfarm/pkg/runtime/logfile"
	"github.com/rcfarm/rcfarm/pkg/runtime/proc"
)

// StubArg is the first argument of a process that is to call ExecStub before anything else.
const StubArg = "runit-exec"

// What a stub is for, its second argument.
const (
	runMode    = "run"    // wait for the restart's time to come, then become the program
	finishMode = "finish" // clear up after the program; then its exit status and signal as runsv gives them
	detachMode = "detach" // start a keeper that is nobody's child and go; then the runtime's directory
	keeperMode = "keeper" // become runsvdir; then the runtime's directory
)

// ExecStub is the whole life of a stub. The program that calls Open calls it first thing in main when os.Args[1] is
// StubArg. It never returns.
func ExecStub() {
	goruntime.LockOSThread() // the kernel keeps the signal of a parent's death per thread
	err := errors.New("not for use by hand")
	switch args := os.Args[2:]; {
	case len(args) >= 1 && args[0] == runMode:
		err = inService((*stub).run)
	case len(args) >= 3 && args[0] == finishMode:
		err = inService(func(s *stub) error { return s.finish(args[1], args[2]) })
	case len(args) == 2 && args[0] == detachMode:
		err = detach(args[1])
	case len(args) == 2 && args[0] == keeperMode:
		err = becomeKeeper(layout(args[1]))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s %s: %v\n", time.Now().UTC().Format(time.RFC3339), os.Args[1:], err)
		os.Exit(1)
	}
	os.Exit(0)
}

// stub works on one service for the runsv that started it.
type stub struct {
	service
	boot    string
	self    run
	runsv   run
	scanner proc.Scanner
}

// inService runs a stub in its working directory, which runsv has chosen. It dies with its runsv, so that no two wait
// for the same.
func inService(do func(*stub) error) error {
	if err := dieWithParent(unix.SIGKILL); err != nil {
		return err
	}
	dir, err := syscall.Getwd() // not os.Getwd, which believes $PWD
	if err != nil {
		return fmt.Errorf("find the service: %w", err)
	}
	s := &stub{service: service(dir)}
	if s.self, err = self(); err != nil {
		return err
	}
	if s.runsv, err = identify(os.Getppid()); err != nil {
		return err
	}
	s.boot = s.self.Boot
	return do(s)
}

func dieWithParent(sig unix.Signal) error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(sig), 0, 0, 0); err != nil {
		return fmt.Errorf("ask for the signal of a parent's death: %w", err)
	}
	return nil
}

// run becomes the program when the record wants it, or returns when there is nothing to start.
func (s *stub) run() error {
	ctx := context.Background()
	for {
		lock, err := s.lock(ctx)
		if err != nil {
			return err
		}
		rec, err := s.load()
		if err != nil {
			return errors.Join(err, s.rest()) // nothing is known, so nothing may be done
		}
		if rec.hold(s.boot) {
			return errors.Join(s.save(rec), s.rest())
		}
		due := rec.due(time.Now())
		switch {
		case rec.PID != 0:
			if err := s.attend(ctx, lock, rec); err != nil {
				return err
			}
		case rec.resting():
			return s.rest()
		case due > 0: // SIGTERM, which runsv sends when it is to go down, ends the wait and this stub
			lock.release()
			<-time.After(due)
		default:
			return s.become(rec)
		}
	}
}

// attend stays with a process that an earlier runsv started until nothing of it is left. It takes the lock over.
func (s *stub) attend(ctx context.Context, lock *held, rec record) error {
	p, err := rec.find(s.boot)
	if err != nil {
		return err
	}
	defer p.Close()
	if !p.Exited() {
		lock.release()
		signal.Ignore(unix.SIGTERM) // a stop is for the process; this stub ends after it
		defer signal.Reset(unix.SIGTERM)
		if err := p.Wait(ctx); err != nil {
			return err
		}
		if lock, err = s.lock(ctx); err != nil {
			return err
		}
		was := rec.run
		if rec, err = s.load(); err != nil || rec.run != was {
			lock.release()
			return err
		}
	}
	return s.clear(ctx, lock, rec, p, unknownExit(rec.Spec.Name, time.Now()))
}

// finish clears up after the process that its runsv started.
func (s *stub) finish(code, signal string) error {
	ctx := context.Background()
	lock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	rec, err := s.load()
	if err != nil {
		return errors.Join(err, s.rest())
	}
	if rec.PID != 0 {
		p, err := rec.find(s.boot)
		if err != nil {
			return err
		}
		defer p.Close()
		if !p.Exited() {
			return nil // only a stub has ended, that waited for it
		}
		exit := unknownExit(rec.Spec.Name, time.Now())
		if rec.Runsv == s.runsv {
			exit = parseExit(rec.Spec.Name, code, signal, time.Now())
		}
		if err := s.clear(ctx, lock, rec, p, exit); err != nil {
			return err
		}
		if lock, err = s.lock(ctx); err != nil {
			return err
		}
		if rec, err = s.load(); err != nil {
			return err
		}
	}
	defer lock.release() // held until runsv is told: a Start that comes next must have the last word
	if rec.resting() {
		return s.rest()
	}
	return nil
}

// clear ends what an ended process left behind and settles the record. It takes the lock over. In a stop those that
// still work have the rest of the grace, and the lock is free meanwhile.
func (s *stub) clear(ctx context.Context, lock *held, rec record, p *proc.Process, exit pod.Exit) error {
	defer func() { lock.release() }()
	if why := s.whyNot(); why != nil {
		rec.failed(why, time.Now())
		return errors.Join(s.save(rec), removeCgroup(rec.Spec))
	}
	if rec.Desired == wantStop {
		if !rec.Ended {
			rec.Ended, rec.LastExit = true, &exit
			if err := s.save(rec); err != nil {
				return err
			}
		}
		lock.release()
		grace, cancel := context.WithTimeout(ctx, rec.grace(time.Now()))
		defer cancel()
		if !empty(grace, p, &s.scanner, 0, nil) {
			empty(ctx, p, &s.scanner, unix.SIGKILL, complain)
		}
		again, err := s.lock(ctx)
		if err != nil {
			return err
		}
		lock = again
		was := rec.run
		if rec, err = s.load(); err != nil || rec.run != was {
			return err // the preparer was faster
		}
		exit = *rec.LastExit
	} else {
		empty(ctx, p, &s.scanner, unix.SIGKILL, complain)
	}
	rec.settle(exit, rec.uptime(s.boot))
	return errors.Join(removeCgroup(rec.Spec), s.save(rec))
}

// removeCgroup removes the empty cgroup of a process that is gone.
func removeCgroup(spec runtime.Spec) error {
	if spec.Cgroup() == "" {
		return nil
	}
	return isolate.Remove(spec.Cgroup())
}

func complain(err error) { fmt.Fprintln(os.Stderr, err) }

// become starts the program in this process's place. It returns only if that is not possible. The lock is held, and
// freed by the kernel when the program runs.
func (s *stub) become(rec record) error {
	whyNot, err := os.OpenFile(s.path(whyNotName), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	log, err := prepare(rec.Spec)
	if err != nil {
		rec.failed(err, time.Now())
		return errors.Join(err, s.save(rec))
	}
	rec.begin(s.self, s.runsv, time.Now())
	if err := s.save(rec); err != nil {
		return err // as long as this pid is not on the disk nothing may run under it
	}
	// From here on this process may be another user's and see other files: the stub of finish records what is written here.
	_, err = whyNot.WriteString(runProgram(rec.Spec, log).Error())
	return err
}

// whyNot returns why a run never became its program, nil when it did.
func (s *stub) whyNot() error {
	data, err := os.ReadFile(s.path(whyNotName))
	if err != nil || len(data) == 0 {
		return nil //nolint:nilerr // nobody wrote a reason
	}
	return errors.New(string(data))
}

// prepare does what needs the rights of the preparer, and gives this process a session of its own.
func prepare(spec runtime.Spec) (log *os.File, err error) {
	log, err = os.OpenFile(spec.LogPath, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	if err := logfile.Share(log, spec.Isolation); err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	logfile.MarkStart(log, time.Now())
	if _, err := unix.Setsid(); err != nil {
		return nil, fmt.Errorf("make a session: %w", err)
	}
	return log, nil
}

// runProgram gives this process what the program is to have and becomes it. It returns the reason if that is not possible.
func runProgram(spec runtime.Spec, log *os.File) error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	if spec.Isolation != nil {
		if err := confine.Apply(spec.Isolation); err != nil {
			return fmt.Errorf("isolate: %w", err)
		}
	}
	if err := os.Chdir(spec.Dir); err != nil { // as the user that the program runs as
		return fmt.Errorf("change to the working directory: %w", err)
	}
	for fd, file := range []*os.File{null, log, log} {
		if err := unix.Dup3(int(file.Fd()), fd, 0); err != nil {
			return fmt.Errorf("prepare descriptor %d: %w", fd, err)
		}
	}
	if err := errors.Join(confine.CloseOnExec(), dieWithParent(0)); err != nil {
		return err
	}
	confine.ResetSignals()
	return fmt.Errorf("exec %s: %w", spec.Command[0], unix.Exec(spec.Command[0], spec.Command, spec.Env))
}

// Between two looks at whether a session is empty yet.
const (
	firstLook = 5 * time.Millisecond
	lastLook  = 200 * time.Millisecond
)

// empty sends sig to the session again and again until nothing of it runs. It returns false when ctx ended first.
func empty(ctx context.Context, p *proc.Process, sc *proc.Scanner, sig unix.Signal, report func(error)) bool {
	for look := firstLook; ctx.Err() == nil; look = min(2*look, lastLook) {
		live, err := p.Signal(sc, sig)
		switch {
		case err != nil && report != nil:
			report(err)
		case err == nil && live == 0 && p.Exited():
			return true
		}
		timer := time.NewTimer(look)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
	return false
}

// detach starts a keeper in a session of its own and returns, so that it becomes an orphan and nobody has to wait for
// it. The keeper's output goes to ours.
func detach(dir string) error {
	if err := confine.CloseOnExec(); err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	_, err = syscall.ForkExec(exe, []string{exe, StubArg, keeperMode, dir}, &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	return err
}

// becomeKeeper becomes runsvdir, unless one runs. Its pid is on the disk before.
func becomeKeeper(l layout) error {
	lock, err := l.takeLock(context.Background())
	if err != nil {
		return err
	}
	defer lock.release()
	if runs, err := l.kept(); err != nil || runs {
		return err
	}
	if err := l.unlinkServed(); err != nil {
		return err
	}
	path, err := lookPath("runsvdir")
	if err != nil {
		return err
	}
	me, err := self()
	if err != nil {
		return err
	}
	data, err := json.Marshal(me)
	if err != nil {
		return err
	}
	if err := writeKeeper(l, data); err != nil {
		return err
	}
	if err := confine.CloseOnExec(); err != nil {
		return err
	}
	confine.ResetSignals()
	// -P: each runsv gets a session of its own, so that a signal to this one's group reaches none.
	return fmt.Errorf("exec %s: %w", path, unix.Exec(path, []string{"runsvdir", "-P", l.path(scannedName)}, os.Environ()))
}
