package shim

import (
	"context"
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
)

// watchdog is what the supervisor knows about the note that keeps a process running. The process's mu guards it.
type watchdog struct {
	renewed proc.Moment // the latest in the note, or when the process was begun to be kept; the zero value before the first look
	trusted bool        // this supervisor was told to start the process, or found it running
	expired bool        // nothing of it may run until somebody starts it
	why     string      // it has expired
}

// trustAnew notes that somebody has started the process.
func (p *process) trustAnew() {
	p.mu.Lock()
	p.dog = watchdog{trusted: true}
	p.mu.Unlock()
	p.sup.changed(p)
}

// trust notes that a process begins to be kept, and whether it runs already.
func (p *process) trust(runs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dog.trusted = p.dog.trusted || runs || p.rec.Spec.Watchdog == nil
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

// expire has the process stop, and stay so until somebody starts it. It waits for no disk: the record says so once nothing runs, and a
// successor that does not find that in it starts nothing that has a watchdog.
func (p *process) expire(why string) {
	p.mu.Lock()
	p.dog.expired, p.dog.why = true, why
	p.mu.Unlock()
	p.log("process stops by itself", map[string]any{"reason": why})
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

// readNote reads a note, a second time where it could not be read.
func (s *supervisor) readNote(ctx context.Context, path string) (n note) {
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
	dog := p.rec.Spec.Watchdog
	if dog == nil || p.toStop() || p.rec.Done {
		return proc.Never
	}
	return dog.Timeout - now.Since(p.dog.renewed)
}

// watchNote reads the process's note, stops the process if that was not renewed in time, and returns when it is due again.
func (p *process) watchNote(now proc.Moment, read func(path string) note) (next time.Duration) {
	if p.dueIn(now) == proc.Never {
		return proc.Never
	}
	if !p.op.TryLock() { // somebody starts or stops it just now, and may wait for the disk
		return retryWatch
	}
	defer p.op.Unlock()
	if p.broken != nil || p.removed {
		return proc.Never
	}
	dog := p.current().Spec.Watchdog
	n := read(dog.Note)
	p.mu.Lock()
	switch {
	case n.err == nil && n.moment.Up > p.dog.renewed.Up:
		p.dog.renewed = n.moment
	case n.err != nil && p.dog.renewed == (proc.Moment{}):
		p.dog.renewed = now
	}
	p.mu.Unlock()
	if next = p.dueIn(now); next > 0 {
		return next
	}
	why := fmt.Sprintf("%s was not renewed for %s", dog.Note, dog.Timeout)
	if n.err != nil {
		why += ": " + n.err.Error()
	}
	p.expire(why)
	p.recall()
	return proc.Never
}
