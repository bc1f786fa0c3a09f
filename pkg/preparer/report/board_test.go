package report

import (
	"fmt"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A crash-looping pod is reported now and then, and a change of its state at once.
func TestCrashLoopIsReportedNowAndThen(t *testing.T) {
	t.Parallel()
	b := NewBoard()
	now := time.Now()
	looping := pod.Reality{Identity: ident(0), State: pod.StateCrashLooping, Restarts: 3}
	b.Say(looping, now)
	for range 5 {
		looping.Restarts++
		looping.LastExit, looping.LogTail = &pod.Exit{At: now}, fmt.Sprint("run ", looping.Restarts)
		if _, again := b.Say(looping, now.Add(time.Second)); !again.Equal(now.Add(crashReportEvery)) {
			t.Errorf("reported in %s", again.Sub(now))
		}
	}
	if r, _ := b.Reality(ident(0)); r.Restarts != 3 {
		t.Errorf("%d restarts are reported already", r.Restarts)
	}
	ready := pod.Reality{Identity: ident(0), State: pod.StateReady, Available: true, Restarts: 8}
	if news, again := b.Say(ready, now.Add(time.Second)); !news || !again.IsZero() {
		t.Error("that it is well is kept back")
	}
}

// A forgotten pod's reality is deleted only when intents are known, none names the pod, and it is stopped.
func TestForgottenRealitiesAreErased(t *testing.T) {
	t.Parallel()
	b := NewBoard()
	stored := map[pod.Identity]store.Rec[pod.Reality]{}
	for i := range 4 {
		stored[ident(i)] = store.Rec[pod.Reality]{Value: pod.Reality{Identity: ident(i), State: pod.StateStopped}}
	}
	running := stored[ident(3)]
	running.Value.State = pod.StateReady
	stored[ident(3)] = running
	b.Silence(ident(0)) // the node knows this pod
	if due := b.due(stored); len(due) > 0 {
		t.Errorf("the intents are not known, but %+v is due to be written", due)
	}
	b.SetIntents(Intents{Named: map[pod.Identity]bool{ident(1): true}})
	if due := b.due(stored); len(due) != 1 || due[0].id != ident(2) || !due[0].erase {
		t.Errorf("to be written is %+v; want that the third is erased", due)
	}
}

// A restarted preparer keeps Since, even if it observes the pod after it has read the realities, and something else has
// changed.
func TestSinceOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	b, now := NewBoard(), time.Now().UTC()
	before := pod.Reality{Identity: ident(0), State: pod.StateCrashLooping, Restarts: 3, Since: now.Add(-time.Hour)}
	stored := map[pod.Identity]store.Rec[pod.Reality]{ident(0): {Value: before}}
	if due := b.due(stored); len(due) > 0 {
		t.Errorf("nothing is observed, and to be written is %+v", due)
	}
	looping := before
	looping.Restarts, looping.Since = 4, time.Time{}
	b.Say(looping, now)
	if due := b.due(stored); len(due) != 1 || !due[0].reality.Since.Equal(before.Since) ||
		due[0].reality.Restarts != 4 {
		t.Errorf("to be written is %+v; want the time %s", due, before.Since)
	}
	ready := looping
	ready.State = pod.StateReady
	b.Say(ready, now)
	b.Say(looping, now.Add(time.Second))
	if due := b.due(stored); len(due) != 1 || !due[0].reality.Since.Equal(now.Add(time.Second)) {
		t.Errorf("to be written is %+v; it was in another state meanwhile", due)
	}
}

// An end because of memory or a check is counted once, but not one before this preparer started.
func TestEndsWithAReasonAreCounted(t *testing.T) {
	t.Parallel()
	b, now := NewBoard(), time.Now().UTC()
	say := func(restarts int, exit *pod.Exit) {
		b.Say(pod.Reality{Identity: ident(0), State: pod.StateRunning, Restarts: restarts, LastExit: exit}, now)
	}
	for i, step := range []struct {
		exit          *pod.Exit
		starved, hung int
	}{
		{&pod.Exit{At: now, OutOfMemory: true}, 0, 0},
		{&pod.Exit{At: now.Add(time.Second), OutOfMemory: true, MemoryLimit: 1 << 20}, 1, 0},
		{&pod.Exit{At: now.Add(time.Second), OutOfMemory: true, MemoryLimit: 1 << 20}, 0, 0},
		{&pod.Exit{At: now.Add(2 * time.Second), Signal: "SIGKILL"}, 0, 0},
		{nil, 0, 0},
		{&pod.Exit{At: now.Add(3 * time.Second), OutOfMemory: true}, 1, 0},
		{&pod.Exit{At: now.Add(4 * time.Second), Reason: "it hung"}, 0, 1},
		{&pod.Exit{At: now.Add(4 * time.Second), Reason: "it hung"}, 0, 0},
	} {
		say(i, step.exit)
		if _, _, starved, hung := b.Count(); starved != step.starved || hung != step.hung {
			t.Errorf("step %d: %d and %d are counted, want %d and %d", i, starved, hung, step.starved, step.hung)
		}
	}
}
