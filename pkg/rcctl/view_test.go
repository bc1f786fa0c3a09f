package rcctl

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func TestStateOf(t *testing.T) {
	all := []store.Member{{ID: "f"}}
	status := func(generation int64, conds ...rc.ConditionType) *rc.Status {
		st := &rc.Status{ObservedGeneration: generation}
		for _, c := range conds {
			st.Conditions = append(st.Conditions, rc.Condition{Type: c, True: true})
		}
		return st
	}
	now := time.Now()
	for _, tt := range []struct {
		rc    rc.RC
		st    *rc.Status
		farms []store.Member
		want  string
	}{
		{rc.RC{Generation: 2}, nil, all, "Pending"},
		{rc.RC{Generation: 2}, nil, nil, "Unclaimed"},
		{rc.RC{Generation: 2}, status(2, rc.Converged), nil, "Unclaimed"},
		{rc.RC{Generation: 2}, status(2, rc.Converged), []store.Member{{RCSelector: "team=a"}}, "Unclaimed"},
		{rc.RC{Generation: 2}, status(2, rc.Converged), []store.Member{{RCSelector: "broken in"}}, "Unclaimed"},
		{rc.RC{Generation: 2, Labels: map[string]string{"team": "a"}}, status(2, rc.Converged), []store.Member{{RCSelector: "team=a"}}, "Converged"},
		{rc.RC{Generation: 2}, status(1, rc.Converged), all, "Pending"},
		{rc.RC{Generation: 2}, status(2), all, "Progressing"},
		{rc.RC{Generation: 2}, status(2, rc.Converged, rc.Regressed), all, "Regressed"},
		{rc.RC{Generation: 2}, status(2, rc.InsufficientNodes, rc.Blocked), all, "Blocked"},
		{rc.RC{Generation: 2}, status(2, rc.Converged, rc.BooksDiffer), all, "BooksDiffer"},
		{rc.RC{Generation: 2}, status(2, rc.Holding, rc.BooksDiffer, rc.NodeLost), all, "NodeLost"},
		{rc.RC{Generation: 2, Disabled: true}, status(2, rc.Converged), nil, "Disabled"},
		{rc.RC{Generation: 2, Disabled: true, DeletedAt: &now}, status(2), nil, "Deleting"},
	} {
		if got := stateOf(&tt.rc, tt.st, tt.farms); got != tt.want {
			t.Errorf("%+v: got %s, want %s", tt, got, tt.want)
		}
	}
}

// Every condition that there is can be the state of a controller and the goal of a watch, and the help says so.
func TestStatesAreComplete(t *testing.T) {
	var conditions []string
	for _, file := range []string{"status.go", "incident.go"} {
		source, err := os.ReadFile("../rc/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)ConditionType += "([A-Za-z]+)"`).FindAllSubmatch(source, -1) {
			conditions = append(conditions, string(m[1]))
		}
	}
	states := []string{string(rc.Converged), string(rc.Unclaimed)}
	for _, alarm := range alarms {
		states = append(states, string(alarm))
	}
	goals := slices.DeleteFunc(slices.Clone(untilAllowed), func(goal string) bool { return goal == untilGone })
	slices.Sort(conditions)
	slices.Sort(states)
	slices.Sort(goals)
	if !slices.Equal(states, conditions) || !slices.Equal(goals, conditions) {
		t.Errorf("there are the conditions %v,\nthe states %v,\nthe goals %v", conditions, states, goals)
	}
	help := (&tool{}).statusCommand().Description
	for _, state := range append(states, stateDeleting, stateDisabled, statePending, stateProgressing) {
		if !strings.Contains(help, state) {
			t.Errorf("rcctl rc status --help does not name %s", state)
		}
	}
}

func TestJoinPods(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	id := func(i int) pod.Identity { return pod.Identity{RCID: "r", Role: "main", Index: i} }
	reality := func(i int, node string, revision int64, state pod.State) pod.Reality {
		return pod.Reality{Identity: id(i), Node: node, Digest: "d", Revision: revision, State: state, Available: state == pod.StateReady}
	}
	placement := func(i int, change func(*pod.Placement)) pod.Placement {
		p := pod.Placement{Identity: id(i), Node: "n1", PodID: "web", Digest: "d", RunState: pod.Running, Revision: 5}
		if change != nil {
			change(&p)
		}
		return p
	}
	views := joinPods(
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
			reality(0, "n1", 5, pod.StateReady), reality(2, "n1", 4, pod.StateReady), reality(3, "n1", 5, pod.StateReady),
			reality(4, "n1", 5, pod.StateReady), reality(5, "n1", 4, pod.StateReady), reality(5, "n2", 5, pod.StateStarting),
			reality(6, "n1", 4, pod.StateReady), reality(7, "n1", 5, pod.StateStopped),
			reality(8, "n3", 1, pod.StateReady), reality(9, "n3", 1, pod.StateStopped),
		}, map[string]string{"r": "web-rc"})
	var got []string
	for _, v := range views {
		if v.RCName != "web-rc" {
			t.Errorf("%+v", v)
		}
		got = append(got, strings.Join([]string{v.Name, v.Node, v.Kind, v.State, yesNo(v.Available), v.Message}, "|"))
	}
	want := []string{
		"web-main-0|n1|placed|ready|yes|",
		"web-main-1|n1|placed|placed|no|n1 has not reported yet",
		"web-main-2|n1|placed|stopping|no|stop asked for, not confirmed by its node",
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
	if left := filterPods(views, "r", "n2"); len(left) != 1 || left[0].Node != "n2" {
		t.Errorf("%+v", left)
	}
	if none := joinPods(nil, nil, nil); none == nil {
		t.Error("no pods must be an empty list, not null")
	}
}

// Colours do not move columns, and text from elsewhere cannot act on a terminal.
func TestTable(t *testing.T) {
	tb := table{header: []string{"NAME", "STATE", "TEXT"}, paint: 1, colourOf: rcColour, rows: [][]string{
		{"a", "Converged", "x\x1b[31m\ny"}, {"longer", "Blocked", ""},
	}}
	var plain, shiny bytes.Buffer
	if err := tb.write(&plain, false); err != nil {
		t.Fatal(err)
	}
	if err := tb.write(&shiny, true); err != nil {
		t.Fatal(err)
	}
	want := "NAME    STATE      TEXT\na       Converged  x [31m y\nlonger  Blocked    -\n"
	if plain.String() != want {
		t.Errorf("got\n%swant\n%s", plain.String(), want)
	}
	bare := strings.NewReplacer(string(plainColour), "", string(green), "", string(red), "").Replace(shiny.String())
	if bare != want {
		t.Errorf("with colours:\n%s", bare)
	}
	if !strings.Contains(shiny.String(), string(green)+"Converged"+string(plainColour)) || !strings.Contains(shiny.String(), string(red)+"Blocked") {
		t.Errorf("%q", shiny.String())
	}
}

func TestColoured(t *testing.T) {
	if coloured(&bytes.Buffer{}) {
		t.Error("a buffer is no terminal")
	}
	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if coloured(file) {
		t.Error("a file is no terminal")
	}
	device, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // a character device, as a terminal is
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	if !coloured(device) {
		t.Error("a terminal has colours")
	}
	t.Setenv("NO_COLOR", "1")
	if coloured(device) {
		t.Error("NO_COLOR is set")
	}
}

func TestAge(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for d, want := range map[time.Duration]string{
		-time.Hour: "0s", 0: "0s", 59 * time.Second: "59s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 47 * time.Hour: "47h", 50 * time.Hour: "2d",
	} {
		if got := age(now, now.Add(-d)); got != want {
			t.Errorf("%s: got %s, want %s", d, got, want)
		}
	}
}
