package preparer

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/claim"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/register"
	"github.com/rcfarm/rcfarm/pkg/preparer/report"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
)

func procsIn(phases ...runtime.Phase) []runtime.Status {
	procs := make([]runtime.Status, len(phases))
	for i, phase := range phases {
		procs[i] = runtime.Status{
			Spec:  runtime.Spec{Process: runtime.Process{ID: string(rune('a' + i)), Name: "web"}},
			State: runtime.State{Phase: phase, PID: i + 1, Restarts: 2},
		}
	}
	return procs
}

func TestObservedState(t *testing.T) {
	t.Parallel()
	rec := sampleRecord(0)
	upgrading := rec.accept(pod.Intent{
		Identity: ident(0), PodID: "web", Digest: strings.Repeat("cd", 32), State: pod.Running, Revision: 9,
	})
	stopping := rec.accept(pod.Intent{Identity: ident(0), State: pod.Stopped, Revision: 9})
	fresh := Record{Version: RecordVersion, Intent: rec.Intent}
	up := procsIn(runtime.Running, runtime.Running)
	loops := func(phase runtime.Phase) []runtime.Status {
		procs := procsIn(runtime.Running, phase)
		procs[1].ShortRuns, procs[1].LastExit = pod.CrashLoop, &pod.Exit{Launchable: "web", Code: 3}
		return procs
	}
	ended := func(code int) []runtime.Status {
		procs := procsIn(runtime.Exited, runtime.Exited)
		for i := range procs {
			procs[i].LastExit = &pod.Exit{Code: code}
		}
		return procs
	}
	const crashes = "web: ended with exit status 3, again and again"
	for name, c := range map[string]struct {
		o         observation
		state     pod.State
		available bool
		digest    string
		revision  int64
		message   string
	}{
		"accepted": {
			observation{rec: fresh}, pod.StatePending, false, rec.Intent.Digest, 7, "nothing of it is installed",
		},
		"fetching": {
			observation{rec: fresh, activity: activity{state: pod.StateFetching}},
			pod.StateFetching, false,
			rec.Intent.Digest, 7, "",
		},
		"starting": {
			observation{rec: rec, procs: procsIn(runtime.Running, runtime.Starting)},
			pod.StateStarting, false,
			rec.Intent.Digest, 7, "not all of its processes",
		},
		"half there": {
			observation{rec: rec, procs: procsIn(runtime.Running), missing: true},
			pod.StateStarting, false,
			rec.Intent.Digest, 7, "not all of its processes",
		},
		"hook runs": {
			observation{rec: rec, missing: true, doing: "hook x runs"},
			pod.StateStarting, false, rec.Intent.Digest, 7,
			"hook x runs",
		},
		"stop takes long": {
			observation{
				rec: stopping, procs: up, activity: activity{state: pod.StateStopping, message: "waiting"},
				doing: "hook x runs",
			},
			pod.StateStopping, false, rec.Intent.Digest, 9, "hook x runs",
		},
		"tried again": {
			observation{
				rec: rec, missing: true, activity: activity{state: pod.StateFailed, message: "no such file"},
				doing: "hook x runs",
			},
			pod.StateFailed, false, rec.Intent.Digest, 7, "no such file",
		},
		"running": {observation{rec: rec, procs: up}, pod.StateRunning, false, rec.Intent.Digest, 7, ""},
		"unhealthy": {
			observation{rec: rec, procs: up, unhealthy: true},
			pod.StateUnhealthy, false, rec.Intent.Digest, 7,
			"health check",
		},
		"available": {
			observation{rec: rec, procs: up, available: true}, pod.StateReady, true, rec.Intent.Digest, 7, "",
		},
		"crashed": {
			observation{rec: rec, procs: procsIn(runtime.Running, runtime.Backoff)},
			pod.StateFailed, false,
			rec.Intent.Digest, 7, "started again",
		},
		"crash-looping, waits": {
			observation{rec: rec, procs: loops(runtime.Backoff)},
			pod.StateCrashLooping, false, rec.Intent.Digest, 7,
			crashes,
		},
		"crash-looping, starts": {
			observation{rec: rec, procs: loops(runtime.Starting)},
			pod.StateCrashLooping, false, rec.Intent.Digest, 7,
			crashes,
		},
		"crash-looping, runs": {
			observation{rec: rec, procs: loops(runtime.Running), unhealthy: true},
			pod.StateCrashLooping, false,
			rec.Intent.Digest, 7, crashes,
		},
		"done": {
			observation{rec: rec, procs: ended(0)}, pod.StateEnded, false, rec.Intent.Digest, 7, "",
		},
		"done in part": {
			observation{rec: rec, procs: append(procsIn(runtime.Running), ended(0)[0])},
			pod.StateRunning, false,
			rec.Intent.Digest, 7, "",
		},
		"unknown end": {
			observation{rec: rec, missing: true, spent: true},
			pod.StateFailed, false, rec.Intent.Digest, 7,
			"runs at most once",
		},
		"not started again": {
			observation{rec: rec, procs: loops(runtime.Exited)},
			pod.StateFailed, false, rec.Intent.Digest, 7,
			"does not start it again",
		},
		"crash-looping orphan": {
			observation{rec: rec, procs: loops(runtime.Running), decided: decided{verdict: Orphan}},
			pod.StateCrashLooping, false, rec.Intent.Digest, 7, "orphaned",
		},
		"upgrade fetches": {
			observation{rec: upgrading, procs: up, available: true, activity: activity{state: pod.StateFetching}},
			pod.StateFetching, true, rec.Intent.Digest, 9, "",
		},
		"upgrade fails": {
			observation{
				rec: upgrading, procs: up, available: true,
				activity: activity{state: pod.StateFailed, message: "no such file"},
			},
			pod.StateFailed, true, rec.Intent.Digest, 9, "no such file",
		},
		"orphan": {
			observation{rec: rec, procs: up, available: true, decided: decided{verdict: Orphan}},
			pod.StateOrphaned,
			true, rec.Intent.Digest, 7, "orphaned",
		},
		"crashed orphan": {
			observation{rec: rec, procs: procsIn(runtime.Backoff), decided: decided{verdict: Orphan}},
			pod.StateFailed,
			false, rec.Intent.Digest, 7, "orphaned",
		},
		"regressed": {
			observation{rec: rec, procs: up, available: true, decided: decided{Ahead, 3, false}},
			pod.StateReady, true,
			rec.Intent.Digest, 7, "revision 3",
		},
		"stopping": {
			observation{rec: stopping, procs: up, available: true}, pod.StateStopping, false, rec.Intent.Digest, 9, "",
		},
		"stopped": {observation{rec: stopping.buried(thisInstant())}, pod.StateStopped, false, "", 9, ""},
		"refused": {
			observation{rec: stopping.buried(thisInstant()), decided: decided{Refuse, 8, false}},
			pod.StateStopped,
			false, "", 9, "refused to run revision 8",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := observe(c.o)
			if r.State != c.state || r.Available != c.available || r.Digest != c.digest || r.Revision != c.revision {
				t.Errorf("got %+v", r)
			}
			if !strings.Contains(r.Message, c.message) || (c.message == "") != (r.Message == "") {
				t.Errorf("message %q, want %q", r.Message, c.message)
			}
		})
	}
}

// Until a pod is first available, its report has NeverAvailable, also after a restart of the preparer, and again after
// a stop. Pods that an earlier release started never have it.
func TestPodIsReportedAsNeverAvailableUntilItIs(t *testing.T) {
	t.Parallel()
	in := sampleRecord(0).Intent
	fresh := Record{}.accept(in)
	later := in
	later.Revision++
	later.Digest = strings.Repeat("b", 64)
	stopped := in
	stopped.State, stopped.Revision = pod.Stopped, in.Revision+2
	again := in
	again.Revision += 3
	old := fresh
	old.NeverAvailable = false
	for name, c := range map[string]struct {
		o    observation
		want bool
	}{
		"placed": {observation{rec: fresh}, true},
		"hopeless": {
			observation{rec: fresh, activity: activity{state: pod.StateFailed, hopeless: true}}, true,
		},
		"available":                   {observation{rec: fresh, available: true, served: true}, false},
		"was":                         {observation{rec: fresh, served: true}, false},
		"as an older version left it": {observation{rec: old}, false},
		"upgraded before it was":      {observation{rec: fresh.accept(later)}, true},
		"upgraded after it was":       {observation{rec: old.accept(later)}, false},
		"it stops":                    {observation{rec: fresh.accept(stopped)}, false},
		"started again after its stop": {
			observation{rec: old.accept(stopped).buried(thisInstant()).accept(again)}, true,
		},
		"found running, without record": {observation{rec: sampleRecord(0)}, false},
	} {
		if r := observe(c.o); r.NeverAvailable != c.want {
			t.Errorf("%s: never available is %t", name, r.NeverAvailable)
		}
	}
}

func TestOnlyLastingFailuresAreObservedAsHopeless(t *testing.T) {
	t.Parallel()
	rec := sampleRecord(0)
	loops := procsIn(runtime.Running)
	loops[0].ShortRuns = pod.CrashLoop
	failed := procsIn(runtime.Exited)
	failed[0].LastExit = &pod.Exit{Code: 1}
	done := procsIn(runtime.Exited)
	done[0].LastExit = &pod.Exit{}
	for name, c := range map[string]struct {
		o    observation
		want bool
	}{
		"runs":          {observation{rec: rec, procs: procsIn(runtime.Running)}, false},
		"crash-looping": {observation{rec: rec, procs: loops}, true},
		"ended once":    {observation{rec: rec, procs: procsIn(runtime.Backoff)}, false},
		"failed":        {observation{rec: rec, procs: failed}, true},
		"done":          {observation{rec: rec, procs: done}, false},
		"unknown end":   {observation{rec: rec, spent: true}, true},
		"refused": {
			observation{
				rec: rec, procs: procsIn(runtime.Running), activity: activity{state: pod.StateFailed, hopeless: true},
			},
			true,
		},
		"does something": {observation{rec: rec, procs: loops, activity: activity{state: pod.StateFetching}}, false},
		"unreadable":     {observation{rec: rec, procs: procsIn(runtime.Unknown)}, false},
	} {
		if got := observe(c.o); got.Hopeless != c.want {
			t.Errorf("%s: %+v, hopeless %v", name, got.State, got.Hopeless)
		}
	}
}

// A failed pod's reality has whether all its processes have ended for good. A pod that ended with success has its own
// state.
func TestFailedPodSaysWhetherAllItsProcessesEnded(t *testing.T) {
	t.Parallel()
	rec, stopping := sampleRecord(0), sampleRecord(0)
	stopping.Intent.State = pod.Stopped
	exits := func(codes ...int) []runtime.Status {
		procs := procsIn(make([]runtime.Phase, len(codes))...)
		for i := range procs {
			procs[i].Phase, procs[i].LastExit = runtime.Exited, &pod.Exit{Code: codes[i]}
		}
		return procs
	}
	and := func(phase runtime.Phase) []runtime.Status { return append(exits(1), procsIn(phase)...) }
	unseen := append(exits(1), procsIn(runtime.Exited)...)
	for name, c := range map[string]struct {
		o    observation
		want bool
	}{
		"with 1":               {observation{rec: rec, procs: exits(1)}, true},
		"with 0, and with 1":   {observation{rec: rec, procs: exits(0, 1)}, true},
		"with 0":               {observation{rec: rec, procs: exits(0)}, false},
		"another one runs":     {observation{rec: rec, procs: and(runtime.Running)}, false},
		"another one waits":    {observation{rec: rec, procs: and(runtime.Backoff)}, false},
		"another one starts":   {observation{rec: rec, procs: and(runtime.Starting)}, false},
		"another is not known": {observation{rec: rec, procs: and(runtime.Unknown)}, false},
		"another is not there": {observation{rec: rec, procs: exits(1), missing: true}, false},
		"not there, and fails": {
			observation{rec: rec, procs: exits(1), missing: true, activity: activity{state: pod.StateFailed}}, false,
		},
		"another was never seen": {observation{rec: rec, procs: unseen}, false},
		"unknown end":            {observation{rec: rec, procs: exits(1), spent: true}, false},
		"nothing was started":    {observation{rec: rec, activity: activity{state: pod.StateFailed}}, false},
		"it stops":               {observation{rec: stopping, procs: exits(1)}, false},
		"a hook failed": {
			observation{rec: rec, procs: exits(0), activity: activity{state: pod.StateFailed}}, true,
		},
		"something is fetched": {
			observation{rec: rec, procs: exits(1), activity: activity{state: pod.StateFetching}}, false,
		},
	} {
		if r := observe(c.o); r.AllEnded != c.want {
			t.Errorf("%s: %s, all have ended: %v", name, r.State, r.AllEnded)
		}
	}
}

func TestPodIsAvailableAfterMinReadyWithAPassingCheck(t *testing.T) {
	t.Parallel()
	now := time.Now()
	sec := func(n int) *field.Duration { d := field.Duration(time.Duration(n) * time.Second); return &d }
	m := &manifest.Manifest{MinReady: sec(3), Health: &manifest.Health{Interval: sec(2), Timeout: sec(1)}}
	failing, passing := register.Health{Known: true}, register.Health{Known: true, Passing: true}
	var r readiness
	is := func(what, procs string, h register.Health, wantAvailable, wantUnhealthy bool) {
		t.Helper()
		available, unhealthy, _ := r.update(now, procs, h, m, false)
		if available != wantAvailable || unhealthy != wantUnhealthy {
			t.Errorf("%s: available %v, unhealthy %v", what, available, unhealthy)
		}
	}
	is("started", "a:1", failing, false, false)
	now = now.Add(4 * time.Second)
	is("check has not had its time", "a:1", failing, false, false)
	now = now.Add(time.Second)
	is("check had its time", "a:1", failing, false, true)
	is("passes", "a:1", passing, false, false)
	now = now.Add(2 * time.Second)
	is("not for min_ready yet", "a:1", passing, false, false)
	is("fails in between", "a:1", failing, false, true)
	is("min_ready begins again", "a:1", passing, false, false)
	now = now.Add(3 * time.Second)
	is("available", "a:1", passing, true, false)

	restarted := readiness{ready: r.ready}
	if available, _, _ := restarted.update(now, "a:1", passing, m, false); !available {
		t.Error("a restarted preparer made the pod wait again")
	}
	restarted = readiness{ready: r.ready}
	if available, _, _ := restarted.update(now, "a:1", register.Health{Silent: true}, m, false); !available {
		t.Error("an agent that does not answer a restarted preparer made the pod unavailable")
	}
	is("process ended", "", passing, false, false)
	is("new process, old check result", "a:2", passing, false, false)
	now = now.Add(5 * time.Second)
	is("check result is its own, min_ready begins", "a:2", passing, false, false)
	now = now.Add(3 * time.Second)
	is("available again", "a:2", passing, true, false)
	is("agent lost the service", "a:2", register.Health{}, false, true)
	is("agent has it again", "a:2", passing, true, false)
}

// Without a check and min_ready, a pod is available ten seconds after each start.
func TestPodIsAvailableAfterTenSecondsByDefault(t *testing.T) {
	t.Parallel()
	now, passing, m := time.Now(), register.Health{Known: true, Passing: true}, &manifest.Manifest{}
	var r readiness
	for _, procs := range []string{"a:1", "", "a:2"} {
		available, _, due := r.update(now, procs, passing, m, false)
		if want := now.Add(10 * time.Second); available || procs != "" && !due.Equal(want) {
			t.Fatalf("%s: available %v, looks again in %s", procs, available, due.Sub(now))
		}
		now = now.Add(10*time.Second - 1)
		if available, _, _ = r.update(now, procs, passing, m, false); available {
			t.Fatalf("%s: available too early", procs)
		}
		now = now.Add(1)
		if available, _, _ = r.update(now, procs, passing, m, false); available != (procs != "") {
			t.Fatalf("%s: available %v after its time", procs, available)
		}
	}
}

// A crash-looping pod is not available even if its check passes. Afterwards, min_ready counts from when the check began
// to pass.
func TestCrashLoopingIsNotAvailable(t *testing.T) {
	t.Parallel()
	now, passing := time.Now(), register.Health{Known: true, Passing: true}
	m := &manifest.Manifest{MinReady: new(field.Duration)}
	var r readiness
	if available, _, _ := r.update(now, "a:1", passing, m, true); available || !r.counting() {
		t.Errorf("available %v, counting %v", available, r.counting())
	}
	if available, _, _ := r.update(now, "a:1", passing, m, false); !available {
		t.Error("not available when the crash loop is over")
	}
}

// A restarted preparer continues the count of min_ready, unless the check has failed or other processes run.
func TestCountOfMinReadyGoesOnAfterARestart(t *testing.T) {
	t.Parallel()
	at, err := proc.Now()
	if err != nil {
		t.Fatal(err)
	}
	at.Up -= 9 * time.Second
	passing, failing, m := register.Health{
		Known: true, Passing: true,
	}, register.Health{Known: true}, &manifest.Manifest{}
	for name, c := range map[string]struct {
		boot, procs string
		before      []register.Health
		least, most time.Duration // until the pod is available
	}{
		"as it was":         {at.Boot, "a:1", nil, 0, time.Second},
		"agent slow":        {at.Boot, "a:1", []register.Health{{Silent: true}, {}}, 0, time.Second},
		"check failed":      {at.Boot, "a:1", []register.Health{failing}, 10 * time.Second, 10 * time.Second},
		"other process":     {at.Boot, "a:2", nil, 10 * time.Second, 10 * time.Second},
		"ended meanwhile":   {at.Boot, "a:2", []register.Health{passing}, 10 * time.Second, 10 * time.Second},
		"machine restarted": {"another", "a:1", nil, 10 * time.Second, 10 * time.Second},
	} {
		e := newPods(quiet(t)).add(
			ident(0), Record{Counting: &Counting{Processes: "a:1", Since: proc.Moment{Boot: c.boot, Up: at.Up}}},
		)
		now := time.Now()
		for _, h := range c.before {
			e.readiness.update(now, c.procs, h, m, false)
		}
		_, _, due := e.readiness.update(now, c.procs, passing, m, false)
		if left := due.Sub(now); left < c.least || left > c.most {
			t.Errorf("%s: available in %s, want %s to %s", name, left, c.least, c.most)
		}
	}
}

// A message is valid UTF-8 that fits a record, even with a long error of binary data.
func TestMessagesAreBounded(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		strings.Repeat("ä", 900_000), "a" + strings.Repeat("ä", 900_000), strings.Repeat("x\xff", 900_000),
		"short \xff",
	} {
		o := observation{
			rec: sampleRecord(0), activity: activity{state: pod.StateFailed, message: text},
			decided: decided{verdict: Orphan},
		}
		got := observe(o).Message
		if len(got) > maxMessage || !utf8.ValidString(got) ||
			len(text) > maxMessage && !strings.HasSuffix(got, "...") || !strings.HasPrefix(got, "orphaned") {
			t.Errorf("%d bytes of text: a message of %d, %.100q", len(text), len(got), got)
		}
	}
	if got := shorten("as it is", 8); got != "as it is" {
		t.Errorf("%q", got)
	}
	if got := shorten("as it isn't", 8); got != "as it..." {
		t.Errorf("%q", got)
	}
}

// A pod is observed when it has changed or is due.
func TestOnlyChangedOrDuePodsAreObserved(t *testing.T) {
	t.Parallel()
	p := &observer{kit: &kit{
		cfg: Config{Metrics: NewMetrics(prometheus.NewRegistry())}, log: quiet(t), pods: newPods(quiet(t)),
		agent: silentAgent(t), contact: &claim.Contact{}, board: report.NewBoard(), ready: make(chan struct{}),
	}}
	close(p.ready)
	for i := range 2 {
		rec := sampleRecord(i)
		rec.Installed.Processes = []install.Process{{Name: "web", Launchable: "web"}}
		rec.Installed.Manifest = []byte(`{"version":1,"id":"web","launchables":null,` +
			`"health":{"tcp":{"port":"http"},"interval":"5s","timeout":"1s"}}`)
		e := p.pods.add(ident(i), rec)
		e.procs = []runtime.Status{{
			Spec:  runtime.Spec{Process: runtime.Process{ID: install.SpecIDs(e.id, rec.Installed)[0]}},
			State: runtime.State{Phase: runtime.Running, PID: 1},
		}}
	}
	changed, other := p.pods.all[ident(0)], p.pods.all[ident(1)]
	reality := func(e *entry) pod.Reality { r, _ := p.board.Reality(e.id); return r }
	now := time.Now()
	late := now.Add(11 * time.Second) // first run within 5 s, next run 5 s later, 1 s for the answer
	if due := p.observeDue(now); !due.Equal(late) || reality(changed).State != pod.StateRunning {
		t.Fatalf("looks again in %s, want %s; %+v", due.Sub(now), late.Sub(now), reality(changed))
	}
	other.activity.message = "changed without a call of changed"
	(&worker{kit: p.kit, e: changed}).At(pod.StateFailed, "port taken")
	now = now.Add(time.Second)
	p.observeDue(now)
	if reality(changed).Message != "port taken" || reality(other).Message != "" {
		t.Errorf("observed %q and %q", reality(changed).Message, reality(other).Message)
	}
	p.observeDue(late)
	if reality(other).State != pod.StateUnhealthy {
		t.Errorf("it is %s when its check has had its time", reality(other).State)
	}
	next := late.Add(observeAllEvery)
	if due := p.observeDue(late); due.After(next) {
		t.Errorf("looks again %s after everything may have been observed", due.Sub(late))
	}
	other.activity.message = "changed again without a call of changed"
	p.observeDue(next)
	if reality(other).Message != other.activity.message {
		t.Errorf("observed %q although all pods are observed after %s", reality(other).Message, observeAllEvery)
	}
	p.pods.queue = nil
	other.saveBy = next.Add(saveWithin)
	if due := p.observeDue(next); !due.Equal(other.saveBy) || len(p.pods.queue) > 0 {
		t.Errorf("looks again in %s, want %s, when the service must be saved; %d queued before",
			due.Sub(next), saveWithin, len(p.pods.queue))
	}
	if p.observeDue(other.saveBy); len(p.pods.queue) != 1 || p.pods.queue[0] != other || !other.saveBy.IsZero() {
		t.Errorf("%d queued when the service must be saved", len(p.pods.queue))
	}
}
