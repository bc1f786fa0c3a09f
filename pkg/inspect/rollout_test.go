package inspect

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// aRollout returns the view of a rollout in the second of three stages, in which one of two new pods is available.
func aRollout() *RolloutView {
	two, none := 2, 0
	v := NewRolloutView(&rollout.Record{
		ID: "01", Service: "web", Strategy: "availability", State: rollout.Progressing, Stage: 2, Stages: 3,
		Phase: rollout.Moving, BlockedReason: "the breaker is tripped",
		StartedAt: time.Unix(0, 0), Request: &rollout.Request{Verb: rollout.PauseVerb, By: "ann"},
		Revisions: []rollout.Revision{
			{RC: "a", Name: "web-r1", Rev: 1, Direction: rollout.Down, Target: &none},
			{RC: "b", Name: "web-r2", Rev: 2, Direction: rollout.Up, Target: &two},
		},
		Failures: []rollout.Failure{
			{RC: "b", PodFailure: rc.PodFailure{Pod: "main.0", Node: "n1", Reason: "exit status 3"}},
		},
	})
	id := func(i int) pod.Identity { return pod.Identity{RCID: "b", Role: "main", Index: i} }
	v.Revisions[1].Count(&rc.RC{ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &two}}}, &Pods{
		Placements: []pod.Placement{
			{Identity: id(0), Node: "n1", Digest: "d", RunState: pod.Running},
			{Identity: id(1), Node: "n2", Digest: "d", RunState: pod.Running},
		},
		Realities: map[store.At]pod.Reality{
			{Identity: id(0), Node: "n1"}: {
				Identity: id(0), Node: "n1", Digest: "d",
				State: pod.StateReady, Available: true,
			},
		},
	})
	return v
}

func TestRolloutView(t *testing.T) {
	t.Parallel()
	v := aRollout()
	want := "web: progressing, stage 2 of 3, moving; web-r1 (shrinking): 0 of 0 available; web-r2 (growing): 1 of 2 available; " +
		"1 placed, 1 ready" +
		"; the breaker is tripped; main.0 on n1: exit status 3"
	if got := v.Line(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	v.AddLog(&pod.Placement{PodID: "web", Identity: pod.Identity{Role: "main"}}, "one\ntwo\n")
	lines := []string{
		"web  progressing  availability, 60s",
		"stage 1 of 3  [" + strings.Repeat("#", 30) + "]",
		"stage 2 of 3  [" + strings.Repeat("#", 15) + strings.Repeat(".", 15) + "]  moving",
		"stage 3 of 3  [" + strings.Repeat(".", 30) + "]",
		"  web-r1 (shrinking): 0 of 0 available",
		"  web-r2 (growing): 1 of 2 available; 1 placed, 1 ready",
		"  the breaker is tripped",
		"  failing: main.0 on n1: exit status 3",
		"  the end of the log of web-main-0:", "    one", "    two",
	}
	if got := v.Lines(time.Unix(60, 0), 0, 0); !slices.Equal(got, lines) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
	if got := Asked(v); got != "requested, and not carried out yet: pause, by ann" {
		t.Error(got)
	}
	if got := v.Lines(time.Unix(60, 0), 34, 10); got[1] != "stage 2 of 3  [#####.....]  moving" ||
		!strings.HasPrefix(got[2], "  web-r1") {
		t.Errorf("on a small terminal: %q", got)
	}
	v.Stages, v.Stage = 40, 17 // only the present stage has a bar
	if got := v.Lines(time.Unix(60, 0), 0, 0); !strings.HasPrefix(got[1], "stage 17 of 40") ||
		!strings.HasPrefix(got[2], "  web-r1") {
		t.Errorf("%q", got)
	}
}

// The bar and the line of an upgrade in place show the pods that change and run the new manifest.
func TestRolloutViewOfOneGroup(t *testing.T) {
	t.Parallel()
	v, three := aRollout(), 3
	up := &v.Revisions[1]
	up.Target = 2
	var placed []pod.Placement
	reports := map[store.At]pod.Reality{}
	for i, p := range []pod.Placement{
		{Identity: pod.Identity{Role: "main"}, Digest: "d"},
		{Identity: pod.Identity{Role: "read"}, Digest: "new"},
		{Identity: pod.Identity{Role: "read", Index: 1}, Digest: "old"},
		{Identity: pod.Identity{Role: "read", Index: 2}, Digest: "new", RunState: pod.Stopped},
	} {
		p.RCID, p.Node, p.RunState = "b", "n1", cmp.Or(p.RunState, pod.Running)
		placed = append(placed, p)
		reports[store.At{Identity: p.Identity, Node: "n1"}] = pod.Reality{
			Identity: p.Identity, Node: "n1",
			Digest: p.Digest, State: pod.StateReady, Available: i < 3,
		}
	}
	up.Count(&rc.RC{
		ManifestDigest: "d", GroupManifests: map[string]string{"read": "new"},
		InPlace: &rc.InPlace{
			From: "d", FromGroups: map[string]string{"read": "old"}, Roles: []string{"read"}, Limit: 2,
		},
		ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &three}, {Role: "read", Count: &three}},
	}, &Pods{Placements: placed, Realities: reports})
	if line := up.Line(); !strings.HasPrefix(line, "web-r2 (growing): 3 of 6 available; ") ||
		!strings.HasSuffix(line, "; 1 of 2 that change are upgraded and available") {
		t.Error(line)
	}
	if bar := v.Lines(time.Unix(60, 0), 34, 0)[2]; bar != "stage 2 of 3  [#####.....]  moving" {
		t.Error(bar)
	}
}

// A rollout that no farm has begun has the phase of pre_deploy, also without a pre_deploy.
func TestRolloutThatHasNotBegun(t *testing.T) {
	t.Parallel()
	rec := rollout.Record{
		Service: "web", State: rollout.Progressing, Stages: 2, Phase: rollout.PreDeploying, Strategy: "availability",
	}
	for want, first := range map[string]*rollout.PreDeploy{
		"web: progressing, 2 stages, none has begun": nil,
		"web: progressing, stage 0 of 2, pre-deploy": {RC: "web-pre", Name: "web-r1-pre-deploy"},
	} {
		rec.PreDeploy = first
		if got := NewRolloutView(&rec).Line(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// The reason of a stage that failed ends with the failing pods. They are not listed again.
func TestAFailingPodIsListedOnce(t *testing.T) {
	t.Parallel()
	const pod0 = "main.0 on n1: exit status 3"
	failures := []rollout.Failure{
		{RC: "b", PodFailure: rc.PodFailure{Pod: "main.0", Node: "n1", Reason: "exit status 3"}},
		{RC: "b", PodFailure: rc.PodFailure{Pod: "main.1", Node: "n2", Reason: "its check does not pass"}},
	}
	for name, rec := range map[string]rollout.Record{
		"paused":   {State: rollout.Paused, Reason: "no progress for 2m0s: x; " + pod0 + "; main.1 on n2: its ch..."},
		"hopeless": {State: rollout.RollingBack, Reason: "waiting does not help: web-r2." + pod0},
		"stuck":    {State: rollout.RollingBack, Stuck: "no progress for 2m0s: x; " + pod0},
	} {
		rec.Failures = failures
		v := NewRolloutView(&rec)
		lines := strings.Join(v.Lines(time.Unix(60, 0), 0, 0), "\n")
		for _, text := range []string{v.Line(), lines} {
			if strings.Count(text, pod0) != 1 || strings.Count(text, "main.1 on n2: its check does not pass") != 1 {
				t.Errorf("%s:\n%s", name, text)
			}
		}
		if len(v.Failures) != 2 {
			t.Errorf("%s: other programs get the failures %q", name, v.Failures)
		}
	}
}

// A narrow terminal shows only the beginning of a long reason. A failing pod that the reason names later is listed.
func TestANarrowTerminalShowsTheFailingPod(t *testing.T) {
	t.Parallel()
	v := NewRolloutView(&rollout.Record{
		Service: "web", Strategy: "rolling", State: rollout.Paused,
		Reason: "no progress for 10m0s: web-r12 has 2 of 3 pods available, and 1 of 3 replicas have no node; " +
			"of 12 nodes, these take none: ports: 7, resources: 5; main.0 on n1: exit status 3",
		Failures: []rollout.Failure{{PodFailure: rc.PodFailure{Pod: "main.0", Node: "n1", Reason: "exit status 3"}}},
	})
	for columns, want := range map[int]int{0: 1, 39: 2, 200: 1} {
		lines := strings.Join(v.Lines(time.Unix(60, 0), columns, 0), "\n")
		if got := strings.Count(lines, "main.0 on n1: exit status 3"); got != want {
			t.Errorf("%d columns:\n%s", columns, lines)
		}
	}
}

func TestWhyNot(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		state  rollout.State
		resume rollout.State
		verb   rollout.Verb
		want   string // empty: the request is accepted
	}{
		{rollout.Done, "", rollout.PauseVerb, "it has ended"},
		{rollout.Progressing, "", rollout.PauseVerb, ""},
		{rollout.Paused, "", rollout.PauseVerb, "it is paused already"},
		{rollout.Paused, "", rollout.ResumeVerb, ""},
		{rollout.Progressing, "", rollout.ResumeVerb, "it is not paused"},
		{rollout.WaitingForPromote, "", rollout.PromoteVerb, ""},
		{rollout.Progressing, "", rollout.PromoteVerb, "it does not wait for promotion"},
		{rollout.Progressing, "", rollout.RollbackVerb, ""},
		{rollout.RollingBack, "", rollout.RollbackVerb, "it is rolling back already"},
		{rollout.Paused, rollout.RollingBack, rollout.RollbackVerb, "it is rolling back already"},
		{rollout.Paused, rollout.Progressing, rollout.AbortVerb, ""},
	} {
		rec := &rollout.Record{State: tt.state, Resume: tt.resume, WaitingSince: &time.Time{}}
		if got := WhyNot(rec, &rollout.Request{Verb: tt.verb}); got != tt.want {
			t.Errorf("%s while %s: %q, want %q", tt.verb, tt.state, got, tt.want)
		}
	}
}

// If new pods are not available any more, the view shows this, and they are promoted only with force.
func TestUnfitForPromotion(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		rec         rollout.Record
		line, next  string
		refusesWith string
	}{
		{
			rollout.Record{State: rollout.WaitingForPromote, WaitingSince: &time.Time{}},
			"",
			"rcctl rollout promote web, or rollback", "",
		},
		{
			rollout.Record{State: rollout.WaitingForPromote},
			"its new pods are not available any more",
			"rcctl rollout rollback web, or promote --force", "its new pods are not available any more; roll back",
		},
		{
			rollout.Record{State: rollout.WaitingForPromote, Stuck: "no progress for 2m0s: x"},
			"it still waits: no progress for 2m0s: x",
			"rcctl rollout rollback web, or promote --force", "its new pods",
		},
		{
			rollout.Record{State: rollout.RollingBack, Stuck: "no room"},
			"it still waits: no room", "",
			"it does not wait for promotion",
		},
	} {
		tt.rec.Service = "web"
		v := NewRolloutView(&tt.rec)
		if shown := strings.Join(v.Lines(time.Now(), 0, 0), " ") + v.Line(); strings.Count(shown, tt.line) < 2 {
			t.Errorf("%q shows no %q", shown, tt.line)
		}
		if next := NextOf(v); next != tt.next {
			t.Errorf("next: %q, want %q", next, tt.next)
		}
		why := WhyNot(&tt.rec, &rollout.Request{Verb: rollout.PromoteVerb})
		if !strings.HasPrefix(why, tt.refusesWith) || (why == "") != (tt.refusesWith == "") {
			t.Errorf("%q, want %q", why, tt.refusesWith)
		}
		forced := WhyNot(&tt.rec, &rollout.Request{Verb: rollout.PromoteVerb, Force: true})
		if (forced == "") != (tt.rec.State == rollout.WaitingForPromote) {
			t.Errorf("forced: %q", forced)
		}
	}
}

func TestNextOf(t *testing.T) {
	t.Parallel()
	for state, want := range map[rollout.State]string{
		rollout.Paused:            "rcctl rollout resume web, or rollback, or abort",
		rollout.WaitingForPromote: "rcctl rollout promote web, or rollback", rollout.Progressing: "",
	} {
		if got := NextOf(&RolloutView{Service: "web", State: state}); got != want {
			t.Errorf("%s: %q", state, got)
		}
	}
}

func TestHistoryOutcome(t *testing.T) {
	t.Parallel()
	svc := &record.Service{
		Deployed: record.Deployed{Revision: 3}, Rollout: &rollout.Record{ID: "r3", State: rollout.Paused},
	}
	for _, tt := range []struct {
		entry record.Entry
		want  string
	}{
		{record.Entry{Revision: 1, Ending: record.Ending{Outcome: rollout.Failed, Rollout: "r1"}}, "failed"},
		{record.Entry{Revision: 1}, "done"},
		{record.Entry{Revision: 2, Ending: record.Ending{Rollout: "r2"}}, "replaced"},
		{record.Entry{Revision: 3, Ending: record.Ending{Rollout: "r3"}}, "paused"},
	} {
		if got := NewHistoryView(svc, &tt.entry).Outcome; got != tt.want {
			t.Errorf("%+v: %s", tt.entry, got)
		}
	}
}

func TestWritten(t *testing.T) {
	t.Parallel()
	done := func(what string) Deed { return Deed{What: what, Show: "rcctl audit"} }
	lost := Deed{What: "c", Show: "rcctl nodes", Unknown: true}
	for name, tt := range map[string]struct {
		deeds []Deed
		want  []string
	}{
		"nothing": {nil, []string{"nothing was written"}},
		"two":     {[]Deed{done("a"), done("b")}, []string{"this was written: a; b; nothing else was"}},
		"many": {
			[]Deed{done("1"), done("2"), done("3"), done("4"), done("5"), done("6")},
			[]string{"this was written: 1; 2; 3; 4; 5; and 1 more; nothing else was"},
		},
		"unknown": {[]Deed{lost}, []string{"it is not known whether this was written: c; to see: rcctl nodes"}},
		"both": {
			[]Deed{done("a"), lost},
			[]string{"this was written: a", "it is not known whether this was written: c; to see: rcctl nodes"},
		},
	} {
		if got := Written(tt.deeds); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestLastWords(t *testing.T) {
	t.Parallel()
	p := &pod.Placement{}
	for name, tt := range map[string]struct {
		of      *pod.Placement
		says    pod.Reality
		process string
		is      bool
	}{
		"nothing fails": {},
		"on its way":    {of: p, says: pod.Reality{State: pod.StateStarting}},
		"sick":          {of: p, says: pod.Reality{State: pod.StateUnhealthy}, is: true},
		"ended": {
			of:   p,
			says: pod.Reality{State: pod.StateCrashLooping, LastExit: &pod.Exit{Launchable: "web"}}, process: "web",
			is: true,
		},
	} {
		if process, is := LastWords(tt.of, &tt.says); process != tt.process || is != tt.is {
			t.Errorf("%s: %q, %t", name, process, is)
		}
	}
}

// A revision's line says how far pulls of images are. Other pods that are fetched are only counted.
func TestTheLineOfARevisionHasItsPulls(t *testing.T) {
	t.Parallel()
	pods := &Pods{Realities: map[store.At]pod.Reality{}}
	for i, r := range []pod.Reality{
		{Message: "pulling 1 of 9 MB of the image of main", PullSeconds: 10, Revision: 5},
		{Message: "pulling 2 of 9 MB of the image of main", PullSeconds: 10, Revision: 5},
		{Message: "pulling 3 of 9 MB of the image of main", PullSeconds: 10, Revision: 5},
		{Message: "fetching main", Revision: 5},
		{Message: "pulling the image of an earlier revision", PullSeconds: 10, Revision: 4},
	} {
		p := pod.Placement{
			Identity: pod.Identity{RCID: "b", Role: "main", Index: i}, Node: "n1", PodID: "web", Digest: "d",
			RunState: pod.Running, Revision: 5,
		}
		r.Identity, r.Node, r.Digest, r.State = p.Identity, p.Node, p.Digest, pod.StateFetching
		pods.Placements = append(pods.Placements, p)
		pods.Realities[store.At{Identity: p.Identity, Node: p.Node}] = r
	}
	v := RevisionView{Name: "web-r2", Direction: rollout.Up}
	v.Count(new(rc.RC), pods)
	want := "; web-main-0 on n1: pulling 1 of 9 MB of the image of main; " +
		"web-main-1 on n1: pulling 2 of 9 MB of the image of main; and 1 more"
	if got := v.Line(); !strings.HasSuffix(got, want) {
		t.Errorf("%q does not end with %q", got, want)
	}
}
