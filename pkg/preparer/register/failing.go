package register

import (
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

type answer int

const (
	noAnswer answer = iota // the check was not asked, or did not answer
	passes
	fails
)

func answerOf(passing, failed bool) answer {
	switch {
	case passing:
		return passes
	case failed:
		return fails
	}
	return noAnswer
}

// Hung names the processes of a pod whose check has failed for restart_after.
type Hung struct {
	Runs  string // fingerprint as in Pod; empty: none
	Never bool   // this preparer has not seen the check pass since these processes started
}

// failing measures how long the check of a pod's present processes has failed without interruption. Times are on the
// monotonic clock, from Registrar.began.
type failing struct {
	runs   string
	trust  time.Duration // before this time, an answer may be about earlier processes
	begun  bool          // the check fails
	since  time.Duration // when the failure began
	last   time.Duration // time of the last answer
	passed bool          // the check has passed since these processes started
	due    bool          // the check has failed for restart_after
}

// longestGap is the longest time between two answers of one measurement. After a longer gap, perhaps the preparer or
// the agent was suspended. longestGap is shorter than any restart_after.
const longestGap = 3 * time.Second

// next returns f after another answer about the processes that run now. Without restart_after, or while a process does
// not run, it returns the zero value.
func (f failing) next(at time.Duration, runs string, says answer, h *manifest.Health) failing {
	if runs == "" || h == nil || h.RestartAfter == nil {
		return failing{}
	}
	if runs != f.runs {
		f = failing{runs: runs, trust: at + h.PassesWithin()}
	}
	if at < f.trust {
		says = noAnswer
	}
	broken := at-f.last > longestGap
	f.last, f.passed = at, f.passed || says == passes
	switch {
	case says != fails:
		f.begun, f.due = false, false
		return f
	case !f.begun, broken:
		f.begun, f.since = true, at
	}
	f.due = at-f.since >= h.RestartAfter.Or(0)
	return f
}

func (f failing) hung() Hung {
	if !f.due {
		return Hung{}
	}
	return Hung{Runs: f.runs, Never: !f.passed}
}

// sawAnswers takes in the answers of all checks. It uses the agent's answers only if heard is true. For a health script
// it uses the script's own answer, because the check at the agent also fails if the script did not run. It returns
// whether a check fails in a pod with restart_after.
func (r *Registrar) sawAnswers(pods []Pod, heard bool, now time.Time) (fail bool) {
	news := map[pod.Identity]time.Time{}
	r.mu.Lock()
	for i := range pods {
		p := &pods[i]
		if p.Manifest == nil || p.Manifest.Health == nil {
			continue
		}
		h, s, says := p.Manifest.Health, r.of(p.ID), noAnswer
		switch w := s.script; {
		case !p.Up || !p.Rested:
		case h.Script != nil && w != nil:
			says = answerOf(w.known && w.verdict.passing, w.known && w.verdict.ran)
		case h.Script == nil && heard:
			says = s.answer
		}
		was := s.failing
		s.failing = was.next(now.Sub(r.began), p.Runs, says, h)
		if fail = fail || s.failing.begun; s.failing.due && !was.due {
			news[p.ID] = time.Time{}
		}
	}
	r.mu.Unlock()
	if len(news) > 0 {
		r.cfg.Changed(news)
	}
	return fail
}
