package preparer

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/supervise"
)

// relimit lets what runs of the installed version have the limits of the manifest that the accepted intent asks for,
// where the two differ in nothing else. It reports false where the pod has to be stopped and started for them. The
// processes have the limits before the record says so: a successor that finds them different from what is installed
// takes them back, or gets here again (P7).
func (w *worker) relimit(ctx context.Context, rec Record, m *manifest.Manifest) (next Record, done bool, err error) {
	in := rec.Installed
	was := in.Decode()
	if was == nil || !in.Known() || in.Launching || !manifest.OnlyLimitsDiffer(was, m) ||
		!maps.Equal(in.Ports, install.EffectivePorts(m, rec.Intent.Ports)) {
		return rec, false, nil
	}
	procs, err := w.processes.Of(ctx, w.e.id)
	if err != nil {
		return rec, false, fmt.Errorf("the runtime does not answer: %w", err)
	}
	to := in.Relimited(rec.Intent.Digest, rec.Wanted)
	asks, live := supervise.CompareLimits(w.version(&rec, to).Limits(), procs)
	if !live {
		return rec, false, nil
	}
	err = w.askLimits(ctx, asks)
	switch {
	case refusesLimits(err):
		w.podLog(w.e.id).WithField(obs.Reason, err.Error()).Warn("the pod is stopped and started for its new limits")
		// Until it is stopped, and if the new version cannot be installed, it is what it was.
		if err = w.askLimits(ctx, w.version(&rec, in).Limits()); refusesLimits(err) {
			err = nil
		}
		return rec, false, err
	case err != nil:
		return rec, false, err
	}
	if next, err = w.save(rec.relimited(to)); err != nil {
		return rec, false, err
	}
	w.logChange(w.e, "change limits", obs.Fields{fieldDigest: install.Short(to.Digest), fieldRevision: rec.Intent.Revision, obs.Desired: m.Limits()})
	w.At("", "")
	return next, true, nil
}

// askLimits asks the runtime for other limits of processes. One that is refused keeps no other from it.
func (w *worker) askLimits(ctx context.Context, asks []runtime.LimitRequest) error {
	var errs []error
	for _, to := range asks {
		errs = append(errs, w.processes.Relimit(ctx, to))
	}
	return errors.Join(errs...)
}

// refusesLimits reports whether the runtime has said that a process keeps the limits that it has.
func refusesLimits(err error) bool {
	return errors.Is(err, runtime.ErrKeepsLimits) || errors.Is(err, runtime.ErrTooOld)
}

// keepLimits has what runs of the installed version held to its limits, where a change of them was begun and is not
// wanted any more.
func (w *worker) keepLimits(ctx context.Context, rec *Record) error {
	v := w.version(rec, rec.Installed)
	if v == nil {
		return nil
	}
	asks, _ := supervise.CompareLimits(v.Limits(), w.procs())
	if len(asks) == 0 {
		return nil
	}
	err := w.askLimits(ctx, asks)
	if refused := refusesLimits(err); err == nil || refused {
		w.limiter.Saw("limits of "+w.e.id.String(), "a pod has other limits than its manifest says, until its next start", err)
		return nil
	}
	return err
}
