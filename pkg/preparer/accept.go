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

// install makes everything present that the accepted intent needs and then records it as installed; keep does the
// rest. Until then an older version keeps running, untouched. A newer intent interrupts it.
func (p *Preparer) install(ctx context.Context, e *entry, rec Record) (Record, error) {
	ctx, done := p.interruptible(ctx, e, rec.Intent.Revision)
	defer done()
	m, rec, err := p.wanted(ctx, e, rec)
	if err != nil {
		return rec, err
	}
	in, err := p.node.Install(ctx, &install.Order{
		Pod: e.id, Digest: rec.Intent.Digest, Revision: rec.Intent.Revision, Manifest: m, Canonical: rec.Wanted, Signature: rec.Signature,
		Ports: rec.Intent.Ports, UID: rec.UID, Before: rec.Installed,
	}, progress{p, e})
	if err == nil {
		p.mu.Lock()
		e.up = false // the service stays that of the earlier version until its processes go
		p.mu.Unlock()
		var saved Record
		if saved, err = p.save(e, rec.installed(in, m.ID)); err == nil {
			rec = saved
		}
	}
	if err != nil {
		p.installFailed(ctx, e, &rec, err)
		return rec, err
	}
	p.logChange(e, "install", obs.Fields{fieldDigest: short(in.Digest), fieldRevision: in.Revision})
	p.setActivity(e, "", "")
	return rec, nil
}

// progress says in a pod's reality what is done for it.
type progress struct {
	p *Preparer
	e *entry
}

// At sets the pod's activity.
func (g progress) At(state pod.State, message string) { g.p.setActivity(g.e, state, message) }

// During says what is waited for.
func (g progress) During(doing string) (over func()) { return g.p.during(g.e, doing) }

// Failed logs it.
func (g progress) Failed(message string, err error) {
	g.p.podLog(g.e.id).WithField(obs.Error, err).Warn(message)
}

// installFailed says why, and that what was installed before is as it was.
func (p *Preparer) installFailed(ctx context.Context, e *entry, rec *Record, err error) {
	if ctx.Err() != nil {
		return // interrupted: nothing is wrong with it
	}
	p.cfg.Metrics.installFailed()
	message := fmt.Sprintf("cannot install %s: %v", short(rec.Intent.Digest), err)
	if rec.Installed != nil {
		message += fmt.Sprintf("; version %s stays as it is", short(rec.Installed.Digest))
	}
	p.setFailed(e, message, err)
}

// interruptible returns a context that also ends when a newer intent is accepted.
func (p *Preparer) interruptible(ctx context.Context, e *entry, revision int64) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	e.cancel = cancel
	if e.want != nil && e.want.Revision > revision {
		cancel()
	}
	return ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		e.cancel = nil
		cancel()
	}
}

// wanted returns the manifest of the accepted intent: from the record, else from Consul, and then into the record, so
// that Consul is not needed again, unless the node's policy refuses what is there: somebody else may have signed it meanwhile.
func (p *Preparer) wanted(ctx context.Context, e *entry, rec Record) (*manifest.Manifest, Record, error) {
	digest := rec.Intent.Digest
	var refused error
	if rec.Wanted != nil {
		var m manifest.Manifest
		if err := json.Unmarshal(rec.Wanted, &m); err == nil && samePod(rec.Intent, &m) == nil {
			if refused = p.node.Trusted(&m, rec.Signature); refused == nil {
				return &m, rec, nil
			}
		}
	}
	over := p.during(e, "reading manifest "+short(digest)+" from Consul")
	m, canonical, signature, err := p.readManifest(ctx, digest)
	over()
	if err != nil && refused != nil {
		err = refused // a signature that counts may be there, and cannot be read
	}
	if err == nil {
		err = samePod(rec.Intent, m)
	}
	if err == nil {
		err = p.node.Trusted(m, signature)
	}
	if err == nil {
		err = p.node.MayMoveIn(e.id, rec.tenant(), m)
	}
	if err != nil {
		if ctx.Err() == nil {
			p.cfg.Metrics.installFailed()
			message := fmt.Sprintf("cannot install %s: %v", short(digest), err)
			p.does(e, activity{state: stateOf(err), message: message, hopeless: install.Hopeless(err)})
		}
		return nil, rec, err
	}
	rec.Wanted, rec.Signature = canonical, signature
	if rec.Tenant == "" && rec.Installed == nil {
		rec.Tenant = m.ID
	}
	rec, err = p.save(e, rec)
	return m, rec, err
}

// stateOf tells a manifest that is wrong or missing from a Consul that does not answer.
func stateOf(err error) pod.State {
	var corrupt *store.CorruptError
	if errors.Is(err, install.ErrManifest) || errors.Is(err, store.ErrNotFound) || errors.As(err, &corrupt) {
		return pod.StateFailed
	}
	return pod.StatePending
}

// readManifest reads and validates a manifest. A field that this build does not know would be lost on the way through
// canonical JSON; the digest tells.
func (p *Preparer) readManifest(ctx context.Context, digest string) (m *manifest.Manifest, canonical []byte, signature string, err error) {
	m, signature, err = p.cfg.Store.SignedManifest(ctx, digest)
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
		return nil, nil, "", fmt.Errorf("%w %s: it has fields that this preparer does not know; upgrade the preparer", install.ErrManifest, digest)
	}
	return m, canonical, signature, nil
}

// identify finds what the record of a pod lacks that was rebuilt from the runtime, and leaves the pod as it is until then.
func (p *Preparer) identify(ctx context.Context, e *entry, rec Record) (Record, error) {
	fail := func(err error) (Record, error) {
		p.setActivity(e, "", fmt.Sprintf("its local record was lost, and what it runs cannot be looked up: %v", err))
		return rec, err
	}
	installed := *rec.Installed
	if installed.Manifest == nil {
		m, canonical, _, err := p.readManifest(ctx, installed.Digest)
		if err != nil {
			return fail(err)
		}
		installed.Manifest, installed.Ports = canonical, install.EffectivePorts(m, installed.Ports)
	}
	v := p.version(&rec, &installed)
	roots, err := p.node.Fetch(ctx, v.M)
	if err == nil {
		installed.Processes, err = v.FindProcesses(roots)
	}
	if err != nil {
		return fail(err)
	}
	rec.Installed = &installed
	return p.save(e, rec)
}

// samePod reports an intent that names another pod than the manifest whose digest it names.
func samePod(in pod.Intent, m *manifest.Manifest) error {
	if m == nil || in.PodID == m.ID {
		return nil
	}
	return fmt.Errorf("%w: the intent's pod_id is %q, and manifest %s is of %q; whoever wrote the intent has to say which", install.ErrManifest, in.PodID, install.Short(in.Digest), m.ID)
}
