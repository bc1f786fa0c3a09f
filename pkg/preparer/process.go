package preparer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/proc"
)

// maxSpecID keeps a process id usable as a file name with a suffix.
const maxSpecID = 190

// specID names one process of one version of a pod. The revision makes it new for each installation: going back to an
// earlier digest must not meet that version's stopped processes.
func specID(id pod.Identity, revision int64, digest, process string) string {
	full := fmt.Sprintf("%s.%s.%s.%d", fileName(id), process, short(digest), revision)
	if len(full) <= maxSpecID {
		return full
	}
	sum := sha256.Sum256([]byte(full))
	return full[:maxSpecID-17] + "." + hex.EncodeToString(sum[:8])
}

// podOf returns whose process a status is about. Of one whose record the runtime cannot read only the id is left, which
// begins with the identity; ok is false when it is nobody's.
func podOf(status *runtime.Status) (id pod.Identity, ok bool) {
	if status.Phase != runtime.Unknown {
		return status.Spec.Pod, true
	}
	parts := strings.SplitN(status.Spec.ID, ".", 4)
	if len(parts) < 4 {
		return pod.Identity{}, false
	}
	index, err := strconv.Atoi(parts[2])
	id = pod.Identity{RCID: parts[0], Role: parts[1], Index: index}
	return id, err == nil && strings.HasPrefix(status.Spec.ID, fileName(id)+".")
}

// byPod sorts what the runtime has by whose it is.
func byPod(procs []runtime.Status) map[pod.Identity][]runtime.Status {
	sorted := map[pod.Identity][]runtime.Status{}
	for i := range procs {
		if id, ok := podOf(&procs[i]); ok {
			sorted[id] = append(sorted[id], procs[i])
		}
	}
	return sorted
}

// specIDs names all processes of a version.
func specIDs(id pod.Identity, in *Installed) []string {
	ids := make([]string, len(in.Processes))
	for i, proc := range in.Processes {
		ids[i] = specID(id, in.Revision, in.Digest, proc.Name)
	}
	return ids
}

// procPlan is what must be done so that exactly the wanted processes run.
type procPlan struct {
	stop   []string // still running, or on their way down
	remove []string // to be forgotten, after stop
	start  []string // after remove
	others bool     // wanted ones that need nothing are there
}

func (pl *procPlan) empty() bool { return len(pl.stop)+len(pl.remove)+len(pl.start) == 0 }

// planProcs compares the wanted ids with what the runtime has of the pod.
func planProcs(wanted []string, procs []runtime.Status) procPlan {
	var plan procPlan
	have := map[string]bool{}
	for _, status := range procs {
		id := status.Spec.ID
		ending := status.Phase == runtime.Stopped || status.Phase == runtime.Stopping
		if slices.Contains(wanted, id) && !ending {
			have[id], plan.others = true, true
			continue
		}
		if status.Phase != runtime.Stopped {
			plan.stop = append(plan.stop, id)
		}
		plan.remove = append(plan.remove, id)
	}
	for _, id := range wanted {
		if !have[id] {
			plan.start = append(plan.start, id)
		}
	}
	return plan
}

// keep makes exactly the installed processes run. Processes that run already are left alone, whatever their
// specification says: a new version of the preparer must not restart pods.
func (p *Preparer) keep(ctx context.Context, e *entry, rec Record) (Record, error) {
	held, err := p.heldBack(e, &rec)
	if !held && err == nil && !rec.Installed.known() {
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
	wanted := specIDs(e.id, rec.Installed)
	procs := p.procsOf(e)
	plan := planProcs(wanted, procs)
	if !plan.empty() {
		var err error
		if procs, err = p.refresh(ctx, e); err != nil { // the runtime's last report may be older than our last act
			p.keepFailed(e, &rec, fmt.Errorf("the runtime does not answer: %w", err))
			return rec, err
		}
		plan = planProcs(wanted, procs)
	}
	p.spend(e, &rec, wanted, &plan)
	if !plan.empty() || rec.Installed.Launching {
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
		p.service.Raise()
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
func stays(in Installed) string { return fmt.Sprintf("; version %s stays installed", short(in.Digest)) }

// tidy does, once for each version and each start of the preparer, what a crash may have left undone after the launch.
// Nothing depends on it that runs.
func (p *Preparer) tidy(e *entry, rec *Record) {
	key := "versions of " + e.id.String()
	if e.tidied == rec.Installed.Revision {
		return
	}
	err := p.switchTo(p.version(rec, rec.Installed))
	if err == nil {
		err = p.prune(rec)
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
func (p *Preparer) carryOut(ctx context.Context, e *entry, rec Record, procs []runtime.Status, plan procPlan) (Record, error) {
	v := p.version(&rec, rec.Installed)
	launching, done := p.interruptible(ctx, e, rec.Intent.Revision)
	defer done()
	if len(plan.start) > 0 { // before anything is stopped
		if err := p.ensureVersion(launching, e, v); err != nil {
			return rec, err
		}
	}
	if len(plan.stop) > 0 {
		p.takeOut(ctx, e)
		p.logChange(e, "stop old version", obs.Fields{obs.Process: strings.Join(plan.stop, " ")})
	}
	if err := p.halt(ctx, e, &rec, procs, plan.stop, plan.remove); err != nil {
		return rec, err
	}
	if err := p.removeProcs(ctx, plan.remove); err != nil {
		return rec, err
	}
	return p.launch(launching, e, rec, v, plan)
}

// ensureVersion makes everything present that the version is launched from. It is there unless the disk lost it.
func (p *Preparer) ensureVersion(ctx context.Context, e *entry, v *version) error {
	defer p.during(e, fetchText(v.m))()
	roots, err := p.fetch(ctx, v.m)
	if err != nil {
		return err
	}
	if v.present() {
		return nil
	}
	v.roots = roots
	defer func() { v.roots = nil }()
	return p.layOut(v)
}

// halt stops processes, with the hooks of the versions that they belong to around it. Those that are given besides have
// stopped already; what follows a stop may not have been done for them. Hooks cannot keep anything from being stopped.
func (p *Preparer) halt(ctx context.Context, e *entry, rec *Record, procs []runtime.Status, stop, stopped []string) error {
	among := func(ids []string) []runtime.Status {
		return slices.DeleteFunc(slices.Clone(procs), func(s runtime.Status) bool { return !slices.Contains(ids, s.Spec.ID) })
	}
	for _, v := range p.versionsOf(rec, among(stop)) {
		for _, point := range []string{beforeStop, disable} {
			if err := p.tryHooks(ctx, e, v, point); err != nil {
				return err
			}
		}
	}
	if err := p.stopWithCommands(ctx, e, procs, stop, stopped); err != nil {
		return err
	}
	for _, v := range p.versionsOf(rec, among(slices.Concat(stop, stopped))) {
		if err := p.tryHooks(ctx, e, v, afterStop); err != nil {
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
	defer p.endCommands(e)()
	if err := p.stopProcs(ctx, stop); err != nil {
		return err
	}
	return p.awaitCommands(ctx, e.id)
}

// launch switches to the version and starts what it lacks, with the hooks around it. What has to follow a start is noted
// before it, so that it is done after a crash too.
func (p *Preparer) launch(ctx context.Context, e *entry, rec Record, v *version, plan procPlan) (Record, error) {
	if len(plan.start) > 0 {
		if err := p.prepareLaunch(ctx, e, &rec, v, plan); err != nil {
			return rec, err
		}
		if !rec.Installed.Launching && p.launchHooks(v) {
			var err error
			if rec, err = p.saveLaunching(e, rec, true); err != nil {
				return rec, err
			}
		}
		var err error
		if rec, err = p.saveRan(e, rec, v.m); err != nil {
			return rec, err
		}
		if err := p.startAll(ctx, e, &rec, v, plan.start); err != nil {
			return rec, err
		}
	}
	if !rec.Installed.Launching {
		return rec, nil
	}
	if err := p.runHooks(ctx, e, v, afterLaunch); err != nil {
		return rec, err
	}
	if err := p.tryHooks(ctx, e, v, enable); err != nil {
		return rec, err
	}
	return p.saveLaunching(e, rec, false)
}

func (p *Preparer) prepareLaunch(ctx context.Context, e *entry, rec *Record, v *version, plan procPlan) error {
	if !plan.others {
		if err := p.checkPorts(ctx, rec.Installed.Ports); err != nil {
			return err
		}
	}
	if err := p.makeDirs(ctx, v, true); err != nil {
		return err
	}
	if err := p.switchTo(v); err != nil {
		return err
	}
	return p.runHooks(ctx, e, v, beforeLaunch)
}

func (p *Preparer) saveLaunching(e *entry, rec Record, launching bool) (Record, error) {
	installed := *rec.Installed
	installed.Launching = launching
	rec.Installed = &installed
	return p.save(e, rec)
}

// startAll starts processes. When one is refused, those that were started along with it are stopped again: a pod's
// processes live together or not at all.
func (p *Preparer) startAll(ctx context.Context, e *entry, rec *Record, v *version, ids []string) error {
	var started []string
	for _, proc := range rec.Installed.Processes {
		spec, err := p.spec(v, proc)
		if err == nil && slices.Contains(ids, spec.ID) {
			started = append(started, spec.ID) // the answer of one that was started may be lost
			err = p.start(ctx, e, spec)
		}
		if err != nil {
			undo := p.stopProcs(ctx, started)
			if undo == nil {
				undo = p.removeProcs(ctx, started)
			}
			return errors.Join(err, undo)
		}
	}
	return nil
}

func (p *Preparer) start(ctx context.Context, e *entry, spec runtime.Spec) error {
	p.step("start")
	err := p.cfg.Runtime.Start(ctx, spec)
	if err != nil && !errors.Is(err, runtime.ErrExists) {
		return fmt.Errorf("start %s: %w", spec.Name, err)
	}
	p.step("start done")
	p.logChange(e, "start", obs.Fields{obs.Process: spec.ID, fieldDigest: short(e.rec.Installed.Digest)})
	return nil
}

// spec describes one process.
func (p *Preparer) spec(v *version, of Process) (runtime.Spec, error) {
	l := v.m.LaunchableOf(of.Launchable)
	iso, err := p.isolation(v.id, l)
	if err != nil {
		return runtime.Spec{}, err
	}
	restart := runtime.Restart{Policy: runtime.Always, Min: manifest.DefaultBackoffMin, Max: manifest.DefaultBackoffMax, Stable: v.m.ReadyAfter()}
	if r := l.Restart; r != nil {
		restart.Min, restart.Max = r.BackoffMin.Or(restart.Min), r.BackoffMax.Or(restart.Max)
		if r.Policy != "" {
			restart.Policy = runtime.RestartPolicy(r.Policy) // they are called alike
		}
	}
	id := specID(v.id, v.in.Revision, v.in.Digest, of.Name)
	p.cfg.Isolation.confine(iso, id, l.Resources)
	return runtime.Spec{
		ID:  id,
		Pod: v.id, Revision: v.in.Revision, Name: of.Name,
		Command: append([]string{v.path(l.Name, of.Path)}, l.Args...),
		Env:     joinEnv(p.env(v, l)), Dir: p.workDir(v.id, l),
		LogPath:  filepath.Join(p.logs(v.id), of.Name+".log"),
		LogBytes: p.cfg.LogBytes, LogKeep: p.cfg.LogKeep,
		StopGrace: l.StopGrace.Or(manifest.DefaultStopGrace), StopSignal: l.StopSignal,
		Restart: restart, Isolation: iso, HoldAfterBoot: stopAfter(v.m) != proc.Never,
	}, nil
}

// stopProcs stops processes side by side, so that their graces do not add up.
func (p *Preparer) stopProcs(ctx context.Context, ids []string) error {
	var all errgroup.Group
	for _, id := range ids {
		all.Go(func() error {
			p.step("stop")
			if err := p.cfg.Runtime.Stop(ctx, id); err != nil {
				return fmt.Errorf("stop %s: %w", id, err)
			}
			p.step("stop done")
			return nil
		})
	}
	return all.Wait()
}

// removeProcs makes the runtime forget what is stopped.
func (p *Preparer) removeProcs(ctx context.Context, ids []string) error {
	for _, id := range ids {
		if err := p.cfg.Runtime.Remove(ctx, id); err != nil {
			return fmt.Errorf("remove stopped process %s: %w", id, err)
		}
		p.step("remove done")
	}
	return nil
}

func unique(ids []string) []string {
	slices.Sort(ids)
	return slices.Compact(ids)
}
