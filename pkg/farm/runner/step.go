package runner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/contain"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// stepTries is how often a rollout is read again in a row while its steps are refused: statuses change while pods start.
const stepTries = 4

// steps makes one step, and tries again at once where others wrote what it was decided from.
func (r *Runner) steps(ctx context.Context, service string, c *carried) (again time.Duration, err error) {
	for range stepTries {
		err = contain.Do(func() (err error) {
			again, err = r.step(ctx, service, c)
			return err
		})
		if panicked := contain.Is(err); panicked != nil {
			c.unsure = true // what it was about to write may land
			r.suffers(ctx, service, c, panicked)
			break
		}
		if !errors.Is(err, store.ErrRefused) || ctx.Err() != nil || store.Denied(err) {
			break
		}
	}
	return again, err
}

// step reads, decides and writes once.
func (r *Runner) step(ctx context.Context, service string, c *carried) (again time.Duration, err error) {
	c.looks.Begin()
	if c.unsure {
		if err := r.bump(ctx, c); err != nil {
			return 0, err
		}
	}
	v, err := r.cfg.Store.ReadRollout(ctx, service, c.ids, c.consistent)
	if err != nil {
		return 0, err
	}
	before := &v.Rollout.Value
	c.ids, c.consistent = store.RolloutRCs(before), false
	seen, err := r.observe(ctx, &v, c)
	if err != nil {
		return 0, err
	}
	d := rollout.Decide(*before, seen)
	r.cfg.Metrics.carries(service, before.State)
	index := v.Rollout.Index
	if write := stepOf(&v, &d, r.cfg.ID, seen.Now); write != nil {
		write.Fence = c.fence
		written, err := r.cfg.Store.CommitRollout(ctx, write)
		index = max(index, written)
		r.cfg.Metrics.stepped(before, &d, seen.Now, err)
		if err != nil {
			return 0, r.afterFailure(ctx, c, err)
		}
		r.say(before, &d)
		r.cfg.Changed(field.Each(write.RCs, func(r rc.RC) string { return r.ID }), written)
	}
	if d.Ended {
		r.drop(service)
		return 0, nil
	}
	r.ask(ctx, &d.Record, c, d.Gate)
	c.looks.Ended(map[string]uint64{recordKey: index, bellKey: v.Bell}) // its own write among it: what a decision makes asks for no other look
	c.looks.Again(d.Again)
	return d.Again, nil
}

// cannotWork is how the reason begins why nothing moves that panics.
const cannotWork = "it cannot be worked on: "

// suffers tells of a look at a rollout that panicked: its stack in the log, once, and in the record and an incident
// that the rollout cannot be worked on. Before that the fence moves. The next look that goes well takes the reason
// away.
func (r *Runner) suffers(ctx context.Context, service string, c *carried, panicked *contain.Panic) {
	r.cfg.Metrics.panics.Inc()
	log := r.log.WithField(obs.Service, service)
	if c.panicked != panicked.Error() {
		c.panicked = panicked.Error()
		log.WithError(panicked).WithField(obs.Stack, panicked.Stack).Error("a look at a rollout panicked")
	}
	reason := field.Cut(cannotWork+panicked.Error(), rc.MaxReason)
	err := contain.Do(func() error {
		if err := r.bump(ctx, c); err != nil {
			return err
		}
		v, err := r.cfg.Store.ReadRollout(ctx, service, c.ids, true)
		if err != nil || v.Rollout.Value.BlockedReason == reason {
			return err
		}
		next := v.Rollout.Value
		next.BlockedReason = reason
		var before *store.RolloutIncident
		if v.Incident.Index != 0 {
			before = &v.Incident.Value
		}
		incident := newIncident(before, service, next.ID, reason, false, time.Now().UTC())
		_, err = r.cfg.Store.CommitRollout(ctx, &store.RolloutStep{Fence: c.fence, View: &v, Record: &next, Incident: &incident})
		return err
	})
	if err != nil && ctx.Err() == nil {
		c.unsure = true
		log.WithError(err).Warn("cannot say that a rollout cannot be worked on")
	}
}

// afterFailure shuts a write out whose outcome is unknown, and finds out whether the lock is still this farm's, before anything is read.
func (r *Runner) afterFailure(ctx context.Context, c *carried, err error) error {
	if !errors.Is(err, store.ErrUnknown) && !store.LockRefused(err, c.fence) {
		return err
	}
	if lost := r.bump(ctx, c); lost != nil {
		return errors.Join(lost, fmt.Errorf("after: %v", err)) //nolint:errorlint // the cause is told; that the lock is lost decides
	}
	return err
}

// observe is what a decision is made from.
func (r *Runner) observe(ctx context.Context, v *store.RolloutView, c *carried) (rollout.Observed, error) {
	now := time.Now()
	watched := c.progress.see(v.Rollout.Value.ProgressAt, now)
	seen := rollout.Observed{
		Now: now.UTC(), Watched: &watched, Epoch: v.Schema.Value.Epoch, Gate: c.gate.answer(v.Rollout.Value.ID), Revisions: make(map[string]rollout.Seen, len(v.RCs)),
	}
	if v.Breaker.Value.Tripped {
		seen.Breaker = v.Breaker.Value.Reason
		if seen.Breaker == "" {
			seen.Breaker = "it is tripped"
		}
	}
	for id, rec := range v.RCs { // one that is not there is empty; of those that cannot be read nothing is known
		one := rollout.Seen{RC: rec.Value}
		if st, ok := v.Status[id]; ok && rec.Index != 0 {
			one.Status = &st.Value
		}
		seen.Revisions[id] = one
	}
	if before := v.Rollout.Value.PreDeploy; before != nil {
		var err error
		if seen.PreDeploy, err = r.preDeployed(ctx, v, before.RC); err != nil {
			return seen, err
		}
	}
	return seen, nil
}

// stepOf returns what a decision writes, nil for nothing.
func stepOf(v *store.RolloutView, d *rollout.Decision, who string, now time.Time) *store.RolloutStep {
	if !d.Write && !d.Ended && len(d.RCs)+len(d.Delete)+len(d.Audit) == 0 && d.Alert == "" {
		return nil
	}
	s := &store.RolloutStep{View: v, RCs: withDeleted(v, d, who, now), Ended: d.Ended}
	if d.Write || d.Ended {
		s.Record = &d.Record
	}
	if len(d.Audit) > 0 || d.Ended {
		a := store.NewAudit(who, deedOf(d), rcOf(d), d.Audit)
		s.Audit = &a
	}
	if d.Alert != "" {
		var before *store.RolloutIncident
		if v.Incident.Index != 0 {
			before = &v.Incident.Value
		}
		next := newIncident(before, d.Record.Service, d.Record.ID, d.Alert, d.Ended, now)
		s.Incident = &next
	}
	return s
}

// withDeleted returns the controllers that a decision changes, those with it that only get the deletion mark.
func withDeleted(v *store.RolloutView, d *rollout.Decision, who string, now time.Time) []rc.RC {
	all := slices.Clone(d.RCs)
	for _, id := range d.Delete {
		rec := v.RCs[id]
		if rec.Index == 0 || rec.Value.DeletedAt != nil || slices.ContainsFunc(d.RCs, func(r rc.RC) bool { return r.ID == id }) {
			continue
		}
		gone := rec.Value
		gone.DeletedAt, gone.ChangedBy, gone.Mutator = &now, who, ""
		gone.Generation++
		all = append(all, gone)
	}
	for i := range all {
		if all[i].ChangedBy == "" || all[i].Generation != v.RCs[all[i].ID].Value.Generation {
			all[i].ChangedBy = who
		}
	}
	return all
}

// deedOf is what an audit record calls a step.
func deedOf(d *rollout.Decision) string {
	if !d.Ended {
		return "rollout"
	}
	switch d.Record.State {
	case rollout.Done:
		return "rollout-succeeded"
	case rollout.Aborted:
		return "rollout-cancelled"
	default:
		return "rollout-failed"
	}
}

// rcOf is the controller that an audit record is about: that of the revision which gets pods.
func rcOf(d *rollout.Decision) string {
	if up := d.Record.Upward(); up != nil {
		return up.RC
	}
	return d.Record.Revisions[len(d.Record.Revisions)-1].RC
}

// say logs a step that has landed.
func (r *Runner) say(before *rollout.Record, d *rollout.Decision) {
	log := r.log.WithField(obs.Service, before.Service).WithField("stage", d.Record.Stage).WithField("state", string(d.Record.State))
	for _, line := range d.Audit {
		log.Info(line)
	}
}

// preDeployed is what became of the pod of the controller that runs once; nil: it has reported nothing yet.
func (r *Runner) preDeployed(ctx context.Context, v *store.RolloutView, id string) (*rollout.PreDeployed, error) {
	st := v.Status[id].Value
	if st.Lost > 0 {
		return &rollout.PreDeployed{Lost: true}, nil
	}
	placed, _, err := r.cfg.Store.Placements(ctx, id, false)
	if err != nil {
		return nil, err
	}
	var at []store.At
	for i := range placed {
		at = append(at, store.At{Node: placed[i].Value.Node, Identity: placed[i].Value.Identity})
	}
	realities, _, err := r.cfg.Store.RealitiesAt(ctx, at, false)
	if err != nil {
		return nil, err
	}
	return ranOnce(&st, slices.Collect(maps.Values(realities))), nil
}

// ranOnce is what the status of a controller of one pod, which is never started again, and what its node reports, say about its run.
func ranOnce(st *rc.Status, realities []pod.Reality) *rollout.PreDeployed {
	for i := range realities {
		reality := &realities[i]
		if exit := reality.LastExit; exit != nil {
			done := &rollout.PreDeployed{Finished: true, Exit: exit.Code, Tail: reality.LogTail}
			if exit.Unknown || exit.Signal != "" {
				done.Exit, done.Failed = -1, "it "+exit.String()
			}
			return done
		}
	}
	for _, f := range st.Failing {
		if f.Hopeless {
			return &rollout.PreDeployed{Failed: f.Reason}
		}
	}
	return nil
}
