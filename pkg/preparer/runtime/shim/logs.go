package shim

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/logfile"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// The supervisor's own log, which Spawn opens: rotated at this many bytes, with so many files kept.
const (
	ownLogBytes = 8 << 20
	ownLogKeep  = 2
)

// rotateLogs looks at all logs now and then until ctx ends.
func (s *supervisor) rotateLogs(ctx context.Context) {
	logs := rotator{rotate: logfile.Rotate}
	defer logs.under.Wait()
	for wait.Pause(ctx, s.cfg.LogCheck) == nil {
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
	busy   sync.Map // by path, because two versions of a pod write to one log
}

// begin rotates a log in the background, unless that is under way.
func (r *rotator) begin(path string, limit int64, keep int, failed func(error)) {
	if _, busy := r.busy.LoadOrStore(path, true); busy {
		return
	}
	r.under.Go(func() {
		defer r.busy.Delete(path)
		if err := r.rotate(path, limit, keep); err != nil {
			failed(err)
		}
	})
}

// fillReserve is the time between two looks at what is set aside for records.
const fillReserve = 10 * time.Second

// keepReserve keeps room for records set aside until ctx ends, so that on a full disk processes are still stopped, and
// started again. What it cannot do it says once.
func (s *supervisor) keepReserve(ctx context.Context) {
	told := false
	wait.Each(ctx, nil, func() time.Duration {
		_, err := s.records.Reserve.Fill()
		if err != nil && !told {
			s.cfg.Log("no room for records can be set aside", map[string]any{"error": err})
		}
		told = err != nil
		return fillReserve
	})
}
