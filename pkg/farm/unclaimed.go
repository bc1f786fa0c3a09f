package farm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// maxReports bounds how many controllers without an owner one sweep writes about.
const maxReports = 100

// swept is what a sweep has found that the leader is to act on.
type swept struct {
	ids       []string        // of all controllers
	free      map[string]bool // those without an owner
	unclaimed []string        // those that had none in the sweep before, either
	again     bool            // there was a sweep before
}

// sweptAll notes what a sweep has found: the controllers, and the locks of them that others hold.
func (f *speaker) sweptAll(ids []string, locks store.LockState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := &swept{ids: ids, free: map[string]bool{}, again: f.last != nil}
	for _, id := range ids {
		if !locks[rc.UnitOf(id)] {
			now.free[id] = true
			if f.last != nil && f.last.free[id] {
				now.unclaimed = append(now.unclaimed, id)
			}
		}
	}
	f.last = now
	f.swept.Raise()
}

// lastSweep returns what the last sweep has found; nil: there was none.
func (f *speaker) lastSweep() *swept {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// reset forgets what only a leader knows.
func (f *speaker) reset() {
	f.notified = nil
	f.cfg.Metrics.unclaimed.Set(0)
	f.unreadable.forget(unownedKind)
	f.unreadable.forget(straysKind)
}

// reportUnclaimed counts the controllers that had no owner in a sweep and in the one before, and says so in their statuses, where an owner
// finds what was told.
func (f *speaker) reportUnclaimed(ctx context.Context, as Duties, found *swept) {
	unclaimed := found.unclaimed
	f.cfg.Metrics.unclaimed.Set(float64(len(unclaimed)))
	told := map[string]map[string]bool{}
	var corrupt []error
	for _, id := range unclaimed[:min(len(unclaimed), maxReports)] {
		pending, err := f.reportOne(ctx, as, id)
		corrupt = append(corrupt, err) // those that are about unreadable records are told: no owner will
		if err != nil && !errors.Is(err, store.ErrRefused) && ctx.Err() == nil {
			f.log.WithError(err).WithField(obs.RCID, id).Warn("cannot say that a controller has no owner")
		}
		told[id] = pending
	}
	f.notified = told
	if found.again {
		f.unreadable.found(unownedKind, corruptKeys(corrupt))
	}
}

// reportOne says that one controller has no owner, and returns what was told about it and is not stored yet.
func (f *speaker) reportOne(ctx context.Context, as Duties, id string) (told map[string]bool, err error) {
	told = f.notified[id]
	u, ok, err := as.ReadUnowned(ctx, id)
	if err != nil || !ok {
		return told, err
	}
	record, now := &u.RC.Value, time.Now().UTC()
	st := rc.Status{RCID: id, Desired: record.Desired()}
	if u.Status != nil {
		st = *u.Status
	}
	st.Conditions = rc.SetCondition(append([]rc.Condition(nil), st.Conditions...), rc.Unclaimed, true,
		fmt.Sprintf("none of the %d living farms works on it", len(f.members())), now)
	st.Owner = ""
	quiet := record.Disabled || record.DeletedAt != nil
	st.Incidents, _ = alert.Track(alert.Input{Before: u.Status, After: &st, Now: now, Quiet: quiet, Notified: told})
	if statusDiffers(u.Status, &st) {
		if err := as.ReportUnowned(ctx, u, st); err != nil {
			return told, err
		}
	}
	told, _, _ = f.kit.teller.Due(ctx, id, alert.Due(&st, now), told)
	return told, nil
}

const strayText = "the controller %s has placements on %s and no record; its pods are left as they are: write the record back, or stop them with rcctl node sweep NODE"

// reportStrays alerts about placements of controllers that have no record. What they run runs on (P4): whether the record was
// lost or the controller is gone is for an operator to say.
func (f *speaker) reportStrays(ctx context.Context, ids []string) error {
	placed, err := f.cfg.Store.ListPlacedRCIDs(ctx)
	if err != nil {
		return err
	}
	found := map[string]string{}
	strays := without(placed, ids)
	slices.Sort(strays)
	for _, id := range strays[:min(len(strays), maxReports)] {
		exists, err := f.cfg.Store.RCExists(ctx, id)
		if err != nil {
			return err
		}
		if exists {
			continue // it is new
		}
		where, err := f.placesOf(ctx, id)
		if err != nil {
			return err
		}
		if where != "" {
			found["pods/"+id] = fmt.Sprintf(strayText, id, where)
		}
	}
	f.unreadable.found(straysKind, found)
	return nil
}

// placesOf names the nodes of a controller's placements, a few of them; "" when there are none.
func (f *speaker) placesOf(ctx context.Context, id string) (string, error) {
	const few = 3
	recs, corrupt, err := f.cfg.Store.Placements(ctx, id, false)
	if err != nil {
		return "", err
	}
	names := map[string]bool{}
	for i := range recs {
		names[recs[i].Value.Node] = true
	}
	some := slices.Sorted(maps.Keys(names))
	text := field.Few(some, few, ", ")
	if text == "" && len(corrupt) > 0 {
		text = "a node that its placements do not tell"
	}
	return text, nil
}
