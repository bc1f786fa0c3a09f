package farm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/ownerless"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// maxReports bounds what the leader reports after one sweep, for each kind of finding.
const maxReports = 100

type swept struct {
	ids       []string        // of all controllers
	free      map[string]bool // controllers without an owner
	unclaimed []string        // controllers that had no owner in the sweep before, either
	again     bool            // there was a sweep before
}

// sweptAll stores the result of a sweep. locks has the locks that other farms hold.
func (s *leaderReporter) sweptAll(ids []string, locks store.LockState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := ownerless.Known{}
	for _, id := range ids {
		if locks[rc.UnitOf(id)] {
			known.Note(ownerless.Record{Of: ownerless.Farm, About: id})
		}
	}
	now := &swept{ids: ids, free: map[string]bool{}, again: s.last != nil}
	for _, lacks := range ownerless.Scan(ownerless.Farm, known, ownerless.Each(ownerless.Controller, ids)) {
		now.free[lacks.About] = true
		if s.last != nil && s.last.free[lacks.About] {
			now.unclaimed = append(now.unclaimed, lacks.About)
		}
	}
	s.last = now
	s.swept.Raise()
}

func (s *leaderReporter) lastSweep() *swept {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// reset forgets what only a leader knows.
func (s *leaderReporter) reset() {
	s.notified = nil
	s.cfg.Metrics.unclaimed.Set(0)
	s.unreadable.forget(unownedKind)
	s.unreadable.forget(straysKind)
}

// reportUnclaimed writes into the statuses of controllers that had no owner in the last two sweeps. A later owner finds
// there which alerts were sent.
func (s *leaderReporter) reportUnclaimed(ctx context.Context, as LeaderStore, found *swept) {
	unclaimed := found.unclaimed
	s.cfg.Metrics.unclaimed.Set(float64(len(unclaimed)))
	notified := map[string]map[string]bool{}
	var corrupt []error
	for _, id := range unclaimed[:min(len(unclaimed), maxReports)] {
		pending, err := s.reportOne(ctx, as, id)
		corrupt = append(corrupt, err) // corruptKeys picks unreadable records: no owner alerts to them
		if err != nil && !errors.Is(err, store.ErrRefused) && ctx.Err() == nil {
			s.log.WithError(err).WithField(obs.RCID, id).
				Warn("cannot write into the status that a controller has no owner")
		}
		notified[id] = pending
	}
	s.notified = notified
	if found.again {
		s.unreadable.setSearched(unownedKind, corruptKeys(corrupt))
	}
}

// reportOne returns the alerts that were sent and are not stored yet.
func (s *leaderReporter) reportOne(
	ctx context.Context, as LeaderStore, id string,
) (notified map[string]bool, err error) {
	notified = s.notified[id]
	u, ok, err := as.ReadUnowned(ctx, id)
	if err != nil || !ok {
		return notified, err
	}
	record, now := &u.RC.Value, time.Now().UTC()
	st := rc.Status{RCID: id, Desired: record.Desired()}
	if u.Status != nil {
		st = *u.Status
	}
	st.Conditions = rc.SetCondition(append([]rc.Condition(nil), st.Conditions...), rc.Unclaimed, true,
		fmt.Sprintf("none of the %d living farms works on it", len(s.members())), now)
	st.Owner = ""
	quiet := record.Disabled || record.DeletedAt != nil
	st.Incidents, _ = alert.Track(alert.Input{Before: u.Status, After: &st, Now: now, Quiet: quiet, Notified: notified})
	if statusDiffers(u.Status, &st) {
		if err := as.ReportUnowned(ctx, u, st); err != nil {
			return notified, err
		}
	}
	notified, _, _ = s.kit.notifier.NotifyDue(ctx, id, alert.Due(&st, now), notified)
	return notified, nil
}

// reportStrays alerts to placements of controllers without a record. Their pods run on (P4). An operator must decide
// whether the record was lost or the controller is gone.
func (s *leaderReporter) reportStrays(ctx context.Context, ids []string) error {
	placed, err := s.cfg.Store.ListPlacedRCIDs(ctx)
	if err != nil {
		return err
	}
	strays := field.Without(placed, ids)
	slices.Sort(strays)
	var left []ownerless.Record
	for _, id := range strays[:min(len(strays), maxReports)] {
		exists, err := s.cfg.Store.RCExists(ctx, id)
		if err != nil {
			return err
		}
		if exists {
			continue // it is new
		}
		recs, corrupt, err := s.cfg.Store.Placements(ctx, id, store.Default)
		if err != nil {
			return err
		}
		for i := range recs {
			left = append(left, ownerless.Record{Of: ownerless.Placement, Node: recs[i].Value.Node, About: id})
		}
		if len(recs) == 0 && len(corrupt) > 0 {
			left = append(left, ownerless.Record{
				Of: ownerless.Placement, Node: "an unknown node (its placements cannot be read)", About: id,
			})
		}
	}
	s.unreadable.setSearched(straysKind, ownerless.Alerts(ownerless.Scan(ownerless.Controller, nil, left), maxReports))
	return nil
}
