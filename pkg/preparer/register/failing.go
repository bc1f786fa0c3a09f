package register

import (
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// answer is what a check tells of a pod's processes.
type answer int

const (
	noAnswer answer = iota // whoever asks has not asked, or got nothing
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

// Hung is the processes of a pod whose check has failed for restart_after.
type Hung struct {
	Runs  string // as in Pod; empty: none are
	Never bool   // the check has not passed since they were started, as far as this preparer has seen
}

// failing is for how long the check of a pod's present processes has failed without a break. Times are on a clock that
// nobody sets.
type failing struct {
	runs   string
	trust  time.Duration // an answer before this may be about earlier processes
	begun  bool          // the check fails
	since  time.Duration // when that began
	last   time.Duration // the last look
	passed bool          // the check has passed since the processes were started
	due    bool          // it has failed for restart_after
}

// longestGap bounds the time between two looks that count as without a break. It is below any restart_after: while
// nobody looks, as when the agent or this preparer stands still, nobody knows what the check says.
const longestGap = 3 * time.Second

// next takes in what the check of a pod says at a time, and which processes run by then. Where the manifest has no
// restart_after, or while not all of the processes run, nothing fails.
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

// sawAnswers takes in what the checks of all pods say now, the agent's where that was heard, and returns whether one
// fails that may not for ever. A script's verdict is what the script said itself: its check at the agent fails also
// where nobody has run the script.
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
