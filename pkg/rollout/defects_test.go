package rollout_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

func amount(n int) *rollout.Amount { return &rollout.Amount{N: n} }

// traced returns a calm world. If the test fails it logs what happened.
func traced(t *testing.T) *world {
	t.Helper()
	w := newWorld(1)
	w.calm, w.tracing = true, true
	t.Cleanup(func() {
		for _, rule := range w.broken {
			t.Error(rule)
		}
		if t.Failed() {
			t.Log(strings.Join(w.trace, "\n"))
		}
	})
	return w
}

func (w *world) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// settles runs until the rollout ends or waits, and checks its state.
func (w *world) settles(t *testing.T, want rollout.State) {
	t.Helper()
	w.settle(400)
	got := rollout.State("")
	switch {
	case w.record != nil:
		got = w.record.State
	case w.ended != nil:
		got = w.ended.Record.State
	}
	if got != want {
		t.Fatalf("%s instead of %s", got, want)
	}
}

func (w *world) has(t *testing.T, want map[string]int) {
	t.Helper()
	for id, n := range want {
		if got := len(w.podsOf(id)); got != n {
			t.Errorf("%s has %d pods, want %d", id, got, n)
		}
	}
}

func TestACanaryGetsAllOfItsPods(t *testing.T) {
	w := traced(t)
	w.old(1, 10)
	w.must(t, w.deploy(rollout.Knobs{Canary: &rollout.Canary{Pods: 3}}, 2, 10))
	w.settles(t, rollout.WaitingForPromote)
	w.has(t, map[string]int{web1: 10, web2: 3})
	w.rescale(14)
	for range 20 {
		w.round()
	}
	if w.record.State != rollout.WaitingForPromote {
		t.Error(w.record.State)
	}
	w.has(t, map[string]int{web1: 14, web2: 3}) // the old revision gets the additional pods
	w.ask(rollout.PromoteVerb)
	w.settles(t, rollout.Done)
	w.has(t, map[string]int{web1: 0, web2: 14})
}

func TestStopFirstNeedsNoSurge(t *testing.T) {
	for _, k := range []rollout.Knobs{{Order: rollout.StopFirst}, {Strategy: rollout.ResourceUtilStrategy}} {
		w := traced(t)
		w.old(1, 20)
		w.must(t, w.deploy(k, 2, 20))
		if u := w.record.Update; u.Surge != 0 || u.Unavailable != 2 || u.Min != 18 ||
			w.record.Strategy != rollout.ResourceUtilStrategy {
			t.Errorf("%+v", u)
		}
		w.settles(t, rollout.Done)
		w.has(t, map[string]int{web1: 0, web2: 20})
	}
}

func TestARetargetDeletesThePreDeployOfTheReplacedRollout(t *testing.T) {
	w := traced(t)
	w.old(1, 2)
	w.must(t, w.start(rollout.Start{
		ID: "A", Service: "web", Now: w.now, Epoch: w.epoch, PreDeploy: &rollout.PreDeploy{RC: webPre, Name: "web-pre"},
		New: rc.RC{
			ID: web2, Name: "web-r2", ManifestDigest: "d2", ReplicaGroups: groupsOf(2),
			Service: &rc.Service{Name: "web", Revision: 2},
		},
	}))
	if w.record.PreDeploy.Until != w.now.Add(rollout.PreDeployTimeout) {
		t.Error(w.record.PreDeploy.Until)
	}
	started, err := rollout.Retarget(*w.record, rollout.Start{
		ID: "B", Service: "web", Now: w.now, Epoch: w.epoch, Old: []rollout.Seen{{RC: w.rcs[web1]}, {RC: w.rcs[web2]}},
		New: rc.RC{
			ID: web3, Name: "web-r3", ManifestDigest: "d3", ReplicaGroups: groupsOf(2),
			Service: &rc.Service{Name: "web", Revision: 3},
		},
	})
	if err != nil || !slices.Equal(started.Delete, []string{webPre}) {
		t.Errorf("%v, %v", started.Delete, err)
	}
}

func TestADeployAfterAnAbortTakesAllRevisionsDown(t *testing.T) {
	w := traced(t)
	w.old(1, 6)
	w.must(t, w.deploy(rollout.Knobs{}, 2, 6))
	for range 8 {
		w.round()
	}
	w.ask(rollout.AbortVerb)
	if d := w.ended; d == nil || d.Record.State != rollout.Aborted || d.InEffect != 0 ||
		d.Record.Reason != "aborted by bob" {
		t.Fatalf("%+v", d)
	}
	for id, r := range w.rcs {
		if r.Service == nil {
			t.Errorf("%s has no service: %+v", id, r)
		}
	}
	if len(w.podsOf(web1)) == 0 || len(w.podsOf(web2)) == 0 {
		t.Fatal("after the abort a revision has no pods")
	}
	w.must(t, w.deploy(rollout.Knobs{}, 3, 6))
	w.settles(t, rollout.Done)
	w.has(t, map[string]int{web1: 0, web2: 0, web3: 6})
	if d := w.ended; d.InEffect != 3 || !slices.Contains(d.Delete, web1) || !slices.Contains(d.Delete, web2) {
		t.Errorf("%+v", d)
	}
}

// deployInPlace changes the controller r1 to another digest.
func (w *world) deployInPlace(k rollout.Knobs, digest string, change func(*rc.RC)) error {
	k.Strategy = rollout.InPlaceStrategy
	next := copied(w.rcs[web1])
	next.ManifestDigest = digest
	next.Service.Revision++
	if change != nil {
		change(&next)
	}
	return w.start(rollout.Start{
		ID: "P" + digest, Service: "web", By: "ann", Now: w.now, Epoch: w.epoch, Knobs: k, New: next,
	})
}

func (w *world) running(digest string) int {
	n := 0
	for _, p := range w.pods {
		if p.digest == digest && !p.stopping {
			n++
		}
	}
	return n
}

func TestInPlaceAfterAnAbortChangesEachPodOnce(t *testing.T) {
	for _, next := range []string{"d1", "d2", "d3"} {
		w := traced(t)
		w.old(1, 6)
		w.must(t, w.deployInPlace(rollout.Knobs{Step: amount(2)}, "d2", nil))
		for w.running("d2") < 4 {
			w.round()
		}
		w.ask(rollout.AbortVerb)
		if r := w.rcs[web1]; r.InPlace == nil || r.InPlace.Limit != 4 {
			t.Fatalf("%+v", r)
		}
		w.round()
		ups, had := 0, w.running(next)
		w.must(t, w.deployInPlace(rollout.Knobs{Step: amount(2)}, next, nil))
		if p := w.rcs[web1].InPlace; p.From == next || next == "d3" && p.From != "d1" {
			t.Errorf("%s: from %s", next, p.From)
		}
		w.trace = nil
		w.settles(t, rollout.Done)
		for _, line := range w.trace {
			if strings.Contains(line, "a pod goes") {
				ups++
			}
		}
		if ups != 6-had || w.running(next) != 6 {
			t.Errorf("%s: %d pods were changed, want %d", next, ups, 6-had)
		}
	}
}

func TestInPlaceRollbackRestoresTheWholeController(t *testing.T) {
	w := traced(t)
	w.old(1, 6)
	before := copied(w.rcs[web1])
	w.sick["d2"] = true
	w.must(t, w.deployInPlace(rollout.Knobs{}, "d2", func(r *rc.RC) {
		r.NodeSelector, r.MinAvailable, r.ReplicaGroups, r.Labels = "disk=ssd", ptr(2), groupsOf(7),
			map[string]string{"a": "b"}
	}))
	w.settles(t, rollout.Failed)
	if w.ended.InEffect == 0 || w.running("d1") != 6 {
		t.Errorf("%d pods as before, %+v", w.running("d1"), w.ended)
	}
	after := w.rcs[web1]
	if after.NodeSelector != "" || after.MinAvailable != nil || after.Desired() != 6 || after.Labels != nil ||
		after.ManifestDigest != before.ManifestDigest || after.InPlace != nil {
		t.Errorf("%+v", after)
	}
}

// After a restore and an abort one revision has more pods than its count, and the other fewer.
func TestADeployAfterARestoreAndAnAbortEnds(t *testing.T) {
	w := traced(t)
	w.old(1, 8)
	w.must(t, w.deploy(rollout.Knobs{}, 2, 8))
	s := w.snapshot()
	for len(w.podsOf(web2)) < 5 {
		w.round()
	}
	w.restore(s)
	clear(w.holding)
	for range 5 {
		w.round()
	}
	if w.record.BlockedReason == "" || len(w.podsOf(web2)) < 4 {
		t.Fatalf("held %q, %s", w.record.BlockedReason, w.counts())
	}
	w.ask(rollout.AbortVerb)
	w.must(t, w.deploy(rollout.Knobs{}, 3, 8))
	w.settles(t, rollout.Done)
	w.has(t, map[string]int{web1: 0, web2: 0, web3: 8})
}

func TestResumeAfterARestoreManagesPodsAgain(t *testing.T) {
	w := traced(t)
	w.old(1, 8)
	w.must(t, w.deploy(rollout.Knobs{}, 2, 8))
	s := w.snapshot()
	for len(w.podsOf(web2)) < 5 {
		w.round()
	}
	w.restore(s)
	for range 4 {
		w.round()
		w.holding = map[string]bool{web1: true}
		w.ask(rollout.ResumeVerb) // without effect while an owner holds
	}
	clear(w.holding)
	w.round()
	w.round()
	if !strings.Contains(w.record.BlockedReason, "as they were found") {
		t.Fatal(w.record.BlockedReason)
	}
	w.ask(rollout.ResumeVerb)
	if w.record.BlockedReason != "" || w.record.Epoch != w.epoch {
		t.Errorf("%q, %s", w.record.BlockedReason, w.record.Epoch)
	}
	w.settles(t, rollout.Done)
	w.has(t, map[string]int{web1: 0, web2: 8})
}

// Pods on lost machines are not counted for the bound. Otherwise a rollout at its bound could not roll back.
func TestLostPodsDoNotCountForTheBound(t *testing.T) {
	w := traced(t)
	w.old(1, 6)
	w.must(t, w.deploy(rollout.Knobs{Step: amount(2)}, 2, 6))
	for len(w.podsOf(web2)) < 3 {
		w.round()
	}
	for i, p := range w.podsOf(web2) {
		p.lost, p.available = i < 2, false
	}
	w.ask(rollout.RollbackVerb)
	w.settles(t, rollout.Failed)
	if w.ended.InEffect != 1 {
		t.Error(w.ended.Record.Reason)
	}
	w.has(t, map[string]int{web1: 6})
}

func TestOneLostPodDoesNotStallTheRollout(t *testing.T) {
	w := traced(t)
	w.old(1, 5)
	w.old(2, 5)
	w.podsOf(web1)[0].available = false
	w.sick["d1"] = true // it never comes back; the other pods stay available
	w.podsOf(web1)[0].lost = true
	for _, p := range w.podsOf(web1)[1:] {
		p.available = true
	}
	w.must(t, w.deploy(rollout.Knobs{MinAvailable: ptr(10), MaxSurge: amount(1)}, 3, 10))
	w.settles(t, rollout.Done)
	w.has(t, map[string]int{web3: 10})
}

func TestBeginRefusesKnobsThatCannotWork(t *testing.T) {
	old := rollout.Seen{
		RC: rc.RC{
			ID: web1, Name: "web-r1", ManifestDigest: "d1", ReplicaGroups: groupsOf(4),
			Service: &rc.Service{Name: "web", Revision: 1},
		},
	}
	next := rc.RC{
		ID: web2, Name: "web-r2", ManifestDigest: "d2", ReplicaGroups: groupsOf(4),
		Service: &rc.Service{Name: "web", Revision: 2},
	}
	for name, tt := range map[string]struct {
		change func(*rollout.Start)
		want   []string
		is     error
	}{
		"no surge": {
			func(s *rollout.Start) { s.Knobs.MaxSurge = amount(0) },
			[]string{"max_surge is 0", "max_unavailable is 0"},
			rollout.ErrRefused,
		},
		"no spare pods": {
			func(s *rollout.Start) { s.Knobs.MaxSurge, s.Knobs.MinAvailable = amount(0), ptr(4) },
			[]string{"max_surge", "min_available 4 of 4"},
			rollout.ErrRefused,
		},
		"in place": {
			func(s *rollout.Start) { s.Knobs.Strategy, s.Knobs.MinAvailable, s.New.ID = "in-place", ptr(4), web1 },
			[]string{"min_available is 4 of 4"},
			rollout.ErrRefused,
		},
		"in place besides": {
			func(s *rollout.Start) { s.Knobs.Strategy = "in-place" },
			[]string{"only controller", "web-r1"},
			rollout.ErrRefused,
		},
		"blue-green": {
			func(s *rollout.Start) { s.Knobs.Strategy, s.Knobs.MaxSurge = "blue-green", amount(3) },
			[]string{"max_surge is 3", "allowed: 4"},
			rollout.ErrRefused,
		},
		"leave_old": {
			func(s *rollout.Start) { s.Knobs.LeaveOld, s.Old = true, nil }, []string{"leave_old"}, rollout.ErrRefused,
		},
		"static": {
			func(s *rollout.Start) { s.New.Strategy = rc.Static },
			[]string{"pods are static", "in-place"},
			rollout.ErrRefused,
		},
		"volumes": {
			func(s *rollout.Start) { s.OnlyInPlace = "it has volumes" },
			[]string{"it has volumes", "availability", "in-place"},
			rollout.ErrRefused,
		},
		"group": {
			func(s *rollout.Start) { s.Knobs.GroupOrder = []string{"x"} },
			[]string{"group_order", `"x"`},
			rollout.ErrRefused,
		},
		"knob": {func(s *rollout.Start) { s.Knobs.Step = amount(0) }, []string{"step"}, rollout.ErrRefused},
		"itself": {
			func(s *rollout.Start) { s.New.ID = web1 },
			[]string{"web-r1 is the new revision and an old one"},
			rollout.ErrRefused,
		},
	} {
		s := rollout.Start{ID: "A", Service: "web", Now: t0, Epoch: "n", New: next, Old: []rollout.Seen{old}}
		tt.change(&s)
		_, err := rollout.Begin(s)
		if !errors.Is(err, tt.is) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, part := range tt.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q is not in %v", name, part, err)
			}
		}
	}
}

func TestAFirstDeploymentInPlaceGoesByCounts(t *testing.T) {
	w := traced(t)
	w.must(t, w.start(rollout.Start{
		ID: "A", Service: "web", Now: w.now, Epoch: w.epoch, Knobs: rollout.Knobs{
			Strategy: rollout.InPlaceStrategy, Step: amount(2),
		},
		New: rc.RC{
			ID: web1, Name: "web-r1", ManifestDigest: "d1", Strategy: rc.Static, ReplicaGroups: groupsOf(5),
			Service: &rc.Service{Name: "web", Revision: 1},
		},
	}))
	w.must(t, w.record.Check())
	if w.rcs[web1].InPlace != nil {
		t.Error("the first deployment has a limit")
	}
	w.settles(t, rollout.Done)
	w.has(t, map[string]int{web1: 5})
}

func TestExpired(t *testing.T) {
	for _, tt := range []struct {
		revs     []int64
		inEffect int64
		keep     int
		want     []int64
	}{
		{[]int64{1}, 1, 0, nil},
		{[]int64{3, 1, 2}, 3, 0, []int64{1, 2}},
		{[]int64{3, 1, 2}, 1, 0, []int64{2, 3}},
		{[]int64{3, 1, 2}, 3, 1, []int64{1}},
		{[]int64{3, 1, 2}, 3, 2, nil},
		{[]int64{3, 1, 2}, 0, 2, []int64{1}},
	} {
		if got := rollout.Expired(tt.revs, tt.inEffect, tt.keep); !slices.Equal(got, tt.want) {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

// If the next rollout wants the manifest of an abandoned one, the pods that have it are not taken back.
func TestInPlaceAfterAnAbortKeepsUpgradedPods(t *testing.T) {
	w := traced(t)
	w.grouped(4, 4)
	w.must(t, w.deployInPlace(rollout.Knobs{Step: amount(1)}, "d1", spare("s2")))
	for w.running("s2") < 2 {
		w.round()
	}
	w.ask(rollout.AbortVerb)
	had := w.running("s2")
	w.must(t, w.deployInPlace(rollout.Knobs{Step: amount(1)}, "d2", spare("s2")))
	w.calm = true
	for w.record != nil {
		if w.round(); w.running("s2") < had {
			t.Fatalf("%d pods run s2, before %d: %+v", w.running("s2"), had, w.rcs[web1].InPlace)
		}
	}
	if w.ended.Record.State != rollout.Done || w.running("s2") != 4 || w.running("d2") != 4 {
		t.Errorf("%+v %s", w.ended, w.counts())
	}
}

// A rollback after an abandoned rollout in place goes to the manifest before the abandoned one.
func TestARollbackAfterAnAbortDoesNotFinishTheAbortedRollout(t *testing.T) {
	w := traced(t)
	w.old(1, 6)
	w.must(t, w.deployInPlace(rollout.Knobs{Step: amount(2)}, "d2", nil))
	for w.running("d2") < 4 {
		w.round()
	}
	w.ask(rollout.AbortVerb)
	w.must(t, w.deployInPlace(rollout.Knobs{Step: amount(1)}, "d3", nil))
	for w.running("d3") < 1 {
		w.round()
	}
	w.ask(rollout.RollbackVerb)
	w.settles(t, rollout.Failed)
	if w.running("d1") != 6 || w.rcs[web1].ManifestDigest != "d1" || w.rcs[web1].InPlace != nil {
		t.Errorf("%+v: %s", w.rcs[web1], w.counts())
	}
}

// A rollback is refused while the controller to go back to cannot be read, and while the rollout is blocked.
func TestARollbackIsRefusedWhileAControllerCannotBeRead(t *testing.T) {
	rec, obs := staged(rollout.AvailabilityStrategy, rollout.Moving, rollout.Update{Step: 1, Surge: 1}, 4,
		rev{has: 4, target: 3}, rev{dir: rollout.Up, target: 1})
	rec.Request = &rollout.Request{Verb: rollout.RollbackVerb, By: "ann", At: t0}
	delete(obs.Revisions, rec.Revisions[0].RC)
	d := rollout.Decide(rec, obs)
	if d.Record.State != rollout.Progressing || !strings.Contains(d.Record.BlockedReason, "cannot be read") ||
		!strings.Contains(strings.Join(d.Audit, " "), "refused: a controller cannot be read") {
		t.Errorf("%s, blocked by %q, audit %q", d.Record.State, d.Record.BlockedReason, d.Audit)
	}
	obs.Revisions[rec.Revisions[0].RC] = rollout.Seen{}
	if d = rollout.Decide(rec, obs); d.Record.State != rollout.Failed ||
		!strings.Contains(d.Record.Reason, "no revision to go back to") {
		t.Errorf("its controller is gone: %s, %q", d.Record.State, d.Record.Reason)
	}
}
