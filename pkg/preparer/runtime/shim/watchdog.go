package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

const (
	// mostBetweenLooks bounds the time until the next check of the watchdogs. A timer for the moment when the first
	// process may have to stop is not enough, because timers stop while the machine sleeps, and the clock of the notes
	// does not.
	mostBetweenLooks = 10 * time.Second
	// readNoteAgain is the pause before an unreadable note is read again. Perhaps the note was just being written.
	readNoteAgain = 50 * time.Millisecond
	// noteTimeout is how long a check waits for a note if the disk does not answer.
	noteTimeout = time.Second
)

var errDiskHangs = errors.New("the disk does not answer")

// process.mu guards a watchdog.
type watchdog struct {
	// renewed is the latest moment in the note, or before the first valid note the moment of the first check. Zero: not
	// checked yet.
	renewed proc.Moment
	// started is when a client asked this supervisor to start the process. A check that began before this time does not
	// apply to the process.
	started proc.Moment
	trusted bool   // a client asked this supervisor to start the process, or the supervisor found it running
	expired bool   // the process must not run until a client starts it
	why     string // why it has expired
	recall  func() // process.recall; nil while the process has no run loop
}

func (p *process) trustAnew() {
	now, err := proc.At(p.sup.boot)
	if err != nil {
		p.log("start time of the process not known", map[string]any{"error": err})
	}
	p.mu.Lock()
	p.dog = watchdog{trusted: true, started: now}
	p.mu.Unlock()
	p.sup.changed(p)
}

// trust is called when the run loop of a process begins. runs: the process runs already.
func (p *process) trust(runs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dog.trusted = p.dog.trusted || runs || p.rec.Spec.Watchdog == nil
}

func (p *process) kept(recall func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dog.recall = recall
	p.sup.dogs.Raise()
}

// trusted reports whether the supervisor may start the process again by itself.
func (p *process) trusted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dog.trusted
}

func (p *process) whyExpired() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dog.why
}

// After distrust, the process stays stopped until a client starts it.
func (p *process) distrust() {
	p.mu.Lock()
	p.dog.expired, p.dog.why = true, "its supervisor was restarted while it did not run"
	p.mu.Unlock()
	p.sup.changed(p)
}

func (s *supervisor) watchNotes(ctx context.Context) {
	wait.Each(ctx, s.dogs, func() time.Duration { return s.lookAtNotes(ctx) })
}

// lookAtNotes stops the processes whose time is over, and returns the time until the next check. If a process is due,
// it checks all, and reads each note once. So the processes with the same note are due together the next time.
func (s *supervisor) lookAtNotes(ctx context.Context) (next time.Duration) {
	now, err := proc.At(s.boot)
	if err != nil {
		s.cfg.Log("watchdog notes not checked", map[string]any{"error": err})
		return retryWatch
	}
	all, next := s.all(), proc.Never
	for _, p := range all {
		next = min(next, p.dueIn(now))
	}
	if next <= 0 {
		next = proc.Never
		notes := map[string]note{}
		for _, p := range all {
			next = min(next, p.watchNote(now, func(path string) note {
				if _, known := notes[path]; !known {
					notes[path] = s.readNote(ctx, path)
				}
				return notes[path]
			}))
		}
	}
	if next == proc.Never {
		return time.Hour // no process has a watchdog; a new one wakes the loop
	}
	return min(next, mostBetweenLooks)
}

type note struct {
	moment proc.Moment
	err    error
}

// readNote waits at most noteTimeout, because the disk may hang. If an earlier read is still under way, it waits for
// that read first, and then reads again.
func (s *supervisor) readNote(ctx context.Context, path string) note {
	soon, cancel := context.WithTimeoutCause(ctx, noteTimeout, errDiskHangs)
	defer cancel()
	for {
		answer, earlier := s.reads[path]
		if !earlier {
			answer = make(chan note, 1)
			s.reads[path] = answer
			go func() { answer <- s.readFile(ctx, path) }() // runs until the disk answers
		}
		select {
		case n := <-answer:
			delete(s.reads, path)
			if !earlier {
				return n
			}
		case <-soon.Done():
			return note{err: fmt.Errorf("read %s: %w", path, context.Cause(soon))}
		}
	}
}

func (s *supervisor) readFile(ctx context.Context, path string) (n note) {
	for again := range 2 {
		if again == 1 && wait.Pause(ctx, readNoteAgain) != nil {
			break
		}
		now, err := proc.At(s.boot)
		if err == nil {
			n.moment, err = proc.ReadNote(path, now)
		}
		if n.err = err; err == nil {
			break
		}
	}
	return n
}

// Without a watchdog, dueIn returns proc.Never.
func (p *process) dueIn(now proc.Moment) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.due(now)
}

// The caller of due holds mu.
func (p *process) due(now proc.Moment) time.Duration {
	dog := p.rec.Spec.Watchdog
	if dog == nil || p.dog.recall == nil || p.toStop() || p.rec.Done {
		return proc.Never
	}
	return dog.Timeout - now.Since(p.dog.renewed)
}

// watchNote stops the process if its note was not renewed in time, and returns the time until the next check. It takes
// neither op nor write, because it must not wait for a client or the disk. The run loop records the stop. If the next
// supervisor does not find the stop in the record, it still does not start the process, because the process has a
// watchdog.
func (p *process) watchNote(now proc.Moment, read func(path string) note) (next time.Duration) {
	dog := p.current().Spec.Watchdog
	if p.dueIn(now) == proc.Never || dog == nil {
		return proc.Never
	}
	n := read(dog.Note)
	p.mu.Lock()
	if p.dog.started.Up > now.Up {
		p.mu.Unlock()
		return retryWatch // the process was started after this check began
	}
	switch {
	case n.err == nil && n.moment.Up > p.dog.renewed.Up:
		p.dog.renewed = n.moment
	case n.err != nil && p.dog.renewed == (proc.Moment{}):
		p.dog.renewed = now
	}
	if next = p.due(now); next > 0 {
		p.mu.Unlock()
		return next
	}
	p.dog.expired, p.dog.why = true, fmt.Sprintf("%s was not renewed for %s", dog.Note, dog.Timeout)
	if n.err != nil {
		p.dog.why += ": " + n.err.Error()
	}
	recall := p.dog.recall
	p.mu.Unlock()
	p.sup.changed(p)
	recall()
	return proc.Never
}
