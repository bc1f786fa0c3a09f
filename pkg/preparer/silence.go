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

// silence is what is known of processes while their supervisor does not answer: what it has said last, and which of
// them the kernel does not have any more. It is guarded as the pods are.
type silence struct {
	latest []runtime.Status
	gone   map[run]bool // runs that have ended; none lives again
}

// goneMessage says why a process does not run that nobody starts again.
const goneMessage = "it has ended, and is started again when the node's supervisor answers"

// known returns what is known of all processes. What has ended is not said to run, also in the moment in which the
// supervisor answers again and has not seen that yet.
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

// lostOf returns which processes that are said to run the kernel does not have. A number that the kernel has given to
// another process since the last look, half a second ago, is taken for the process.
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

// watchSilence asks the supervisor until ctx ends whether it answers, and reports when it does not. It ends nothing:
// processes run without their supervisor, and one that stands still may go on.
func (p *Preparer) watchSilence(ctx context.Context) {
	p.processes.Attend(ctx, p.cfg.PingEvery, p.cfg.SilentAfter, func(silent bool) {
		p.cfg.Metrics.answers.Set(obs.Flag(!silent))
		var err error
		if silent {
			err = supervise.ErrSilent
		}
		p.limiter.Saw("supervisor", "nothing can be started or stopped on this node; pods are taken to run on, but for those whose processes have ended", err)
		p.sawSilence(silent)
	})
}

// sawSilence takes in whether the supervisor is silent. While it is, that is once for each look at the kernel's
// processes.
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
				e.wake.Raise() // it goes on at once, or says why it waits
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
