package inspect

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func TestPodsNamed(t *testing.T) {
	t.Parallel()
	view := func(rc, role string, index int, node, kind string) PodView {
		id := pod.Identity{RCID: "01" + rc, Role: role, Index: index}
		podID := rc
		if kind == Orphan {
			podID = ""
		}
		return PodView{
			Name: PodName(podID, id), RCID: id.RCID, RCName: rc, Role: role, Index: index, Node: node, Kind: kind,
		}
	}
	views := []PodView{
		view("web", "main", 1, "n1", Placed), view("web", "main", 1, "n2", Ghost),
		view("web", "main", 10, "n3", Placed), view("web-api", "main", 0, "n4", Placed),
		view("db", "main", 0, "n5", Orphan), view("cache", "main", 0, "n6", Orphan),
	}
	for ref, want := range map[string]string{
		"web-main-1":      "n1", // not web-main-10; and the node of the placement
		"web-main-10":     "n3",
		"web/main.1":      "n1",
		"01web/main.10":   "n3",
		"web-a":           "n4",
		"web":             "n1 n2 n3 n4",
		"web/":            "n1 n2 n3",
		"main-0":          "n5 n6",
		"db/main.0":       "n5",
		"nothing":         "",
		"main.0":          "",
		"web-main-1/main": "",
	} {
		var nodes []string
		for _, v := range PodsNamed(views, ref) {
			nodes = append(nodes, v.Node)
		}
		if got := strings.Join(nodes, " "); got != want {
			t.Errorf("%q means %q, want %q", ref, got, want)
		}
	}
	if ghost := FilterPods(slices.Clone(views), "", "n2"); len(PodsNamed(ghost, "web-main-1")) != 1 {
		t.Error("--node does not choose the former copy")
	}
}

func TestEventsOf(t *testing.T) {
	t.Parallel()
	var acts []store.Audit
	for i := range 2 * maxPodEvents {
		acts = append(acts, store.NewAudit("f1", "reconcile", "rc", []string{
			fmt.Sprintf("place main.1 on n%d: add", i), "place main.10 on n1: add", "place domain.1 on n1: add",
		}))
	}
	events := eventsOf(acts, pod.Identity{RCID: "rc", Role: "main", Index: 1})
	if len(events) != maxPodEvents || events[0].What != "place main.1 on n10: add" || events[0].Who != "f1" {
		t.Errorf("events %+v", events)
	}
	if events := eventsOf(nil, pod.Identity{}); events == nil || len(events) != 0 {
		t.Errorf("no events: %v", events)
	}
}

func TestJoinPods(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	id := func(i int) pod.Identity { return pod.Identity{RCID: "r", Role: "main", Index: i} }
	reality := func(i int, node string, revision int64, state pod.State) pod.Reality {
		return pod.Reality{
			Identity: id(i), Node: node, Digest: "d",
			Revision: revision, State: state, Available: state == pod.StateReady,
		}
	}
	placement := func(i int, change func(*pod.Placement)) pod.Placement {
		p := pod.Placement{Identity: id(i), Node: "n1", PodID: "web", Digest: "d", RunState: pod.Running, Revision: 5}
		if change != nil {
			change(&p)
		}
		return p
	}
	views := JoinPods(
		[]pod.Placement{
			placement(6, func(p *pod.Placement) { p.Digest = "new-manifest-digest" }),
			placement(0, nil), placement(1, nil),
			placement(2, func(p *pod.Placement) { p.RunState = pod.Stopped }),
			placement(3, func(p *pod.Placement) { p.LostSince = &at }),
			placement(4, func(p *pod.Placement) { p.UnmanagedSince = &at }),
			placement(5, func(p *pod.Placement) { p.Node = "n2"; p.Ghosts = []pod.Ghost{{Node: "n1", Revision: 4}} }),
			placement(7, func(p *pod.Placement) { p.RunState = pod.Stopped }),
		},
		[]pod.Reality{
			reality(0, "n1", 5, pod.StateReady), reality(2, "n1", 4, pod.StateReady),
			reality(3, "n1", 5, pod.StateReady), reality(4, "n1", 5, pod.StateReady),
			reality(5, "n1", 4, pod.StateReady), reality(5, "n2", 5, pod.StateStarting),
			reality(6, "n1", 4, pod.StateReady), reality(7, "n1", 5, pod.StateStopped),
			reality(8, "n3", 1, pod.StateReady), reality(9, "n3", 1, pod.StateStopped),
		}, nil, map[string]string{"r": "web-rc"})
	var got []string
	for _, v := range views {
		if v.RCName != "web-rc" {
			t.Errorf("%+v", v)
		}
		got = append(got,
			strings.Join([]string{
				v.Name, v.Node, v.Kind, v.State,
				map[bool]string{true: "yes", false: "no"}[v.Available], v.Message,
			}, "|"))
	}
	want := []string{
		"web-main-0|n1|placed|ready|yes|",
		"web-main-1|n1|placed|placed|no|n1 has not reported yet",
		"web-main-2|n1|placed|stopping|no|stop requested, not confirmed by its node",
		"web-main-3|n1|placed|lost|no|its node is gone since 2026-01-02T03:04:05Z",
		"web-main-4|n1|placed|ready|yes|the preparer of its node is away since 2026-01-02T03:04:05Z",
		"web-main-5|n2|placed|starting|no|",
		"web-main-5|n1|ghost|ready|no|moved to n2; its stop here is not confirmed",
		"web-main-6|n1|placed|ready|no|still runs manifest d",
		"web-main-7|n1|placed|stopped|no|",
		"main-8|n3|orphan|ready|no|has no placement; it runs until its rc adopts or stops it",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if left := FilterPods(views, "r", "n2"); len(left) != 1 || left[0].Node != "n2" {
		t.Errorf("%+v", left)
	}
	if none := JoinPods(nil, nil, nil, nil); none == nil {
		t.Error("no pods must be an empty list, not null")
	}
}

func TestLogLabels(t *testing.T) {
	t.Parallel()
	got := LogLabels([]PodView{
		{Name: "web-main-0", RCName: "web", Role: "main", Node: "n1"},
		{Name: "db-main-0", RCName: "db", Role: "main", Node: "n1"},
		{Name: "web-main-0", RCName: "web", Role: "main", Node: "n2"},
	})
	if want := []string{"web/main.0@n1", "db-main-0", "web/main.0@n2"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
