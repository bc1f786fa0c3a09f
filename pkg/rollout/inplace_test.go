package rollout_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

func TestInPlaceGoesInStages(t *testing.T) {
	w := traced(t)
	w.old(1, 5)
	w.must(t, w.deployInPlace(rollout.Knobs{Step: amount(2)}, "d2", nil))
	if r := w.rcs[web1]; r.Generation != 4 || r.InPlace.From != "d1" || r.InPlace.Limit != 0 || r.MinAvailable != nil {
		t.Errorf("%+v", r)
	}
	if w.record.Stages != 3 || w.record.Before == nil || w.record.Before.ManifestDigest != "d1" {
		t.Errorf("%+v", w.record)
	}
	var limits, percents []int
	for w.record != nil {
		w.run()
		if w.record == nil {
			break
		}
		up := w.record.Upward()
		if n := w.rcs[web1].InPlace.Limit; len(limits) == 0 || limits[len(limits)-1] != n {
			limits, percents = append(limits, n), append(percents, *up.Percent)
		}
		if n := w.running("d2"); n > w.rcs[web1].InPlace.Limit {
			t.Fatalf("%d pods beyond the limit", n)
		}
		w.own(web1)
		w.nodes(1)
		w.own(web1)
	}
	if diff := cmp.Diff([]int{2, 4, 5}, limits) + cmp.Diff([]int{40, 80, 100}, percents); diff != "" {
		t.Error(diff)
	}
	if w.ended.Record.State != rollout.Done || w.running("d2") != 5 {
		t.Errorf("%+v", w.ended.Record)
	}
}

func TestInPlaceWithoutPodsEnds(t *testing.T) {
	w := traced(t)
	w.old(1, 0)
	w.must(t, w.deployInPlace(rollout.Knobs{}, "d2", nil))
	w.settles(t, rollout.Done)
	if *w.ended.Record.Upward().Percent != 100 || w.ended.Record.Stage != 1 {
		t.Errorf("%+v", w.ended.Record.Upward())
	}
}

func TestAnInPlaceRollbackCountsPodsOfTheOldManifest(t *testing.T) {
	w := traced(t)
	w.old(1, 8)
	w.must(t, w.deployInPlace(rollout.Knobs{Step: amount(2)}, "d2", nil))
	for w.running("d2") < 4 {
		w.round()
	}
	w.ask(rollout.RollbackVerb)
	r := w.rcs[web1]
	if r.ManifestDigest != "d1" || r.InPlace.From != "" || r.InPlace.Limit != 8 || w.record.Before == nil {
		t.Errorf("%+v %+v", r, r.InPlace)
	}
	w.settles(t, rollout.Failed)
	if w.running("d1") != 8 || w.rcs[web1].InPlace != nil {
		t.Error(w.counts())
	}
	w.must(t, w.deployInPlace(rollout.Knobs{Step: amount(1)}, "d3", nil))
	for w.running("d3") < 4 {
		w.round()
	}
	w.ask(rollout.RollbackVerb)
	// The limit is the number of pods that were not upgraded, and a stage of doubled size.
	if r := w.rcs[web1]; r.InPlace.Limit != 6 && r.InPlace.Limit != 5 {
		t.Errorf("%+v", r.InPlace)
	}
}

func TestInPlaceIsNotDoneWhileAnyCopyIsLeft(t *testing.T) {
	w := traced(t)
	w.old(1, 2)
	w.must(t, w.deployInPlace(rollout.Knobs{Step: amount(2)}, "d2", nil))
	w.run()
	for range 3 {
		w.own(web1)
		w.nodes(1)
	}
	w.own(web1)
	for _, spoil := range []func(*rc.Status){
		func(s *rc.Status) { s.UpdatedAvailable-- },
		func(s *rc.Status) { s.Ghosts++ },
		func(s *rc.Status) { s.Stopping++ },
		func(s *rc.Status) { s.ObservedGeneration-- },
		func(s *rc.Status) { s.Epoch = "other" },
		func(s *rc.Status) {
			s.Conditions = []rc.Condition{{Type: rc.Regressed, True: true}}
		},
	} {
		obs := w.observe()
		seen := obs.Revisions[web1]
		st := copied(*seen.Status)
		spoil(&st)
		seen.Status = &st
		obs.Revisions[web1] = seen
		if d := rollout.Decide(*w.record, obs); d.Ended || d.Record.Phase != rollout.Moving {
			t.Errorf("%+v: %s", st, d.Record.Phase)
		}
	}
	obs := w.observe()
	obs.Revisions[web1].Status.Stopping, obs.Revisions[web1].Status.StoppingLost = 1, 1
	if d := rollout.Decide(*w.record, obs); d.Record.State != rollout.Done {
		t.Errorf("%+v", d.Record)
	}
}

func TestRescaleChangesCountsDuringARollout(t *testing.T) {
	w := traced(t)
	w.old(1, 6)
	w.must(t, w.deploy(rollout.Knobs{}, 2, 6))
	for len(w.podsOf(web2)) < 2 {
		w.round()
	}
	if _, err := rollout.Rescale(*w.record, groupsOf(3, 1), w.observe(), "ann"); !errors.Is(err, rollout.ErrRefused) {
		t.Error(err)
	}
	obs := w.observe()
	delete(obs.Revisions, web1)
	if _, err := rollout.Rescale(*w.record, groupsOf(9), obs, "ann"); !errors.Is(err, rollout.ErrRefused) {
		t.Error(err)
	}
	up := desired(w.rcs[web2])
	w.rescale(9)
	if r := w.record; r.Total() != 9 || r.Update.Min != 9 || r.Max() != 10 || desired(w.rcs[web2]) != up ||
		desired(w.rcs[web1]) != 9-up || total(r.Revisions[0].Before) != 9 {
		t.Errorf("%+v, r1 %d, r2 %d", r, desired(w.rcs[web1]), desired(w.rcs[web2]))
	}
	w.rounds(2)
	w.rescale(1)
	if desired(w.rcs[web2]) != 1 || desired(w.rcs[web1]) != 0 {
		t.Errorf("r1 %d, r2 %d", desired(w.rcs[web1]), desired(w.rcs[web2]))
	}
	w.now = w.now.Add(time.Second)
	w.settles(t, rollout.Done)
	w.has(t, map[string]int{web1: 0, web2: 1})
}

func TestRescaleInPlaceChangesCountsDuringARollout(t *testing.T) {
	w := traced(t)
	w.old(1, 4, 2)
	w.must(t, w.deployInPlace(rollout.Knobs{Step: amount(3)}, "d2", nil))
	for w.running("d2") < 3 {
		w.round()
	}
	w.rescale(2, 0)
	if r := w.rcs[web1]; *r.ReplicaGroups[0].Count != 2 || *r.ReplicaGroups[1].Count != 0 ||
		total(w.record.Before.ReplicaGroups) != 2 || *w.record.Upward().Target > 2 {
		t.Errorf("%+v", r)
	}
	w.settles(t, rollout.Done)
	if w.running("d2") != 2 {
		t.Error(w.counts())
	}
}
