package reconcile_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Running pods get the present labels of their controller and of their own manifest. Nothing else about them changes.
func TestPodsGetTheLabelsOfTheirController(t *testing.T) {
	t.Parallel()
	team := func(value string) map[string]string {
		labels := given("p")
		labels["team"] = value
		return labels
	}
	for name, c := range map[string]struct {
		change func(*reconcile.Snapshot)
		want   []int // indices of the pods that are relabelled
	}{
		"all three":    {func(*reconcile.Snapshot) {}, []int{0, 1, 2}},
		"one has them": {func(s *reconcile.Snapshot) { s.Pods[1].Labels = team("a") }, []int{0, 2}},
		"a label goes": {
			func(s *reconcile.Snapshot) { s.RC.PodLabels = nil; s.Pods[2].Labels = team("a") }, []int{2},
		},
		"another value":     {func(s *reconcile.Snapshot) { s.Pods[0].Labels = team("b") }, []int{0, 1, 2}},
		"found running":     {func(s *reconcile.Snapshot) { s.Pods[0].AdoptedAtGeneration = 7 }, []int{1, 2}},
		"one stops":         {func(s *reconcile.Snapshot) { stopAt(&s.Pods[0], s) }, []int{1, 2}},
		"marked lost first": {func(s *reconcile.Snapshot) { s.Nodes["n0"].Alive = false }, []int{1, 2}},
		"holding":           {func(s *reconcile.Snapshot) { s.Hold = "n3 has not spoken" }, nil},
		"disabled":          {func(s *reconcile.Snapshot) { s.RC.Disabled = true }, nil},
		"manifest unread":   {func(s *reconcile.Snapshot) { s.Manifest = nil }, nil},
		"by the manifest's": {
			func(s *reconcile.Snapshot) { s.RC.PodLabels, s.Manifest.Labels = nil, map[string]string{"team": "a"} },
			[]int{0, 1, 2},
		},
	} {
		s := row(3, 3)
		s.RC.PodLabels = map[string]string{"team": "a"}
		c.change(s)
		got := map[int]bool{}
		for _, ch := range reconcile.Compute(s).Changes {
			if ch.Action != reconcile.Relabel {
				continue
			}
			was, next, in := &s.Pods[ch.Identity.Index].Placement, ch.Placement, ch.Intents[0].Intent
			got[ch.Identity.Index] = true
			want := team("a")
			if name == "a label goes" {
				want = given("p")
			}
			if !maps.Equal(next.Labels, want) || !maps.Equal(in.Labels, want) || next.Revision <= was.Revision ||
				in.Revision != next.Revision ||
				next.Digest != was.Digest || !next.ChangedAt.Equal(was.ChangedAt) || in.State != pod.Running ||
				ch.TakesAvailable || len(ch.Reserve) > 0 || !ch.NeedsSchema {
				t.Errorf("%s: %+v", name, ch)
			}
		}
		want := map[int]bool{}
		for _, i := range c.want {
			want[i] = true
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: relabelled are %v, want %v", name, got, want)
		}
	}
}

// While labels wait for a hold, the controller has not converged.
func TestLabelsWaitForTheHold(t *testing.T) {
	t.Parallel()
	for labels, want := range map[string]bool{"a": true, "": false} {
		s := row(3, 3)
		if s.Hold = "n3 has not spoken"; labels != "" {
			s.RC.PodLabels = map[string]string{"team": labels}
		}
		if st := reconcile.Compute(s).Status; st.Is(rc.Holding) != want {
			t.Errorf("with the label %q: %+v", labels, st.Conditions)
		}
	}
}

// In an upgrade in place, pods with the former manifest keep their labels until their turn comes.
func TestLabelsGoWithAnUpgradeInPlace(t *testing.T) {
	t.Parallel()
	s := row(3, 3)
	s.RC.PodLabels, s.RC.InPlace, s.Rollout = map[string]string{"version": "2"}, &rc.InPlace{From: "m0", Limit: 2}, "r"
	s.Manifests = map[string]*manifest.Manifest{"m0": s.Manifest}
	for i := range 2 {
		s.Pods[i].Digest, s.Pods[i].Reality.Digest = "m0", "m0"
	}
	got := map[int]reconcile.Action{}
	for _, ch := range reconcile.Compute(s).Changes {
		got[ch.Identity.Index] = ch.Action
	}
	if want := map[int]reconcile.Action{0: reconcile.Upgrade, 2: reconcile.Relabel}; !maps.Equal(got, want) {
		t.Errorf("the changes are %v, want %v", got, want)
	}
}

// A pod that is upgraded gets its labels in the same change.
func TestAnUpgradeBringsTheLabels(t *testing.T) {
	t.Parallel()
	s := row(1, 1)
	s.RC.PodLabels = map[string]string{"team": "a"}
	s.Pods[0].Digest, s.RC.MinAvailable = "m0", count(0)
	plan := reconcile.Compute(s)
	if len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Upgrade ||
		plan.Changes[0].Placement.Labels["team"] != "a" {
		t.Errorf("the changes are %+v", plan.Changes)
	}
}

// asked adds n requests to label one pod.
func asked(s *reconcile.Snapshot, i, n int) {
	for k := range n {
		s.Requests = append(s.Requests, reconcile.Request{
			ID: fmt.Sprintf("r%03d", k), Node: s.Pods[i].Node, Pod: s.Pods[i].Identity,
			Label: &reconcile.Labels{Set: map[string]string{"x": fmt.Sprint(k)}},
		})
	}
}

// A label that an operator asks for does not decide which pod stops.
func TestALabelDoesNotDecideWhichPodStops(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{false, true} {
		for _, requests := range []int{0, 1} {
			s := spoken(3, 2)
			s.RC.ReplicaGroups[0].Ordered = ordered
			asked(s, 2, requests)
			plan := reconcile.Compute(s)
			if got := stopped(&plan); !slices.Equal(got, []string{"main.2"}) {
				t.Errorf("ordered %t, %d requests: %v stop, want main.2", ordered, requests, got)
			}
		}
	}
	s := spoken(3, 2)
	sick(s, 2)
	s.RC.MinAvailable = count(1)
	asked(s, 2, 1)
	plan := reconcile.Compute(s)
	if got := stopped(&plan); !slices.Equal(got, []string{"main.2"}) {
		t.Errorf("main.2 is sick, and %v stop", got)
	}
}

// Requests beyond what one transaction takes wait for a later pass. The first requests are carried out first.
func TestManyLabelRequestsTakeSeveralPasses(t *testing.T) {
	t.Parallel()
	s := spoken(2, 2)
	asked(s, 1, 150)
	plan := reconcile.Compute(s)
	if len(plan.Changes) != 1 || len(plan.Changes[0].Answers) != 16 ||
		plan.Changes[0].Placement.OwnLabels["x"] != "15" {
		t.Errorf("%+v", plan.Changes)
	}
}

// While a farm waits for nodes to speak, requests wait, even those that would be void.
func TestLabelRequestsWaitForTheHold(t *testing.T) {
	t.Parallel()
	s := spoken(2, 2)
	asked(s, 1, 1)
	s.Requests[0].Node, s.Hold = "elsewhere", "nodes have not reported"
	plan := reconcile.Compute(s)
	if len(plan.Answered)+len(plan.Void)+len(plan.Changes) != 0 {
		t.Errorf("%+v", plan)
	}
}
