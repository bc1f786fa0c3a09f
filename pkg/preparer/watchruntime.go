package preparer

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/register"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/supervise"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// watchRuntime: while the runtime does not answer, the processes keep their last known state.
func (p *Preparer) watchRuntime(ctx context.Context) {
	const key = "runtime"
	pace := wait.NewPace(p.cfg.RetryMin, p.cfg.RetryMax)
	var cursor uint64
	for ctx.Err() == nil {
		procs, next, err := p.cfg.Runtime.Watch(ctx, cursor)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			p.limiter.Report(key, "runtime does not answer; the node assumes that its pods run on", err)
			p.pods.do(func() { p.setEnforces(false) })
			cursor = 0 // a restarted supervisor counts its cursors from the beginning
			if wait.Pause(ctx, pace.NextBackOff()) != nil {
				return
			}
			continue
		}
		p.limiter.Over(key)
		pace.Reset()
		cursor = next
		p.sawRuntime(procs)
	}
}

func (p *Preparer) sawRuntime(procs []runtime.Status) {
	for _, status := range procs {
		if status.Phase == runtime.Unknown {
			p.limiter.Report("process "+status.Spec.ID, "runtime does not know the state of a process; left alone",
				errors.New(status.Message))
		}
	}
	p.node.SawBlocks(procs)
	p.pods.do(func() {
		p.silence.latest = procs
		p.handOut(p.silence.known())
	})
}

// handOut gives each pod its processes, and adds the pods whose record was lost. Its first call starts all workers,
// because the previous preparer may have ended in the middle of its work. Call it only inside pods.do.
func (p *Preparer) handOut(procs []runtime.Status) {
	all := supervise.ByPod(procs)
	for _, found := range all {
		slices.SortFunc(found, func(a, b runtime.Status) int { return strings.Compare(a.Spec.ID, b.Spec.ID) })
	}
	first := !p.allKnown()
	for id, found := range all {
		if p.pods.all[id] == nil {
			p.takeIn(id, found)
		}
	}
	for id, e := range p.pods.all {
		changed := !reflect.DeepEqual(e.procs, all[id])
		if changed {
			ran, worked := anyAlive(e.procs), e.works()
			e.sawProcs(all[id], time.Now())
			if e.works() != worked {
				p.agent.Wake.Raise()
			}
			p.pods.changed(e)
			if _, orphan := e.orphan(); orphan && ran != anyAlive(e.procs) {
				p.pods.record.Raise()
			}
		}
		tombstone := e.rec.StoppedAt != nil && len(e.procs) == 0
		if (changed || first) && !tombstone {
			p.pods.enqueue(e)
		}
	}
	if first {
		p.pods.seen.Raise()
		close(p.ready)
	}
	p.setEnforces(!p.pods.silent && p.enforcesStopAfter(procs))
}

// takeIn adds a pod that has processes in the runtime but no record. Call it only inside pods.do.
func (p *Preparer) takeIn(id pod.Identity, found []runtime.Status) {
	rec, ok := recovered(id, found)
	if !ok && found[0].Phase == runtime.Unknown {
		return // sawRuntime has logged it
	}
	if !ok {
		p.podLog(id).WithField(obs.Process, found[0].Spec.ID).
			Warn("runtime has a process without a pod record; left alone")
		return
	}
	p.pods.add(id, rec).unsaved = true
	p.podLog(id).WithField(fieldRevision, rec.Intent.Revision).Warn("pod record rebuilt from its running processes")
}

func (p *Preparer) servicePods(now time.Time) (all []register.Pod) {
	p.pods.do(func() {
		for _, e := range p.pods.all {
			s := e.servicePod(now)
			if m := s.Manifest; m != nil && m.Health != nil && m.Health.HTTP != nil {
				v := p.node.Version(s.ID, s.UID, s.Installed)
				s.HTTPPath = v.Expand(&m.Launchables[0], []string{m.Health.HTTP.Path})[0]
			}
			r, _ := p.board.Reality(e.id)
			s.Waits = s.Up && !e.readiness.counting() && !r.Available &&
				r.State != pod.StateUnhealthy && r.State != pod.StateCrashLooping
			all = append(all, s)
		}
	})
	return all
}

func (p *Preparer) isUp(id pod.Identity) (up bool) {
	p.pods.do(func() {
		e := p.pods.all[id]
		up = e != nil && e.state.up()
	})
	return up
}

// sawServices: pods has the time by which a worker must save each change; zero: no save is needed.
func (p *Preparer) sawServices(pods map[pod.Identity]time.Time) {
	p.pods.do(func() {
		for id, saveBy := range pods {
			if e := p.pods.all[id]; e != nil {
				e.saveBy = sooner(e.saveBy, saveBy)
				p.pods.changed(e)
			}
		}
		p.pods.seen.Raise()
	})
}
