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

// rolling is what the owner of a unit remembers of its rollout. A stage times out only after this process has watched
// it for the whole timeout.
type rolling struct {
	gate     roll.Gate
	progress watched
	panicked string // text of the last panic, so that its stack is logged once
}

type watched struct {
	at    time.Time // of the last progress, by the record
	since time.Time // by the monotonic clock
}

// see returns for how long this process has seen the same time of the last progress.
func (w *watched) see(at, now time.Time) time.Duration {
	if w.since.IsZero() || !at.Equal(w.at) {
		w.at, w.since = at, now
	}
	return now.Sub(w.since)
}

// roll makes the next step of the rollout, if there is one, from the results of this look's passes. It reports whether
// it wrote a step, and when to look again.
func (u *unit) roll(ctx context.Context, v *view) (stepped bool, again time.Duration, err error) {
	if v.Rollout.Index == 0 || v.RolloutErr != nil {
		u.forgetRollout()
		if v.Rollout.Index != 0 { // people mend or remove the record by hand, which rings no bell
			again = brokenLook
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
	u.unsure = true // a write of the step may still land
	u.reportRolloutPanic(ctx, panicked)
	return false, brokenLook, nil
}

// forgetRollout is called when the unit has no rollout, or one that cannot be read.
func (u *unit) forgetRollout() {
	u.kit.rollouts.SetState(u.id, "")
	u.rolling.gate.Stop()
}

func (u *unit) step(ctx context.Context, v *view) (stepped bool, again time.Duration, err error) {
	seen, err := u.seen(ctx, v)
	if err != nil {
		return false, 0, err
	}
	before := v.Rollout.Value
	u.kit.rollouts.SetState(u.id, before.State)
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
		log := u.log.WithFields(obs.Fields{
			obs.Service: before.Service, "stage": d.Record.Stage, "state": string(d.Record.State),
		})
		for _, line := range d.Audit {
			log.Info(line)
		}
	}
	if d.Ended {
		u.forgetRollout()
		return stepped, 0, nil
	}
	u.rolling.gate.Call(ctx, &d.Record, d.Gate, u.kit.ask, func(err error) {
		u.kit.rollouts.Asked(err)
		u.kit.peers.enqueue(u.id)
	})
	return stepped, d.Again, nil
}

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
	var err error
	if v.reports, _, err = v.readReports(ctx, u.kit.reads, store.Wanted{}, id); err != nil {
		return s, err
	}
	for _, p := range v.reports.pods[id].pods {
		if p.Reality != nil {
			s.Ran = append(s.Ran, *p.Reality)
		}
	}
	return s, nil
}

// reportRolloutPanic logs the stack once, moves the fence, and writes into the rollout's records that the farm cannot
// work on the rollout, so that people are alerted. The next look without a panic removes that reason.
func (u *unit) reportRolloutPanic(ctx context.Context, panicked *contain.Panic) {
	u.kit.rollouts.Panicked()
	if u.rolling.panicked != panicked.Error() {
		u.rolling.panicked = panicked.Error()
		u.log.WithError(panicked).WithField(obs.Stack, panicked.Stack).Error("a look at a rollout panicked")
	}
	err := contain.Do(func() error {
		if err := u.bump(ctx); err != nil {
			return err
		}
		v, err := u.read(ctx, store.Consistent)
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
		u.log.WithError(err).Warn("cannot write that a rollout cannot be worked on")
	}
}
