package preparer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// install installs the version that the accepted intent names. An older version runs until reconcileProcs replaces it.
// A newer intent interrupts install.
func (w *worker) install(ctx context.Context, rec Record) (Record, error) {
	ctx, done := w.interruptible(ctx, rec.Intent.Revision)
	defer done()
	if err := w.nameTaken(rec.Intent); err != nil {
		w.installFailed(ctx, &rec, pod.StatePending, err)
		return rec, err
	}
	m, rec, err := w.wanted(ctx, rec)
	if err != nil {
		return rec, err
	}
	next, relimited, err := w.relimit(ctx, rec, m)
	if err != nil {
		w.installFailed(ctx, &rec, pod.StateFailed, err)
	}
	if err != nil || relimited {
		return next, err
	}
	in, err := w.node.Install(ctx, &install.Order{
		Pod: w.e.id, Digest: rec.Intent.Digest, Revision: rec.Intent.Revision,
		Manifest: m, Canonical: rec.Wanted, Signature: rec.Signature,
		Ports: rec.Intent.Ports, Replicas: rec.Intent.Replicas, UID: rec.UID, Before: rec.Installed,
	}, w)
	if err == nil {
		w.enter(Replaced)
		var saved Record
		if saved, err = w.save(rec.installed(in, m.ID)); err == nil {
			rec = saved
		}
	}
	if err != nil {
		w.installFailed(ctx, &rec, pod.StateFailed, err)
		return rec, err
	}
	w.logChange(w.e, "install", obs.Fields{fieldDigest: install.Short(in.Digest), fieldRevision: in.Revision})
	w.At("", "")
	return rec, nil
}

func (w *worker) installFailed(ctx context.Context, rec *Record, state pod.State, err error) {
	if ctx.Err() != nil {
		return // an interrupted installation has not failed
	}
	w.cfg.Metrics.failures.Inc()
	message := fmt.Sprintf("cannot install %s: %v", install.Short(rec.Intent.Digest), err)
	if rec.Installed != nil {
		message += fmt.Sprintf("; version %s stays as it is", install.Short(rec.Installed.Digest))
	}
	w.does(activity{state: state, message: message, hopeless: install.Hopeless(err)})
}

// interruptible returns a context that also ends when a newer intent is accepted.
func (w *worker) interruptible(ctx context.Context, revision int64) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	w.pods.do(func() {
		w.e.cancel = cancel
		if w.e.want != nil && w.e.want.Revision > revision {
			cancel()
		}
	})
	return ctx, func() {
		w.pods.do(func() { w.e.cancel = nil })
		cancel()
	}
}

// wanted returns the manifest of the accepted intent from the record, or else from Consul, and saves it. If the node's
// policy refuses the signature in the record, it reads Consul again, because another signer may have signed since.
func (w *worker) wanted(ctx context.Context, rec Record) (*manifest.Manifest, Record, error) {
	digest := rec.Intent.Digest
	var refused error
	if rec.Wanted != nil {
		var m manifest.Manifest
		if err := json.Unmarshal(rec.Wanted, &m); err == nil && samePod(rec.Intent, &m) == nil {
			if refused = w.node.Trusted(&m, rec.Signature); refused == nil {
				return &m, rec, nil
			}
		}
	}
	over := w.During("reading manifest " + install.Short(digest) + " from Consul")
	m, canonical, signature, err := w.readManifest(ctx, digest)
	over()
	if err != nil && refused != nil {
		err = refused // report the refused signature, because it is why Consul is needed
	}
	if err == nil {
		err = samePod(rec.Intent, m)
	}
	if err == nil {
		err = w.node.Trusted(m, signature)
	}
	if err == nil {
		err = w.node.MayUseData(w.e.id, rec.dataOwner(), m)
	}
	if err != nil {
		w.installFailed(ctx, &rec, stateOf(err), err)
		return nil, rec, err
	}
	rec.Wanted, rec.Signature = canonical, signature
	if rec.DataOwner == "" && rec.Installed == nil {
		rec.DataOwner = m.ID
	}
	rec, err = w.save(rec)
	return m, rec, err
}

// stateOf returns failed if the manifest is invalid or missing, and pending if Consul does not answer.
func stateOf(err error) pod.State {
	if errors.Is(err, install.ErrManifest) || errors.Is(err, store.ErrNotFound) || isCorrupt(err) {
		return pod.StateFailed
	}
	return pod.StatePending
}

// readManifest reads and validates a manifest. If the manifest has a field that this build does not know, its canonical
// JSON lacks the field. Then the digest differs.
func (w *worker) readManifest(
	ctx context.Context, digest string,
) (m *manifest.Manifest, canonical []byte, signature string, err error) {
	if w.e.id.Local() {
		m, signature, err = w.localManifest(digest)
	} else {
		m, signature, err = w.cfg.Store.SignedManifest(ctx, digest)
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil, "", fmt.Errorf("manifest %s is not in Consul; apply it again: %w", digest, err)
	}
	if err != nil {
		return nil, nil, "", fmt.Errorf("read manifest %s: %w", digest, err)
	}
	if err := m.Validate().Err(); err != nil {
		return nil, nil, "", fmt.Errorf("%w %s: %w", install.ErrManifest, digest, err)
	}
	canonical, err = m.Canonical()
	if err != nil {
		return nil, nil, "", fmt.Errorf("%w %s: %w", install.ErrManifest, digest, err)
	}
	if manifest.Digest(canonical) != digest {
		return nil, nil, "", fmt.Errorf("%w %s: it has fields that this preparer does not know; upgrade the preparer",
			install.ErrManifest, digest)
	}
	return m, canonical, signature, nil
}

// identify completes a record that was rebuilt from the runtime's processes. Until it succeeds, the pod runs unchanged.
func (w *worker) identify(ctx context.Context, rec Record) (Record, error) {
	fail := func(err error) (Record, error) {
		w.At("", fmt.Sprintf("its record on the node was lost, and its version is not known yet: %v", err))
		return rec, err
	}
	installed := *rec.Installed
	if installed.Manifest == nil {
		m, canonical, _, err := w.readManifest(ctx, installed.Digest)
		if err != nil {
			return fail(err)
		}
		installed.Manifest, installed.Ports = canonical, install.EffectivePorts(m, installed.Ports)
	}
	v := w.version(&rec, &installed)
	fetched, err := w.node.Fetch(ctx, v.M, w)
	if err == nil {
		installed.Processes, err = v.FindProcesses(fetched)
	}
	if err != nil {
		return fail(err)
	}
	rec.Installed = &installed
	return w.save(rec)
}

func samePod(in pod.Intent, m *manifest.Manifest) error {
	if m == nil || in.PodID == m.ID {
		return nil
	}
	return fmt.Errorf("%w: the intent's pod_id is %q, and manifest %s has the id %q; "+
		"the intent must have the id of its manifest", install.ErrManifest, in.PodID, install.Short(in.Digest), m.ID)
}
