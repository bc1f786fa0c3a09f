package preparer

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
	"github.com/rcfarm/rcfarm/pkg/preparer/supervise"
)

// silence is what is known about processes while their supervisor does not answer. pods.mu guards it.
type silence struct {
	latest []runtime.Status
	gone   map[run]bool // runs that have ended
}

const goneMessage = "it has ended, and is started again when the node's supervisor answers"

// known returns all processes. Processes in gone have ended, even if the supervisor answers again and has not noticed
// that yet.
func (s *silence) known() []runtime.Status {
	if len(s.gone) == 0 {
		return s.latest
	}
	known, gone := slices.Clone(s.latest), map[run]bool{}
	for i := range known {
		if at := runOf(&known[i]); s.gone[at] && known[i].Phase == runtime.Running {
			gone[at] = true
			known[i].Phase, known[i].Message = runtime.Backoff, goneMessage
		}
	}
	s.gone = gone
	return known
}

// lostOf returns the running processes that the kernel does not have any more, unless another process has got the pid.
func lostOf(procs []runtime.Status) map[run]bool {
	gone := map[run]bool{}
	for i := range procs {
		if procs[i].Phase != runtime.Running {
			continue
		}
		if st, err := proc.ReadStat(procs[i].PID); errors.Is(err, fs.ErrNotExist) || err == nil && st.Dead() {
			gone[runOf(&procs[i])] = true
		}
	}
	return gone
}

// watchSilence reports when the supervisor does not answer. It stops no process, because processes run without their
// supervisor, and a suspended supervisor may continue.
func (p *Preparer) watchSilence(ctx context.Context) {
	p.processes.Attend(ctx, p.cfg.PingEvery, p.cfg.SilentAfter, func(silent bool) {
		p.cfg.Metrics.answers.Set(obs.Flag(!silent))
		var err error
		if silent {
			err = supervise.ErrSilent
		}
		p.limiter.Saw("supervisor", "nothing can be started or stopped on this node; "+
			"the node assumes that its pods run on, except those whose processes have ended", err)
		p.sawSilence(silent)
	})
}

// sawSilence reads the kernel's processes at each call while the supervisor is silent.
func (p *Preparer) sawSilence(silent bool) {
	var latest []runtime.Status
	p.pods.do(func() { latest = p.silence.latest })
	gone := map[run]bool{}
	if silent {
		gone = lostOf(latest)
	}
	p.pods.do(func() {
		turned := p.pods.silent != silent
		p.pods.silent = silent
		if turned {
			p.pods.record.Raise()
			for _, e := range p.pods.all {
				p.pods.changed(e)
				e.wake.Raise() // the worker continues at once, or reports why it waits
			}
		}
		for at := range gone {
			turned = turned || !p.silence.gone[at]
			if p.silence.gone == nil {
				p.silence.gone = map[run]bool{}
			}
			p.silence.gone[at] = true
		}
		if turned && p.allKnown() {
			p.handOut(p.silence.known())
		}
	})
}
