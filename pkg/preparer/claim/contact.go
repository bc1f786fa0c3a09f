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

// Connectivity has what the preparer knows at one moment about Consul's servers, the node's name, and one pod.
type Connectivity struct {
	Serving bool // the preparer has a valid session, which counts as contact with the servers
	Agreed  bool // when the intents were last read under the node's lock, the pod's intent was the accepted one
	Running bool // processes of the pod run
	Lost    bool // another host took over the node's name, so no pod may run here
	// Outdated: when the intents were last read, the pod's intent had another epoch than the cluster.
	Outdated bool
	Waits    bool          // the pod was stopped because the name was lost, and its intent was not read since
	Silence  time.Duration // time since the servers last answered; proc.Never if not known
	// Unread is the time since the intents were last known under the lock; proc.Never if this preparer has read none.
	Unread  time.Duration
	Started time.Duration // time since this preparer started
}

// startGrace is how long a new preparer tries to reach Consul before it stops a pod because of silence. Perhaps Consul
// was not silent, and only no preparer ran.
const startGrace = 5 * time.Second

// MayRun decides whether the pod may run. A running pod may run until the silence has lasted stopAfter. A pod with
// stopAfter that does not run here may run on another node by now. So it may start only after its intent was read; a
// session or the lock is not enough.
func (c Connectivity) MayRun(stopAfter time.Duration) bool {
	switch {
	case c.Lost:
		return false
	case !c.Running && c.Outdated:
		return false
	case !c.Running && c.Waits:
		return c.Agreed && c.Unread == 0
	case stopAfter == proc.Never:
		return true
	case !c.Running:
		return c.Agreed && c.Unread < stopAfter
	case c.Serving, c.Silence < stopAfter:
		return true
	case c.Silence == proc.Never: // the note of the last contact is lost
		return c.Started < stopAfter
	default:
		return c.Started < min(stopAfter, startGrace)
	}
}

// NextLook returns the time until MayRun can decide otherwise if the silence continues.
func (c Connectivity) NextLook(stopAfter time.Duration) time.Duration {
	next := proc.Never
	for _, d := range []time.Duration{stopAfter - c.Silence, stopAfter - c.Started, startGrace - c.Started} {
		if d > 0 {
			next = min(next, d)
		}
	}
	return next
}

// Contact has the time when Consul's servers last answered. It keeps this time on the disk, in the contact note, for
// the supervisor and the next preparer. It also has whether the node's intents are known: from the read under the
// node's lock until the lock is lost.
type Contact struct {
	// Changed is raised when contact begins or ends, and when the note may have to be written more often.
	Changed wait.Signal

	path string

	writing sync.Mutex // held while the note is written; taken before mu

	mu      sync.Mutex
	started proc.Moment // when this preparer started, or continued after it was suspended
	serving bool
	left    func() time.Duration // returns for how much longer the session is valid
	held    bool                 // this session has held the node's lock
	// counts is a time since the machine's boot. A session that is still valid then is contact, even without the lock.
	counts   time.Duration
	stood    bool        // the session has expired, and Serve was not called for its end yet
	last     proc.Moment // time of the last contact; the zero value if not known
	noted    proc.Moment // last, as the note on the disk has it
	locked   bool        // the preparer holds the node's lock
	informed bool        // and the intents were read under the lock
	// read is when the intents were last known. It is not on the disk, because a new preparer knows none.
	read proc.Moment
}

// ContactFile is the contact note in the data directory, which the supervisor's watchdogs read.
const ContactFile = "contact.json"

// OpenContact reads the contact note of an earlier preparer. It ignores a note that it cannot parse.
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

// Path is the contact note.
func (c *Contact) Path() string { return c.path }

// agentSeen is how long after the start of a session farms have seen that the agent lives. They check every 10
// s.
const agentSeen = 20 * time.Second

// Begin sets the session for the next calls of SetServing. left returns for how much longer it is valid. Farms measure
// the silence of a lost node from the time when its lock became free. So a session is contact once it has taken the
// lock, or once farms have seen that the machine lives, because both end the silence for farms.
func (c *Contact) Begin(left func() time.Duration) {
	now, err := proc.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left, c.held, c.counts = left, false, now.Up+agentSeen+left()
	if err != nil {
		c.counts = proc.Never
	}
}

// SetServing stores that a session begins or ends, which is at most 1.5 TTL after the servers last answered.
func (c *Contact) SetServing(serving bool) {
	now, err := proc.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.serving
	// If both are false, this preparer was refused the name, and its session is no contact.
	if c.serving = before || serving; err == nil {
		c.touch(now)
	}
	c.serving = serving
	c.Changed.Raise()
}

// touch updates the time of the last contact, and reports whether contact lasts. If this process was suspended, its
// session has expired, and what it knows may be old. So it gets the grace of a new process. The caller holds mu.
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

// SetLocked stores whether the preparer holds the lock. After a change the intents may be older than the lock.
func (c *Contact) SetLocked(locked bool) (changed bool) {
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

// Inform is called when the intents were read.
func (c *Contact) Inform() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.informed = c.locked
}

// Locked reports whether this preparer holds the node's lock.
func (c *Contact) Locked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.locked
}

// Informed reports whether the intents were read under the node's present lock.
func (c *Contact) Informed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.informed
}

// Connectivity returns what is known now. The caller sets the fields about the pod.
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

// Bounds of NoteEvery.
const (
	MinNoteEvery = time.Second
	maxNoteEvery = time.Minute
)

// NoteEvery returns the time between two notes for a pod that may run for stopAfter without contact.
func NoteEvery(stopAfter time.Duration) time.Duration {
	return min(max(stopAfter/10, MinNoteEvery), maxNoteEvery)
}

// Note writes the contact note if it is due. stopAfter is the shortest of all pods. due is the time until the next
// write; proc.Never: only after a change.
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

// Keep writes the note at once. Call it before the start of a process whose watchdog reads the note.
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

// at returns the time of the last contact, and whether it lasts. begins is the time until the session counts as
// contact; proc.Never: it does not by itself.
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

// write: only the first write needs space on the disk, unless the file system never writes in place. The caller holds
// c.writing.
func (c *Contact) write(last proc.Moment) error {
	if err := proc.WriteNote(c.path, last); err != nil {
		return fmt.Errorf("write time of last contact: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noted = last
	return nil
}
