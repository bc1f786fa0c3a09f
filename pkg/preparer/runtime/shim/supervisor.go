package shim

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/internal/listen"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

const (
	// pollWait bounds one long poll, so that a connection whose client is gone is noticed.
	pollWait = 20 * time.Second
	// coalesce is how long a poll waits after a change for those that usually follow at once, and busy how long when
	// they keep coming: each answer costs a client a look at everything, and an old one is sent all processes.
	coalesce = 5 * time.Millisecond
	busy     = 50 * time.Millisecond
	// drainWait bounds how long requests may take to notice that the supervisor leaves.
	drainWait = 5 * time.Second
	// killWait bounds how long killing everything may take; a process in uninterruptible sleep must not hold it up.
	killWait = 10 * time.Second
)

// supervisor holds all processes of a node.
type supervisor struct {
	cfg     Config
	records *durable.Files[record]
	boot    string
	family  family
	scanner proc.Scanner

	// tend starts a run loop with the supervisor's context and one that the returned function ends. Set by run.
	tend func(loop func(ctx, recalled context.Context)) context.CancelFunc

	instance uint64 // in the upper half of every cursor; differs between supervisors

	mu      sync.Mutex
	procs   map[string]*process
	version uint32        // lower half of the cursor
	removed uint32        // version of the latest removal: who has seen only less is told everything
	wake    chan struct{} // closed at the next change
	told    time.Time     // when a change last woke a poll

	dogs  wait.Signal          // there may be one more process with a watchdog
	reads map[string]chan note // of notes, that the disk has not answered; only the look at notes uses it
}

// newSupervisor reads what the predecessor recorded and finds what still runs of it. It starts nothing.
func newSupervisor(cfg Config) (*supervisor, error) {
	boot, err := proc.BootID()
	if err != nil {
		return nil, err
	}
	s := &supervisor{
		cfg: cfg, records: recordsIn(filepath.Join(cfg.Dir, stateName)), boot: boot,
		family:   family{own: map[int]struct{}{}},
		instance: newInstance(),
		procs:    map[string]*process{}, wake: make(chan struct{}), dogs: wait.NewSignal(), reads: map[string]chan note{},
	}
	good, bad, err := s.records.Read()
	if err != nil {
		return nil, err
	}
	for id, err := range bad {
		cfg.Log("state not readable", map[string]any{"process": id, "error": err})
		s.procs[id] = &process{
			sup: s, broken: err, rec: record{Spec: localSpec{Process: runtime.Process{ID: id}}}, phase: runtime.Unknown, message: err.Error() + "; " + byHand,
		}
	}
	for id, rec := range good {
		if rec.Spec.StartSuspended && rec.Desired == wantRun && rec.Boot != boot {
			// Durable, so that the next supervisor does not take this boot for the one that it ran in.
			rec.Desired, rec.PID, rec.Start = wantStop, 0, 0
			if err := s.records.Save(*rec); err != nil { // the next one finds the former boot in it, and does the same
				cfg.Log("state not written", map[string]any{"process": id, "error": err})
			}
		}
		p := &process{sup: s, rec: *rec}
		s.procs[id] = p
		if p.child, p.phase, err = s.recover(*rec); err != nil {
			p.adrift(err)
		}
	}
	return s, nil
}

// newInstance returns a cursor's upper half: random, and never zero, because a cursor of zero means "at once".
func newInstance() uint64 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return uint64(binary.LittleEndian.Uint32(b[:])|1) << 32
}

// recover finds what a record speaks of.
func (s *supervisor) recover(rec record) (*child, runtime.Phase, error) {
	switch {
	case rec.PID != 0:
		// From another boot: not a process here can be its, whatever the numbers say.
		p := &proc.Process{PID: noPID}
		if rec.Boot == s.boot {
			var err error
			if p, err = proc.Find(rec.PID, rec.Start); err != nil {
				return nil, "", err
			}
		}
		p.Cgroup, p.Mark = rec.Spec.cgroup(), s.mark(rec.Spec)
		c := &child{Process: p}
		if c.Exited() {
			return c, runtime.Backoff, nil // its run loop clears up behind it
		}
		return c, runtime.Running, nil
	case rec.Desired == wantStop:
		return nil, runtime.Stopped, nil
	case rec.Done:
		return nil, runtime.Exited, nil
	default:
		return nil, runtime.Starting, nil
	}
}

// markName is the variable by which what a process has started is known where it has no cgroup.
const markName = "RCFARM_PROCESS"

// mark returns that variable with its value; "" where there is a cgroup. Two nodes of one machine may have processes of
// one id.
func (s *supervisor) mark(spec localSpec) string {
	if spec.cgroup() != "" {
		return ""
	}
	return markName + "=" + filepath.Join(s.cfg.Dir, spec.ID)
}

// noPID is larger than any pid (proc(5), pid_max), so no session and no group bears it.
const noPID = 1 << 30

var errKillAll = errors.New("everything is to end")

// run serves until ctx ends, KillAll closes or the listener breaks. Run loops have returned when it returns.
func (s *supervisor) run(parent context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	var loops sync.WaitGroup
	s.tend = func(loop func(ctx, recalled context.Context)) context.CancelFunc {
		recalled, recall := context.WithCancel(ctx)
		loops.Go(func() {
			defer recall()
			loop(ctx, recalled)
		})
		return recall
	}
	loops.Go(func() {
		s.family.reapOrphans(ctx, &s.scanner, func(err error) { s.cfg.Log("orphan not reaped", map[string]any{"error": err}) })
	})
	if without := isolate.Levels(); len(without) > 0 {
		s.cfg.Log("pods keep levels of the supervisor", map[string]any{"reason": strings.Join(without, "; ")})
	}
	loops.Go(func() { s.rotateLogs(ctx) })
	s.beginAll()
	loops.Go(func() { s.watchNotes(ctx) })
	server := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: drainWait,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	loops.Go(func() {
		select {
		case <-ctx.Done():
		case <-s.cfg.KillAll:
			cancel(errKillAll)
		}
	})
	err := listen.Serve(ctx, server, listener, drainWait)
	if err != nil {
		err = fmt.Errorf("serve clients: %w", err)
	}
	cancel(nil)
	loops.Wait()
	if errors.Is(context.Cause(ctx), errKillAll) {
		// The context has ended; every process must.
		kill, done := context.WithTimeout(context.WithoutCancel(parent), killWait)
		defer done()
		s.killAll(kill)
	}
	return err
}

func (s *supervisor) beginAll() {
	for _, p := range s.all() {
		p.op.Lock()
		switch {
		case p.broken != nil:
			s.tend(func(ctx, _ context.Context) { p.takeOver(ctx) })
		case p.phase == runtime.Stopped, p.phase == runtime.Exited:
			p.ended, p.recall = make(chan struct{}), func() {}
			close(p.ended)
		default:
			if p.child != nil && !p.child.Exited() {
				p.log("process taken over", map[string]any{"pid": p.child.PID})
			}
			p.begin(p.child)
		}
		p.op.Unlock()
	}
}

// all returns the processes in the order of their ids, slots without a record included.
func (s *supervisor) all() []*process {
	procs, _ := s.since(0)
	return procs
}

// since returns the cursor, and the processes that have changed since the base in the order of their ids: all of them if the
// base is not a cursor of this supervisor, or something was removed since.
func (s *supervisor) since(base uint64) ([]*process, snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := snapshot{Cursor: s.instance | uint64(s.version)}
	seen := uint32(base)
	if base-uint64(seen) == s.instance && seen >= s.removed && seen <= s.version {
		snap.Base = base
	}
	var ids []string
	for id, p := range s.procs {
		if snap.Base == 0 || p.version > seen {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	procs := make([]*process, len(ids))
	for i, id := range ids {
		procs[i] = s.procs[id]
	}
	return procs, snap
}

// killAll ends everything without a grace, side by side. The run loops have returned.
func (s *supervisor) killAll(ctx context.Context) {
	var ending sync.WaitGroup
	for _, p := range s.all() {
		if p.child == nil {
			continue
		}
		ending.Go(func() {
			if !p.empty(ctx, p.child, unix.SIGKILL) {
				return
			}
			p.child.status("")
			p.removeCgroup(p.child)
			if p.child.Cgroup != "" {
				isolate.Prune(filepath.Dir(p.child.Cgroup))
			}
		})
	}
	ending.Wait()
}

// close gives all pidfds back. What runs goes on.
func (s *supervisor) close() {
	for _, p := range s.all() {
		if p.child != nil {
			p.child.Close()
		}
	}
}

// changed lets all polls look again, because of what has changed about the process.
func (s *supervisor) changed(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextVersion()
	p.version = s.version
}

// forget removes a process.
func (s *supervisor) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextVersion()
	delete(s.procs, id)
	s.removed = s.version
}

// nextVersion wakes all polls. The caller holds s.mu.
func (s *supervisor) nextVersion() {
	s.version++
	close(s.wake)
	s.wake = make(chan struct{})
}

func (s *supervisor) cursor() (uint64, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.instance | uint64(s.version), s.wake
}

// gap returns how long to wait for changes that follow this one.
func (s *supervisor) gap(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	quiet := now.Sub(s.told) > 2*busy
	s.told = now
	if quiet {
		return coalesce
	}
	return busy
}

// watch returns the states and the cursor that they belong to, as soon as that differs from the given one: all of them, or
// what has changed since the base if that is one of ours. changed is false when nothing did for as long as a poll lasts.
func (s *supervisor) watch(ctx context.Context, cursor, base uint64) (snap snapshot, changed bool) {
	now, wake := s.cursor()
	if now == cursor {
		select {
		case <-wake:
		case <-time.After(pollWait):
			return snap, false
		case <-ctx.Done():
			return snap, false
		}
		_ = wait.Pause(ctx, s.gap(time.Now()))
	}
	procs, snap := s.since(base) // before the states are read, so that a change in between is told once more, not lost
	snap.Processes, snap.Watchdogs = []localStatus{}, true
	for _, p := range procs {
		if st, ok := p.status(); ok {
			snap.Processes = append(snap.Processes, st)
		}
	}
	return snap, true
}
