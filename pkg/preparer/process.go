package preparer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/supervise"
	"github.com/rcfarm/rcfarm/pkg/runtime"
)

// keep makes exactly the installed processes run. Processes that run already are left alone, whatever their
// specification says: a new version of the preparer must not restart pods.
func (p *Preparer) keep(ctx context.Context, e *entry, rec Record) (Record, error) {
	held, err := p.heldBack(e, &rec)
	if !held && err == nil && !rec.Installed.Known() {
		if rec, err = p.identify(ctx, e, rec); err != nil {
			return rec, err
		}
		held, err = p.heldBack(e, &rec)
	}
	if held && err == nil {
		err = p.holdBack(ctx, e, &rec)
	}
	if err != nil {
		return rec, err
	}
	if rec.AwaitsIntent {
		rec.AwaitsIntent = false
		if rec, err = p.save(e, rec); err != nil {
			return rec, err
		}
	}
	wanted := install.SpecIDs(e.id, rec.Installed)
	procs := p.procsOf(e)
	plan := supervise.Compare(wanted, procs)
	if !plan.Empty() {
		var err error
		if procs, err = p.processes.Of(ctx, e.id); err != nil { // the runtime's last report may be older than our last act
			p.keepFailed(e, &rec, fmt.Errorf("the runtime does not answer: %w", err))
			return rec, err
		}
		plan = supervise.Compare(wanted, procs)
	}
	p.spend(e, &rec, wanted, &plan)
	if !plan.Empty() || rec.Installed.Launching {
		var err error
		if rec, err = p.carryOut(ctx, e, rec, procs, plan); err != nil {
			p.keepFailed(e, &rec, err)
			return rec, err
		}
	}
	p.tidy(e, &rec)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !e.up {
		e.up = true
		p.agent.Wake.Raise()
	}
	return rec, nil
}

// keepFailed reports what keeps the installed version from running, unless it is on its way out: what is reported under
// the accepted revision must be about the version that it asked for.
func (p *Preparer) keepFailed(e *entry, rec *Record, err error) {
	if !rec.upToDate() || errors.Is(err, context.Canceled) {
		return
	}
	message := err.Error()
	if len(rec.Previous) > 0 {
		message += stays(rec.Previous[0])
	}
	p.setFailed(e, message, err)
}

// stays says that an earlier version is there to go back to.
func stays(in install.Installed) string {
	return fmt.Sprintf("; version %s stays installed", short(in.Digest))
}

// tidy does, once for each version and each start of the preparer, what a crash may have left undone after the launch.
// Nothing depends on it that runs.
func (p *Preparer) tidy(e *entry, rec *Record) {
	key := "versions of " + e.id.String()
	if e.tidied == rec.Installed.Revision {
		return
	}
	err := p.version(rec, rec.Installed).Switch()
	if err == nil {
		err = p.node.Prune(e.id, rec.versions())
	}
	if err != nil {
		p.trouble.Report(key, "installed versions of a pod cannot be tidied up", err)
		return
	}
	p.trouble.Over(key)
	e.tidied = rec.Installed.Revision
}

// carryOut follows the plan: what is superfluous goes first, then the installed version is launched. A newer intent
// interrupts the launch, whose hooks may take long, but no stop.
func (p *Preparer) carryOut(ctx context.Context, e *entry, rec Record, procs []runtime.Status, plan supervise.Plan) (Record, error) {
	v := p.version(&rec, rec.Installed)
	launching, done := p.interruptible(ctx, e, rec.Intent.Revision)
	defer done()
	if len(plan.Start) > 0 { // before anything is stopped
		if err := v.Ensure(launching, progress{p, e}); err != nil {
			return rec, err
		}
	}
	if len(plan.Stop) > 0 {
		p.takeOut(ctx, e)
		p.logChange(e, "stop old version", obs.Fields{obs.Process: strings.Join(plan.Stop, " ")})
	}
	if err := p.halt(ctx, e, &rec, procs, plan.Stop, plan.Remove); err != nil {
		return rec, err
	}
	if err := p.processes.Remove(ctx, plan.Remove); err != nil {
		return rec, err
	}
	return p.launch(launching, e, rec, v, plan)
}

// halt stops processes, with the hooks of the versions that they belong to around it. Those that are given besides have
// stopped already; what follows a stop may not have been done for them. Hooks cannot keep anything from being stopped.
func (p *Preparer) halt(ctx context.Context, e *entry, rec *Record, procs []runtime.Status, stop, stopped []string) error {
	among := func(ids []string) []runtime.Status {
		return slices.DeleteFunc(slices.Clone(procs), func(s runtime.Status) bool { return !slices.Contains(ids, s.Spec.ID) })
	}
	for _, v := range p.versionsOf(rec, among(stop)) {
		if err := v.PrepareStop(ctx, progress{p, e}); err != nil {
			return err
		}
	}
	if err := p.stopWithCommands(ctx, e, procs, stop, stopped); err != nil {
		return err
	}
	for _, v := range p.versionsOf(rec, among(slices.Concat(stop, stopped))) {
		if err := v.FinishStop(ctx, progress{p, e}); err != nil {
			return err
		}
	}
	return nil
}

// stopWithCommands stops processes, and ends what operators run beside them: whatever was started in the pod is gone before
// its stop is confirmed (P5).
func (p *Preparer) stopWithCommands(ctx context.Context, e *entry, procs []runtime.Status, stop, stopped []string) error {
	if len(stop)+len(stopped) == 0 {
		return nil
	}
	defer p.during(e, stopText(procs, stop))()
	defer e.commands.End()()
	if err := p.processes.Stop(ctx, stop); err != nil {
		return err
	}
	return supervise.AwaitCommands(ctx, p.commandsPath(e.id))
}

// launch switches to the version and starts what it lacks, with the hooks around it. What has to follow a start is noted
// before it, so that it is done after a crash too.
func (p *Preparer) launch(ctx context.Context, e *entry, rec Record, v *install.Version, plan supervise.Plan) (Record, error) {
	if len(plan.Start) > 0 {
		if err := v.PrepareLaunch(ctx, progress{p, e}, plan.Others); err != nil {
			return rec, err
		}
		if !rec.Installed.Launching && v.LaunchHooks() {
			var err error
			if rec, err = p.saveLaunching(e, rec, true); err != nil {
				return rec, err
			}
		}
		var err error
		if rec, err = p.saveRan(e, rec, v.M); err != nil {
			return rec, err
		}
		if err := p.startAll(ctx, e, &rec, v, plan.Start); err != nil {
			return rec, err
		}
	}
	if !rec.Installed.Launching {
		return rec, nil
	}
	if err := v.FinishLaunch(ctx, progress{p, e}); err != nil {
		return rec, err
	}
	return p.saveLaunching(e, rec, false)
}

func (p *Preparer) saveLaunching(e *entry, rec Record, launching bool) (Record, error) {
	installed := *rec.Installed
	installed.Launching = launching
	rec.Installed = &installed
	return p.save(e, rec)
}

// startAll starts processes. When one is refused, those that were started along with it are stopped again: a pod's
// processes live together or not at all.
func (p *Preparer) startAll(ctx context.Context, e *entry, rec *Record, v *install.Version, ids []string) error {
	var started []string
	for _, proc := range rec.Installed.Processes {
		spec, err := v.Spec(proc)
		if err == nil && slices.Contains(ids, spec.ID) {
			started = append(started, spec.ID) // the answer of one that was started may be lost
			if err = p.processes.Start(ctx, spec); err == nil {
				p.logChange(e, "start", obs.Fields{obs.Process: spec.ID, fieldDigest: short(rec.Installed.Digest)})
			}
		}
		if err != nil {
			undo := p.processes.Stop(ctx, started)
			if undo == nil {
				undo = p.processes.Remove(ctx, started)
			}
			return errors.Join(err, undo)
		}
	}
	return nil
}
