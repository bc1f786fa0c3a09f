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

// The first and the longest pause between two checks whether a session is empty.
const (
	firstLook = 5 * time.Millisecond
	lastLook  = 200 * time.Millisecond
)

// retryWatch is the pause after an error of the kernel or the disk.
const retryWatch = time.Second

// process is one supervised process. Clients change its desired state. Its run loop, one goroutine, starts and stops it
// accordingly.
type process struct {
	sup *supervisor

	op      sync.Mutex // held during one client's operation
	broken  error      // why the state of the process is not known; then the supervisor does not touch it
	removed bool       // no longer in the supervisor's map
	ended   chan struct{}
	version uint32             // the supervisor's version at the last visible change; sup.mu guards it
	recall  context.CancelFunc // makes the run loop check the desired state
	stable  time.Duration      // Stable of the request that ended the last run; only the run loop uses it

	sweeping sync.Mutex // held while an ended container is removed

	limits sync.Mutex // held from reading the desired limits until the cgroup has them

	write sync.Mutex // held from reading rec until the change of rec is on the disk

	mu      sync.Mutex
	rec     record
	unsaved error // why the disk may not have rec; nil: the disk has rec
	phase   runtime.Phase
	message string
	child   *child // the running process; nil between two runs
	dog     watchdog
	renewal renewal
}

func (p *process) current() record {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rec
}

// A process whose Start was refused has no record.
func (p *process) known() bool { return p.current().Spec.ID != "" }

func (p *process) stopping() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.toStop()
}

// The caller holds mu.
func (p *process) toStop() bool { return p.rec.Desired == wantStop || p.dog.expired }

// commit changes the record on the disk and then in memory. If the disk fails, the record in memory stays as it is.
// Record, phase and message change at the same moment, so that clients never see half of a step.
func (p *process) commit(phase runtime.Phase, message string, change func(*record)) error {
	p.write.Lock()
	defer p.write.Unlock()
	next := p.current()
	change(&next)
	if err := p.sup.records.Save(next); err != nil {
		p.mu.Lock()
		p.unsaved = err // the disk may have the change nevertheless
		p.mu.Unlock()
		return err
	}
	p.set(next, nil, phase, message)
	return nil
}

// note keeps the change in memory even if the disk fails. It is for an event that has happened, and for a stop. If the
// next supervisor reads the old record, it finds that the pid is gone, and does not know how the process ended. A stop
// is confirmed only when it is on the disk.
func (p *process) note(phase runtime.Phase, message string, change func(*record)) {
	p.write.Lock()
	defer p.write.Unlock()
	next := p.current()
	change(&next)
	err := p.sup.records.Save(next)
	if err != nil {
		p.log("state not written", map[string]any{"error": err})
	}
	p.set(next, err, phase, message)
}

func (p *process) set(next record, unsaved error, phase runtime.Phase, message string) {
	p.mu.Lock()
	p.rec, p.unsaved, p.phase, p.message = next, unsaved, phase, message
	p.mu.Unlock()
	p.sup.changed(p)
}

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

// status returns the state that clients see. For a process without a record, it returns false.
func (p *process) status() (localStatus, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := localStatus{p.rec.Spec, runtime.State{
		Phase: p.phase, Restarts: max(p.rec.Starts-1,
			0), ShortRuns: p.rec.ShortRuns, LastExit: p.rec.LastExit, Message: p.message,
	}}
	// In Backoff, rec can still have the pid of a process that this supervisor did not find any more.
	if p.rec.PID != 0 && p.phase != runtime.Backoff {
		st.PID, st.StartedAt = p.rec.PID, p.rec.StartedAt
	}
	switch { // while a process must stop, clients see only Stopping or Stopped
	case p.toStop() && p.rec.Done && p.unsaved == nil:
		st.Phase = runtime.Stopped
	case p.toStop() && st.Phase != runtime.Stopped:
		st.Phase = runtime.Stopping
	}
	return st, p.rec.Spec.ID != ""
}

// adrift records that a process of an earlier supervisor could not be checked. It may run, so this supervisor does not
// touch it.
func (p *process) adrift(err error) {
	id := p.rec.Spec.ID
	p.broken = fmt.Errorf("take over %s: %w", id, err)
	p.phase, p.message = runtime.Unknown, p.broken.Error()+"; the supervisor goes on trying"
	p.sup.cfg.Log("process not taken over", map[string]any{"process": id, "error": err})
}

// takeOver tries until ctx ends to find a process that is adrift, and then supervises it. If the record cannot be read,
// it does nothing.
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

// c is the running process that an earlier supervisor left, or nil. The caller holds p.op.
func (p *process) begin(c *child) {
	ended := make(chan struct{})
	p.setChild(c)
	p.trust(c != nil && !c.Exited())
	if c != nil && !c.Exited() {
		p.keepLimits()
	}
	p.ended = ended
	p.recall = p.sup.tend(func(ctx, recalled context.Context) {
		left := p.runTo(ctx, recalled, c, ended)
		p.tidy(ctx, left)
	})
	p.kept(p.recall)
}

// runTo closes ended when the run loop has ended. It returns the id of the container that is left.
func (p *process) runTo(ctx, recalled context.Context, c *child, ended chan<- struct{}) (left string) {
	defer close(ended)
	p.runLoop(ctx, recalled, c)
	return p.current().Container
}

// runLoop returns when the process is stopped, or has ended and is not started again. When ctx ends, it returns and
// leaves the process running. recalled ends when ctx ends, or when the process must stop.
func (p *process) runLoop(ctx, recalled context.Context, c *child) {
	if c == nil && !p.quell(ctx) { // an earlier supervisor may have left a half-made container
		return
	}
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

// stopped is called when no process runs any more. It returns when the record on the disk has the stop, or when ctx
// ends. It waits for this write, because the next supervisor starts every process that should run according to its
// record.
func (p *process) stopped(ctx context.Context) {
	msg, fields := "process stopped", map[string]any{}
	if p.current().Desired != wantStop {
		msg, fields = "process stopped by itself", map[string]any{"reason": p.whyExpired()}
	}
	for logged := false; ; logged = true {
		err := p.saveStop()
		if err == nil {
			p.log(msg, fields)
			return
		}
		if !logged {
			p.log("process ended, and its stop cannot be recorded yet", map[string]any{"error": err})
		}
		if wait.Pause(ctx, retryWatch) != nil {
			return
		}
	}
}

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

// If the program could not be started, start returns nil.
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
	if !p.current().Spec.same(with) { // a client changed the limits meanwhile
		p.keepLimits()
	}
	p.enter(runtime.Running)
	p.log("process started", map[string]any{"pid": c.PID})
	return c
}

// attend waits until a running process ends, or ends it if it must stop. It returns false when ctx ends.
func (p *process) attend(ctx, recalled context.Context, c *child) bool {
	since := time.Now() // not StartedAt of a process that was taken over, because the wall clock may have jumped
	held, release := p.hold(recalled)
	defer release()
	// If an earlier supervisor did not finish a stop, no recall comes for it.
	if !p.stopping() {
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
	if !end && c.Cgroup != "" { // in a stop, the supervisor itself may have killed the process
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

func (p *process) stableAfter() time.Duration {
	return max(p.sup.cfg.StableAfter, p.current().Spec.Restart.Stable, p.stable)
}

// awaitStable resets the number of short runs when the process has run for long enough.
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

func (p *process) await(recalled context.Context, c *child) {
	for {
		err := c.Wait(recalled)
		if err == nil || recalled.Err() != nil {
			return
		}
		// The process may run well, so only wait for it again.
		p.log("process not watched", map[string]any{"pid": c.PID, "error": err})
		_ = wait.Pause(recalled, retryWatch)
	}
}

// terminate returns false if ctx ends first.
func (p *process) terminate(ctx context.Context, c *child) bool {
	grace, cancel := context.WithTimeout(ctx, p.current().Spec.StopGrace)
	defer cancel()
	// SIGCONT too, because a process that was stopped by a signal would not handle the request, and would be killed.
	ask, _ := p.current().Spec.Signal() // Validate has checked the name
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

// empty sends sig again and again until no process of the session runs. It returns false if ctx ends first.
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

// If the removal fails, the cgroup costs almost nothing.
func (p *process) removeCgroup(c *child) {
	if c.Cgroup == "" {
		return
	}
	if err := isolate.Remove(c.Cgroup); err != nil {
		p.log("cgroup not removed", map[string]any{"error": err})
	}
}

// If recalled ends first, pause returns false.
func (p *process) pause(recalled context.Context) bool {
	rec := p.current()
	p.tidy(recalled, rec.Container)
	delay := rec.Spec.Restart.Delay(rec.ShortRuns, p.sup.cfg.RestartDelay, p.sup.cfg.MaxRestartDelay)
	return delay == 0 || wait.Pause(recalled, delay) == nil
}
