package inspect

import (
	"maps"
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// If only the preparer is away, all views of a pod use its last report. If the machine is gone, they ignore the report.
func TestViewsAgreeOnLosses(t *testing.T) {
	t.Parallel()
	id, one := pod.Identity{RCID: "01", Role: "main"}, 1
	for name, tt := range map[string]struct {
		session   string
		failed    bool
		report    pod.State
		state     string
		available int
		failing   bool
		halted    bool
		causes    []string
		reality   bool
	}{
		"alive, ready": {"s", false, pod.StateReady, "ready", 1, false, false, nil, true},
		"alive, crash-loops": {
			"s", false, pod.StateCrashLooping, "crash-looping",
			0, true, true,
			[]string{"web-main-0 on n1 is crash-looping."},
			true,
		},
		"failed agent, held": {"s", true, pod.StateReady, "ready", 1, false, false, nil, true},
		"away, ready": {
			"", false, pod.StateReady, "ready",
			1, false, false,
			[]string{"web-main-0 is on node n1, whose preparer does not live; its last report is used."},
			true,
		},
		"away, crash-loops": {
			"", false, pod.StateCrashLooping, "crash-looping",
			0, true, true,
			[]string{"web-main-0 is on node n1, whose preparer does not live; its last report is used."},
			true,
		},
		"machine gone, ready": {
			"", true, pod.StateReady, "lost",
			0, false, false,
			[]string{"web-main-0 was on node n1, whose machine is gone; its owner has not written that yet."},
			false,
		},
		"machine gone, looped": {
			"", true, pod.StateCrashLooping, "lost",
			0, false, false,
			[]string{"web-main-0 was on node n1, whose machine is gone; its owner has not written that yet."},
			false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := pod.Placement{Identity: id, Node: "n1", PodID: "web", Digest: "d", RunState: pod.Running, Revision: 1}
			r := pod.Reality{
				Identity: id, Node: "n1", Digest: "d",
				Revision: 1, State: tt.report, Available: tt.report == pod.StateReady,
			}
			rec := store.Rec[node.Node]{Value: node.Node{Name: "n1", ConsulNode: "m1"}, Session: tt.session}
			pods := Pods{
				Placements: []pod.Placement{p}, Realities: map[store.At]pod.Reality{{Identity: id, Node: "n1"}: r},
				Losses: LossesOf([]store.Rec[node.Node]{rec}, []pod.Placement{p}, map[string]bool{"m1": tt.failed}),
			}
			ctrl := rc.RC{
				ID: "01", Name: "web", ManifestDigest: "d",
				ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &one}},
			}

			var rev RevisionView
			rev.Count(&ctrl, &pods)
			if rev.Available != tt.available || !maps.Equal(rev.Pods, map[string]int{tt.state: 1}) {
				t.Errorf("a rollout has %d available of %v", rev.Available, rev.Pods)
			}
			if worst, _ := Failing(&pods, ctrl.Digests()); (worst != nil) != tt.failing {
				t.Errorf("failing: %v", worst)
			}
			if is, _, _ := Halted(Observation{RC: &ctrl, Status: &rc.Status{}}, &pods); is != tt.halted {
				t.Errorf("halted: %t", is)
			}
			var causes []string
			for _, c := range troubledPods(&Situation{
				RC: ctrl, Pods: pods,
				Nodes: map[string]*node.View{"n1": node.NewView(rec.Value, node.Ops{}, tt.session != "")},
			}) {
				causes = append(causes, c.What)
			}
			if !slices.Equal(causes, tt.causes) {
				t.Errorf("explained as %q, want %q", causes, tt.causes)
			}
			view := JoinPods(pods.Placements, []pod.Reality{r}, pods.Losses, nil)[0]
			d := Describe(&view, &PodRecords{Node: &rec, Reality: &r})
			if d.State != tt.state || (d.Reality != nil) != tt.reality || (d.LastReality != nil) == tt.reality {
				t.Errorf("described as %s, reality %v, last %v", d.State, d.Reality, d.LastReality)
			}
		})
	}
}
