package shim

import (
	"context"
	"errors"
	"path/filepath"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/logfile"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// The supervisor's own log, which Spawn opens: its size in bytes before rotation, and the number of rotated files.
const (
	ownLogBytes = 8 << 20
	ownLogKeep  = 2
)

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

// rotator rotates each log in a goroutine of its own, because a log on a slow disk must not delay the others.
type rotator struct {
	rotate func(path string, limit int64, keep int) error
	under  sync.WaitGroup
	busy   sync.Map // by path, because two versions of a pod write to one log
	seen   sync.Map // by path: Settle was called, which finishes a rotation that was killed
	cut    sync.Map // by path: it was logged that the file system cannot punch holes
}

// begin rotates a log in the background, unless a rotation of this log is under way.
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
			if _, logged := r.cut.LoadOrStore(path, true); !logged {
				log("log rotated, and lines may be lost each time", map[string]any{"error": err})
			}
		case err != nil:
			log("log not rotated", map[string]any{"error": err})
		}
	})
}
