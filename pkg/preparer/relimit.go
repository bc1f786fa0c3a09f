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

// relimit gives the running processes the limits of the wanted manifest, if it differs only in limits. done is false if
// the pod must be stopped and started. The processes get the limits before the record is saved. After a crash in
// between, the next preparer restores the old limits or calls relimit again (P7).
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
		// Some processes may have the new limits already. Give the old version its own limits back until it is stopped.
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
	w.logChange(w.e, "change limits", obs.Fields{
		fieldDigest: install.Short(to.Digest), fieldRevision: rec.Intent.Revision, obs.Desired: m.Limits(),
	})
	w.At("", "")
	return next, true, nil
}

func (w *worker) askLimits(ctx context.Context, asks []runtime.LimitRequest) error {
	var errs []error
	for _, to := range asks {
		errs = append(errs, w.processes.Relimit(ctx, to))
	}
	return errors.Join(errs...)
}

func refusesLimits(err error) bool {
	return errors.Is(err, runtime.ErrKeepsLimits) || errors.Is(err, runtime.ErrTooOld)
}

// keepLimits restores the limits of the installed version after an interrupted relimit.
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
		w.limiter.Saw("limits of "+w.e.id.String(),
			"a pod has other limits than its manifest until its next start", err)
		return nil
	}
	return err
}
