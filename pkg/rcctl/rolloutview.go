package rcctl

import (
	"context"
	"errors"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// rolloutView reads a rollout, its revisions and their pods. A service without one is a *notFoundError.
func (t *tool) rolloutView(ctx context.Context, s *conn, service string) (*inspect.RolloutView, error) {
	rec, err := s.RolloutOf(ctx, service)
	if errors.Is(err, store.ErrNotFound) {
		return nil, noRollout(service)
	}
	if err != nil {
		return nil, err
	}
	v := inspect.NewRolloutView(&rec.Value)
	if v.Runner, err = s.RunnerOf(ctx, service); err != nil {
		return nil, err
	}
	for i := range v.Revisions {
		if err := t.revisionPods(ctx, s, v, &v.Revisions[i]); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// revisionPods adds what is known of a revision's pods, and the end of the log of one that fails.
func (t *tool) revisionPods(ctx context.Context, s *conn, v *inspect.RolloutView, r *inspect.RevisionView) error {
	rec, err := s.RC(ctx, r.RC, false)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	r.Desired = rec.Value.Desired()
	placements, realities, _, err := s.podsOf(ctx, r.RC)
	if err != nil {
		return err
	}
	r.Count(placements, realities)
	if r.Direction != rollout.Up {
		return nil
	}
	worst, says := inspect.Failing(placements, realities, rec.Value.ManifestDigest)
	if worst == nil || says.LastExit == nil {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, lastLimit)
	defer cancel()
	text, err := t.endOfLog(limited, s, worst, says.LastExit.Launchable)
	if err != nil {
		return nil // a log that cannot be shown is no reason to show nothing
	}
	v.Tell(worst, text)
	return nil
}
