package preparer

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/preparer/register"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// The initial delay ends when the wall clock shows that it is over, or when the preparer has known the process for so
// long.
func TestInitialDelayEndsDespiteAWrongClock(t *testing.T) {
	t.Parallel()
	delay := field.Duration(10 * time.Second)
	m := &manifest.Manifest{Health: &manifest.Health{InitialDelay: &delay}}
	now := time.Now()
	started := func(pid int, ago time.Duration) runtime.Status {
		return runtime.Status{
			Spec:  runtime.Spec{Process: runtime.Process{ID: "web"}},
			State: runtime.State{Phase: runtime.Running, PID: pid, StartedAt: now.Add(-ago).Round(0)},
		}
	}
	for name, c := range map[string]struct {
		procs []runtime.Status
		after time.Duration // since the process was first seen
		want  bool
	}{
		"just started":     {[]runtime.Status{started(1, 0)}, time.Second, false},
		"its time is over": {[]runtime.Status{started(1, 0)}, 10 * time.Second, true},
		"seen late":        {[]runtime.Status{started(1, time.Minute)}, 0, true},
		"clock was ahead":  {[]runtime.Status{started(1, -time.Hour)}, 9 * time.Second, false},
		"and waited for":   {[]runtime.Status{started(1, -time.Hour)}, 10 * time.Second, true},
		"one of two":       {[]runtime.Status{started(1, time.Minute), started(2, 0)}, time.Second, false},
		"nothing runs":     {[]runtime.Status{{State: runtime.State{Phase: runtime.Backoff}}}, time.Hour, false},
		"the other waits only": {
			[]runtime.Status{started(1, time.Minute), {State: runtime.State{Phase: runtime.Backoff}}}, 0, true,
		},
	} {
		var e entry
		e.sawProcs(c.procs, now)
		e.sawProcs(c.procs, now.Add(c.after)) // does not change when the processes were first seen
		if got := e.rested(m, now.Add(c.after)); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
	var e entry
	e.sawProcs([]runtime.Status{started(1, -time.Hour)}, now)
	e.sawProcs([]runtime.Status{started(2, -time.Hour)}, now.Add(time.Minute))
	if e.rested(m, now.Add(time.Minute)) {
		t.Error("a new process was taken for the one before it")
	}
}

type emptyAgent struct{ register.Services }

func (emptyAgent) LocalServices(context.Context, string, string) (map[string]consul.Health, error) {
	return map[string]consul.Health{}, nil
}

func (emptyAgent) TokenID() string { return "none" }

// silentAgent has asked the agent once, and knows no services.
func silentAgent(t *testing.T) *register.Registrar {
	t.Helper()
	asked := make(chan struct{})
	r, err := register.New(register.Config{
		Dir: t.TempDir(), Services: emptyAgent{}, Limiter: loop.NewLogLimiter(quiet(t)), IdlePoll: time.Hour,
		Reach:   func() register.Reach { return register.Nothing },
		Pods:    func(time.Time) []register.Pod { return nil },
		Changed: func(map[pod.Identity]time.Time) { close(asked) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	<-asked
	cancel()
	running.Wait()
	return r
}
