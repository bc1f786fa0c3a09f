package shim

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/runtime/logfile"
)

// The supervisor's own log, which Spawn opens: rotated at this many bytes, with so many files kept.
const (
	ownLogBytes = 8 << 20
	ownLogKeep  = 2
)

// rotateLogs looks at all logs now and then until ctx ends.
func (s *supervisor) rotateLogs(ctx context.Context) {
	logs := rotator{rotate: logfile.Rotate}
	defer logs.wait()
	tick := time.NewTicker(s.cfg.LogCheck)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := logfile.Rotate(filepath.Join(s.cfg.Dir, logName), ownLogBytes, ownLogKeep); err != nil {
			s.cfg.Log("log not rotated", map[string]any{"error": err})
		}
		for _, p := range s.all() {
			spec := p.current().Spec
			if spec.LogBytes == 0 || ctx.Err() != nil {
				continue
			}
			logs.begin(spec.LogPath, spec.LogBytes, spec.LogKeep, func(err error) {
				p.log("log not rotated", map[string]any{"error": err})
			})
		}
	}
}

// rotator rotates each log by itself: one that a pod, or the disk below it, holds up must not let the others grow.
type rotator struct {
	rotate func(path string, limit int64, keep int) error
	under  sync.WaitGroup

	mu   sync.Mutex
	busy map[string]bool // by path, because two versions of a pod write to one log
}

// begin rotates a log in the background, unless that is under way.
func (r *rotator) begin(path string, limit int64, keep int, failed func(error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy[path] {
		return
	}
	if r.busy == nil {
		r.busy = map[string]bool{}
	}
	r.busy[path] = true
	r.under.Go(func() {
		if err := r.rotate(path, limit, keep); err != nil {
			failed(err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.busy, path)
	})
}

// wait returns when none is under way.
func (r *rotator) wait() { r.under.Wait() }

// fillReserve is the time between two looks at what is set aside for records.
const fillReserve = 10 * time.Second

// keepReserve keeps room for records set aside until ctx ends, so that on a full disk processes are still stopped, and
// started again. What it cannot do it says once.
func (s *supervisor) keepReserve(ctx context.Context) {
	told := false
	for {
		_, err := s.records.reserve.Fill()
		if err != nil && !told {
			s.cfg.Log("no room for records can be set aside", map[string]any{"error": err})
		}
		told = err != nil
		timer := time.NewTimer(fillReserve)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}
