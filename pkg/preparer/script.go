package preparer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/health"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/oneshot"
)

// minScriptTTL is how long, at least, the local agent believes what a script said last: longer than a restart of the
// preparer takes.
const minScriptTTL = time.Minute

// scriptWatch runs the health script of one pod. Preparer.mu guards verdict.
type scriptWatch struct {
	stop    context.CancelFunc
	done    chan struct{} // closed when nothing of it runs any more
	verdict health.Verdict
	known   bool // the verdict counts
}

// end stops the script and returns when nothing of it runs. It may be called on nil.
func (w *scriptWatch) end() {
	if w != nil {
		w.stop()
		<-w.done
	}
}

// scriptTTL is the TTL of the check that a script's verdicts are told to.
func scriptTTL(h *manifest.Health) time.Duration {
	interval, timeout := h.Interval.Or(manifest.DefaultHealthInterval), h.Timeout.Or(manifest.DefaultHealthTimeout)
	return max(minScriptTTL, 3*(interval+timeout))
}

// tendScripts begins to run the scripts of pods that came up. withdraw ends them.
func (p *Preparer) tendScripts(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, e := range p.pods {
		m := e.manifest()
		if !e.up || e.script != nil || m == nil || m.Health == nil || m.Health.Script == nil || !e.rested(m, now) {
			continue
		}
		procs, missing := e.installedProcs()
		v := p.version(&e.rec, e.rec.Installed)
		l := m.LaunchableOf(m.Health.Script.Launchable)
		i := slices.IndexFunc(procs, func(s runtime.Status) bool { return s.Spec.ID == v.FirstOf(l) })
		if missing || i < 0 {
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		w := &scriptWatch{stop: cancel, done: make(chan struct{})}
		// One that was available when the preparer was last here still is, until its script says otherwise.
		if running := instances(procs, missing); running != "" && running == e.readiness.ready {
			w.verdict.Passing, w.known = true, true
		}
		e.script = w
		p.changed(e)
		go func() {
			defer close(w.done)
			defer cancel()
			p.runScript(ctx, e, w, v, l, procs[i].Spec)
		}()
	}
}

// endScripts ends all scripts, as nobody is left to hear them.
func (p *Preparer) endScripts() {
	p.mu.Lock()
	var all []*scriptWatch
	for _, e := range p.pods {
		all = append(all, e.script)
	}
	p.mu.Unlock()
	for _, w := range all {
		w.end()
	}
}

// installedProcs returns the processes of the installed version, which is known, and whether some are missing. The caller
// holds p.mu.
func (e *entry) installedProcs() (procs []runtime.Status, missing bool) {
	if e.idsOf != e.rec.Installed {
		e.idsOf, e.ids = e.rec.Installed, install.SpecIDs(e.id, e.rec.Installed)
	}
	for _, status := range e.procs {
		if slices.Contains(e.ids, status.Spec.ID) {
			procs = append(procs, status)
		}
	}
	return procs, len(procs) != len(e.ids)
}

// runScript runs a script, as the process that it belongs to runs, until ctx ends.
func (p *Preparer) runScript(ctx context.Context, e *entry, w *scriptWatch, v *install.Version, l *manifest.Launchable, spec runtime.Spec) {
	h := v.M.Health
	// What the version links to: somebody may have removed the artifact of a running pod.
	for _, err := p.node.Fetch(ctx, v.M); err != nil; _, err = p.node.Fetch(ctx, v.M) {
		p.sawScript(e, w, health.Verdict{Output: err.Error()})
		if loop.Pause(ctx, h.Interval.Or(manifest.DefaultHealthInterval)) != nil {
			return
		}
	}
	command := oneshot.Command{
		Argv: append([]string{v.Path(l.Name, h.Script.Path)}, h.Script.Args...), Env: spec.Env, Dir: spec.Dir,
		Isolation: spec.Isolation, OutputBytes: health.MaxOutput,
	}
	timeout := h.Timeout.Or(manifest.DefaultHealthTimeout)
	check := health.Check{
		Ask:      func(ctx context.Context) (string, error) { return p.askScript(ctx, command, timeout) },
		Interval: h.Interval.Or(manifest.DefaultHealthInterval), SuccessThreshold: h.SuccessThreshold, FailureThreshold: h.FailureThreshold,
	}
	health.Watch(ctx, check, w.verdict.Passing, func(v health.Verdict) {
		p.sawScript(e, w, v)
		p.mu.Lock()
		id := serviceIDs(p.cfg.Node.Name, e.id, nil, e.rec.Intent.Standby)[0]
		p.mu.Unlock()
		// An agent that does not have the check yet, or is away, is told with the next verdict.
		if err := p.cfg.Services.UpdateCheck(ctx, id, v.Passing, v.Output); err != nil && ctx.Err() == nil {
			p.podLog(e.id).WithField(fieldService, id).Debug(fmt.Sprintf("verdict not told yet: %v", err))
		}
	})
}

// askScript runs a health script once. What it writes is kept in memory, as nobody else reads it.
func (p *Preparer) askScript(ctx context.Context, command oneshot.Command, timeout time.Duration) (output string, err error) {
	fd, err := unix.MemfdCreate("health script", unix.MFD_CLOEXEC)
	if err != nil {
		return "", fmt.Errorf("keep its output: %w", err)
	}
	file := os.NewFile(uintptr(fd), "health script")
	defer func() { _ = file.Close() }()
	command.Output = file
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("the health script took longer than %s", timeout))
	defer cancel()
	exit, err := p.cfg.Programs.Run(ctx, command)
	if err == nil && !exit.OK() {
		err = fmt.Errorf("the health script %s", exit)
	}
	said, readErr := io.ReadAll(io.NewSectionReader(file, 0, health.MaxOutput))
	return string(said), errors.Join(err, readErr)
}

func (p *Preparer) sawScript(e *entry, w *scriptWatch, v health.Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !w.known || w.verdict.Passing != v.Passing {
		p.changed(e)
	}
	p.sawComplaint(e, v.Passing, v.Output, time.Now())
	w.verdict, w.known = v, true
}

// healthOf returns the pod's health: what its script says, else what the local agent said. The caller holds p.mu.
func (e *entry) healthOf() checkState {
	if e.script != nil {
		return checkState{known: e.script.known, passing: e.script.known && e.script.verdict.Passing}
	}
	return e.health
}
