package reconcile_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// The audit trail shows each change on one line: what happens to which pod, where, and why.
func TestAChangeIsOneLineOfTheAuditTrail(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]*reconcile.Snapshot{
		"stop main.0 on n0: the controller is deleted": one(func(s *reconcile.Snapshot, _ *reconcile.Pod) {
			s.RC.DeletedAt = &s.Now
		}),
		"remove main.0 from n0: the node confirmed the stop": one(func(_ *reconcile.Snapshot, p *reconcile.Pod) {
			p.RunState, p.Reality.State, p.Reality.Available = pod.Stopped, pod.StateStopped, false
		}),
		"release main.3: n1 holds a share for a pod that is not there": one(
			func(s *reconcile.Snapshot, _ *reconcile.Pod) {
				s.UnusedShares = []reconcile.UnusedShare{{Node: "n1", Pod: orphan("n1", 3, 5).Identity}}
			}),
		"stop-duplicate main.0 from n1: a second copy runs on n1 at revision 4; the pod has revision 5": one(
			func(s *reconcile.Snapshot, _ *reconcile.Pod) {
				s.Orphans = []reconcile.Orphan{orphan("n1", 0, 4)}
			}),
	} {
		plan := reconcile.Compute(s)
		if len(plan.Changes) == 0 || plan.Changes[0].String() != want {
			t.Errorf("%v, want %s", plan.Changes, want)
		}
	}
	s := snapshotOf(2)
	plan := reconcile.Compute(s)
	ch := plan.Placer().On(orphan("", 1, 0).Identity, "n2")
	if ch.String() != "place main.1 on n2: 2 replicas desired" {
		t.Errorf("%s", &ch)
	}
}

// The status counts new replicas without a node. It names the pods that must leave their node and find no other, with
// the nodes that were tried.
func TestPodsWithoutANodeAreReported(t *testing.T) {
	t.Parallel()
	placed, tried, missing := orphan("", 0, 0).Identity, orphan("", 1, 0).Identity, orphan("", 2, 0).Identity
	const nodes = "; of 4 nodes, these take none: resources: 4"
	for want, left := range map[string][]pod.Identity{
		"":                                     nil,
		"1 of 3 replicas have no node" + nodes: {missing},
		"main.0 must leave n0 and has no other node" + nodes:                                                 {placed},
		"main.1 must leave n1 and has no other node (it did not become available on n3 (no answer))" + nodes: {tried},
		"1 of 3 replicas have no node; main.0 must leave n0 and has no other node" + nodes: {
			placed, missing,
		},
	} {
		s := row(2, 3)
		s.Pods[1].Avoid = []pod.Avoided{{Node: "n3", Since: s.Now, Generation: s.RC.Generation, Reason: "no answer"}}
		plan := reconcile.Compute(s)
		plan.Status.Conditions = rc.SetCondition(plan.Status.Conditions, rc.InsufficientNodes, true, "as before", s.Now)
		plan.Again = 0
		plan.SetUnplaced(left, "resources: 4", time.Minute)
		got := condition(&plan.Status, rc.InsufficientNodes)
		if got.Reason != want || got.True != (want != "") || (plan.Again == time.Minute) != got.True {
			t.Errorf("%v left: %+v, again after %s; want %q", left, got, plan.Again, want)
		}
	}
}

// Books that differ from the placements are reported until they agree. Until then the farm looks again.
func TestDifferentBooksAskForAnotherLook(t *testing.T) {
	t.Parallel()
	s := row(1, 1)
	plan := reconcile.Compute(s)
	if plan.BooksDiffer(s.Now, "n0 is booked twice"); !plan.Status.Is(rc.BooksDiffer) ||
		plan.Again != reconcile.RetryAfter {
		t.Errorf("differ: %+v, again after %s", plan.Status.Conditions, plan.Again)
	}
	s.Previous = &plan.Status
	plan = reconcile.Compute(s)
	if plan.BooksDiffer(s.Now, ""); plan.Status.Is(rc.BooksDiffer) || plan.Again != 0 {
		t.Errorf("agree: %+v, again after %s", plan.Status.Conditions, plan.Again)
	}
}

// If there are several reasons to look again, the earliest time is used.
func TestTheEarliestNextLookIsUsed(t *testing.T) {
	t.Parallel()
	for left, want := range map[time.Duration]time.Duration{
		time.Second: time.Second,
		time.Minute: reconcile.RetryAfter,
	} {
		s := row(1, 1)
		lose(s, 30*time.Second-left, 0)
		if left > 30*time.Second {
			s = row(1, 1)
			unmanage(s, 10*time.Minute-left, 0)
		}
		plan := reconcile.Compute(s)
		if plan.Retry(); plan.Again != want {
			t.Errorf("%s are left: again after %s, want %s", left, plan.Again, want)
		}
	}
}

// Pods with several manifests are placed one manifest after the other. If some pods of any manifest found no node, the
// final status has the reason.
func TestALaterManifestHidesNoEarlierLack(t *testing.T) {
	t.Parallel()
	s := snapshotOf(2)
	plan := reconcile.Compute(s)
	plan.Status = rc.Status{}
	if got := plan.UnplacedReason(); got != "" {
		t.Errorf("before anything was looked for: %q", got)
	}
	plan.Fail("x") // another condition makes no difference
	plan.Block(s.Now, "stays as it is")
	if got := plan.UnplacedReason(); got != "" {
		t.Errorf("with another condition: %q", got)
	}
	plan.SetUnplaced([]pod.Identity{{RCID: "rc", Role: "main"}}, "", time.Minute)
	first := plan.UnplacedReason()
	if !strings.Contains(first, "1 of 0 replicas have no node") {
		t.Errorf("after the first: %q", first)
	}
	plan.SetUnplaced(nil, "", 0)
	if got := plan.UnplacedReason(); got != "" {
		t.Errorf("after the second: %q", got)
	}
	plan.StillLacking(s.Now, "")
	if plan.Status.Is(rc.InsufficientNodes) {
		t.Error("no pod lacks a node, and the status reports a lack")
	}
	plan.StillLacking(s.Now, first)
	if plan.UnplacedReason() != first {
		t.Errorf("in the end: %q", plan.UnplacedReason())
	}
	plan.Status = rc.Status{}
	if plan.StillLacking(s.Now, first); plan.UnplacedReason() != first {
		t.Errorf("as the only condition: %q", plan.UnplacedReason())
	}
}
