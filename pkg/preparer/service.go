package preparer

import (
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/register"
)

// servicePods returns what the services of all pods follow from.
func (p *Preparer) servicePods(now time.Time) (all []register.Pod) {
	p.pods.do(func() {
		for _, e := range p.pods.all {
			s := e.servicePod(now)
			r, _ := p.board.Reality(e.id)
			s.Waits = s.Up && !e.readiness.counts() && !r.Available && r.State != pod.StateUnhealthy && r.State != pod.StateCrashLooping
			all = append(all, s)
		}
	})
	return all
}

// servicePod returns what the services of a pod follow from.
func (e *entry) servicePod(now time.Time) register.Pod {
	m := e.manifest()
	s := register.Pod{
		ID: e.id, Installed: e.rec.Installed, Manifest: m, UID: e.rec.UID, Standby: e.rec.Intent.Standby,
		Up: e.state.up(), Alive: anyAlive(e.procs), Rested: m != nil && e.rested(m, now), Noted: e.rec.Service,
	}
	if s.Up && m != nil && m.Health != nil && m.Health.Script != nil {
		if procs, missing := e.installedProcs(); !missing {
			running := instances(procs, missing)
			s.Procs, s.Available = procs, running != "" && running == e.readiness.ready
		}
	}
	return s
}

// isUp reports whether what is installed of a pod was started.
func (p *Preparer) isUp(id pod.Identity) (up bool) {
	p.pods.do(func() {
		e := p.pods.all[id]
		up = e != nil && e.state.up()
	})
	return up
}

// sawServices has pods observed of whose services something else is said, and that saved in time.
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
