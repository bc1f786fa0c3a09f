package claim

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Connectivity is what is known of the connection to Consul's servers at one moment, of the node's name, and of one pod. It decides whether a
// pod may run whose manifest says that it stops by itself when there is none, or that was stopped because the name was lost.
type Connectivity struct {
	Serving bool // a session is held that counts as contact
	Agreed  bool // when this preparer last read the intents under the node's lock, the pod's was the accepted one
	Running bool // processes of the pod run
	Lost    bool // the node's name was taken over, so that nothing may run here
	// Outdated: the accepted intent is of another epoch than it was read in.
	Outdated bool
	Waits    bool          // the pod was stopped for that, and its intent not read since
	Silence  time.Duration // since the servers were last in touch, proc.Never when that is not known
	Unread   time.Duration // since the intents were known under the lock, proc.Never when this preparer has not read them yet
	Started  time.Duration // since this preparer started
}

// startGrace is how long a preparer that starts after a longer silence tries to reach Consul before it stops a pod for that
// silence, which may have been its own.
const startGrace = 5 * time.Second

// MayRun decides. What runs goes on until the silence has lasted stopAfter. What does not run may have been started elsewhere, after a
// restart of the machine as after a silence, and only its intent tells: a session, or the lock, does not.
func (t Connectivity) MayRun(stopAfter time.Duration) bool {
	switch {
	case t.Lost:
		return false
	case !t.Running && t.Outdated:
		return false
	case !t.Running && t.Waits:
		return t.Agreed && t.Unread == 0
	case stopAfter == proc.Never:
		return true
	case !t.Running:
		return t.Agreed && t.Unread < stopAfter
	case t.Serving, t.Silence < stopAfter:
		return true
	case t.Silence == proc.Never: // the note of the last contact is lost
		return t.Started < stopAfter
	default:
		return t.Started < min(stopAfter, startGrace)
	}
}

// NextLook is when MayRun may change its mind in a silence that goes on.
func (t Connectivity) NextLook(stopAfter time.Duration) time.Duration {
	next := proc.Never
	for _, d := range []time.Duration{stopAfter - t.Silence, stopAfter - t.Started, startGrace - t.Started} {
		if d > 0 {
			next = min(next, d)
		}
	}
	return next
}

// Contact is when Consul's servers were last in touch, as a successor must know it, and whether what they say of the node's intents
// counts: it does from when they were read under the node's lock until that is lost.
type Contact struct {
	// Changed is raised when contact begins or ends, or matters more than before.
	Changed wait.Signal

	path string

	writing sync.Mutex // held while the note is written; taken before mu

	mu       sync.Mutex
	started  proc.Moment // when this preparer began to look, or went on after it had stood still
	serving  bool
	left     func() time.Duration // of the session: for how long it may be believed in
	held     bool                 // the session has had the node's lock
	counts   time.Duration        // since the machine's start: it is contact without that once it may be believed in until then
	stood    bool                 // the session may not be believed in any more, and nobody has ended it yet
	last     proc.Moment          // the zero value when it is not known
	noted    proc.Moment          // last as it is on the disk
	locked   bool                 // the node's lock is held
	informed bool                 // and the intents were read under it
	// read is when they were last known. It is not on the disk: whoever starts has read none.
	read proc.Moment
}

// ContactFile is the note of the last contact in a data directory. Supervisors read it too.
const ContactFile = "contact.json"

// OpenContact reads what the predecessor noted in the data directory. A note that cannot be understood is as none.
func OpenContact(dir string) (*Contact, error) {
	now, err := proc.Now()
	if err != nil {
		return nil, err
	}
	c := &Contact{Changed: wait.NewSignal(), path: filepath.Join(dir, ContactFile), started: now}
	c.last, err = proc.ReadNote(c.path, now)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, proc.ErrNote) {
		return nil, fmt.Errorf("read time of last contact: %w", err)
	}
	c.noted = c.last
	return c, nil
}

// Path returns the file of the note.
func (c *Contact) Path() string { return c.path }

// agentSeen is how long the servers must have known a session before farms have surely seen that the machine's agent lives: they ask every 10 s.
const agentSeen = 20 * time.Second

// Begin notes whose session Serve speaks of: left is for how long it may be believed in from now on. Farms count the silence of a lost node from when
// its lock was free, so the session is no contact until it has taken the lock. One that cannot, because it lacks a permission, is contact once farms
// have seen that the machine lives, which ends their count too.
func (c *Contact) Begin(left func() time.Duration) {
	now, err := proc.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left, c.held, c.counts = left, false, now.Up+agentSeen+left()
	if err != nil {
		c.counts = proc.Never
	}
}

// Serve notes that a session begins or ends. It ends at most 1.5 TTL after the servers last answered.
func (c *Contact) Serve(serving bool) {
	now, err := proc.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.serving
	if c.serving = before || serving; err == nil { // a session of a preparer that is refused is no contact
		c.touch(now)
	}
	c.serving = serving
	c.Changed.Raise()
}

// touch brings up to date when the last contact was, and reports whether it lasts. A process that stood still, and goes on, has its session no
// longer, whatever it was told last: what was known of Consul may be as old as that. It gets the time of one that starts. The caller holds mu.
func (c *Contact) touch(now proc.Moment) (lasts bool) {
	if !c.serving {
		return false
	}
	over := time.Duration(0)
	if c.left != nil {
		over = -c.left()
	}
	if !c.held && now.Up-over < c.counts {
		return false
	}
	lasts = over <= 0
	last := now
	if !lasts {
		last.Up -= over
	}
	if c.last.Boot != last.Boot || last.Up > c.last.Up {
		c.last = last
	}
	if !lasts && !c.stood {
		c.started = now
	}
	c.stood = !lasts
	return lasts
}

// Lock notes whether the node's lock is held, and returns whether that is new. What was read before does not count any more: it may be
// older than the lock.
func (c *Contact) Lock(locked bool) (changed bool) {
	now, err := proc.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.locked == locked {
		return false
	}
	if locked && !c.held {
		c.held = true
		c.Changed.Raise()
	}
	if c.informed {
		if err == nil {
			c.touch(now)
		}
		c.read = c.last
	}
	c.locked, c.informed = locked, false
	return true
}

// Inform notes that the intents were read, which counts under the lock.
func (c *Contact) Inform() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.informed = c.locked
}

// Locked reports whether the node's lock is held.
func (c *Contact) Locked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.locked
}

// Informed reports whether the intents are known, and were read under the node's lock.
func (c *Contact) Informed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.informed
}

// Connectivity returns what is known now, of all but one pod.
func (c *Contact) Connectivity(now proc.Moment) Connectivity {
	c.mu.Lock()
	defer c.mu.Unlock()
	lasts := c.touch(now)
	t := Connectivity{Serving: lasts, Silence: now.Since(c.last), Started: now.Since(c.started)}
	switch {
	case !c.informed:
		t.Unread = now.Since(c.read)
	case !lasts:
		t.Unread = t.Silence
	}
	return t
}

// The bounds of the time between two notes.
const (
	MinNoteEvery = time.Second
	maxNoteEvery = time.Minute
)

// NoteEvery is how often the note is renewed for a pod that may run for so long without contact.
func NoteEvery(stopAfter time.Duration) time.Duration {
	return min(max(stopAfter/10, MinNoteEvery), maxNoteEvery)
}

// Note keeps the note so fresh that it is off by a tenth of what pods allow, of which stopAfter is the shortest. It returns when it is
// due again; proc.Never: not before something changes.
func (c *Contact) Note(now proc.Moment, stopAfter time.Duration) (due time.Duration, err error) {
	every := NoteEvery(stopAfter)
	c.writing.Lock()
	defer c.writing.Unlock()
	last, serving, due := c.at(now)
	if serving {
		due = every
	}
	if noted := c.notedAt(); last == noted || serving && now.Since(noted) < every {
		return due, nil
	}
	if err := c.write(last); err != nil {
		return MinNoteEvery, err
	}
	return due, nil
}

// Keep has the note say what is known now. Whoever starts what is stopped by the note calls it before.
func (c *Contact) Keep() error {
	now, err := proc.Now()
	if err != nil {
		return err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	last, _, _ := c.at(now)
	return c.write(last)
}

// at returns when the last contact was, and whether it lasts; where it does not, in what time it begins by itself, proc.Never for not at all.
func (c *Contact) at(now proc.Moment) (last proc.Moment, lasts bool, begins time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	lasts, begins = c.touch(now), proc.Never
	if c.serving && !c.held && !lasts {
		begins = max(c.counts-now.Up-c.left(), MinNoteEvery)
	}
	return c.last, lasts, begins
}

func (c *Contact) notedAt() proc.Moment {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.noted
}

// write writes the note. The caller holds writing. Only the first one, or one on a file system that never writes in place, may need room on
// the disk.
func (c *Contact) write(last proc.Moment) error {
	if err := proc.WriteNote(c.path, last); err != nil {
		return fmt.Errorf("write time of last contact: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noted = last
	return nil
}
