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
	goruntime "runtime"
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
	// pollWait bounds one long poll. After it, the supervisor notices if the client is gone.
	pollWait = 20 * time.Second
	// coalesce is how long a poll waits after a change, because other changes usually follow at once. While changes
	// keep coming, a poll waits busy, because the client checks everything after each answer.
	coalesce = 5 * time.Millisecond
	busy     = 50 * time.Millisecond
	// drainWait is how long requests may take to end when the supervisor shuts down.
	drainWait = 5 * time.Second
	// killWait bounds killAll, because a process may be in uninterruptible sleep.
	killWait = 10 * time.Second
)

// supervisor holds all processes of a node.
type supervisor struct {
	cfg     Config
	records *durable.Files[record]
	boot    string
	family  family
	scanner proc.Scanner

	// tend starts a run loop with two contexts: the supervisor's, and one that the returned function ends.
	tend func(loop func(ctx, recalled context.Context)) context.CancelFunc

	creating chan struct{} // has an element for each container that is being created

	instance uint64 // upper half of every cursor; differs between supervisors

	mu      sync.Mutex
	procs   map[string]*process
	version uint32        // lower half of the cursor
	removed uint32        // version of the latest removal; with an older base, a client gets all processes
	wake    chan struct{} // closed at the next change
	woken   time.Time     // when a change last woke a poll

	dogs  wait.Signal          // raised when a process with a watchdog may have been added
	reads map[string]chan note // reads of notes under way, by path; only lookAtNotes uses it
}

// newSupervisor reads the records of the earlier supervisor, and finds which processes still run. It starts no process.
func newSupervisor(cfg Config) (*supervisor, error) {
	boot, err := proc.BootID()
	if err != nil {
		return nil, err
	}
	s := &supervisor{
		cfg: cfg, records: recordsIn(filepath.Join(cfg.Dir, stateName)), boot: boot,
		family:   newFamily(),
		creating: make(chan struct{}, max(leastCreating, 2*goruntime.NumCPU())),
		instance: newInstance(),
		procs:    map[string]*process{}, wake: make(chan struct{}),
		dogs: wait.NewSignal(), reads: map[string]chan note{},
	}
	good, bad, err := s.records.Read()
	if err != nil {
		return nil, err
	}
	for id, err := range bad {
		cfg.Log("state not readable", map[string]any{"process": id, "error": err})
		s.procs[id] = &process{
			sup: s, broken: err, rec: record{Spec: localSpec{Process: runtime.Process{ID: id}}},
			phase: runtime.Unknown, message: err.Error() + "; " + byHand,
		}
	}
	for id, rec := range good {
		if rec.Spec.StartSuspended && rec.Desired == wantRun && rec.Boot != boot {
			// Written to the disk, because the next supervisor would otherwise believe that the process last ran in
			// this boot.
			rec.Desired, rec.PID, rec.Start = wantStop, 0, 0
			if err := s.records.Save(*rec); err != nil { // the next supervisor reads the former boot, and does the same
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

// The upper half of a cursor is never zero, because the cursor zero means "at once".
func newInstance() uint64 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return uint64(binary.LittleEndian.Uint32(b[:])|1) << 32
}

func (s *supervisor) recover(rec record) (*child, runtime.Phase, error) {
	switch {
	case rec.PID != 0:
		// If the record is from another boot, the process is gone, even if a process has the same numbers now.
		p := &proc.Process{PID: noPID}
		if rec.Boot == s.boot {
			var err error
			if p, err = proc.Find(rec.PID, rec.Start); err != nil {
				return nil, "", err
			}
		}
		p.Cgroup, p.Mark, p.Contained = rec.Spec.cgroup(), s.mark(rec.Spec), rec.Spec.Container != nil
		c := &child{Process: p}
		if p.Contained && !c.Exited() && !begun(p.PID) {
			c.Close()
			return nil, runtime.Starting, nil // its run loop ends it, and makes another
		}
		if c.Exited() {
			return c, runtime.Backoff, nil // its run loop kills the processes that it left behind
		}
		return c, runtime.Running, nil
	case rec.Container != "" && !rec.Done:
		return nil, runtime.Starting, nil // a part of it may exist; its run loop removes that, even if it must stop
	case rec.Desired == wantStop:
		return nil, runtime.Stopped, nil
	case rec.Done:
		return nil, runtime.Exited, nil
	default:
		return nil, runtime.Starting, nil
	}
}

// markName is an environment variable. It marks a process without a cgroup, and all its descendants.
const markName = "RCFARM_PROCESS"

// The mark contains the node's directory, because two nodes on one machine may have processes with the same id.
func (s *supervisor) mark(spec localSpec) string {
	if spec.cgroup() != "" {
		return ""
	}
	return markName + "=" + filepath.Join(s.cfg.Dir, spec.ID)
}

// noPID is larger than any pid (proc(5), pid_max). So no process, session or group has this number.
const noPID = 1 << 30

var errKillAll = errors.New("everything is to end")

// When run returns, all run loops have ended.
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
		s.family.reapOrphans(ctx, &s.scanner,
			func(err error) { s.cfg.Log("orphan not reaped", map[string]any{"error": err}) })
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
		// ctx has ended, so killing needs a context of its own.
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
			if id := p.current().Container; id != "" {
				s.tend(func(ctx, _ context.Context) { p.tidy(ctx, id) })
			}
		default:
			if p.child != nil && !p.child.Exited() {
				p.log("process taken over", map[string]any{"pid": p.child.PID})
			}
			p.begin(p.child)
		}
		p.op.Unlock()
	}
}

// all includes processes without a record.
func (s *supervisor) all() []*process {
	procs, _ := s.since(0)
	return procs
}

// since returns the processes that have changed since base, sorted by id. If base is not a cursor of this supervisor,
// or a process was removed since, it returns all processes.
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

// Call killAll after the run loops have returned.
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
			p.tidy(ctx, p.current().Container)
			if p.child.Cgroup != "" {
				isolate.Prune(filepath.Dir(p.child.Cgroup))
			}
		})
	}
	ending.Wait()
}

// The processes continue to run after close.
func (s *supervisor) close() {
	for _, p := range s.all() {
		if p.child != nil {
			p.child.Close()
		}
	}
}

func (s *supervisor) changed(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextVersion()
	p.version = s.version
}

func (s *supervisor) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextVersion()
	delete(s.procs, id)
	s.removed = s.version
}

// The caller of nextVersion holds s.mu.
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

// gap returns how long a poll waits for further changes after a change.
func (s *supervisor) gap(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	quiet := now.Sub(s.woken) > 2*busy
	s.woken = now
	if quiet {
		return coalesce
	}
	return busy
}

// watch waits until the present cursor differs from the given cursor. If nothing changed within pollWait, changed is
// false.
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
	procs, snap := s.since(base) // before the states are read: a change in between is sent twice
	snap.Processes, snap.Watchdogs, snap.Containers = []localStatus{}, true, true
	for _, p := range procs {
		if st, ok := p.status(); ok {
			snap.Processes = append(snap.Processes, st)
		}
	}
	return snap, true
}
