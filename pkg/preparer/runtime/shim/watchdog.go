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
	// mostBetweenLooks bounds the time between two looks at the notes that keep processes running. One is due when the first process may have
	// to stop; but timers stand still while the machine sleeps, and the clock of notes does not.
	mostBetweenLooks = 10 * time.Second
	// readNoteAgain is the pause before a note is read once more that could not be: it may have been half written.
	readNoteAgain = 50 * time.Millisecond
	// noteTimeout bounds the wait for a disk that hangs.
	noteTimeout = time.Second
)

var errDiskHangs = errors.New("the disk does not answer")

// watchdog is what the supervisor knows about the note that keeps a process running. The process's mu guards it.
type watchdog struct {
	renewed proc.Moment // the latest in the note, or when the process was begun to be kept; the zero value before the first look
	started proc.Moment // when this supervisor was told to start it: what its note said before does not count; the zero value for one found running
	trusted bool        // this supervisor was told to start the process, or found it running
	expired bool        // nothing of it may run until somebody starts it
	why     string      // it has expired
	recall  func()      // the process's; nil while nobody keeps it
}

// trustAnew notes that somebody has started the process.
func (p *process) trustAnew() {
	now, err := proc.At(p.sup.boot)
	if err != nil {
		p.log("the time of its start is not known", map[string]any{"error": err})
	}
	p.mu.Lock()
	p.dog = watchdog{trusted: true, started: now}
	p.mu.Unlock()
	p.sup.changed(p)
}

// trust notes whether a process that begins to be kept runs already.
func (p *process) trust(runs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dog.trusted = p.dog.trusted || runs || p.rec.Spec.Watchdog == nil
}

// kept notes that a run loop keeps the process, which recall wakes.
func (p *process) kept(recall func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dog.recall = recall
	p.sup.dogs.Raise()
}

// trusted reports whether the process may be started again by itself.
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

// distrust has a process that does not run stay so until somebody starts it.
func (p *process) distrust() {
	p.mu.Lock()
	p.dog.expired, p.dog.why = true, "its supervisor was started anew, and it did not run"
	p.mu.Unlock()
	p.sup.changed(p)
}

// watchNotes stops the processes whose note was not renewed in time, until ctx ends.
func (s *supervisor) watchNotes(ctx context.Context) {
	wait.Each(ctx, s.dogs, func() time.Duration { return s.lookAtNotes(ctx) })
}

// lookAtNotes stops what is due, and returns when to look again. As long as nothing is due no note is read, and then each once, for all whose it
// is: so they are due together the next time.
func (s *supervisor) lookAtNotes(ctx context.Context) (next time.Duration) {
	now, err := proc.At(s.boot)
	if err != nil {
		s.cfg.Log("notes not looked at", map[string]any{"error": err})
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
		return time.Hour // there is none; one that comes wakes this
	}
	return min(next, mostBetweenLooks)
}

// note is what a look at one gave.
type note struct {
	moment proc.Moment
	err    error
}

// readNote reads a note, a second time where it could not be read. It waits a second at most: a disk that hangs is one that cannot be read. What
// an earlier look has asked for is waited for, and then asked anew.
func (s *supervisor) readNote(ctx context.Context, path string) note {
	soon, cancel := context.WithTimeoutCause(ctx, noteTimeout, errDiskHangs)
	defer cancel()
	for {
		answer, earlier := s.reads[path]
		if !earlier {
			answer = make(chan note, 1)
			s.reads[path] = answer
			go func() { answer <- s.readFile(ctx, path) }() // for as long as the disk hangs
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

// dueIn returns for how long the process may run on by what is known of its note, proc.Never for one that needs none.
func (p *process) dueIn(now proc.Moment) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.due(now)
}

// due is dueIn for who holds mu.
func (p *process) due(now proc.Moment) time.Duration {
	dog := p.rec.Spec.Watchdog
	if dog == nil || p.dog.recall == nil || p.toStop() || p.rec.Done {
		return proc.Never
	}
	return dog.Timeout - now.Since(p.dog.renewed)
}

// watchNote reads the process's note, stops the process if that was not renewed in time, and returns when it is due again. It waits neither for
// a client's operation nor for a write: the record says so once nothing runs, and a successor that does not find that in it starts nothing that
// has a watchdog.
func (p *process) watchNote(now proc.Moment, read func(path string) note) (next time.Duration) {
	dog := p.current().Spec.Watchdog
	if p.dueIn(now) == proc.Never || dog == nil {
		return proc.Never
	}
	n := read(dog.Note)
	p.mu.Lock()
	if p.dog.started.Up > now.Up {
		p.mu.Unlock()
		return retryWatch // it was started since, with a note that was read perhaps before
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
