package runit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/runtime/isolate"
	"github.com/rcfarm/rcfarm/pkg/runtime/proc"
)

// KillAll kills runsvdir, every runsv and every process in the directory at once. It serves development, where nothing
// is to outlive the terminal; records stay, so a later Open in the same directory starts them again. No Runtime may be
// open on the directory.
func KillAll(ctx context.Context, dir string) error {
	boot, err := proc.BootID()
	if err != nil {
		return err
	}
	var scanner proc.Scanner
	l := layout(dir)
	for look := firstLook; ; look = min(2*look, lastLook) {
		live, err := killOnce(l, boot, &scanner)
		if live == 0 && err == nil {
			return nil
		}
		timer := time.NewTimer(look)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(err, fmt.Errorf("kill everything below %s: %w", dir, ctx.Err()))
		}
	}
}

// killOnce sends SIGKILL to whatever it finds, supervisors first, and returns how many processes there were.
func killOnce(l layout, boot string, sc *proc.Scanner) (int, error) {
	live, err := l.killSupervisors()
	if err != nil || live > 0 {
		return live, err
	}
	services, err := l.services()
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for _, s := range services {
		rec, err := s.load()
		if err != nil || rec.PID == 0 {
			continue // what cannot be read names nothing
		}
		p, err := rec.find(boot)
		if err != nil {
			return live, err
		}
		n, err := p.Signal(sc, unix.SIGKILL)
		p.Close()
		live += n
		if err == nil && n == 0 && rec.Spec.Cgroup() != "" {
			if err = isolate.Remove(rec.Spec.Cgroup()); err == nil {
				isolate.Prune(filepath.Dir(rec.Spec.Cgroup()))
			}
		}
		if err != nil {
			return live, err
		}
	}
	return live, nil
}

// killSupervisors kills runsvdir, which is known by name, whoever is about to become one, and every runsv and stub: those
// work in the directory, as no program does.
func (l layout) killSupervisors() (int, error) {
	keeper, err := l.keeperProcess()
	if err != nil {
		return 0, err
	}
	defer keeper.Close()
	if !keeper.Exited() {
		return 1, unix.Kill(keeper.PID, unix.SIGKILL)
	}
	dir, err := filepath.EvalSymlinks(l.path(servicesName))
	if err != nil {
		return 0, nil // no directory, nobody in it
	}
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	live := 0
	for _, e := range procs {
		pid, err := strconv.Atoi(e.Name())
		cwd, _ := os.Readlink(filepath.Join("/proc", e.Name(), "cwd")) // none: a zombie, or it has gone
		if err != nil || pid == os.Getpid() || !strings.HasPrefix(cwd, dir+"/") && !l.startsKeeper(pid) {
			continue
		}
		live++
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return live, err
		}
	}
	return live, nil
}

// startsKeeper reports whether a process starts a runsvdir here: killing the present one lets it go on.
func (l layout) startsKeeper(pid int) bool {
	cmdline, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline")) // none: a zombie, or it has gone
	args := strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
	switch {
	case len(args) == 4 && args[1] == StubArg:
		return (args[2] == detachMode || args[2] == keeperMode) && args[3] == string(l)
	case len(args) == 3 && args[0] == "runsvdir":
		return args[2] == l.path(scannedName)
	default:
		return false
	}
}
