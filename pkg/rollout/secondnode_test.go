package rollout_test

import (
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// The timeout of a stage starts again when a pod moves to its second node. A time in the future is replaced by now.
func TestASecondNodeRestartsTheTimeout(t *testing.T) {
	t.Parallel()
	const timeout = time.Minute
	for name, c := range map[string]struct {
		left  time.Duration // when it moved, after the last progress; zero: it did not
		now   time.Duration
		away  bool // the pod is of the revision that goes down
		again time.Duration
		fails bool
	}{
		"none left":                  {now: timeout, fails: true},
		"one left":                   {left: 50 * time.Second, now: timeout, again: 50 * time.Second},
		"and its time is over":       {left: 50 * time.Second, now: 50*time.Second + timeout, fails: true},
		"one left before the stage":  {left: -time.Hour, now: timeout, fails: true},
		"by a clock that is ahead":   {left: 24 * time.Hour, now: timeout, again: timeout},
		"one of the former revision": {left: 50 * time.Second, now: timeout, away: true, fails: true},
	} {
		rec, obs := staged(rollout.AvailabilityStrategy, rollout.Moving, rollout.Update{Step: 1, Surge: 1}, 4,
			rev{has: 3, target: 3}, rev{dir: rollout.Up, has: 2, target: 2, away: 1})
		rec.Progress, obs.Now = 100, t0.Add(c.now)
		if c.left != 0 {
			at, of := t0.Add(c.left), obs.Revisions[web2].Status
			if c.away {
				of = obs.Revisions[web1].Status
			}
			of.TriedElsewhere = &at
		}
		d := rollout.Decide(rec, obs)
		if failed := d.Record.State == rollout.Paused; failed != c.fails {
			t.Errorf("%s: %s %q", name, d.Record.State, d.Record.Reason)
		}
		if !c.fails && d.Again != c.again {
			t.Errorf("%s: looks again after %s, want %s", name, d.Again, c.again)
		}
		if !c.fails && !d.Record.ProgressAt.Equal(t0) {
			t.Errorf("%s: progress at %s", name, d.Record.ProgressAt)
		}
	}
}

// A failing pod that moves to its second node does not fail the stage. A pod that is hopeless there fails it at once.
func TestOnlyAHopelessPodEndsAStage(t *testing.T) {
	t.Parallel()
	for _, hopeless := range []bool{false, true} {
		rec, obs := staged(rollout.AvailabilityStrategy, rollout.Moving, rollout.Update{Step: 1, Surge: 1}, 4,
			rev{has: 3, target: 3}, rev{dir: rollout.Up, has: 2, target: 2, away: 1})
		obs.Revisions[web2].Status.Failing = []rc.PodFailure{
			{Pod: "main.1", Node: "n4", Reason: "exit 1", Hopeless: hopeless},
		}
		if d := rollout.Decide(rec, obs); (d.Record.State == rollout.Paused) != hopeless {
			t.Errorf("hopeless %t: %s %q", hopeless, d.Record.State, d.Record.Reason)
		}
	}
}

// The timeout of a stage does not run while images of its pods arrive.
func TestAStageWaitsForImages(t *testing.T) {
	t.Parallel()
	for pulled, fails := range map[time.Duration]bool{0: true, 49 * time.Second: true, 50 * time.Second: false} {
		rec, obs := staged(rollout.AvailabilityStrategy, rollout.Moving, rollout.Update{Step: 1, Surge: 1}, 4,
			rev{has: 3, target: 3}, rev{dir: rollout.Up, has: 2, target: 2, away: 1})
		rec.Progress, obs.Now = 100, t0.Add(time.Minute+49*time.Second)
		obs.Revisions[web2].Status.PullSeconds = int64(pulled / time.Second)
		d := rollout.Decide(rec, obs)
		if failed := d.Record.State == rollout.Paused; failed != fails || !fails && d.Again != time.Second {
			t.Errorf("pulled for %s: %s %q, again after %s", pulled, d.Record.State, d.Record.Reason, d.Again)
		}
	}
}
