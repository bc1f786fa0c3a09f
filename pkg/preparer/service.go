package preparer

import (
	"context"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/preparer/register"
	"github.com/rcfarm/rcfarm/pkg/runtime"
)

// servicePods returns what the services of all pods follow from.
func (p *Preparer) servicePods(now time.Time) []register.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]register.Pod, 0, len(p.pods))
	for _, e := range p.pods {
		s := e.servicePod(now)
		r, _ := p.board.Reality(e.id)
		s.Waits = e.up && !e.readiness.counts() && !r.Available && r.State != pod.StateUnhealthy && r.State != pod.StateCrashLooping
		all = append(all, s)
	}
	return all
}

// servicePod returns what the services of a pod follow from. The caller holds p.mu.
func (e *entry) servicePod(now time.Time) register.Pod {
	m := e.manifest()
	s := register.Pod{
		ID: e.id, Installed: e.rec.Installed, Manifest: m, UID: e.rec.UID, Standby: e.rec.Intent.Standby,
		Up: e.up, Alive: anyAlive(e.procs), Rested: m != nil && e.rested(m, now), Noted: e.rec.Service,
	}
	if e.up && m != nil && m.Health != nil && m.Health.Script != nil {
		if procs, missing := e.installedProcs(); !missing {
			running := instances(procs, missing)
			s.Procs, s.Available = procs, running != "" && running == e.readiness.ready
		}
	}
	return s
}

// isUp reports whether what is installed of a pod was started.
func (p *Preparer) isUp(id pod.Identity) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.pods[id]
	return e != nil && e.up
}

// sawServices has pods observed of whose services something else is said, and that saved in time.
func (p *Preparer) sawServices(pods map[pod.Identity]time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, saveBy := range pods {
		if e := p.pods[id]; e != nil {
			e.saveBy = sooner(e.saveBy, saveBy)
			p.changed(e)
		}
	}
	p.seen.Raise()
}

// rested reports whether the initial delay of the pod's health check is over: the check begins with the registration.
func (e *entry) rested(m *manifest.Manifest, now time.Time) bool {
	if m.Health == nil || m.Health.InitialDelay == nil {
		return true
	}
	delay, running := m.Health.InitialDelay.Or(0), false
	for i := range e.procs {
		if e.procs[i].Phase != runtime.Running {
			continue
		}
		// The clock may have been ahead when the process was started; the time since it was first seen is nobody's to set.
		if running = true; now.Before(e.procs[i].StartedAt.Add(delay)) && now.Before(e.seenAt[runOf(&e.procs[i])].Add(delay)) {
			return false
		}
	}
	return running
}

// run is one run of a process.
type run struct {
	id      string
	pid     int
	started int64
}

func runOf(s *runtime.Status) run { return run{s.Spec.ID, s.PID, s.StartedAt.UnixNano()} }

// sawProcs notes what the runtime has of the pod, and since when this preparer knows of each run. The caller holds p.mu.
func (e *entry) sawProcs(procs []runtime.Status, now time.Time) {
	before := e.seenAt
	e.procs, e.seenAt = procs, make(map[run]time.Time, len(procs))
	for i := range procs {
		key := runOf(&procs[i])
		if e.seenAt[key] = now; !before[key].IsZero() {
			e.seenAt[key] = before[key]
		}
	}
}

func anyAlive(procs []runtime.Status) bool {
	return slices.ContainsFunc(procs, func(s runtime.Status) bool { return s.Phase != runtime.Stopped })
}

// takeOut takes a pod's services away before its processes are stopped, and has it serve on for a while: whoever has just looked its
// address up comes all the same.
func (p *Preparer) takeOut(ctx context.Context, e *entry) {
	drain := p.withdraw(ctx, e)
	if drain == 0 {
		return
	}
	p.step("drain")
	if drain > tellAfter { // what all pods do is no news
		defer p.during(e, "serving on after it was deregistered")()
	}
	_ = loop.Pause(ctx, drain) // whoever comes next sees that ctx has ended
}

// withdraw takes a pod's services away, and returns for how long it has clients yet.
func (p *Preparer) withdraw(ctx context.Context, e *entry) (drain time.Duration) {
	p.mu.Lock()
	e.up = false
	s := e.servicePod(time.Now())
	p.mu.Unlock()
	return p.agent.Withdraw(ctx, &s)
}
