package inspect

import (
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// seen returns an observation of generation 3 of web. These conditions are true in its status.
func seen(observed int64, conditions ...rc.ConditionType) Observation {
	st := &rc.Status{ObservedGeneration: observed, Desired: 2, Available: 1}
	for _, c := range conditions {
		st.Conditions = append(st.Conditions, rc.Condition{Type: c, True: true, Reason: "why"})
	}
	return Observation{
		RC: &rc.RC{ID: "01", Name: "web", Generation: 3, ManifestDigest: "d"}, Status: st,
		Farms: []store.Member{{ID: "f"}},
	}
}

func TestConverged(t *testing.T) {
	t.Parallel()
	want := &rc.RC{ID: "01", Name: "web", Generation: 3}
	newer, bare := seen(4, rc.Converged), seen(3)
	newer.RC.Generation, newer.RC.ChangedBy, bare.Status = 4, "ann", nil
	for name, tt := range map[string]struct {
		o         Observation
		done      bool
		overtaken string
	}{
		"converged":          {seen(3, rc.Converged), true, ""},
		"on its way":         {seen(3), false, ""},
		"of one before":      {seen(2, rc.Converged), false, ""},
		"nothing reported":   {bare, false, ""},
		"changed meanwhile":  {newer, false, "generation 3 was replaced by 4 (changed by ann)"},
		"deleted meanwhile":  {Observation{}, false, "web (01) was deleted before generation 3"},
		"disturbed but done": {seen(3, rc.Converged, rc.Misplaced), true, ""},
	} {
		done, overtaken := Converged(want, tt.o)
		if done != tt.done || !strings.Contains(overtaken, tt.overtaken) || tt.overtaken == "" && overtaken != "" {
			t.Errorf("%s: %t, %q", name, done, overtaken)
		}
	}
}

func TestHalted(t *testing.T) {
	t.Parallel()
	want := &rc.RC{Generation: 3}
	pods := func(digest string, state pod.State, hopeless bool) *Pods {
		id := pod.Identity{RCID: "01", Role: "main"}
		return &Pods{
			Placements: []pod.Placement{{Identity: id, Node: "n1", Digest: digest, RunState: pod.Running}},
			Realities: map[store.At]pod.Reality{{Identity: id, Node: "n1"}: {
				Identity: id, Node: "n1",
				Digest: digest, State: state, Available: state == pod.StateReady, Hopeless: hopeless,
			}},
		}
	}
	for name, tt := range map[string]struct {
		o        Observation
		digest   string
		state    pod.State
		hopeless bool
		may      bool
		soon, is bool
		hasWorst bool
	}{
		"blocked, with a pod that fails": {seen(3, rc.Blocked), "d", pod.StateFailed, false, true, true, true, true},
		"blocked, all pods are well":     {seen(3, rc.Blocked), "d", pod.StateReady, false, true, true, true, false},
		"crash-loops": {
			seen(3, rc.CrashLooping), "d",
			pod.StateCrashLooping, false, true, true, true, true,
		},
		"the manifest before crash-loops": {
			seen(3, rc.CrashLooping), "old",
			pod.StateCrashLooping, false, true, true, false, false,
		},
		"only fails": {
			seen(3, rc.CrashLooping), "d",
			pod.StateFailed, false, true, true, false, true,
		},
		"cannot work":                     {seen(3), "d", pod.StateFailed, true, true, false, true, true},
		"cannot be taken over":            {seen(3), "d", pod.StatePending, true, true, false, true, true},
		"the manifest before cannot work": {seen(3), "old", pod.StateFailed, true, true, false, false, false},
		"on its way":                      {seen(3), "d", pod.StateStarting, false, true, false, false, true},
		"converged": {
			seen(3, rc.Converged), "d",
			pod.StateReady, false, false, false, false, false,
		},
		"blocked before": {seen(2, rc.Blocked), "d", pod.StateStarting, false, false, false, true, true},
	} {
		is, worst, _ := Halted(tt.o, pods(tt.digest, tt.state, tt.hopeless))
		if may, soon := MayBeHalted(want, tt.o); may != tt.may || soon != tt.soon || is != tt.is ||
			(worst != nil) != tt.hasWorst {
			t.Errorf("%s: may %t, soon %t, is %t, worst %v", name, may, soon, is, worst)
		}
	}
	never := pods("d", pod.StateCrashLooping, true)
	for at, r := range never.Realities {
		r.NeverAvailable = true
		never.Realities[at] = r
	}
	givenUp := seen(3, rc.CrashLooping)
	givenUp.Status.Hopeless = true
	for i, o := range []Observation{seen(3, rc.CrashLooping), seen(3), givenUp} {
		// the owner may not have read the report yet
		for _, state := range []pod.State{pod.StateCrashLooping, pod.StateFailed, pod.StatePending} {
			for at, r := range never.Realities {
				r.State = state
				never.Realities[at] = r
			}
			if is, _, _ := Halted(o, never); is != (i == 2) {
				t.Errorf("%d: a pod that may get a second node, and is %s: halted is %t", i, state, is)
			}
		}
	}
	never.Placements[0].Avoid = []pod.Avoided{{Node: "n2", Digest: "d"}}
	if is, _, _ := Halted(seen(3), never); !is {
		t.Error("a pod that fails on its second node halts nothing while another leaves its first")
	}
	if may, _ := MayBeHalted(want, Observation{RC: want}); may {
		t.Error("a controller without status is halted")
	}
}

func TestReached(t *testing.T) {
	t.Parallel()
	alone := seen(3)
	alone.Farms = nil
	for name, tt := range map[string]struct {
		until string
		o     Observation
		want  bool
	}{
		"no goal":                 {"", seen(3, rc.Converged), false},
		"no goal, gone":           {"", Observation{}, false},
		"gone":                    {Gone, Observation{}, true},
		"not gone":                {Gone, seen(3), false},
		"gone before its goal":    {"Converged", Observation{}, false},
		"converged":               {"Converged", seen(3, rc.Converged), true},
		"converged, but before":   {"Converged", seen(2, rc.Converged), false},
		"another condition":       {"Converged", seen(3, rc.Blocked), false},
		"unclaimed without farms": {"Unclaimed", alone, true},
		"claimed":                 {"Unclaimed", seen(3), false},
	} {
		if got := Reached(tt.until, tt.o); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	alone, silent, holding := seen(3), seen(3), seen(3, rc.Holding)
	alone.Farms, silent.Status = nil, nil
	holding.Status.Conditions = append(holding.Status.Conditions,
		rc.Condition{Type: rc.Converged, Reason: "1 of 2, waiting for main.1"})
	holding.Status.LastError = "bad key"
	for want, o := range map[string]Observation{
		"waiting for a farm: no farm is running":                   alone,
		"waiting for its farm to report":                           silent,
		"1 of 2, waiting for main.1; Holding: why; error: bad key": holding,
		"1 of 2 replicas available":                                seen(3),
		"waiting for its farm to see generation 3, it has seen 2":  seen(2),
		"1 of 2 replicas available; Blocked: why; NodeLost: why":   seen(3, rc.Blocked, rc.NodeLost),
		"1 of 2 replicas available; InsufficientNodes: why":        seen(4, rc.InsufficientNodes),
	} {
		if got := Progress(rc.RC{Generation: 3}, o); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A controller is served although a pod cannot move off its node, as long as all pods are placed and available and no
// pod stops.
func TestServed(t *testing.T) {
	t.Parallel()
	want := rc.RC{ID: "rc", Name: "web", Generation: 3}
	blocked := func(change func(*rc.Status)) Observation {
		st := rc.Status{
			ObservedGeneration: 3, Desired: 2, Placed: 2, Available: 2,
			Conditions: []rc.Condition{{Type: rc.Blocked, True: true}, {Type: rc.Converged}},
		}
		change(&st)
		return Observation{RC: &rc.RC{ID: "rc", Name: "web", Generation: 3}, Status: &st}
	}
	for name, tt := range map[string]struct {
		o    Observation
		done bool
	}{
		"one cannot leave": {blocked(func(*rc.Status) {}), true},
		"one is missing":   {blocked(func(st *rc.Status) { st.Available = 1 }), false},
		"one has no place": {blocked(func(st *rc.Status) { st.Placed = 1 }), false},
		"one stops":        {blocked(func(st *rc.Status) { st.Stopping = 1 }), false},
		"of one before":    {blocked(func(st *rc.Status) { st.ObservedGeneration = 2 }), false},
		"not for a drain":  {blocked(func(st *rc.Status) { st.Conditions = st.Conditions[1:] }), false},
		"it has converged": {
			blocked(func(st *rc.Status) { st.Conditions = []rc.Condition{{Type: rc.Converged, True: true}} }), true,
		},
		"nothing is known": {Observation{RC: &rc.RC{Generation: 3}}, false},
	} {
		done, overtaken := Served(&want, tt.o)
		if done != tt.done || overtaken != "" {
			t.Errorf("%s: %v, %q", name, done, overtaken)
		}
		if un := Unblocked(tt.o); un.Status != nil &&
			(un.Status.Is(rc.Blocked) || un.Status.Is(rc.Converged) != tt.o.Status.Is(rc.Converged)) {
			t.Errorf("%s: unblocked it is %+v", name, un.Status)
		}
	}
	o := blocked(func(*rc.Status) {})
	if Unblocked(o); !o.Status.Is(rc.Blocked) {
		t.Error("what was observed has changed")
	}
	o.RC.Generation = 4
	if done, overtaken := Served(&want, o); done || overtaken == "" {
		t.Errorf("overtaken: %v, %q", done, overtaken)
	}
}

// Pods of several revisions may have the same name, also on one node.
func TestTheCommandThatShowsALogNamesOnePod(t *testing.T) {
	t.Parallel()
	const unit = "01m8jrzw7jmv7n54kb44smkz36"
	p := pod.Placement{Identity: pod.Identity{RCID: unit, Role: "main"}, Node: "n1", PodID: "web"}
	if got := LogsOf(&p, "web"); got != "rcctl logs web-main-0" {
		t.Error(got)
	}
	var views []PodView
	for _, revision := range []string{"1", "2"} {
		views = append(views, PodView{
			Name: "web-main-0", RCID: unit + "-" + revision, RCName: "web-r" + revision, Role: "main", Node: "n1",
			Kind: Placed,
		})
	}
	p.RCID = unit + "-2"
	ref := strings.TrimPrefix(LogsOf(&p, "web-r2"), "rcctl logs ")
	if found := PodsNamed(views, ref); len(found) != 1 || found[0].RCID != p.RCID {
		t.Errorf("%s names %+v", ref, found)
	}
}
