package rollout_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// lostUpdated is a pod with the new manifest on a lost machine.
const lostUpdated = "lost"

// fleet is a controller with a pod on each node. The field pods has the digests of its pods, "" on a lost machine.
type fleet struct {
	rc   rc.RC
	pods []string
	away int  // how many of the first pods are on unmanaged nodes
	mute bool // there is no status
}

func newFleet(pods ...string) *fleet {
	return &fleet{
		rc: rc.RC{
			ID: web1, Name: "web-r1", ManifestDigest: "d1", Mode: rc.EachNode, Generation: 3,
			Service: &rc.Service{Name: "web", Revision: 1},
		},
		pods: pods,
	}
}

// seen returns the controller as its owner reports it. Pods are available as soon as they are upgraded.
func (f *fleet) seen() rollout.Seen {
	if f.mute {
		return rollout.Seen{RC: f.rc}
	}
	st := &rc.Status{
		RCID: f.rc.ID, ObservedGeneration: f.rc.Generation, Desired: len(f.pods), Placed: len(f.pods), Epoch: "n1",
	}
	for i, digest := range f.pods {
		if digest == "" || digest == lostUpdated {
			st.Lost++
			if digest == lostUpdated {
				st.Updated++
			}
			continue
		}
		if i < f.away {
			st.Unmanaged++
			st.UnmanagedAvailable++
		}
		if digest == f.rc.ManifestDigest {
			st.Updated++
			if i >= f.away {
				st.UpdatedAvailable++
			}
		}
		st.Available++
	}
	return rollout.Seen{RC: f.rc, Status: st}
}

// upgrade acts as the owner: as many pods as the limit allows get the new manifest.
func (f *fleet) upgrade() {
	limit := len(f.pods)
	if f.rc.InPlace != nil {
		limit = f.rc.InPlace.Limit
	}
	for i, digest := range f.pods {
		switch {
		case limit == 0:
			return
		case digest == lostUpdated || digest == f.rc.ManifestDigest:
			limit--
		case digest != "" && i >= f.away:
			f.pods[i] = f.rc.ManifestDigest
			limit--
		}
	}
}

func (f *fleet) begin(t *testing.T, k rollout.Knobs) rollout.Record {
	t.Helper()
	next := f.rc
	next.ManifestDigest = "d2"
	started, err := rollout.Begin(rollout.Start{
		ID: "R", Service: "web", By: "ann", Now: t0, Epoch: "n1", Knobs: k, New: next, Old: []rollout.Seen{f.seen()},
	})
	if err != nil {
		t.Fatal(err)
	}
	f.take(t, started.RCs)
	return started.Record
}

func (f *fleet) take(t *testing.T, written []rc.RC) {
	t.Helper()
	for _, r := range written {
		if r.ReplicaGroups != nil {
			t.Fatalf("counts were written: %+v", r.ReplicaGroups)
		}
		f.rc = r
	}
}

// run carries out the rollout, and returns the limits that it set and the last record. It calls between before each
// look.
func (f *fleet) run(t *testing.T, rec rollout.Record, between func(int, *rollout.Record)) ([]int, rollout.Record) {
	t.Helper()
	var limits []int
	for look := range 50 {
		between(look, &rec)
		f.upgrade()
		d := rollout.Decide(rec, rollout.Observed{
			Now: t0, Epoch: "n1", Revisions: map[string]rollout.Seen{web1: f.seen()},
		})
		f.take(t, d.RCs)
		if rec = d.Record; f.rc.InPlace != nil && !slices.Contains(limits, f.rc.InPlace.Limit) {
			limits = append(limits, f.rc.InPlace.Limit)
		}
		if d.Ended {
			return limits, rec
		}
	}
	t.Fatalf("it does not end: %+v", rec)
	return nil, rec
}

// A rollout of a controller with a pod on each node follows the number of nodes.
func TestARolloutFollowsTheNodes(t *testing.T) {
	for name, c := range map[string]struct {
		pods    []string
		between func(f *fleet, look int)
		limits  []int
	}{
		"no node changes":     {[]string{"d1", "d1", "d1", "d1", "d1"}, func(*fleet, int) {}, []int{2, 4, 5}},
		"one machine is lost": {[]string{"d1", "", "d1", "d1", "d1"}, func(*fleet, int) {}, []int{2, 4, 5}},
		"one is lost meanwhile": {[]string{"d1", "d1", "d1", "d1", "d1"}, func(f *fleet, look int) {
			if look == 2 {
				f.pods[4] = ""
			}
		}, []int{2, 4, 5}},
		"and all that were upgraded": {[]string{"d1", "d1", "d1", "d1", "d1"}, func(f *fleet, look int) {
			if look == 2 {
				f.pods[0], f.pods[1] = lostUpdated, lostUpdated
			}
		}, []int{2, 4, 5}},
		"nodes are unmanaged for one look": {
			[]string{"d1", "d1", "d1", "d1", "d1", "d1", "d1", "d1"},
			func(f *fleet, look int) {
				if f.away = 0; look == 2 {
					f.away = 6
				}
			},
			[]int{2, 4, 6, 8},
		},
		"all nodes are unmanaged": {[]string{"d1", "d1", "d1", "d1", "d1", "d1"}, func(f *fleet, look int) {
			if f.away = 0; look == 2 {
				f.away = 6
			}
		}, []int{2, 4, 6}},
		"the status is missing once": {[]string{"d1", "d1", "d1", "d1", "d1", "d1"}, func(f *fleet, look int) {
			f.mute = look == 2
		}, []int{2, 4, 6}},
		"three nodes that were upgraded go": {[]string{"d1", "d1", "d1", "d1", "d1", "d1"}, func(f *fleet, look int) {
			if look == 2 {
				f.pods = slices.Clone(f.pods[3:])
			}
		}, []int{2, 4}},
		"two join": {[]string{"d1", "d1", "d1"}, func(f *fleet, look int) {
			if look == 2 {
				f.pods = append(f.pods, "d1", "d1")
			}
		}, []int{2, 3, 5}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(c.pods...)
			rec := f.begin(t, rollout.Knobs{Strategy: rollout.InPlaceStrategy, Step: amount(2)})
			limits, end := f.run(t, rec, func(look int, _ *rollout.Record) { c.between(f, look) })
			if f.upgrade(); end.State != rollout.Done || f.rc.InPlace != nil || slices.Contains(f.pods, "d1") {
				t.Errorf("%s (%s): %+v, pods %v", end.State, end.Reason, f.rc, f.pods)
			}
			if fmt.Sprint(limits) != fmt.Sprint(c.limits) {
				t.Errorf("limits %v, want %v", limits, c.limits)
			}
		})
	}
}

// Two of four nodes are unmanaged, and a pod there is still available. This pod is not counted in place of an
// unavailable pod on a managed node.
func TestAnUnmanagedPodDoesNotServeForAnother(t *testing.T) {
	f := newFleet("d1", "d1", "d1", "d1")
	rec := f.begin(t, rollout.Knobs{Strategy: rollout.InPlaceStrategy, Step: amount(3)})
	limitAfter := func(st rc.Status) int {
		seen := f.seen()
		st.RCID, st.ObservedGeneration, st.Epoch = f.rc.ID, f.rc.Generation, "n1"
		st.Desired, st.Placed = len(f.pods), len(f.pods)
		seen.Status = &st
		d := rollout.Decide(rec, rollout.Observed{Now: t0, Epoch: "n1", Revisions: map[string]rollout.Seen{web1: seen}})
		f.take(t, d.RCs)
		rec = d.Record
		return f.rc.InPlace.Limit
	}
	st := rc.Status{Available: 2, Updated: 3, UpdatedAvailable: 1, Unmanaged: 2, UnmanagedAvailable: 1}
	for range 3 {
		if got := limitAfter(st); got != 3 {
			t.Fatalf("the limit is %d while a pod on a managed node is unavailable", got)
		}
	}
	st.Available, st.UpdatedAvailable = 3, 2
	if got := limitAfter(st); got != 4 {
		t.Errorf("the limit is %d after all pods on managed nodes are available", got)
	}
}

// After a rollback to a controller with counts, it has its former count.
func TestARollbackToACountRestoresTheCount(t *testing.T) {
	f := newFleet("d1", "d1", "d1")
	f.rc.Mode, f.rc.ReplicaGroups = "", groupsOf(3)
	next := f.rc
	next.ManifestDigest, next.Mode, next.ReplicaGroups = "d2", rc.EachNode, nil
	started, err := rollout.Begin(rollout.Start{
		ID: "R", Service: "web", By: "ann", Now: t0, Epoch: "n1", New: next, Old: []rollout.Seen{f.seen()},
		Knobs: rollout.Knobs{Strategy: rollout.InPlaceStrategy, Step: amount(1)},
	})
	if err != nil {
		t.Fatal(err)
	}
	f.take(t, started.RCs)
	f.pods = append(f.pods, "d1", "d1", "d1", "d1")
	rec := started.Record
	for look := range 20 {
		if look == 2 {
			rec.Request = &rollout.Request{Verb: rollout.RollbackVerb, By: "ann", At: t0}
		}
		f.upgrade()
		d := rollout.Decide(rec, rollout.Observed{
			Now: t0, Epoch: "n1", Revisions: map[string]rollout.Seen{web1: f.seen()},
		})
		if rec = d.Record; len(d.RCs) > 0 {
			f.rc = d.RCs[0]
		}
	}
	if f.rc.EachNode() || f.rc.Desired() != 3 || f.rc.ManifestDigest != "d1" {
		t.Errorf("%s (%s): %+v", rec.State, rec.Reason, f.rc)
	}
}

func TestARolloutOnEachNodeRollsBack(t *testing.T) {
	f := newFleet("d1", "d1", "d1", "d1")
	rec := f.begin(t, rollout.Knobs{Strategy: rollout.InPlaceStrategy, Step: amount(1)})
	_, end := f.run(t, rec, func(look int, rec *rollout.Record) {
		if look == 3 {
			rec.Request = &rollout.Request{Verb: rollout.RollbackVerb, By: "ann", At: t0}
		}
	})
	if f.upgrade(); end.State != rollout.Failed && end.State != rollout.Done || f.rc.ManifestDigest != "d1" ||
		f.rc.Mode != rc.EachNode || slices.Contains(f.pods, "d2") {
		t.Errorf("%s (%s): %+v, pods %v", end.State, end.Reason, f.rc, f.pods)
	}
}

// Other strategies place successors on other nodes, which is refused. The number of nodes is the count, also for
// Rescale.
func TestEachNodeAllowsOnlyInPlace(t *testing.T) {
	f := newFleet("d1", "d1")
	for strategy, next := range map[string]rc.Mode{
		rollout.AvailabilityStrategy: rc.EachNode, rollout.BlueGreenStrategy: rc.EachNode,
		rollout.ResourceUtilStrategy: "",
	} {
		start := rollout.Start{
			ID: "R", Service: "web", Now: t0, Epoch: "n1", Knobs: rollout.Knobs{Strategy: strategy},
			Old: []rollout.Seen{f.seen()},
		}
		start.New = rc.RC{
			ID: web2, Name: "web-r2", ManifestDigest: "d2", Mode: next, Service: &rc.Service{Name: "web", Revision: 2},
		}
		if next == "" {
			start.New.ReplicaGroups = groupsOf(3)
		}
		if _, err := rollout.Begin(start); !errors.Is(err, rollout.ErrRefused) {
			t.Errorf("%s: %v", strategy, err)
		}
	}
	another := rollout.Start{
		ID: "R", Service: "web", Now: t0, Knobs: rollout.Knobs{Strategy: rollout.InPlaceStrategy},
		Old: []rollout.Seen{newFleet().seen()},
	}
	another.New = newFleet().rc
	another.New.ID = web2
	if _, err := rollout.Begin(another); !errors.Is(err, rollout.ErrRefused) {
		t.Errorf("beside another controller without pods: %v", err)
	}
	rec := f.begin(t, rollout.Knobs{Strategy: rollout.InPlaceStrategy})
	seen := rollout.Observed{Now: t0, Epoch: "n1", Revisions: map[string]rollout.Seen{web1: f.seen()}}
	started, err := rollout.Rescale(rec, nil, seen, "ann")
	if err != nil || started.Record.Total() != 2 {
		t.Errorf("%v: ends with %d", err, started.Record.Total())
	}
}

// The first deployment places pods on all nodes at once, without stages.
func TestTheFirstRolloutOnEachNodeHasOneStage(t *testing.T) {
	f := newFleet()
	f.rc.Generation = 1
	started, err := rollout.Begin(rollout.Start{
		ID: "R", Service: "web", Now: t0, Epoch: "n1", Knobs: rollout.Knobs{Strategy: rollout.InPlaceStrategy},
		New: f.rc,
	})
	if err != nil {
		t.Fatal(err)
	}
	f.take(t, started.RCs)
	_, end := f.run(t, started.Record, func(int, *rollout.Record) { f.pods = []string{"d1", "d1", "d1"} })
	if end.State != rollout.Done || f.rc.DeletedAt != nil {
		t.Errorf("%s (%s): %+v", end.State, end.Reason, f.rc)
	}
}
