package shim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Between two looks at whether a session is empty yet.
const (
	firstLook = 5 * time.Millisecond
	lastLook  = 200 * time.Millisecond
)

// retryWatch is the pause before a process is watched again after the kernel refused.
const retryWatch = time.Second

// process is one supervised process. Clients change what is desired; one goroutine, the run loop, makes it so.
type process struct {
	sup *supervisor

	op      sync.Mutex // one client's operation at a time
	broken  error      // the state file cannot be read: nothing is known and nothing may be done
	removed bool       // no longer in the supervisor's map
	ended   chan struct{}
	version uint32             // of the supervisor when what clients see changed last; its mu guards it
	recall  context.CancelFunc // wakes the run loop to look at what is desired
	stable  time.Duration      // of the request that ended the last run; only the run loop uses it

	limits sync.Mutex // held from reading the limits that are to be until what runs has them

	write sync.Mutex // held from reading rec until its change is on disk

	mu      sync.Mutex
	rec     record
	unsaved error // why rec is not on the disk as it is; nil: it is
	phase   runtime.Phase
	message string
	child   *child // what runs, nil between two runs
	dog     watchdog
	renewal renewal
}

func (p *process) current() record {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rec
}

// known reports whether there is a record: a slot that was made for a refused Start has none.
func (p *process) known() bool { return p.current().Spec.ID != "" }

func (p *process) stopping() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.toStop()
}

// toStop is stopping for who holds mu.
func (p *process) toStop() bool { return p.rec.Desired == wantStop || p.dog.expired }

// commit changes the record on disk and then in memory, or not at all. What clients see becomes phase and message at
// the same moment, so that no status shows half of a step.
func (p *process) commit(phase runtime.Phase, message string, change func(*record)) error {
	p.write.Lock()
	defer p.write.Unlock()
	next := p.current()
	change(&next)
	if err := p.sup.records.Save(next); err != nil {
		p.mu.Lock()
		p.unsaved = err // it may be on the disk all the same
		p.mu.Unlock()
		return err
	}
	p.install(next, nil, phase, message)
	return nil
}

// note is commit for what counts even if it cannot be written: something that has happened already, and a stop. A
// successor that reads the old record finds the pid gone and comes to the same conclusion, except for how the process
// ended. A stop is confirmed only once it is on the disk.
func (p *process) note(phase runtime.Phase, message string, change func(*record)) {
	p.write.Lock()
	defer p.write.Unlock()
	next := p.current()
	change(&next)
	err := p.sup.records.Save(next)
	if err != nil {
		p.log("state not written", map[string]any{"error": err})
	}
	p.install(next, err, phase, message)
}

func (p *process) install(next record, unsaved error, phase runtime.Phase, message string) {
	p.mu.Lock()
	p.rec, p.unsaved, p.phase, p.message = next, unsaved, phase, message
	p.mu.Unlock()
	p.sup.changed(p)
}

// enter changes what clients see where the record stays as it is.
func (p *process) enter(phase runtime.Phase) {
	p.mu.Lock()
	p.phase, p.message = phase, ""
	p.mu.Unlock()
	p.sup.changed(p)
}

func (p *process) setChild(c *child) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.child = c
}

func (p *process) log(msg string, fields map[string]any) {
	fields["process"] = p.current().Spec.ID
	p.sup.cfg.Log(msg, fields)
}

// status returns what clients see, false for a slot without a record.
func (p *process) status() (localStatus, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := localStatus{p.rec.Spec, runtime.State{
		Phase: p.phase, Restarts: max(p.rec.Starts-1, 0), ShortRuns: p.rec.ShortRuns, LastExit: p.rec.LastExit, Message: p.message,
	}}
	if p.rec.PID != 0 && p.phase != runtime.Backoff { // in backoff it is one that a successor found gone
		st.PID, st.StartedAt = p.rec.PID, p.rec.StartedAt
	}
	switch { // whatever the run loop was at when it was asked to stop
	case p.toStop() && p.rec.Done && p.unsaved == nil:
		st.Phase = runtime.Stopped
	case p.toStop() && st.Phase != runtime.Stopped:
		st.Phase = runtime.Stopping
	}
	return st, p.rec.Spec.ID != ""
}

// adrift notes that nobody can say what became of a process that an earlier supervisor has started. It may run; nothing is
// done about it.
func (p *process) adrift(err error) {
	id := p.rec.Spec.ID
	p.broken = fmt.Errorf("take over %s: %w", id, err)
	p.phase, p.message = runtime.Unknown, p.broken.Error()+"; the supervisor goes on trying"
	p.sup.cfg.Log("process not taken over", map[string]any{"process": id, "error": err})
}

// takeOver tries again, until ctx ends, to find a process that is adrift, and begins to keep it. One whose record cannot be
// read stays as it is.
func (p *process) takeOver(ctx context.Context) {
	for p.known() && p.current().Spec.validate() == nil && wait.Pause(ctx, retryWatch) == nil {
		c, phase, err := p.sup.recover(p.current())
		if err != nil {
			continue
		}
		p.op.Lock()
		p.broken = nil
		p.enter(phase)
		p.begin(c)
		p.op.Unlock()
		p.log("process taken over", map[string]any{"pid": p.current().PID})
		return
	}
}

// begin starts the run loop. c is what an earlier supervisor left, or nil. The caller holds op.
func (p *process) begin(c *child) {
	ended := make(chan struct{})
	p.setChild(c)
	p.trust(c != nil && !c.Exited())
	if c != nil && !c.Exited() {
		p.keepLimits()
	}
	p.ended = ended
	p.recall = p.sup.tend(func(ctx, recalled context.Context) {
		defer close(ended)
		p.runLoop(ctx, recalled, c)
	})
	p.kept(p.recall)
}

// runLoop returns when the process is stopped or done, or when ctx ends, leaving everything as it runs.
// recalled ends with ctx, and as soon as a stop is desired.
func (p *process) runLoop(ctx, recalled context.Context, c *child) {
	for ctx.Err() == nil {
		switch {
		case c != nil:
			if !p.attend(ctx, recalled, c) {
				return
			}
			c = nil
		case p.stopping():
			p.stopped(ctx)
			return
		case p.current().Done:
			p.log("process not started again", map[string]any{"policy": p.current().Spec.Restart.Policy})
			return
		case !p.trusted():
			p.distrust()
		case p.pause(recalled):
			c = p.start(recalled)
		}
	}
}

// stopped notes that nothing of the process runs any more. It returns once the record on the disk says that the process
// is to be stopped, or when ctx ends. The stop waits for that, because a successor starts again what the record has run.
func (p *process) stopped(ctx context.Context) {
	msg, fields := "process stopped", map[string]any{}
	if p.current().Desired != wantStop {
		msg, fields = "process stopped by itself", map[string]any{"reason": p.whyExpired()}
	}
	for told := false; ; told = true {
		err := p.saveStop()
		if err == nil {
			p.log(msg, fields)
			return
		}
		if !told {
			p.log("process ended, and its stop cannot be recorded yet", map[string]any{"error": err})
		}
		if wait.Pause(ctx, retryWatch) != nil {
			return
		}
	}
}

// saveStop has the record on the disk say that nothing of the process is to run, unless it says so.
func (p *process) saveStop() error {
	p.mu.Lock()
	saved := p.rec.Desired == wantStop && p.unsaved == nil
	p.mu.Unlock()
	if saved {
		p.enter(runtime.Stopped)
		return nil
	}
	err := p.commit(runtime.Stopped, p.whyExpired(), func(r *record) { r.Desired = wantStop })
	if err != nil {
		p.mu.Lock()
		p.phase, p.message = runtime.Stopping, "ended, and its stop cannot be recorded yet: "+err.Error()
		p.mu.Unlock()
		p.sup.changed(p)
	}
	return err
}

// start launches the program and returns it, or nil when it could not be started. Clients see that it starts again, and that this is
// one more restart, at the same moment.
func (p *process) start(recalled context.Context) *child {
	with := p.current().Spec
	c, err := p.launch(recalled)
	if err != nil {
		p.note(runtime.Backoff, err.Error(), func(r *record) {
			r.PID, r.Start = 0, 0
			r.ShortRuns++
		})
		p.log("process not started", map[string]any{"error": err})
		return nil
	}
	p.setChild(c)
	if !p.current().Spec.same(with) { // somebody asked for other limits meanwhile
		p.keepLimits()
	}
	p.enter(runtime.Running)
	p.log("process started", map[string]any{"pid": c.PID})
	return c
}

// attend stays with a running process until nothing of it is left, true, or ctx ends, false.
func (p *process) attend(ctx, recalled context.Context, c *child) bool {
	since := time.Now() // of an adopted process the run counts from here: the wall clock may have jumped
	held, release := p.hold(recalled)
	defer release()
	if !p.stopping() { // a predecessor may not have finished a stop; nobody recalls for that one
		p.awaitStable(held, c)
		p.await(held, c)
	}
	ran, stopping, asked := time.Since(since), p.stopping(), p.askedFor(c)
	end := stopping || asked != nil
	switch {
	case ctx.Err() != nil:
		return false
	case end && !p.terminate(ctx, c), !end && !p.empty(ctx, c, unix.SIGKILL):
		return false
	}
	exit := c.status(p.current().Spec.Name)
	if !end && c.Cgroup != "" { // what is stopped was killed by us
		starved(&exit, isolate.MemoryOf(c.Cgroup).Since(c.before), p.current().Spec.memory())
	}
	p.sup.family.forget(c.PID)
	p.setChild(nil)
	c.Close()
	p.removeCgroup(c)
	p.stable = 0
	if asked != nil && !stopping {
		exit.Reason, p.stable = asked.Reason, asked.Stable
	}
	phase, done := runtime.Backoff, !p.current().Spec.Restart.Again(exit)
	if done {
		phase = runtime.Exited
	}
	p.note(phase, exit.String(), func(r *record) {
		r.PID, r.Start, r.LastExit, r.Done = 0, 0, &exit, done
		switch {
		case ran >= p.stableAfter():
			r.ShortRuns = 1
		case exit.Unknown:
			r.ShortRuns = max(r.ShortRuns, 1)
		default:
			r.ShortRuns++
		}
	})
	p.log("process ended", map[string]any{"pid": c.PID, "exit": exit.String()})
	return true
}

// stableAfter is how long a run lasts that is not a short one.
func (p *process) stableAfter() time.Duration {
	return max(p.sup.cfg.StableAfter, p.current().Spec.Restart.Stable, p.stable)
}

// awaitStable stays with a process that follows short runs until it has run for long enough for these to be forgotten. It returns
// before that when the process has ended or recalled ends.
func (p *process) awaitStable(recalled context.Context, c *child) {
	if p.current().ShortRuns == 0 {
		return
	}
	young, cancel := context.WithTimeout(recalled, p.stableAfter())
	defer cancel()
	p.await(young, c)
	if recalled.Err() == nil && !c.Exited() {
		p.note(runtime.Running, "", func(r *record) { r.ShortRuns = 0 })
		p.log("process has run for long enough", map[string]any{"pid": c.PID})
	}
}

// await returns when the process has ended or recalled ends, and for no other reason.
func (p *process) await(recalled context.Context, c *child) {
	for {
		err := c.Wait(recalled)
		if err == nil || recalled.Err() != nil {
			return
		}
		// Not knowing is no reason to touch what may run well: look again.
		p.log("process not watched", map[string]any{"pid": c.PID, "error": err})
		_ = wait.Pause(recalled, retryWatch)
	}
}

// terminate asks the whole session to end and kills it after the grace. It returns false when ctx ended first.
func (p *process) terminate(ctx context.Context, c *child) bool {
	grace, cancel := context.WithTimeout(ctx, p.current().Spec.StopGrace)
	defer cancel()
	// SIGCONT, because a stopped process would sleep through the request and then be killed without a chance.
	ask, _ := p.current().Spec.Signal() // validate has seen it
	for _, sig := range []unix.Signal{ask, unix.SIGCONT} {
		if _, err := c.Signal(&p.sup.scanner, sig); err != nil {
			p.log("signal not sent", map[string]any{"error": err})
		}
	}
	if c.Wait(grace) == nil && p.empty(grace, c, 0) {
		return true
	}
	return p.empty(ctx, c, unix.SIGKILL)
}

// empty sends sig again and again until nothing of the session runs. It returns false when ctx ended first.
func (p *process) empty(ctx context.Context, c *child, sig unix.Signal) bool {
	for look := firstLook; ctx.Err() == nil; look = min(2*look, lastLook) {
		live, err := c.Signal(&p.sup.scanner, sig)
		if err != nil {
			p.log("signal not sent", map[string]any{"error": err})
		} else if live == 0 && c.Exited() {
			return true
		}
		_ = wait.Pause(ctx, look)
	}
	return false
}

// removeCgroup removes the empty cgroup of a process that is gone. One that stays costs next to nothing.
func (p *process) removeCgroup(c *child) {
	if c.Cgroup == "" {
		return
	}
	if err := isolate.Remove(c.Cgroup); err != nil {
		p.log("cgroup not removed", map[string]any{"error": err})
	}
}

// pause waits until the next start is due. It returns false when it was interrupted.
func (p *process) pause(recalled context.Context) bool {
	rec := p.current()
	delay := rec.Spec.Restart.Delay(rec.ShortRuns, p.sup.cfg.RestartDelay, p.sup.cfg.MaxRestartDelay)
	return delay == 0 || wait.Pause(recalled, delay) == nil
}
