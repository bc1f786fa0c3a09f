package janitor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Strays is the sweeper's side of the store; *store.Leader has it.
type Strays interface {
	OrphanedIntents(ctx context.Context) (left map[string][]store.At, controllers int, err error)
	AskSweep(ctx context.Context, at store.At, a store.Audit) error
}

// SweepConfig is what a sweeper needs.
type SweepConfig struct {
	Farm   string // id
	Strays Strays
	// Synced reports whether every node that lives has said what it runs.
	Synced func() bool
	After  time.Duration // for which this leader must have found a controller gone; zero: nothing is swept
	Log    obs.Logger
}

// Sweeper asks for the end of what nodes are told of controllers that are gone, as rcctl node sweep does (ADR 27). Their owners carry it out.
type Sweeper struct {
	cfg SweepConfig
	// since is when this leader saw controllers gone first. A successor begins anew, which only puts it off.
	since map[string]time.Time
}

// NewSweeper returns a sweeper.
func NewSweeper(cfg SweepConfig) *Sweeper { return &Sweeper{cfg: cfg} }

// maxAsked bounds for how many pods one look asks.
const maxAsked = 100

// Run asks until ctx, which is the leadership, ends. Failures are logged, and tried again with the next look. It measures time by the clock that
// nobody sets.
func (s *Sweeper) Run(ctx context.Context) error {
	if s.cfg.After == 0 {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	s.since = nil
	for {
		if err := s.Look(ctx, time.Now()); err != nil && ctx.Err() == nil {
			s.cfg.Log.WithError(err).Warn("cannot look for intents of controllers that are gone")
		}
		if err := wait.Pause(ctx, ForgetEvery(s.cfg.After)); err != nil {
			return err
		}
	}
}

// Look asks for the end of what is left of controllers that have been gone for long enough: of one of a hundred in one look, and one at least. Where as many are
// gone as are there it is not they that are, but their records.
func (s *Sweeper) Look(ctx context.Context, now time.Time) error {
	if !s.cfg.Synced() {
		s.since = nil // the store may be another one
		return nil
	}
	left, controllers, err := s.cfg.Strays.OrphanedIntents(ctx)
	if err != nil {
		return err
	}
	s.since = seenSince(s.since, left, now)
	due := slices.DeleteFunc(slices.Sorted(maps.Keys(left)), func(id string) bool { return now.Sub(s.since[id]) < s.cfg.After })
	if len(due) > 0 && len(left) >= controllers {
		s.cfg.Log.WithFields(obs.Fields{"gone": len(left), "there": controllers}).Warn("as many controllers are gone as are there; were records lost? Nothing is swept")
		return nil
	}
	quota, asked := max(1, controllers/100), 0
	for _, id := range due {
		before := asked
		for _, at := range left[id] {
			written, err := s.ask(ctx, at)
			if err != nil {
				return err
			}
			if written {
				asked++
			}
			if asked == maxAsked {
				return nil
			}
		}
		if asked > before { // else all of it is asked for already, or it is back
			quota--
		}
		if quota == 0 {
			return nil
		}
	}
	return nil
}

// seenSince returns since when controllers were seen gone.
func seenSince(before map[string]time.Time, left map[string][]store.At, now time.Time) map[string]time.Time {
	since := make(map[string]time.Time, len(left))
	for id, copies := range left {
		slices.SortFunc(copies, func(a, b store.At) int { return cmp.Or(a.Compare(b.Identity), cmp.Compare(a.Node, b.Node)) })
		if since[id] = now; before != nil && !before[id].IsZero() {
			since[id] = before[id]
		}
	}
	return since
}

// ask leaves the request, unless there is one, or the controller is back.
func (s *Sweeper) ask(ctx context.Context, at store.At) (written bool, err error) {
	line := fmt.Sprintf("stop %s on %s: neither a controller nor a placement has told of it for %s", at.Identity, at.Node, s.cfg.After)
	err = s.cfg.Strays.AskSweep(ctx, at, store.NewAudit(s.cfg.Farm, string(store.SweepOrphan), at.RCID, []string{line}).OnNodes(at.Node))
	switch {
	case errors.Is(err, store.ErrConflict):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask for the end of %s on %s: %w", at.Identity, at.Node, err)
	}
	s.cfg.Log.WithFields(obs.Fields{obs.RCID: at.RCID, obs.Node: at.Node, obs.Pod: at.Identity.String()}).Warn("a node is told of a pod whose controller is gone; its end is asked for")
	return true, nil
}
