package reconcile_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// answers returns the requests that a plan answers, alone or with a change.
func answers(plan *reconcile.Plan) []string {
	ids := slices.Clone(plan.Answered)
	for _, ch := range plan.Changes {
		ids = append(ids, ch.Answers...)
	}
	slices.Sort(ids)
	return ids
}

func forgetOn(id, name string, pod pod.Identity) reconcile.Request {
	return reconcile.Request{ID: id, Forget: true, Node: name, Pod: pod}
}

// Of two declarations about one replica, a plan answers only the one that it carries out. The other one comes next.
func TestOneForgottenCopyAtATime(t *testing.T) {
	t.Parallel()
	s := snapshotOf(2)
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0), running(1, "n1", 5, 0)}
	for _, name := range []string{"n2", "n3"} {
		s.Nodes[name].Alive, s.Nodes[name].MachineLost = false, true
		s.Pods[0].Placement.Ghosts = append(s.Pods[0].Placement.Ghosts, pod.Ghost{
			Node: name, LeftBecauseLost: true, Revision: 4,
		})
	}
	id := s.Pods[0].Identity
	s.Requests = []reconcile.Request{
		forgetOn("a", "n2", id), forgetOn("b", "n3", id), forgetOn("c", "n1", s.Pods[1].Identity),
	}
	s.Requests[2].Alive = true
	plan := reconcile.Compute(s)
	if got := answers(&plan); !slices.Equal(got, []string{"a", "c"}) || !slices.Equal(plan.Answered, []string{"c"}) {
		t.Fatalf("answered %v, without a change %v; want a with its change, and c, whose node lives", got,
			plan.Answered)
	}
	s.Pods[0].Placement = *plan.Changes[0].Placement
	s.Requests = s.Requests[1:2]
	plan = reconcile.Compute(s)
	if got := answers(&plan); !slices.Equal(got, []string{"b"}) || len(plan.Changes) != 1 ||
		len(plan.Changes[0].Placement.Ghosts) != 0 {
		t.Errorf("answered %v with %v", got, plan.Changes)
	}
}

// A declaration that needs a stop waits until something may be stopped.
func TestAForgetThatMustStopWaits(t *testing.T) {
	t.Parallel()
	for want, change := range map[rc.ConditionType]func(*reconcile.Snapshot){
		rc.Holding:        func(s *reconcile.Snapshot) { s.Hold = "the records are new" },
		rc.BreakerTripped: func(s *reconcile.Snapshot) { s.Breaker = "tripped" },
	} {
		s := snapshotOf(1)
		s.Pods = []reconcile.Pod{running(0, "n0", 5, 0)}
		s.Nodes["n0"].Alive = false
		s.Pods[0].Placement.Ghosts = []pod.Ghost{{Node: "n1", Revision: 4}}
		s.Requests = []reconcile.Request{forgetOn("a", "n0", s.Pods[0].Identity)}
		change(s)
		plan := reconcile.Compute(s)
		if got := answers(&plan); len(got) != 0 || !plan.Status.Is(want) {
			t.Errorf("%s: answered %v, conditions %+v", want, got, plan.Status.Conditions)
		}
		s.Hold, s.Breaker = "", ""
		plan = reconcile.Compute(s)
		if got := answers(&plan); !slices.Equal(got, []string{"a"}) || !slices.Equal(stops(&plan), []string{"n1"}) {
			t.Errorf("%s: then answered %v with stops on %v", want, got, stops(&plan))
		}
	}
}

// A share is also given back if its replica is placed elsewhere. The request stays until no such share is left.
func TestSharesOfReplicasElsewhereAreGivenBack(t *testing.T) {
	t.Parallel()
	s := snapshotOf(1)
	s.Pods = []reconcile.Pod{running(0, "n0", 5, 0)}
	id := s.Pods[0].Identity
	s.Requests = []reconcile.Request{{ID: "a", Node: "n1"}}
	s.UnusedShares = []reconcile.UnusedShare{{Node: "n1", Pod: id}}
	plan := reconcile.Compute(s)
	if len(plan.Changes) != 1 || len(answers(&plan)) != 0 {
		t.Fatalf("changes %v, answered %v; want a release and no answer yet", plan.Changes, answers(&plan))
	}
	ch := plan.Changes[0]
	if ch.Action != reconcile.Release || ch.Index != 9 || ch.Placement == nil || ch.Placement.Node != "n0" ||
		len(ch.Intents) != 0 ||
		len(ch.Reserve) != 1 || ch.Reserve[0].Node != "n1" || ch.Reserve[0].Claim != nil {
		t.Errorf("change %+v", ch)
	}

	s.Nodes["n1"].Alive = false // its last report was that the pod runs there
	s.Nodes["n1"].Orphans = []pod.Orphan{{Identity: id}}
	isRelease := func(ch reconcile.Change) bool { return ch.Action == reconcile.Release }
	if plan = reconcile.Compute(s); slices.ContainsFunc(plan.Changes, isRelease) {
		t.Errorf("R13: %v", plan.Changes)
	}
	for name, v := range map[string]*node.View{
		"no record of the node": nil,
		"it spoke before":       {Node: node.Node{Name: "n1", Epoch: "then"}, Alive: true},
	} {
		s.Nodes["n1"] = v
		if plan = reconcile.Compute(s); len(plan.Changes) > 0 || !slices.Equal(plan.Answered, []string{"a"}) {
			t.Errorf("R1, %s: %v, answered %v", name, plan.Changes, plan.Answered)
		}
	}
	s.Nodes["n1"] = &node.View{Node: node.Node{Name: "n1"}, Alive: true, OrphansUnread: true}
	if plan = reconcile.Compute(s); len(plan.Changes)+len(answers(&plan)) != 0 || plan.Again != time.Second {
		t.Errorf("its pages are unread: %v, answered %v, again after %s", plan.Changes, answers(&plan), plan.Again)
	}
	s.Nodes["n1"] = &node.View{Node: node.Node{Name: "n1"}, Alive: true}
	s.Hold = "the records are new"
	if plan = reconcile.Compute(s); len(plan.Changes)+len(answers(&plan)) != 0 || !plan.Status.Is(rc.Holding) {
		t.Errorf("while holding: %v, answered %v", plan.Changes, answers(&plan))
	}
	s.Hold, s.UnusedShares = "", nil
	if plan = reconcile.Compute(s); !slices.Equal(plan.Answered, []string{"a"}) {
		t.Errorf("answered %v; nothing is left", plan.Answered)
	}
}

// A request about a record that cannot be read waits for that record. So does the end of the controller.
func TestARepairOfAnUnreadableRecordWaits(t *testing.T) {
	t.Parallel()
	s := snapshotOf(0)
	s.RC.DeletedAt = &s.Now
	s.Requests = []reconcile.Request{{ID: "a", Node: "n1", Waits: "reservations/n1 is unreadable"}}
	plan := reconcile.Compute(s)
	if len(answers(&plan)) != 0 || plan.Finish || plan.Again != reconcile.RetryAfter ||
		!strings.Contains(plan.Status.LastError, "reservations/n1") {
		t.Errorf("answered %v, finish %t, again %s, error %q", answers(&plan), plan.Finish, plan.Again,
			plan.Status.LastError)
	}
}

// A sweep is answered with the adoption of the pod that it stops.
func TestASweepIsAnsweredWithItsAdoption(t *testing.T) {
	t.Parallel()
	s := snapshotOf(0)
	id := pod.Identity{RCID: "rc", Role: "main", Index: 3}
	s.Orphans = []reconcile.Orphan{
		{Node: "n1", Orphan: pod.Orphan{Identity: id, PodID: "p", Digest: "m1", Revision: 9}},
	}
	s.Requests = []reconcile.Request{{ID: "a", Node: "n1", Pod: id}}
	plan := reconcile.Compute(s)
	if len(plan.Answered) != 0 || !slices.Equal(answers(&plan), []string{"a"}) {
		t.Errorf("answered %v, of them without a change %v", answers(&plan), plan.Answered)
	}
}
