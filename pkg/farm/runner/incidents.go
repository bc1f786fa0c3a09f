package runner

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// What is wrong with a rollout stands at rollouts/<service>/trouble. Runners write it with the step that makes the incident; the leader tells
// it, finds what no runner can say, and notes there what was told, so that the next one neither repeats nor forgets it.

// telling is what the leader knows of one service's incident.
type telling struct {
	notified map[string]bool        // not stored yet, by alert.Tell.ID
	open     *store.RolloutIncident // that was told, and is not over
}

// newIncident returns what is wrong with a rollout now. One incident goes on while before is not resolved.
func newIncident(before *store.RolloutIncident, service, id, reason string, ended bool, now time.Time) store.RolloutIncident {
	next := store.RolloutIncident{Rollout: id, Ended: ended, Incident: rc.Incident{
		Key: rc.IncidentKey(service, alert.RolloutTrouble, now), Type: alert.RolloutTrouble, Since: now,
	}}
	if before != nil && before.ResolvedAt == nil && before.Type == alert.RolloutTrouble {
		next.Incident = before.Incident
	}
	next.Reason = field.Cut(reason, rc.MaxReason)
	return next
}

const tellEvery = time.Second

// incidents tells what is wrong with rollouts, for one leadership. Only its own loop uses it.
type incidents struct {
	cfg      *Config
	log      obs.Logger
	teller   alert.Teller
	as       Duties
	wake     wait.Signal // incidents may have changed
	known    func() known
	tellings map[string]*telling // by service
}

// known is what a runner has seen of all rollouts at one moment. Nobody changes it.
type known struct {
	store.RolloutsSeen
	records map[string]*store.Rec[rollout.Record] // of those seen, by service
	lonely  map[string]time.Time                  // by service: no living farm has matched it since
}

// run tells until ctx ends.
func (t *incidents) run(ctx context.Context) error {
	defer func() {
		for service := range t.tellings {
			t.forget(service)
		}
	}()
	for {
		t.tellAll(ctx)
		if _, err := wait.PauseUnless(ctx, t.wake, tellEvery); err != nil {
			return err
		}
	}
}

// sweepBells removes the bells of rollouts that there are none of any more.
func (t *incidents) sweepBells(ctx context.Context, is known) {
	for service, index := range is.Bells {
		if is.records[service] != nil || is.Corrupt[service] != nil {
			continue
		}
		if err := t.as.SweepRolloutBell(ctx, service, index); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrRefused) {
			t.log.WithError(err).WithField(obs.Service, service).Warn("cannot remove the bell of a rollout that has ended")
		}
	}
}

// tellAll looks at each service with which something is, or was, wrong.
func (t *incidents) tellAll(ctx context.Context) {
	t.sweepBells(ctx, t.known())
	now, is := time.Now().UTC(), t.known() // the sweep may have taken long
	services := slices.Concat(keys(is.Incidents), keys(is.Corrupt), keys(is.lonely), keys(t.tellings))
	slices.Sort(services)
	for _, service := range slices.Compact(services) {
		stored, since := is.Incidents[service], is.lonely[service]
		var rec *rollout.Record
		if known := is.records[service]; known != nil {
			rec = &known.Value
		}
		unclaimed := !since.IsZero() && now.Sub(since) >= t.cfg.Unclaimed
		wrong := incidentOf(service, &stored, rec, is.Corrupt[service], unclaimed, now)
		if err := t.tellOne(ctx, service, stored, wrong, now); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrConflict) {
			t.log.WithError(err).WithField(obs.Service, service).Warn("cannot keep what was told about a rollout")
		}
	}
}

func keys[V any](of map[string]V) []string { return slices.Collect(maps.Keys(of)) }

const unclaimedText = "none of the living farms works on all of the rollout's controllers; start one whose --rc-selector matches them"

// incidentOf returns what is wrong with a service's rollout, nil for nothing: its record cannot be read, no farm may carry it out, or
// what its runner wrote is not over. That is so while the rollout is paused or rolls back, and where it has ended, until another one begins.
func incidentOf(service string, stored *store.Rec[store.RolloutIncident], rec *rollout.Record, corrupt error, unclaimed bool, now time.Time) *store.RolloutIncident {
	var before *store.RolloutIncident
	if stored.Index != 0 {
		before = &stored.Value
	}
	fresh := func(id, reason string) *store.RolloutIncident {
		next := newIncident(before, service, id, reason, false, now)
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
	case strings.HasPrefix(rec.BlockedReason, cannotWork):
		return before
	case rec.State == rollout.Progressing || rec.State == rollout.WaitingForPromote:
		return nil
	default:
		return before
	}
}

// tellOne moves the incident of one service, stores where it stands, and tells what has to be told. What is stored has the index zero for
// nothing; wrong is what is the case, nil for nothing.
func (t *incidents) tellOne(ctx context.Context, service string, stored store.Rec[store.RolloutIncident], wrong *store.RolloutIncident, now time.Time) error {
	of := t.tellings[service]
	if of == nil {
		of = &telling{}
		t.tellings[service] = of
	}
	if stored.Index == 0 && wrong == nil {
		if of.open != nil { // the record was removed by hand
			over := of.open.Incident
			over.ResolvedAt = &now
			t.teller.One(ctx, "", alert.Tell{Incident: over, Resolved: true})
		}
		t.forget(service)
		return nil
	}
	was, is := &rc.Status{RCID: service}, &rc.Status{RCID: service}
	if stored.Index != 0 && stored.Value.Type == alert.RolloutTrouble {
		was.Incidents = []rc.Incident{stored.Value.Incident}
	}
	next := stored.Value
	if wrong != nil {
		is.Conditions = rc.SetCondition(nil, alert.RolloutTrouble, true, wrong.Reason, wrong.Since)
		next = *wrong
	}
	is.Incidents, _ = alert.Track(alert.Input{Before: was, After: is, Now: now, Notified: of.notified})
	var write *store.RolloutIncident
	if len(is.Incidents) > 0 {
		next.Incident = is.Incidents[0]
		write = &next
	}
	if stored.Index == 0 || write == nil || !reflect.DeepEqual(*write, stored.Value) {
		if err := t.as.WriteRolloutIncident(ctx, service, stored.Index, write); err != nil {
			return err
		}
	}
	of.notified, _, _ = t.teller.Due(ctx, "", alert.Due(is, now), of.notified)
	of.open = nil
	active := alert.Active(is, now)
	if len(active) > 0 {
		of.open = &next
	}
	t.cfg.Alerting(service, active)
	if write == nil {
		delete(t.tellings, service)
	}
	return nil
}

// forget is for a service with which nothing is wrong any more, or that is not this farm's to tell of.
func (t *incidents) forget(service string) {
	t.cfg.Alerting(service, nil)
	delete(t.tellings, service)
}
