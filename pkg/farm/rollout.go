package farm

import (
	"context"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/roll"
	"github.com/rcfarm/rcfarm/pkg/internal/contain"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// rolling is what the owner of a unit remembers of its rollout. Nothing is decided by it, but that a stage times out
// only after this process has watched it for that long: the next owner goes on from the records.
type rolling struct {
	gate     roll.Gate
	progress watched
	panicked string // what the last look that panicked died of; it is told once
}

// watched is since when this process has seen a rollout without progress.
type watched struct {
	at    time.Time // of the progress, as the record says
	since time.Time // by the clock that is never set
}

// see returns for how long the record has said that its last progress was at a time.
func (w *watched) see(at, now time.Time) time.Duration {
	if w.since.IsZero() || !at.Equal(w.at) {
		w.at, w.since = at, now
	}
	return now.Sub(w.since)
}

// roll makes the next step of the unit's rollout, if there is one to make: it is decided from what the passes of this
// look have found, and written alone. It reports whether a step was written, and when to look again.
func (u *unit) roll(ctx context.Context, v *view) (stepped bool, again time.Duration, err error) {
	if v.Rollout.Index == 0 || v.RolloutErr != nil {
		u.rollEnds()
		if v.Rollout.Index != 0 { // who mends the record, or removes it, does that by hand, and rings no bell
			again = troubled
		}
		return false, again, nil
	}
	err = contain.Do(func() (err error) {
		stepped, again, err = u.step(ctx, v)
		return err
	})
	panicked := contain.Is(err)
	if panicked == nil {
		return stepped, again, err
	}
	u.unsure = true // what it was about to write may land
	u.rollSuffers(ctx, panicked)
	return false, troubled, nil
}

// rollEnds is for a unit that has no rollout, whoever removed the record, or none that can be read.
func (u *unit) rollEnds() {
	u.kit.rollouts.Carries(u.id, "")
	u.rolling.gate.Stop()
}

// step decides, and writes what was decided.
func (u *unit) step(ctx context.Context, v *view) (stepped bool, again time.Duration, err error) {
	seen, err := u.seen(ctx, v)
	if err != nil {
		return false, 0, err
	}
	before := v.Rollout.Value
	u.kit.rollouts.Carries(u.id, before.State)
	d := rollout.Decide(before, roll.Observe(seen))
	if step := roll.StepOf(seen, &d, u.kit.farm); step != nil {
		step.Fence = u.fence
		index, err := u.kit.writes.CommitRollout(ctx, step)
		u.kit.rollouts.Stepped(&before, &d, seen.Now, err)
		if err != nil {
			v.stale = true
			return false, 0, u.afterFailure(ctx, err)
		}
		stepped = true
		v.stepped(step, index)
		log := u.log.WithField(obs.Service, before.Service).WithField("stage", d.Record.Stage).WithField("state", string(d.Record.State))
		for _, line := range d.Audit {
			log.Info(line)
		}
	}
	if d.Ended {
		u.rollEnds()
		return stepped, 0, nil
	}
	u.rolling.gate.Call(ctx, &d.Record, d.Gate, u.kit.ask, func(err error) {
		u.kit.rollouts.Asked(err)
		u.kit.fleet.enqueue(u.id)
	})
	return stepped, d.Again, nil
}

// seen is what a decision about the rollout is made from.
func (u *unit) seen(ctx context.Context, v *view) (*roll.Seen, error) {
	now := time.Now()
	r := &v.Rollout.Value
	s := &roll.Seen{
		Unit: &v.Unit, Schema: v.schema, Breaker: v.breaker, Found: map[string]*rc.Status{}, Now: now,
		Watched: u.rolling.progress.see(r.ProgressAt, now), Gate: u.rolling.gate.Answer(r.ID),
		Version: u.kit.writes.GateVersion(),
	}
	for _, c := range u.all() {
		s.Found[c.ID] = c.memory.found
	}
	if r.PreDeploy == nil || v.Heads[r.PreDeploy.RC] == nil {
		return s, nil
	}
	id := r.PreDeploy.RC
	if _, err := v.readDetails(ctx, u.kit.reads, store.Wanted{Realities: v.unread(id)}); err != nil {
		return s, err
	}
	for _, p := range v.podsOf(id).pods {
		if p.Reality != nil {
			s.Ran = append(s.Ran, *p.Reality)
		}
	}
	return s, nil
}

// rollSuffers tells of a look at a rollout that panicked: its stack in the log, once, and in the record and to people
// that the rollout cannot be worked on. Before that the fence moves. The next look that goes well takes the reason
// away.
func (u *unit) rollSuffers(ctx context.Context, panicked *contain.Panic) {
	u.kit.rollouts.Panicked()
	if u.rolling.panicked != panicked.Error() {
		u.rolling.panicked = panicked.Error()
		u.log.WithError(panicked).WithField(obs.Stack, panicked.Stack).Error("a look at a rollout panicked")
	}
	err := contain.Do(func() error {
		if err := u.bump(ctx); err != nil {
			return err
		}
		v, err := u.read(ctx, true)
		if err != nil || v.Rollout.Index == 0 || v.RolloutErr != nil {
			return err
		}
		if step := roll.Stopped(&v.Unit, v.schema.Index, v.breaker.Index, panicked.Error()); step != nil {
			step.Fence = u.fence
			_, err = u.kit.writes.CommitRollout(ctx, step)
		}
		return err
	})
	if err != nil && ctx.Err() == nil {
		u.unsure = true
		u.log.WithError(err).Warn("cannot say that a rollout cannot be worked on")
	}
}

// readRollout takes in the rollout of the unit, where it is in charge of the controller. One that cannot be read may
// be. Without its rollout the controller of a pre_deploy counts as disabled, so that its program, which may have run,
// does not run again.
func (ps *reader) readRollout() {
	s, record := ps.snapshot, &ps.Rollout.Value
	if ps.tellsTrouble() == ps.id {
		s.RolloutTrouble, s.RolloutStuck = roll.Trouble(&ps.Unit), record.Stuck
	}
	preDeploy := rc.IsPreDeploy(ps.id)
	switch {
	case s.RC.Service == nil && !preDeploy:
	case ps.RolloutErr != nil:
		s.Rollout = "(its record cannot be read)"
	case ps.Rollout.Index != 0 && record.Has(ps.id):
		s.Rollout, s.RolloutIdle = record.Term(), record.Idle()
	case preDeploy:
		s.RC.Disabled = true
	}
}

// tellsTrouble returns the controller whose status says what is wrong with the rollout of the unit: of those that can
// be read the oldest revision that is not deleted. The newest may go when its rollout fails, and the same would be told
// a second time.
func (v *view) tellsTrouble() (id string) {
	for _, next := range v.IDs() {
		if h := v.Heads[next]; h.Exists() && h.Err == nil && !rc.IsPreDeploy(next) && (id == "" || h.RC.Value.DeletedAt == nil) {
			id = next
		}
	}
	return id
}
