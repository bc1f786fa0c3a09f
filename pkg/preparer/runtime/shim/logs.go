package shim

import (
	"context"
	"errors"
	"path/filepath"
	"sync"

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
		logs.begin(filepath.Join(s.cfg.Dir, logName), ownLogBytes, ownLogKeep, s.cfg.Log)
		for _, p := range s.all() {
			spec := p.current().Spec
			if spec.LogBytes == 0 || ctx.Err() != nil {
				continue
			}
			logs.begin(spec.LogPath, spec.LogBytes, spec.LogKeep, p.log)
		}
	}
}

// rotator rotates each log by itself: one that a pod, or the disk below it, holds up must not let the others grow.
type rotator struct {
	rotate func(path string, limit int64, keep int) error
	under  sync.WaitGroup
	busy   sync.Map // by path, because two versions of a pod write to one log
	seen   sync.Map // by path: a rotation that a predecessor was killed in has been ended
	cut    sync.Map // by path: it was said that the file system can punch no holes
}

// begin rotates a log in the background, unless that is under way.
func (r *rotator) begin(path string, limit int64, keep int, log func(msg string, fields map[string]any)) {
	if _, busy := r.busy.LoadOrStore(path, true); busy {
		return
	}
	r.under.Go(func() {
		defer r.busy.Delete(path)
		var err error
		if _, seen := r.seen.LoadOrStore(path, true); !seen {
			err = logfile.Settle(path, keep)
		}
		err = errors.Join(err, r.rotate(path, limit, keep))
		switch {
		case errors.Is(err, logfile.ErrCut):
			if _, told := r.cut.LoadOrStore(path, true); !told {
				log("log rotated, and lines may be lost each time", map[string]any{"error": err})
			}
		case err != nil:
			log("log not rotated", map[string]any{"error": err})
		}
	})
}
