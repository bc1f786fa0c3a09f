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

func openStdio(spec localSpec) (stdio [3]*os.File, err error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return stdio, err
	}
	log, err := os.OpenFile(spec.LogPath, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o640)
	if err == nil {
		err = logfile.Share(log, spec.sharesLogWith())
	}
	stdio = [3]*os.File{null, log, log}
	if err != nil {
		closeStdio(stdio)
		return stdio, fmt.Errorf("open log: %w", err)
	}
	logfile.MarkStart(log, time.Now())
	return stdio, nil
}

func closeStdio(stdio [3]*os.File) { _, _ = stdio[0].Close(), stdio[1].Close() } // a nil file returns an error

// launch writes the stub's pid to the disk before it lets the stub become the program. If launch returns an error, no
// process of the program runs. After recalled has ended, it does not wait much longer for the stub.
func (p *process) launch(recalled context.Context) (*child, error) {
	spec := p.current().Spec
	if spec.Container != nil {
		return p.launchContainer(recalled, spec)
	}
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
		order := stub.Order{
			Command: spec.Command, Env: marked(spec.Env, c.Mark), Dir: spec.Dir,
			Isolation: spec.Isolation,
		}
		err = started.Release(order, recalled.Done())
	}
	if err != nil {
		p.discard(c) //nolint:contextcheck // it must kill the stub even if recalled has ended
		return nil, err
	}
	return c, nil
}

func marked(env []string, mark string) []string {
	if mark == "" {
		return env
	}
	own := slices.DeleteFunc(slices.Clone(env), func(line string) bool { return strings.HasPrefix(line, markName+"=") })
	return append(own, mark)
}

// discard kills a stub that did not become its program. No other code knows the stub, so discard ignores the end of any
// context.
func (p *process) discard(c *child) {
	_ = unix.Kill(-c.PID, unix.SIGKILL)
	_ = c.Wait(context.Background())
	c.status("")
	p.sup.family.forget(c.PID)
	c.Close()
	p.removeCgroup(c)
}
