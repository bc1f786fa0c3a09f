package rollout_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// changing is a controller before and after a change of mode.
type changing struct{ was, next rc.RC }

// toEach changes from n counted pods to one on each node.
func toEach(n int, digest string) changing {
	f := newFleet()
	f.rc.Mode, f.rc.ReplicaGroups = "", groupsOf(n)
	next := f.rc
	next.Mode, next.ReplicaGroups, next.ManifestDigest = rc.EachNode, nil, digest
	return changing{f.rc, next}
}

// toCounts changes from a pod on each node to n counted pods.
func toCounts(n int, digest string) changing {
	f := newFleet()
	next := f.rc
	next.Mode, next.ReplicaGroups, next.ManifestDigest = "", groupsOf(n), digest
	return changing{f.rc, next}
}

func (c changing) start(placed int, k rollout.Knobs) rollout.Start {
	k.Strategy = rollout.InPlaceStrategy
	st := &rc.Status{RCID: web1, ObservedGeneration: 3, Desired: placed, Placed: placed, Available: placed, Epoch: "n1"}
	return rollout.Start{
		ID: "R", Service: "web", By: "ann", Now: t0, Epoch: "n1", New: c.next, Knobs: k,
		Old: []rollout.Seen{{RC: c.was, Status: st}},
	}
}

// At the start of a change of mode all pods are kept. Its forecast follows from the number of nodes.
func TestAChangeOfModeBeginsWithAllPodsKept(t *testing.T) {
	ordered := toCounts(4, "d1")
	ordered.next.ReplicaGroups[0].Ordered = true
	roles := toCounts(4, "d1")
	roles.next.ReplicaGroups[0].Role = "side"
	givenUp, another := toEach(4, "d2"), toEach(4, "d2")
	givenUp.was.Mode, givenUp.was.ReplicaGroups, givenUp.was.ManifestDigest = rc.EachNode, nil, "d2"
	givenUp.was.InPlace = &rc.InPlace{From: "d1", Limit: 3, Keep: new(0)}
	another.was = givenUp.was
	another.next.ManifestDigest = "d3"
	all := rc.MaxReplicas
	for name, c := range map[string]struct {
		changing
		placed, nodes, right int
		want                 rc.InPlace
		stages, least, total int
	}{
		"to each node":  {toEach(4, "d1"), 4, 6, 4, rc.InPlace{Keep: &all}, 2, 4, 6},
		"to fewer":      {toEach(9, "d1"), 9, 3, 3, rc.InPlace{Keep: &all}, 6, 2, 3},
		"unknown nodes": {toEach(4, "d1"), 4, 0, 0, rc.InPlace{Keep: &all}, 4, 3, 4},
		"more nodes than may be": {
			toEach(4, "d1"), 4, rc.MaxReplicas + 1, rc.MaxReplicas, rc.InPlace{Keep: &all}, 1, 4, rc.MaxReplicas,
		},
		"with a new version":        {toEach(4, "d2"), 4, 6, 0, rc.InPlace{From: "d1", Keep: &all}, 6, 4, 6},
		"to counts":                 {toCounts(8, "d1"), 6, 0, 6, rc.InPlace{Keep: &all}, 2, 6, 8},
		"to fewer counts":           {toCounts(4, "d2"), 6, 0, 0, rc.InPlace{From: "d1", Keep: &all}, 4, 3, 4},
		"an ordered group":          {ordered, 6, 0, 0, rc.InPlace{Limit: 4}, 4, 3, 4},
		"another role":              {roles, 6, 0, 0, rc.InPlace{Limit: 4}, 4, 3, 4},
		"one that was given up":     {givenUp, 5, 0, 0, rc.InPlace{From: "d1", Keep: &all}, 5, 4, 5},
		"and with another manifest": {another, 5, 0, 0, rc.InPlace{From: "d1", Keep: &all}, 5, 4, 5},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.start(c.placed, rollout.Knobs{Step: amount(1)})
			s.Nodes, s.Correct = c.nodes, c.right
			started, err := rollout.Begin(s)
			if err != nil {
				t.Fatal(err)
			}
			r := started.Record
			if diff := cmp.Diff(&c.want, started.RCs[0].InPlace); diff != "" || r.Stages != c.stages ||
				r.Update.Min != c.least || r.Total() != c.total {
				t.Errorf("%s%d stages to %d, at least %d; want %d to %d, %d", diff, r.Stages, r.Total(), r.Update.Min,
					c.stages, c.total, c.least)
			}
		})
	}
}

// A change of mode alone stops no pod before it has another, so max_unavailable may be 0. A change of mode and manifest
// stops pods first.
func TestAChangeOfModeAloneAllowsMaxUnavailableZero(t *testing.T) {
	given := toEach(4, "d1")
	given.was.InPlace = &rc.InPlace{Limit: 1}
	for name, c := range map[string]struct {
		changing
		refused bool
	}{
		"alone": {toEach(4, "d1"), false}, "with a new version": {toEach(4, "d2"), true},
		"after one that was given up": {given, true},
	} {
		_, err := rollout.Begin(c.start(4, rollout.Knobs{MaxUnavailable: amount(0)}))
		if errors.Is(err, rollout.ErrRefused) != c.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// reported is the report of an owner in the middle of a change of mode.
type reported struct {
	desired, placed, available, updated, updatedAvailable, lost, unmanaged, stopping int
	noNode                                                                           bool
}

func (r reported) status(generation int64) *rc.Status {
	st := &rc.Status{
		RCID: web1, ObservedGeneration: generation, Epoch: "n1", Desired: r.desired, Placed: r.placed,
		Available: r.available,
		Updated:   r.updated, UpdatedAvailable: r.updatedAvailable, Lost: r.lost, Unmanaged: r.unmanaged,
		Stopping: r.stopping,
	}
	if r.noNode {
		st.Conditions = []rc.Condition{{Type: rc.InsufficientNodes, True: true, Since: t0}}
	}
	return st
}

// middle returns a change of mode in the middle of a stage.
func middle(t *testing.T, c changing, stage, target, keep int, phase rollout.Phase) (rollout.Record, rc.RC) {
	t.Helper()
	started, err := rollout.Begin(c.start(4, rollout.Knobs{Step: amount(2)}))
	if err != nil {
		t.Fatal(err)
	}
	rec, r := started.Record, started.RCs[0]
	rec.Stage, rec.Stages, rec.Phase = stage, max(stage, rec.Stages), phase
	r.InPlace.Limit, r.InPlace.Keep = target, &keep
	if phase == rollout.Moving {
		rec.Revisions[0].Target = &target
	}
	return rec, r
}

func decided(rec rollout.Record, r rc.RC, st *rc.Status, now time.Time) rollout.Decision {
	return rollout.Decide(rec, rollout.Observed{
		Now: now, Epoch: "n1", Revisions: map[string]rollout.Seen{web1: {RC: r, Status: st}},
	})
}

func TestModeStagesArePlanned(t *testing.T) {
	for name, c := range map[string]struct {
		stage, limit, keep    int
		is                    reported
		wantLimit, wantToKeep int
	}{
		"the first starts at correct pods": {
			1, 0, 4, reported{desired: 9, placed: 4, updated: 9, updatedAvailable: 4}, 6, 0,
		},
		"or with its limit": {
			2, 6, 4, reported{desired: 9, placed: 6, updated: 9, updatedAvailable: 4}, 8, 0,
		},
		"no more than there are nodes": {
			2, 8, 4, reported{desired: 9, placed: 8, updated: 9, updatedAvailable: 8}, 9, 0,
		},
		"the first keeps all": {
			1, 0, 9, reported{desired: 4, placed: 9, updated: 9, updatedAvailable: 1}, 3, 5,
		},
		"later ones keep less": {
			2, 2, 5, reported{desired: 4, placed: 9, updated: 9, updatedAvailable: 2}, 4, 3,
		},
		"at most the excess": {
			2, 2, 5, reported{desired: 4, placed: 5, updated: 9, updatedAvailable: 2}, 4, 0,
		},
		"the first too, if none is missing": {
			1, 0, 9, reported{desired: 4, placed: 9, updated: 9, updatedAvailable: 4}, 4, 3,
		},
		"few nodes are left": {
			2, 6, 0, reported{desired: 4, placed: 4, updated: 9, updatedAvailable: 3}, 6, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			rec, r := middle(t, toEach(4, "d1"), c.stage, c.limit, c.keep, rollout.Planning)
			d := decided(rec, r, c.is.status(r.Generation), t0)
			got := r
			if len(d.RCs) > 0 {
				got = d.RCs[0]
			}
			if d.Record.Stage != c.stage {
				t.Errorf("stage %d follows at once", d.Record.Stage)
			}
			if got.InPlace == nil || got.InPlace.Limit != c.wantLimit || *got.InPlace.Keep != c.wantToKeep {
				t.Errorf("%+v, want the limit %d, keeping %d", got.InPlace, c.wantLimit, c.wantToKeep)
			}
			if unknown := decided(rec, r, nil, t0); len(unknown.RCs) > 0 || unknown.Record.Phase != rollout.Planning {
				t.Errorf("without a status: %+v", unknown)
			}
		})
	}
}

func TestModeStagesEnd(t *testing.T) {
	const more = "%d of %d pods of web-r1 run the new manifest on the right nodes and are available"
	for name, c := range map[string]struct {
		target, keep int
		is           reported
		waits        string // "": done
	}{
		"all serve": {
			5, 0, reported{desired: 9, placed: 5, available: 5, updated: 5, updatedAvailable: 5}, "",
		},
		"one does not": {
			5, 0,
			reported{desired: 9, placed: 5, available: 4, updated: 5, updatedAvailable: 4},
			fmt.Sprintf(more, 4, 5),
		},
		"one has not come": {
			5, 0,
			reported{desired: 9, placed: 4, available: 4, updated: 4, updatedAvailable: 4},
			fmt.Sprintf(more, 4, 5),
		},
		"one of fewer nodes": {
			5, 0, reported{desired: 4, placed: 4, available: 4, updated: 4, updatedAvailable: 4}, "",
		},
		"one is lost": {
			5, 0, reported{desired: 5, placed: 5, available: 4, updated: 5, updatedAvailable: 4, lost: 1}, "",
		},
		"one has no preparer": {
			5, 0, reported{desired: 5, placed: 5, available: 4, updated: 5, updatedAvailable: 4, unmanaged: 1}, "",
		},
		"all are lost":     {5, 0, reported{desired: 5, placed: 5, updated: 5, lost: 5}, fmt.Sprintf(more, 0, 5)},
		"there is no node": {5, 0, reported{}, ""},
		"correct pods are lost": {
			2, 0, reported{desired: 9, placed: 9, available: 7, updated: 3, updatedAvailable: 1, lost: 2}, "",
		},
		"no node for one": {
			5, 0, reported{desired: 9, placed: 4, available: 4, updated: 4, updatedAvailable: 4, noNode: true}, "",
		},
		"no node for one, and others are on nodes that are lost or unmanaged": {
			5, 0, reported{
				desired: 9, placed: 6, available: 4, updated: 4, updatedAvailable: 4, lost: 1, unmanaged: 1,
				noNode: true,
			}, "",
		},
		"no node for one while the stage keeps another": {
			6, 1, reported{desired: 6, placed: 6, available: 6, updated: 5, updatedAvailable: 5, noNode: true}, "",
		},
		"no node for one while the stage keeps another, and one is not right": {
			6, 1,
			reported{desired: 6, placed: 6, available: 6, updated: 4, updatedAvailable: 4, noNode: true},
			fmt.Sprintf(more, 4, 6),
		},
		"while another is not right": {
			5, 0,
			reported{desired: 9, placed: 4, available: 4, updated: 3, updatedAvailable: 3, noNode: true},
			fmt.Sprintf(more, 3, 5),
		},
		"while another does not serve": {
			5, 0,
			reported{desired: 9, placed: 4, available: 3, updated: 4, updatedAvailable: 3, noNode: true},
			fmt.Sprintf(more, 3, 5),
		},
		"no node for any": {5, 0, reported{desired: 9, noNode: true}, fmt.Sprintf(more, 0, 5)},
		"one is too many": {
			5, 0,
			reported{desired: 5, placed: 6, available: 6, updated: 5, updatedAvailable: 5},
			"1 pods of web-r1 have yet to stop",
		},
		"an excess stops": {
			5, 0,
			reported{desired: 5, placed: 5, available: 5, updated: 5, updatedAvailable: 5, stopping: 1},
			"1 pods of web-r1 have yet to stop",
		},
		"an excess is kept": {
			5, 1, reported{desired: 5, placed: 6, available: 6, updated: 5, updatedAvailable: 5}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			rec, r := middle(t, toEach(4, "d1"), 2, c.target, c.keep, rollout.Moving)
			st := c.is.status(r.Generation)
			d := decided(rec, r, st, t0)
			if done := d.Record.Stage > 2 || d.Record.Phase != rollout.Moving; done != (c.waits == "") {
				t.Errorf("phase %s of stage %d", d.Record.Phase, d.Record.Stage)
			}
			if c.waits == "" {
				return
			}
			rec.Progress = rc.MaxPods
			later := decided(rec, r, st, t0.Add(time.Hour))
			if want := "no progress for 2m0s: " + c.waits; later.Record.Reason != want {
				t.Errorf("it waits for %q, want %q", later.Record.Reason, want)
			}
		})
	}
}

// Pods that stop are progress. A mass stop that an operator has allowed continues in later stages.
func TestModeStagesMoveOn(t *testing.T) {
	rec, r := middle(t, toEach(4, "d1"), 2, 4, 0, rollout.Moving)
	r.AllowMassStop = r.Generation
	rec.Progress = 4 - 2
	d := decided(rec, r, reported{
		desired: 4, placed: 5, available: 5, updated: 4,
		updatedAvailable: 4,
	}.status(r.Generation), t0.Add(time.Minute))
	if d.Record.Progress != 3 || !d.Record.ProgressAt.Equal(t0.Add(time.Minute)) {
		t.Errorf("progress %d at %s", d.Record.Progress, d.Record.ProgressAt)
	}
	for generation, want := range map[int64]int64{
		r.Generation: r.Generation + 1, r.Generation - 1: r.Generation - 1, 0: 0,
	} {
		rec, r := middle(t, toEach(4, "d1"), 2, 4, 3, rollout.Planning)
		r.AllowMassStop = generation
		d := decided(rec, r, reported{
			desired: 4, placed: 7, available: 7, updated: 4,
			updatedAvailable: 4,
		}.status(r.Generation), t0)
		if len(d.RCs) != 1 || d.RCs[0].AllowMassStop != want {
			t.Errorf("%d allowed at generation %d: %+v", generation, r.Generation, d.RCs)
		}
	}
}

// Progress is written at most once a second, or four times within a short timeout. A clock that was set back does not
// delay it.
func TestProgressIsWrittenOnceASecond(t *testing.T) {
	for name, c := range map[string]struct {
		timeout, since time.Duration
		again          time.Duration // 0: it is written at once
	}{
		"just written":                   {time.Minute, 0, time.Second},
		"not long ago":                   {time.Minute, 400 * time.Millisecond, 600 * time.Millisecond},
		"a second ago":                   {time.Minute, time.Second, 0},
		"a short timeout":                {2 * time.Second, 400 * time.Millisecond, 100 * time.Millisecond},
		"a quarter of a short timeout":   {2 * time.Second, 500 * time.Millisecond, 0},
		"no timeout":                     {0, 400 * time.Millisecond, 600 * time.Millisecond},
		"no timeout, and a second ago":   {0, time.Second, 0},
		"the clock was set a bit back":   {time.Minute, -400 * time.Millisecond, 0},
		"the clock was set an hour back": {time.Minute, -time.Hour, time.Second}, // the time is replaced by now
	} {
		rec, r := middle(t, toEach(4, "d1"), 2, 4, 0, rollout.Moving)
		rec.Update.StageTimeout = field.Duration(c.timeout)
		rec.Progress, rec.ProgressAt = 2, t0.Add(time.Hour)
		now := rec.ProgressAt.Add(c.since)
		d := decided(rec, r, reported{
			desired: 4, placed: 5, available: 5, updated: 4,
			updatedAvailable: 4,
		}.status(r.Generation), now)
		switch {
		case c.again == 0 && (d.Record.Progress != 3 || !d.Record.ProgressAt.Equal(now)):
			t.Errorf("%s: progress %d at %s", name, d.Record.Progress, d.Record.ProgressAt)
		case c.again > 0 && (d.Record.Progress != 2 || d.Again != c.again):
			t.Errorf("%s: progress %d, again after %s, want %s", name, d.Record.Progress, d.Again, c.again)
		}
	}
}

// A status from before a change of mode does not have the number of nodes that want a pod.
func TestAStatusOfAnotherModeIsNotCounted(t *testing.T) {
	rec, r := middle(t, toEach(4, "d1"), 1, 0, 4, rollout.Planning)
	d := decided(rec, r, reported{desired: 9, placed: 9}.status(r.Generation-1), t0)
	if d.Record.Total() != 4 {
		t.Errorf("it ends with %d", d.Record.Total())
	}
}

// A minimum that follows from max_unavailable is computed from the new count, not from the present pods, because the
// controller keeps it after the change.
func TestAChangeOfModeHasTheMinimumOfItsNewCount(t *testing.T) {
	for name, c := range map[string]struct {
		changing
		placed, nodes, want int
	}{
		"to each node": {toEach(2, "d1"), 2, 6, 5}, "to counts": {toCounts(10, "d1"), 3, 0, 9},
		"to fewer counts": {toCounts(3, "d1"), 10, 0, 2},
	} {
		s := c.start(c.placed, rollout.Knobs{MaxUnavailable: amount(1)})
		s.Nodes = c.nodes
		started, err := rollout.Begin(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := started.RCs[0].MinAvailable; got == nil || *got != c.want {
			t.Errorf("%s: the minimum is not %d: %s", name, c.want, cmp.Diff(got, &c.want))
		}
	}
}

// Another deployment during a change of mode keeps all present pods until others are available.
func TestAContinuedChangeOfModeKeepsAllPods(t *testing.T) {
	for name, c := range map[string]changing{"to each node": toEach(9, "d1"), "to counts": toCounts(3, "d1")} {
		started, err := rollout.Begin(c.start(9, rollout.Knobs{Step: amount(1)}))
		if err != nil {
			t.Fatal(err)
		}
		under := started.RCs[0]
		under.ReplicaGroups = c.next.ReplicaGroups
		next := c.next
		next.ManifestDigest = "d3"
		st := reported{desired: 3, placed: 9, available: 9, updated: 3, updatedAvailable: 3}.status(under.Generation)
		again, err := rollout.Retarget(started.Record, rollout.Start{
			ID: "R2", Service: "web", By: "ann", Now: t0, Epoch: "n1", New: next,
			Knobs: rollout.Knobs{Strategy: rollout.InPlaceStrategy, Step: amount(1)},
			Old:   []rollout.Seen{{RC: under, Status: st}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := again.RCs[0].InPlace; got.Keep == nil || *got.Keep < 6 {
			t.Errorf("%s: it keeps too few of 6 excess pods: %+v", name, got)
		}
	}
}

// A status from before the last record of a change of mode does not have the number of nodes that want a pod. The
// minimum that follows from max_unavailable does not depend on it.
func TestAContinuedChangeOfModeIgnoresAnOldStatus(t *testing.T) {
	c := toEach(9, "d1")
	start := c.start(9, rollout.Knobs{Step: amount(1)})
	start.Nodes = 5
	started, err := rollout.Begin(start)
	if err != nil {
		t.Fatal(err)
	}
	under := started.RCs[0]
	start.ID, start.Knobs.MaxUnavailable = "R2", amount(1)
	start.New.ManifestDigest = "d3"
	start.Old = []rollout.Seen{{RC: under, Status: reported{desired: 9, placed: 9}.status(under.Generation - 1)}}
	replaced, err := rollout.Retarget(started.Record, start)
	if err != nil {
		t.Fatal(err)
	}
	after, err := rollout.Begin(start)
	if err != nil {
		t.Fatal(err)
	}
	for want, got := range map[int]rollout.Started{5: replaced, 9: after} {
		if least := got.RCs[0].MinAvailable; got.Record.Total() != want || least == nil || *least != want-1 {
			t.Errorf("it ends with %d pods of %d, and the minimum differs: %s", got.Record.Total(), want,
				cmp.Diff(least, new(want-1)))
		}
	}
}
