package register

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// minScriptTTL is longer than a restart of the preparer takes.
const minScriptTTL = time.Minute

// scriptWatch runs the health script of one pod. Registrar.mu guards verdict and known.
type scriptWatch struct {
	stop    context.CancelFunc
	done    chan struct{} // closed when no process of the script runs any more
	verdict verdict
	known   bool // verdict is valid
}

// end returns when no process of the script runs any more. The receiver may be nil.
func (s *scriptWatch) end() {
	if s != nil {
		s.stop()
		<-s.done
	}
}

// scriptTTL is how long the agent keeps a script's last verdict.
func scriptTTL(h *manifest.Health) time.Duration {
	interval, timeout := h.Interval.Or(manifest.DefaultHealthInterval), h.Timeout.Or(manifest.DefaultHealthTimeout)
	return max(minScriptTTL, 3*(interval+timeout))
}

// tendScripts starts the health scripts of pods that are up. Withdraw ends them.
func (r *Registrar) tendScripts(ctx context.Context) {
	begun := map[pod.Identity]time.Time{}
	for _, p := range r.cfg.Pods(time.Now()) {
		if p.Up && p.Rested && len(p.Procs) > 0 && r.beginScript(ctx, p) {
			begun[p.ID] = time.Time{}
		}
	}
	if len(begun) > 0 {
		r.cfg.Changed(begun)
	}
}

func (r *Registrar) beginScript(ctx context.Context, p Pod) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.of(p.ID)
	if s.script != nil {
		return false
	}
	v := r.cfg.Versions.Version(p.ID, p.UID, p.Installed)
	l := p.Manifest.LaunchableOf(p.Manifest.Health.Script.Launchable)
	process := v.FirstOf(l)
	if !slices.ContainsFunc(p.Procs, func(s runtime.Status) bool { return s.Spec.ID == process }) {
		return false
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &scriptWatch{stop: cancel, done: make(chan struct{})}
	// A pod that was available before the preparer's restart stays available until its script fails.
	w.verdict.passing, w.known = p.Available, p.Available
	s.script = w
	go func() {
		defer close(w.done)
		defer cancel()
		r.runScript(ctx, s, w, v, l, process)
	}()
	return true
}

func (r *Registrar) endScripts() {
	r.mu.Lock()
	var all []*scriptWatch
	for _, s := range r.services {
		all = append(all, s.script)
	}
	r.mu.Unlock()
	for _, w := range all {
		w.end()
	}
}

func (r *Registrar) runScript(ctx context.Context, s *service, w *scriptWatch, v *install.Version,
	l *manifest.Launchable, process string,
) {
	h := v.M.Health
	interval := h.Interval.Or(manifest.DefaultHealthInterval)
	// An artifact can have been removed while the pod runs.
	for _, err := r.cfg.Versions.Fetch(ctx, v.M, nil); err != nil; _, err = r.cfg.Versions.Fetch(ctx, v.M, nil) {
		r.heard(v.ID, s, w, verdict{output: err.Error()})
		if wait.Pause(ctx, interval) != nil {
			return
		}
	}
	command := append([]string{v.Path(l.Name, h.Script.Path)}, v.Expand(l, h.Script.Args)...)
	timeout := h.Timeout.Or(manifest.DefaultHealthTimeout)
	ask := func(ctx context.Context) (string, error) { return r.askScript(ctx, process, command, timeout) }
	count := counter{passing: w.verdict.passing, success: h.SuccessThreshold, failure: h.FailureThreshold}
	judge(ctx, interval, count, ask, func(says verdict) {
		id := serviceIDs(r.cfg.Node.Name, v.ID, nil, r.heard(v.ID, s, w, says))[0]
		if r.cfg.Reach() < Running {
			return
		}
		// If the agent does not have the check yet, or does not answer, the next verdict updates it.
		if err := r.cfg.Services.UpdateCheck(ctx, id, says.passing, says.output); err != nil && ctx.Err() == nil {
			r.podLog(v.ID).WithField(fieldService, id).Debug(fmt.Sprintf("verdict not reported yet: %v", err))
		}
	})
}

func (r *Registrar) askScript(ctx context.Context, process string, command []string,
	timeout time.Duration,
) (output string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout,
		refusal(fmt.Sprintf("the health script took longer than %s", timeout)))
	defer cancel()
	var stdout bytes.Buffer
	exit, err := r.cfg.Runtime.Exec(ctx, process, command, runtime.Streams{Output: &stdout, MaxBytes: maxOutput})
	if err == nil && !exit.OK() {
		err = refusal(fmt.Sprintf("the health script %s", exit))
	}
	return string(stdout.Bytes()[:min(stdout.Len(), maxOutput)]), err
}

// heard returns whether the pod is a standby.
func (r *Registrar) heard(id pod.Identity, s *service, w *scriptWatch, v verdict) (standby bool) {
	r.mu.Lock()
	news := !w.known || w.verdict.passing != v.passing
	news = s.hear(v.passing, v.output, time.Now()) || news
	w.verdict, w.known = v, true
	standby = s.wanted
	r.mu.Unlock()
	if news {
		r.cfg.Changed(map[pod.Identity]time.Time{id: {}})
	}
	return standby
}
