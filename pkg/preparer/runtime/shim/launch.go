package shim

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/logfile"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/stub"
)

// openStdio opens what a program has as its descriptors from 0 on: nothing to read, and its log.
func openStdio(spec localSpec) (stdio [3]*os.File, err error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return stdio, err
	}
	log, err := os.OpenFile(spec.LogPath, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o640)
	if err == nil {
		err = logfile.Share(log, spec.asked().Isolation)
	}
	stdio = [3]*os.File{null, log, log}
	if err != nil {
		closeStdio(stdio)
		return stdio, fmt.Errorf("open log: %w", err)
	}
	logfile.MarkStart(log, time.Now())
	return stdio, nil
}

func closeStdio(stdio [3]*os.File) { _, _ = stdio[0].Close(), stdio[1].Close() } // one that is nil says so

// launch starts the program. Before the stub may become the program, its pid is on disk; if anything goes wrong on
// the way, nothing of it runs when launch returns. It need not wait for a stub that does not become the program once
// recalled ends.
func (p *process) launch(recalled context.Context) (*child, error) {
	spec := p.current().Spec
	stdio, err := openStdio(spec)
	if err != nil {
		return nil, err
	}
	c, started, err := p.sup.family.fork(stdio)
	closeStdio(stdio)
	if err != nil {
		return nil, err
	}
	defer started.Close()
	c.Cgroup, c.Mark = spec.cgroup(), p.sup.mark(spec)
	c.before = isolate.MemoryOf(c.Cgroup)
	err = p.commit(runtime.Starting, "", func(r *record) {
		r.PID, r.Start, r.Boot, r.StartedAt = c.PID, c.Start, p.sup.boot, time.Now().UTC()
		r.Starts++
	})
	if err == nil {
		order := stub.Order{Command: spec.Command, Env: marked(spec.Env, c.Mark), Dir: spec.Dir, Isolation: spec.Isolation}
		err = started.Release(order, recalled.Done())
	}
	if err != nil {
		p.discard(c) //nolint:contextcheck // a half-made child is done away with also when recalled has ended
		return nil, err
	}
	return c, nil
}

// marked returns an environment with a mark.
func marked(env []string, mark string) []string {
	if mark == "" {
		return env
	}
	own := slices.DeleteFunc(slices.Clone(env), func(line string) bool { return strings.HasPrefix(line, markName+"=") })
	return append(own, mark)
}

// discard ends a stub that did not become its program. Nobody else knows of it, so this need not be interruptible.
func (p *process) discard(c *child) {
	_ = unix.Kill(-c.PID, unix.SIGKILL)
	_ = c.Wait(context.Background())
	c.status("")
	p.sup.family.forget(c.PID)
	c.Close()
	p.removeCgroup(c)
}
