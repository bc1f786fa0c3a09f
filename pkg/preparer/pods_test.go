package preparer

import (
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func quiet(t *testing.T) obs.Logger {
	t.Helper()
	log, err := obs.NewLogger(io.Discard, "error", "text")
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func TestOrphansAreListedInOrder(t *testing.T) {
	t.Parallel()
	p := newPods(quiet(t))
	const all = 20
	for i := range all {
		e := p.add(ident(i), sampleRecord(i))
		e.decided.verdict = Orphan
		if i == 5 {
			e.decided.verdict = Ahead
		}
	}
	stopped := p.add(ident(all), sampleRecord(all).buried(thisInstant()))
	stopped.rec.Intent.State, stopped.decided.verdict = pod.Stopped, Orphan
	p.add(ident(all+1), sampleRecord(all+1)) // not an orphan
	listed := p.orphans()
	if len(listed) != all || listed[5].Reason != pod.ReasonAhead {
		t.Fatalf("%d listed: %+v", len(listed), listed)
	}
	for i, o := range listed {
		if o.Identity != ident(i) {
			t.Errorf("orphan %d is %s", i, o.Identity)
		}
	}
}

func TestUnreadableIntentsAreKeptApart(t *testing.T) {
	t.Parallel()
	rec := func(in pod.Intent) store.Rec[pod.Intent] { return store.Rec[pod.Intent]{Value: in} }
	good, odd := sampleRecord(0).Intent, sampleRecord(1).Intent
	standby, stopped := sampleRecord(3).Intent, sampleRecord(4).Intent
	standby.Standby, stopped.State = true, pod.Stopped
	at := func(in pod.Intent, index uint64) store.Rec[pod.Intent] {
		return store.Rec[pod.Intent]{Value: in, Index: index}
	}
	odd.State = "paused"
	newer := good
	newer.Revision = 9
	local := map[pod.Identity]*entry{ident(2): nil, ident(22): nil}
	seen := store.Seen[pod.Intent]{
		Recs: []store.Rec[pod.Intent]{rec(newer), rec(good), rec(odd), at(standby, 5), at(stopped, 6)},
		Corrupt: []error{
			&store.CorruptError{Key: "rcfarm/intent/n1/rc/main.2"},
			&store.CorruptError{Key: "rcfarm/intent/n1/rc/main.222"},
		},
	}
	w, problems := newIntentSet(seen, "n1", local)
	want := IntentSet{
		Known: true, Intents: map[pod.Identity]pod.Intent{ident(0): newer, ident(3): standby, ident(4): stopped},
		Unreadable: map[pod.Identity]bool{ident(1): true, ident(2): true},
		Stops:      map[pod.Identity]uint64{ident(3): 5, ident(4): 6},
	}
	if diff := cmp.Diff(want, w); diff != "" || len(problems) != 3 {
		t.Errorf("%d problems\n%s", len(problems), diff)
	}
}

// A report has only failures of its revision.
func TestFailureOfAnEarlierIntentIsForgotten(t *testing.T) {
	t.Parallel()
	p := &Preparer{kit: kit{log: quiet(t), pods: newPods(quiet(t))}}
	e := p.pods.add(ident(0), sampleRecord(0))
	e.activity = activity{state: pod.StateFailed, message: "port taken"}
	next := e.rec.Intent
	next.Revision, next.Digest = 8, manifest.Digest([]byte("other"))
	p.apply(Decision{ID: e.id, Verdict: Accept, Intent: next})
	if e.activity.state != pod.StatePending || strings.Contains(e.activity.message, "port taken") {
		t.Errorf("activity %+v", e.activity)
	}
	(&worker{kit: &p.kit, e: e}).At(pod.StateFailed, "of the worker's earlier pass")
	if e.activity.state == pod.StateFailed {
		t.Error("an earlier pass of the worker replaced the activity of the new intent")
	}
	if len(p.pods.queue) != 1 {
		t.Errorf("%d entries queued, want 1", len(p.pods.queue))
	}
}
