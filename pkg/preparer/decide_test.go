package preparer

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

func ident(i int) pod.Identity { return pod.Identity{RCID: "rc", Role: "main", Index: i} }

func TestVerdictOnEachIntent(t *testing.T) {
	t.Parallel()
	running := func(rev int64) *pod.Intent {
		return &pod.Intent{Identity: ident(0), State: pod.Running, Revision: rev}
	}
	stopped := func(rev int64) *pod.Intent {
		return &pod.Intent{Identity: ident(0), State: pod.Stopped, Revision: rev}
	}
	runs, stopping := &Local{Revision: 5}, &Local{Revision: 5, Stop: true}
	buried := &Local{Revision: 5, Stop: true, Stopped: true}
	for name, c := range map[string]struct {
		intent     *pod.Intent
		local      *Local
		unreadable bool
		shut       bool
		want       Verdict
	}{
		"new":                           {intent: running(1), want: Accept},
		"stop of one never seen":        {intent: stopped(1), want: Accept},
		"newer":                         {intent: running(6), local: runs, want: Accept},
		"newer stop":                    {intent: stopped(6), local: runs, want: Accept},
		"new, shut":                     {intent: running(1), shut: true, want: NodeShut},
		"newer, shut":                   {intent: running(6), local: runs, shut: true, want: NodeShut},
		"newer stop, shut":              {intent: stopped(6), local: runs, shut: true, want: NodeShut},
		"same, shut":                    {intent: running(5), local: runs, shut: true, want: Unchanged},
		"missing, shut":                 {local: runs, shut: true, want: Orphan},
		"missing when stopped, shut":    {local: buried, shut: true, want: Forgotten},
		"same":                          {intent: running(5), local: runs, want: Unchanged},
		"stop at the same revision":     {intent: stopped(5), local: runs, want: Unchanged},
		"older":                         {intent: running(4), local: runs, want: Ahead},
		"older stop":                    {intent: stopped(4), local: runs, want: Ahead},
		"missing":                       {local: runs, want: Orphan},
		"unreadable":                    {intent: stopped(9), local: runs, unreadable: true, want: Ignore},
		"missing while stopping":        {local: stopping, want: Ignore},
		"missing when stopped":          {local: buried, want: Forgotten},
		"stop again":                    {intent: stopped(5), local: buried, want: Unchanged},
		"older stop when stopped":       {intent: stopped(4), local: buried, want: Unchanged},
		"run below the tombstone":       {intent: running(4), local: buried, want: Refuse},
		"run at the tombstone":          {intent: running(5), local: buried, want: Refuse},
		"run at the stop under way":     {intent: running(5), local: stopping, want: Refuse},
		"run above the tombstone":       {intent: running(6), local: buried, want: Accept},
		"newer stop above a tombstone":  {intent: stopped(6), local: buried, want: Accept},
		"unreadable above a tombstone":  {local: buried, unreadable: true, want: Ignore},
		"unreadable and not known here": {intent: running(1), unreadable: true, want: Ignore},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := IntentSet{
				Known: true, Shut: c.shut, Intents: map[pod.Identity]pod.Intent{},
				Unreadable: map[pod.Identity]bool{ident(0): c.unreadable},
			}
			local := map[pod.Identity]Local{}
			if c.intent != nil {
				w.Intents[ident(0)] = *c.intent
			}
			if c.local != nil {
				local[ident(0)] = *c.local
			}
			got := Decide(w, local)
			if len(got) != 1 || got[0].Verdict != c.want {
				t.Errorf("got %+v, want %s", got, c.want)
			}
			w.Known = false
			if got := Decide(w, local); got != nil {
				t.Errorf("unknown intents led to %+v", got)
			}
		})
	}
}

func drawIntents(t *rapid.T, label string) IntentSet {
	w := IntentSet{
		Known: rapid.Bool().Draw(t, label+" known"), Intents: map[pod.Identity]pod.Intent{},
		Unreadable: map[pod.Identity]bool{},
	}
	for i := range 4 {
		switch rapid.IntRange(0, 4).Draw(t, fmt.Sprint(label, " kind ", i)) {
		case 0, 1: // no intent
		case 2:
			w.Unreadable[ident(i)] = true
		case 3, 4:
			states := rapid.SampledFrom([]pod.RunState{pod.Running, pod.Stopped})
			w.Intents[ident(i)] = pod.Intent{
				Identity: ident(i), Revision: rapid.Int64Range(1, 6).Draw(t, fmt.Sprint(label, " revision ", i)),
				State: states.Draw(t, fmt.Sprint(label, " state ", i)),
			}
		}
	}
	return w
}

// For every sequence of intents, also after a wipe or a restore: the accepted revision only grows, only a `stopped`
// with a higher revision stops a pod, only a `running` with a higher revision ends a tombstone, and the same intents
// change nothing.
func TestVerdictsInEveryHistoryOfTheStore(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		local := map[pod.Identity]Local{}
		for step := range rapid.IntRange(1, 12).Draw(t, "steps") {
			w := drawIntents(t, fmt.Sprint("intents ", step))
			decisions := Decide(w, local)
			if !w.Known && decisions != nil {
				t.Fatalf("unknown intents led to %+v", decisions)
			}
			for _, d := range decisions {
				before, known := local[d.ID]
				if d.Verdict != Accept {
					continue
				}
				if w.Unreadable[d.ID] || known && d.Intent.Revision <= before.Revision {
					t.Fatalf("%+v accepted over %+v", d, before)
				}
				local[d.ID] = Local{Revision: d.Intent.Revision, Stop: d.Intent.State == pod.Stopped}
			}
			again := Decide(w, local)
			for _, d := range again {
				if d.Verdict == Accept {
					t.Fatalf("accepted twice: %+v", d)
				}
			}
			if third := Decide(w, local); !cmp.Equal(again, third) {
				t.Fatalf("not the same twice:\n%s", cmp.Diff(again, third))
			}
			for id, l := range local { // a stop can be confirmed at any time
				if l.Stop && rapid.Bool().Draw(t, "confirmed "+id.String()) {
					l.Stopped = true
					local[id] = l
				}
			}
		}
	})
}
