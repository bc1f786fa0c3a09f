package rollout_test

import (
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// A clock that is an hour ahead times out no stage that this process has watched for less than the timeout.
func TestAClockThatIsAheadTimesNoStageOut(t *testing.T) {
	t.Parallel()
	const timeout = time.Minute
	for watched, fails := range map[time.Duration]bool{0: false, timeout - time.Second: false, timeout: true} {
		rec, obs := staged(rollout.AvailabilityStrategy, rollout.Moving,
			rollout.Update{Step: 1, Surge: 1, StageTimeout: field.Duration(timeout)}, 4,
			rev{has: 3, target: 3}, rev{dir: rollout.Up, has: 2, target: 2, away: 1})
		rec.Progress, obs.Now, obs.Watched = 100, t0.Add(time.Hour), &watched
		d := rollout.Decide(rec, obs)
		if failed := d.Record.State == rollout.Paused; failed != fails {
			t.Errorf("stage, watched for %s: %s %q", watched, d.Record.State, d.Record.Reason)
		}
		if left := timeout - watched; !fails && d.Again != left {
			t.Errorf("stage, watched for %s: looks again after %s, want %s", watched, d.Again, left)
		}
	}
}

// A clock that is an hour ahead ends no pre_deploy that this process has watched for less than its timeout.
func TestAClockThatIsAheadEndsNoPreDeploy(t *testing.T) {
	t.Parallel()
	for watched, fails := range map[time.Duration]bool{
		0: false, rollout.PreDeployTimeout - time.Second: false, rollout.PreDeployTimeout: true,
	} {
		rec, obs := staged(rollout.AvailabilityStrategy, rollout.PreDeploying, rollout.Update{Step: 1, Surge: 1}, 4,
			rev{has: 4, target: 0}, rev{dir: rollout.Up, target: 4})
		rec.Stage, rec.PreDeploy = 0, &rollout.PreDeploy{
			RC: webPre, Name: "web-pre", Until: t0.Add(rollout.PreDeployTimeout),
		}
		obs.Now, obs.Watched, obs.PreDeploy = t0.Add(rollout.PreDeployTimeout+time.Hour), &watched,
			&rollout.PreDeployed{}
		d := rollout.Decide(rec, obs)
		if failed := d.Record.State == rollout.Failed; failed != fails {
			t.Errorf("watched for %s: %s %q", watched, d.Record.State, d.Record.Reason)
		}
		if left := rollout.PreDeployTimeout - watched; !fails && d.Again != left {
			t.Errorf("watched for %s: looks again after %s, want %s", watched, d.Again, left)
		}
	}
}

// Times of a record that lie in the future, because the clock of a former owner was wrong, are replaced once by now.
func TestFutureTimesOfARolloutAreReplacedOnce(t *testing.T) {
	t.Parallel()
	now := t0.Add(time.Minute)
	for name, set := range map[string]func(r *rollout.Record, at time.Time) (want time.Time){
		"started_at":    func(r *rollout.Record, at time.Time) time.Time { r.StartedAt = at; return now },
		"stage_since":   func(r *rollout.Record, at time.Time) time.Time { r.StageSince = at; return now },
		"progress_at":   func(r *rollout.Record, at time.Time) time.Time { r.ProgressAt = at; return now },
		"waiting_since": func(r *rollout.Record, at time.Time) time.Time { r.WaitingSince = &at; return now },
		"pre_deploy.until": func(r *rollout.Record, at time.Time) time.Time {
			r.PreDeploy = &rollout.PreDeploy{RC: webPre, Name: "web-pre", Until: at.Add(rollout.PreDeployTimeout)}
			return now.Add(rollout.PreDeployTimeout)
		},
		"gate.next_at": func(r *rollout.Record, at time.Time) time.Time {
			next := at.Add(3 * time.Second)
			r.Gate = &rollout.Gate{Tries: 3, NextAt: &next}
			return now.Add(3 * time.Second)
		},
	} {
		read := func(r *rollout.Record) time.Time {
			return map[string]time.Time{
				"started_at": r.StartedAt, "stage_since": r.StageSince, "progress_at": r.ProgressAt,
				"waiting_since":    at(r.WaitingSince),
				"pre_deploy.until": until(r.PreDeploy), "gate.next_at": nextAt(r.Gate),
			}[name]
		}
		for ahead, replaced := range map[time.Duration]bool{
			time.Hour: true, field.ClockError + 1: true, field.ClockError: false,
		} {
			rec, obs := staged(rollout.AvailabilityStrategy, rollout.Moving, rollout.Update{Step: 1, Surge: 1}, 4,
				rev{has: 3, target: 3}, rev{dir: rollout.Up, has: 2, target: 2, away: 1})
			rec.Progress, obs.Now = 100, now
			rec.State, rec.Resume = rollout.Paused, rollout.Progressing // while it is paused, nothing else changes it
			want := set(&rec, now.Add(ahead))
			before := read(&rec)
			d := rollout.Decide(rec, obs)
			if got := read(&d.Record); replaced && !got.Equal(want) || !replaced && !got.Equal(before) ||
				d.Write != replaced {
				t.Errorf("%s, %s ahead: %s, want %s; written %t", name, ahead, got, want, d.Write)
			}
			if d = rollout.Decide(d.Record, obs); d.Write {
				t.Errorf("%s, %s ahead: written once more", name, ahead)
			}
		}
	}
}

func at(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

func until(p *rollout.PreDeploy) time.Time {
	if p == nil {
		return time.Time{}
	}
	return p.Until
}

func nextAt(g *rollout.Gate) time.Time {
	if g == nil {
		return time.Time{}
	}
	return at(g.NextAt)
}
