package runner

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/alert"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// What is wrong with a rollout stands at rollouts/<service>/trouble. Runners write it with the step that makes the trouble; the farm with
// the lowest id tells it, finds what no runner can say, and notes there what was told, so that the next one neither repeats nor
// forgets it.

// telling is what the farm with the lowest id knows of one service's trouble.
type telling struct {
	told map[string]bool       // not stored yet, by alert.Tell.ID
	open *store.RolloutTrouble // that was told, and is not over
}

// newTrouble returns what is wrong with a rollout now. One incident goes on while before is not resolved.
func newTrouble(before *store.RolloutTrouble, service, id, reason string, ended bool, now time.Time) store.RolloutTrouble {
	next := store.RolloutTrouble{Rollout: id, Ended: ended, Incident: rc.Incident{
		Key: rc.IncidentKey(service, alert.RolloutTrouble, now), Type: alert.RolloutTrouble, Since: now,
	}}
	if before != nil && before.ResolvedAt == nil && before.Type == alert.RolloutTrouble {
		next.Incident = before.Incident
	}
	next.Reason = field.Cut(reason, rc.MaxReason)
	return next
}

const tellEvery = time.Second

// matched notes whether some living farm works on all controllers of a rollout.
func (r *Runner) matched(service string, yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, was := r.lonely[service]
	switch {
	case yes:
		delete(r.lonely, service)
	case !was:
		r.lonely[service] = time.Now()
	}
}

// tellTroubles tells what is wrong with rollouts, while this farm has the lowest id.
func (r *Runner) tellTroubles(ctx context.Context) error {
	for {
		if r.lowest() {
			r.tellAll(ctx)
		} else {
			r.forgetTold()
		}
		if _, err := wait.PauseUnless(ctx, r.wake, tellEvery); err != nil {
			return err
		}
	}
}

func (r *Runner) lowest() bool {
	members := r.cfg.Members()
	return len(members) > 0 && !slices.ContainsFunc(members, func(m store.Member) bool { return m.ID < r.cfg.ID })
}

func (r *Runner) forgetTold() {
	r.mu.Lock()
	services := r.told
	r.told = map[string]*telling{}
	r.mu.Unlock()
	for service := range services {
		r.cfg.Alerting(service, nil)
	}
}

// sweepBells removes the bells of rollouts that there are none of any more.
func (r *Runner) sweepBells(ctx context.Context) {
	r.mu.Lock()
	stray := map[string]uint64{}
	for service, index := range r.seen.Bells {
		if r.records[service] == nil && r.seen.Corrupt[service] == nil {
			stray[service] = index
		}
	}
	r.mu.Unlock()
	for service, index := range stray {
		if err := r.cfg.Store.SweepRolloutBell(ctx, service, index); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrRefused) {
			r.log.WithError(err).WithField(obs.Service, service).Warn("cannot remove the bell of a rollout that has ended")
		}
	}
}

func (r *Runner) tellAll(ctx context.Context) {
	now := time.Now().UTC()
	r.sweepBells(ctx)
	for service, f := range r.findings(now) {
		if err := r.tellOne(ctx, service, f, now); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrConflict) {
			r.log.WithError(err).WithField(obs.Service, service).Warn("cannot keep what was told about a rollout")
		}
	}
}

// finding is what is known of a service's trouble: what is stored, and what is the case.
type finding struct {
	stored store.Rec[store.RolloutTrouble] // index zero: nothing is
	// now is what is the case, nil for nothing wrong.
	now     *store.RolloutTrouble
	telling *telling
}

// findings lists the services with which something is, or was, wrong.
func (r *Runner) findings(now time.Time) map[string]finding {
	r.mu.Lock()
	defer r.mu.Unlock()
	services := slices.Concat(keys(r.seen.Trouble), keys(r.seen.Corrupt), keys(r.lonely), keys(r.told))
	out := map[string]finding{}
	for _, service := range services {
		f := finding{stored: r.seen.Trouble[service], telling: r.told[service]}
		if f.telling == nil {
			f.telling = &telling{}
			r.told[service] = f.telling
		}
		lonely, is := r.lonely[service]
		var rec *rollout.Record
		if known := r.records[service]; known != nil {
			rec = &known.Value
		}
		f.now = troubleOf(service, &f.stored, rec, r.seen.Corrupt[service], is && now.Sub(lonely) >= r.cfg.Unclaimed, now)
		out[service] = f
	}
	return out
}

func keys[V any](of map[string]V) []string { return slices.Collect(maps.Keys(of)) }

const unclaimedText = "none of the living farms works on all of the rollout's controllers; start one whose --rc-selector matches them"

// troubleOf returns what is wrong with a service's rollout, nil for nothing: its record cannot be read, no farm may carry it out, or
// what its runner wrote is not over. That is so while the rollout is paused or rolls back, and where it has ended, until another one begins.
func troubleOf(service string, stored *store.Rec[store.RolloutTrouble], rec *rollout.Record, corrupt error, unclaimed bool, now time.Time) *store.RolloutTrouble {
	var before *store.RolloutTrouble
	if stored.Index != 0 {
		before = &stored.Value
	}
	fresh := func(id, reason string) *store.RolloutTrouble {
		next := newTrouble(before, service, id, reason, false, now)
		return &next
	}
	switch {
	case corrupt != nil:
		return fresh("", corrupt.Error())
	case rec != nil && unclaimed:
		return fresh("", unclaimedText)
	case before == nil || before.ResolvedAt != nil || before.Rollout == "":
		return nil
	case rec == nil && before.Ended:
		return before
	case rec == nil || rec.ID != before.Rollout:
		return nil
	case rec.State == rollout.Progressing || rec.State == rollout.WaitingForPromote:
		return nil
	default:
		return before
	}
}

// tellOne moves the incident of one service, stores where it stands, and tells what has to be told.
func (r *Runner) tellOne(ctx context.Context, service string, f finding, now time.Time) error {
	t := f.telling
	if f.stored.Index == 0 && f.now == nil {
		r.removedByHand(ctx, service, t, now)
		return nil
	}
	was, is := &rc.Status{RCID: service}, &rc.Status{RCID: service}
	if f.stored.Index != 0 && f.stored.Value.Type == alert.RolloutTrouble {
		was.Incidents = []rc.Incident{f.stored.Value.Incident}
	}
	if f.now != nil {
		is.Conditions = rc.SetCondition(nil, alert.RolloutTrouble, true, f.now.Reason, f.now.Since)
	}
	is.Incidents, _ = alert.Track(alert.Input{Before: was, After: is, Now: now, Told: t.told})
	next := f.stored.Value
	if f.now != nil {
		next = *f.now
	}
	var write *store.RolloutTrouble
	if len(is.Incidents) > 0 {
		next.Incident = is.Incidents[0]
		write = &next
	}
	if f.stored.Index == 0 || write == nil || !reflect.DeepEqual(*write, f.stored.Value) {
		if err := r.cfg.Store.WriteTrouble(ctx, service, f.stored.Index, write); err != nil {
			return err
		}
	}
	t.told, _ = r.teller.Due(ctx, "", alert.Due(is, now), t.told)
	t.open = nil
	active := alert.Active(is, now)
	if len(active) > 0 {
		t.open = &next
	}
	r.cfg.Alerting(service, active)
	if write == nil {
		r.forgetOne(service)
	}
	return nil
}

// removedByHand tells the end of what was told, and whose record is gone.
func (r *Runner) removedByHand(ctx context.Context, service string, t *telling, now time.Time) {
	if t.open != nil {
		over := t.open.Incident
		over.ResolvedAt = &now
		r.teller.One(ctx, "", alert.Tell{Incident: over, Resolved: true})
	}
	r.cfg.Alerting(service, nil)
	r.forgetOne(service)
}

func (r *Runner) forgetOne(service string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.told, service)
}
