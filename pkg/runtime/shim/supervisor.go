package shim

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/isolate"
	"github.com/rcfarm/rcfarm/pkg/runtime/proc"
)

const (
	// pollWait bounds one long poll, so that a connection whose client is gone is noticed.
	pollWait = 20 * time.Second
	// coalesce is how long a poll waits after a change for those that usually follow at once.
	coalesce = 5 * time.Millisecond
	// drainWait bounds how long requests may take to notice that the supervisor leaves.
	drainWait = 5 * time.Second
	// killWait bounds how long killing everything may take; a process in uninterruptible sleep must not hold it up.
	killWait = 10 * time.Second
)

// supervisor holds all processes of a node.
type supervisor struct {
	cfg     Config
	records records
	boot    string
	family  family
	scanner proc.Scanner

	// tend runs a keeper with the supervisor's context and one that the returned function ends. Set by run.
	tend func(keeper func(ctx, recalled context.Context)) context.CancelFunc

	instance uint64 // in the upper half of every cursor; differs between supervisors

	mu      sync.Mutex
	procs   map[string]*process
	version uint32        // lower half of the cursor
	wake    chan struct{} // closed at the next change
}

// newSupervisor reads what the predecessor recorded and finds what still runs of it. It starts nothing.
func newSupervisor(cfg Config) (*supervisor, error) {
	boot, err := proc.BootID()
	if err != nil {
		return nil, err
	}
	s := &supervisor{
		cfg: cfg, records: records{filepath.Join(cfg.Dir, stateName)}, boot: boot,
		family:   family{own: map[int]struct{}{}},
		instance: newInstance(),
		procs:    map[string]*process{}, wake: make(chan struct{}),
	}
	good, bad, err := s.records.load()
	if err != nil {
		return nil, err
	}
	for id, err := range bad {
		cfg.Log("state not readable", map[string]any{"process": id, "error": err})
		s.procs[id] = &process{
			sup: s, broken: err, rec: record{Spec: runtime.Spec{ID: id}}, phase: runtime.Unknown, message: err.Error() + "; " + byHand,
		}
	}
	for id, rec := range good {
		if rec.Spec.HoldAfterBoot && rec.Desired == wantRun && rec.Boot != boot {
			// Durable, so that the next supervisor does not take this boot for the one that it ran in.
			rec.Desired, rec.PID, rec.Start = wantStop, 0, 0
			if err := s.records.save(rec); err != nil {
				s.close()
				return nil, err
			}
		}
		p := &process{sup: s, rec: rec}
		s.procs[id] = p
		if p.child, p.phase, err = s.recover(rec); err != nil {
			s.close()
			return nil, fmt.Errorf("take over %s: %w", id, err)
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
		c, err := s.adopt(rec)
		if err != nil {
			return nil, "", err
		}
		c.Cgroup = rec.Spec.Cgroup()
		if c.Exited() {
			return c, runtime.Backoff, nil // its keeper clears up behind it
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

func (s *supervisor) adopt(rec record) (*child, error) {
	if rec.Boot != s.boot {
		// From another boot: not a process here can be its, whatever the numbers say.
		return &child{&proc.Process{PID: noPID}}, nil
	}
	return adopt(rec.PID, rec.Start)
}

// noPID is larger than any pid (proc(5), pid_max), so no session and no group bears it.
const noPID = 1 << 30

// run serves until ctx ends, KillAll closes or the listener breaks. Keepers have returned when it returns.
func (s *supervisor) run(parent context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	var keepers sync.WaitGroup
	s.tend = func(keeper func(ctx, recalled context.Context)) context.CancelFunc {
		recalled, recall := context.WithCancel(ctx)
		keepers.Go(func() {
			defer recall()
			keeper(ctx, recalled)
		})
		return recall
	}
	keepers.Go(func() {
		s.family.reapOrphans(ctx, &s.scanner, func(err error) { s.cfg.Log("orphan not reaped", map[string]any{"error": err}) })
	})
	keepers.Go(func() { s.rotateLogs(ctx) })
	s.beginAll()
	server := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: drainWait,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	var err error
	killAll := false
	select {
	case <-ctx.Done():
	case <-s.cfg.KillAll:
		killAll = true
	case err = <-served:
		err = fmt.Errorf("serve clients: %w", err)
		served <- nil
	}
	cancel()
	drain, done := context.WithTimeout(context.WithoutCancel(parent), drainWait)
	defer done()
	if server.Shutdown(drain) != nil {
		_ = server.Close()
	}
	<-served
	keepers.Wait()
	if killAll {
		s.killAll() //nolint:contextcheck // the context has ended; every process must
	}
	return err
}

func (s *supervisor) beginAll() {
	for _, p := range s.all() {
		p.op.Lock()
		switch {
		case p.broken != nil:
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
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := make([]string, 0, len(s.procs))
	for id := range s.procs {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, strings.Compare)
	list := make([]*process, len(ids))
	for i, id := range ids {
		list[i] = s.procs[id]
	}
	return list
}

// killAll ends everything without a grace. The keepers have returned.
func (s *supervisor) killAll() {
	ctx, cancel := context.WithTimeout(context.Background(), killWait)
	defer cancel()
	procs := s.all()
	for _, p := range procs {
		if p.child != nil {
			_, _ = p.child.Signal(&s.scanner, unix.SIGKILL) // sent again, and errors logged, below
		}
	}
	for _, p := range procs {
		if p.child != nil && p.empty(ctx, p.child, unix.SIGKILL) {
			p.child.status("")
			p.removeCgroup(p.child)
			if p.child.Cgroup != "" {
				isolate.Prune(filepath.Dir(p.child.Cgroup))
			}
		}
	}
}

// close gives all pidfds back. What runs goes on.
func (s *supervisor) close() {
	for _, p := range s.all() {
		if p.child != nil {
			p.child.Close()
		}
	}
}

// changed lets all polls look again.
func (s *supervisor) changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	close(s.wake)
	s.wake = make(chan struct{})
}

func (s *supervisor) cursor() (uint64, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.instance | uint64(s.version), s.wake
}

// watch returns all states and the cursor that they belong to, as soon as that differs from the given one. changed
// is false when nothing did for as long as a poll lasts.
func (s *supervisor) watch(ctx context.Context, cursor uint64) (list []runtime.Status, now uint64, changed bool) {
	end := time.NewTimer(pollWait)
	defer end.Stop()
	now, wake := s.cursor()
	if now == cursor {
		select {
		case <-wake:
		case <-end.C:
			return nil, cursor, false
		case <-ctx.Done():
			return nil, cursor, false
		}
		end.Reset(coalesce)
		select {
		case <-end.C:
		case <-ctx.Done():
		}
	}
	now, _ = s.cursor() // before the states, so that a change in between is told once more, not lost
	list = []runtime.Status{}
	for _, p := range s.all() {
		if st, ok := p.status(); ok {
			list = append(list, st)
		}
	}
	return list, now, true
}
