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

// SweepStore is what a sweeper needs of the store. *store.Leader implements it.
type SweepStore interface {
	OrphanedIntents(ctx context.Context) (left map[string][]store.At, controllers int, err error)
	AskSweep(ctx context.Context, at store.At, a store.Audit) error
}

// SweepConfig is what a sweeper needs.
type SweepConfig struct {
	Farm  string // id
	Store SweepStore
	// Synced reports whether every living node has spoken in this epoch.
	Synced func() bool
	After  time.Duration // for how long this leader must have seen a controller gone; zero: nothing is swept
	Log    obs.Logger
}

// Sweeper finds intents of controllers that are gone, and asks for the stop of their pods (ADR 27), like rcctl node
// sweep but in the leader's name: the mass-stop breaker counts the stops.
type Sweeper struct {
	cfg SweepConfig
	// since is when this leader first saw controllers gone. The next leader starts anew.
	since map[string]time.Time
}

// NewSweeper returns a sweeper.
func NewSweeper(cfg SweepConfig) *Sweeper { return &Sweeper{cfg: cfg} }

// maxAsked limits the requests of one look.
const maxAsked = 100

// Run looks until ctx ends. It logs errors.
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

// Look asks for the stop of pods whose controllers are gone for long enough, for at most a hundredth of the
// controllers, or one. If at least as many controllers are gone as exist, records were probably lost, and it asks for
// no stop.
func (s *Sweeper) Look(ctx context.Context, now time.Time) error {
	if !s.cfg.Synced() {
		s.since = nil // the store may have been restored
		return nil
	}
	left, controllers, err := s.cfg.Store.OrphanedIntents(ctx)
	if err != nil {
		return err
	}
	s.since = seenSince(s.since, left, now)
	due := slices.DeleteFunc(slices.Sorted(maps.Keys(left)), func(id string) bool {
		return now.Sub(s.since[id]) < s.cfg.After
	})
	if len(due) > 0 && len(left) >= controllers {
		s.cfg.Log.WithFields(obs.Fields{"gone": len(left), "there": controllers}).
			Warn("as many controllers are gone as exist, maybe because records were lost; nothing is swept")
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
		if asked > before { // else everything was asked for already, or the controller is back
			quota--
		}
		if quota == 0 {
			return nil
		}
	}
	return nil
}

// seenSince also sorts the copies.
func seenSince(before map[string]time.Time, left map[string][]store.At, now time.Time) map[string]time.Time {
	since := make(map[string]time.Time, len(left))
	for id, copies := range left {
		slices.SortFunc(copies, func(a, b store.At) int {
			return cmp.Or(a.Compare(b.Identity), cmp.Compare(a.Node, b.Node))
		})
		if since[id] = now; before != nil && !before[id].IsZero() {
			since[id] = before[id]
		}
	}
	return since
}

func (s *Sweeper) ask(ctx context.Context, at store.At) (written bool, err error) {
	line := fmt.Sprintf("stop %s on %s: it has had neither a controller nor a placement for %s",
		at.Identity, at.Node, s.cfg.After)
	audit := store.NewAudit(s.cfg.Farm, string(store.SweepOrphan), at.RCID, []string{line}).OnNodes(at.Node)
	err = s.cfg.Store.AskSweep(ctx, at, audit)
	switch {
	case errors.Is(err, store.ErrConflict):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask for the stop of %s on %s: %w", at.Identity, at.Node, err)
	}
	s.cfg.Log.WithFields(obs.Fields{obs.RCID: at.RCID, obs.Node: at.Node, obs.Pod: at.Identity.String()}).
		Warn("a node has an intent for a pod whose controller is gone; the owner is asked to stop the pod")
	return true, nil
}
