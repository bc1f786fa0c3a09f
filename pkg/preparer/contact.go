package preparer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/durable"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/proc"
)

// Moment is a time that restarts of the preparer and set clocks do not change: since the machine's start.
type Moment struct {
	Boot string        `json:"boot"` // which start of the machine
	Up   time.Duration `json:"up"`   // since then, time asleep included
}

// Now reads the machine's clock since its start (clock_gettime(2), CLOCK_BOOTTIME).
func Now() (Moment, error) {
	boot, err := proc.BootID()
	if err != nil {
		return Moment{}, err
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return Moment{}, fmt.Errorf("read clock: %w", err)
	}
	return Moment{Boot: boot, Up: time.Duration(ts.Nano())}, nil
}

// never is longer than anything that is waited for.
const never = time.Duration(math.MaxInt64)

// since returns the time from an earlier moment to m, and never when they are of different starts of the machine.
func (m Moment) since(earlier Moment) time.Duration {
	if m.Boot != earlier.Boot {
		return never
	}
	return max(0, m.Up-earlier.Up)
}

// touch is what is known of the connection to Consul's servers at one moment, and of the node's name. It decides whether a pod
// may run whose manifest says that it stops by itself when there is none, or that was stopped because the name was lost.
type touch struct {
	serving bool          // a session is held
	agreed  bool          // when this preparer last read the intents under the node's lock, the pod's was the accepted one
	running bool          // processes of the pod run
	lost    bool          // the node's name was taken over, so that nothing may run here
	waits   bool          // the pod was stopped for that, and its intent not read since
	silence time.Duration // since the servers were last in touch, never when that is not known
	unread  time.Duration // since the intents were known under the lock, never when this preparer has not read them yet
	started time.Duration // since this preparer started
}

// startGrace is how long a preparer that starts after a longer silence tries to reach Consul before it stops a pod for that
// silence, which may have been its own.
const startGrace = 5 * time.Second

// mayRun decides. What runs goes on until the silence has lasted. What does not run may have been started elsewhere, after a
// restart of the machine as after a silence, and only its intent tells: a session, or the lock, does not.
func (t touch) mayRun(stopAfter time.Duration) bool {
	switch {
	case t.lost:
		return false
	case !t.running && t.waits:
		return t.agreed && t.unread == 0
	case stopAfter == never:
		return true
	case !t.running:
		return t.agreed && t.unread < stopAfter
	case t.serving, t.silence < stopAfter:
		return true
	case t.silence == never: // the note of the last contact is lost
		return t.started < stopAfter
	default:
		return t.started < min(stopAfter, startGrace)
	}
}

// nextLook is when mayRun may change its mind in a silence that goes on.
func (t touch) nextLook(stopAfter time.Duration) time.Duration {
	next := never
	for _, d := range []time.Duration{stopAfter - t.silence, stopAfter - t.started, startGrace - t.started} {
		if d > 0 {
			next = min(next, d)
		}
	}
	return next
}

// stopAfter returns how long the pod may run without contact, and never when its manifest does not say.
func stopAfter(m *manifest.Manifest) time.Duration {
	if m == nil || m.Disconnect == nil || m.Disconnect.StopAfter == nil {
		return never
	}
	return m.Disconnect.StopAfter.Or(never)
}

// contact is when Consul's servers were last in touch, as a successor must know it. Preparer.mu guards it.
type contact struct {
	path    string
	reserve *durable.Reserve
	started Moment
	serving bool
	last    Moment // the zero value when it is not known
	noted   Moment // last as it is on the disk
	// read is when the intents were last known under the node's lock. It is not on the disk: whoever starts has read none.
	read Moment
}

const contactFile = "contact.json"

// openContact reads what the predecessor noted. A note that cannot be read is as none.
func openContact(dir string, reserve *durable.Reserve) (contact, error) {
	now, err := Now()
	if err != nil {
		return contact{}, err
	}
	c := contact{path: filepath.Join(dir, contactFile), reserve: reserve, started: now}
	data, err := os.ReadFile(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("read time of last contact: %w", err)
	}
	if json.Unmarshal(data, &c.last) != nil {
		c.last = Moment{}
	}
	c.noted = c.last
	return c, nil
}

// setServing notes that a session begins or ends. It ends at most 1.5 TTL after the servers last answered.
func (p *Preparer) setServing(serving bool) {
	now, err := Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && (serving || p.contact.serving) { // a session of a preparer that is refused is no contact
		p.contact.last = now
	}
	p.contact.serving = serving
	p.touched.raise()
}

// watchContact stops pods that do not run without Consul, and keeps the note of the last contact so fresh that it is off by a
// tenth of what they allow. Without such pods there is nothing to do and nothing is written.
func (p *Preparer) watchContact(ctx context.Context) {
	const key = "contact"
	for {
		wait, err := p.tendContact()
		if !p.failed(ctx, key, "time of last contact with Consul cannot be noted; after a restart pods may stop early", err) && wait == never {
			wait = time.Hour // nothing is due; a change wakes this
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-p.touched:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// The bounds of the time between two notes.
const (
	minNoteEvery = time.Second
	maxNoteEvery = time.Minute
)

// tendContact does what is due, and returns when something is due again.
func (p *Preparer) tendContact() (wait time.Duration, err error) {
	now, err := Now()
	if err != nil {
		return minNoteEvery, err
	}
	p.mu.Lock()
	if p.contact.serving {
		p.contact.last = now
	}
	shortest, wait := never, never
	for _, e := range p.pods {
		after := stopAfter(e.manifest())
		if after == never || e.rec.Intent.State == pod.Stopped {
			continue
		}
		shortest = min(shortest, after)
		if p.contact.serving {
			continue
		}
		if !p.touchOf(e, now).mayRun(after) {
			if anyAlive(e.procs) {
				p.enqueue(e)
			}
			continue
		}
		wait = min(wait, p.touchOf(e, now).nextLook(after))
	}
	c := p.contact
	p.mu.Unlock()
	if shortest == never {
		return never, nil
	}
	every := min(max(shortest/10, minNoteEvery), maxNoteEvery)
	if c.serving {
		wait = every
	}
	if c.last == c.noted || c.serving && now.since(c.noted) < every {
		return wait, nil
	}
	data, err := json.Marshal(c.last)
	if err == nil {
		err = c.reserve.WriteFile(c.path, data)
	}
	if err != nil {
		return minNoteEvery, fmt.Errorf("write time of last contact: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.contact.noted = c.last
	return wait, nil
}

// touchOf is what decides about one pod. The caller holds p.mu.
func (p *Preparer) touchOf(e *entry, now Moment) touch {
	return touch{
		serving: p.contact.serving,
		agreed:  e.standing.verdict == Agree,
		running: anyAlive(e.procs),
		lost:    p.lostTo() != "",
		waits:   e.rec.AwaitsIntent,
		silence: now.since(p.contact.last),
		unread:  p.unread(now),
		started: now.since(p.contact.started),
	}
}

// informed reports whether the intents are known, and were read under the node's lock. The caller holds p.mu.
func (p *Preparer) informed() bool { return p.holding && p.world.Known }

// unread returns for how long it has not been so. The caller holds p.mu.
func (p *Preparer) unread(now Moment) time.Duration {
	if p.informed() {
		return 0
	}
	return now.since(p.contact.read)
}

// uninform notes that the intents are not known any more. The caller holds p.mu.
func (p *Preparer) uninform() {
	if now, err := Now(); err == nil && p.informed() {
		p.contact.read = now
	}
	p.world = World{}
}

// heldBack reports whether the pod must not run, because its manifest says that it does not without Consul or because the
// node's name is lost, and says so.
func (p *Preparer) heldBack(e *entry, rec *Record) (bool, error) {
	after := stopAfter(rec.Installed.manifest())
	now, err := Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if after == never && !p.nameless(rec) {
		e.heldBack = false
		return false, nil
	}
	if err != nil {
		return false, err
	}
	p.touched.raise() // the note of the last contact may be needed from now on
	held := !p.touchOf(e, now).mayRun(after)
	if held && !e.heldBack {
		p.logChange(e, "hold back "+p.without(rec), obs.Fields{fieldRevision: e.rec.Intent.Revision})
	}
	e.heldBack = held
	return held, nil
}

// nameless reports whether the pod is one that the loss of the node's name has stopped, or is to. The caller holds p.mu.
func (p *Preparer) nameless(rec *Record) bool { return p.lostTo() != "" || rec.AwaitsIntent }

// without says what a pod that is held back lacks. The caller holds p.mu.
func (p *Preparer) without(rec *Record) string {
	if p.nameless(rec) {
		return "without the node's name"
	}
	return "without contact to Consul"
}

// errHeldBack says that a pod does not run, and that nothing needs to be done about it.
var errHeldBack = errors.New("held back until Consul is in touch")

// holdBack stops what runs of a pod that must not, and returns errHeldBack when nothing runs.
func (p *Preparer) holdBack(ctx context.Context, e *entry, rec *Record) error {
	p.mu.Lock()
	nameless, lack := p.nameless(rec), p.without(rec)
	p.mu.Unlock()
	message := fmt.Sprintf("does not run without contact to Consul (disconnect.stop_after: %s); starts when its intent is read again", stopAfter(rec.Installed.manifest()))
	var noted error
	if nameless {
		message = "stopped when the node's name was taken over from this host; starts when its intent is read again"
		// A successor must know, also when the name is ours again. A disk that does not take it keeps nothing running.
		rec.AwaitsIntent = true
		var saved Record
		if saved, noted = p.save(e, *rec); noted == nil {
			*rec = saved
		}
	}
	p.setActivity(e, pod.StatePending, message)
	procs, err := p.refresh(ctx, e)
	if err != nil {
		return errors.Join(err, noted)
	}
	var alive []string
	for _, status := range procs {
		if status.Phase != runtime.Stopped {
			alive = append(alive, status.Spec.ID)
		}
	}
	if len(alive) > 0 {
		p.withdraw(ctx, e)
		p.logChange(e, "stop "+lack, obs.Fields{obs.Process: strings.Join(alive, " ")})
		if err := p.halt(ctx, e, rec, procs, alive, nil); err != nil {
			return errors.Join(err, noted)
		}
	}
	if noted != nil {
		return noted
	}
	return errHeldBack
}
