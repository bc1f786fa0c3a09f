package preparer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"syscall"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
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
	v, err := p.prepare(ctx, e, &rec, m)
	if err == nil {
		err = p.trusted(m, rec.Signature)
	}
	if err == nil {
		p.mu.Lock()
		e.up = false // the service stays that of the earlier version until its processes go
		p.mu.Unlock()
		var saved Record
		if saved, err = p.save(e, rec.installed(v.in, m.ID)); err == nil {
			rec = saved
		}
	}
	if err != nil {
		p.installFailed(ctx, e, &rec, err)
		return rec, err
	}
	p.logChange(e, "install", obs.Fields{fieldDigest: short(v.in.Digest), fieldRevision: v.in.Revision})
	p.setActivity(e, "", "")
	return rec, nil
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

// prepare makes a new version out of the manifest, up to its directory, with the hooks around that.
func (p *Preparer) prepare(ctx context.Context, e *entry, rec *Record, m *manifest.Manifest) (*version, error) {
	p.setActivity(e, pod.StateFetching, fetchText(m))
	roots, err := p.fetch(ctx, m)
	if err != nil {
		return nil, err
	}
	if err := p.trusted(m, rec.Signature); err != nil {
		return nil, err
	}
	p.setActivity(e, pod.StateInstalling, "installing "+short(rec.Intent.Digest))
	ports := effectivePorts(m, rec.Intent.Ports)
	if err := p.checkPorts(ctx, newPorts(ports, rec.Installed)); err != nil {
		return nil, err
	}
	v := p.version(rec, &Installed{Digest: rec.Intent.Digest, Revision: rec.Intent.Revision, Manifest: rec.Wanted, Ports: ports})
	v.roots = roots
	if v.in.Processes, err = v.processesOf(); err != nil {
		return nil, err
	}
	if err := p.moveIn(v); err != nil {
		return nil, err
	}
	if err := p.makeDirs(ctx, v, rec.Installed == nil); err != nil {
		return nil, err
	}
	if err := p.runHooks(ctx, e, v, beforeInstall); err != nil {
		return nil, err
	}
	if err := p.layOut(v); err != nil {
		return nil, err
	}
	v.roots = nil
	v.in.Launching = p.launchHooks(v)
	return v, p.runHooks(ctx, e, v, afterInstall)
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
			if refused = p.trusted(&m, rec.Signature); refused == nil {
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
		err = p.trusted(m, signature)
	}
	if err == nil {
		err = p.mayMoveIn(&rec, m)
	}
	if err != nil {
		if ctx.Err() == nil {
			p.cfg.Metrics.installFailed()
			message := fmt.Sprintf("cannot install %s: %v", short(digest), err)
			p.does(e, activity{state: stateOf(err), message: message, hopeless: hopeless(err)})
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

// errManifest marks what only another manifest, or another preparer, mends.
var errManifest = errors.New("unusable manifest")

// stateOf tells a manifest that is wrong or missing from a Consul that does not answer.
func stateOf(err error) pod.State {
	var corrupt *store.CorruptError
	if errors.Is(err, errManifest) || errors.Is(err, store.ErrNotFound) || errors.As(err, &corrupt) {
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
		return nil, nil, "", fmt.Errorf("%w %s: %w", errManifest, digest, err)
	}
	canonical, err = m.Canonical()
	if err != nil {
		return nil, nil, "", fmt.Errorf("%w %s: %w", errManifest, digest, err)
	}
	if manifest.Digest(canonical) != digest {
		return nil, nil, "", fmt.Errorf("%w %s: it has fields that this preparer does not know; upgrade the preparer", errManifest, digest)
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
		installed.Manifest, installed.Ports = canonical, effectivePorts(m, installed.Ports)
	}
	v := p.version(&rec, &installed)
	var err error
	if v.roots, err = p.fetch(ctx, v.m); err != nil {
		return fail(err)
	}
	if installed.Processes, err = v.processesOf(); err != nil {
		return fail(err)
	}
	rec.Installed = &installed
	return p.save(e, rec)
}

// fetch makes all artifacts of a pod present and returns their directories by launchable. One that is a program of the
// node has none.
func (p *Preparer) fetch(ctx context.Context, m *manifest.Manifest) (map[string]string, error) {
	dirs := make(map[string]string, len(m.Launchables))
	for i := range m.Launchables {
		l := &m.Launchables[i]
		if l.Artifact.Kind == manifest.ArtifactExec {
			continue
		}
		dir, err := p.cfg.Artifacts.Ensure(ctx, l.Artifact)
		if err != nil {
			p.prunable.Raise()
			return nil, fmt.Errorf("artifact of %s: %w", l.Name, err)
		}
		dirs[l.Name] = dir
		p.step("artifact there")
	}
	return dirs, nil
}

// effectivePorts returns the manifest's ports, with the numbers that the farm assigned where it did.
func effectivePorts(m *manifest.Manifest, assigned map[string]int) map[string]int {
	ports := m.PortMap()
	for name := range ports {
		if n := assigned[name]; n > 0 {
			ports[name] = n
		}
	}
	return ports
}

// newPorts returns the ports that the installed version does not hold already.
func newPorts(ports map[string]int, installed *Installed) map[string]int {
	if installed == nil {
		return ports
	}
	held := slices.Collect(maps.Values(installed.Ports))
	fresh := map[string]int{}
	for name, port := range ports {
		if !slices.Contains(held, port) {
			fresh[name] = port
		}
	}
	return fresh
}

// checkPorts refuses a port that something else listens on, so that a pod is not taken for that something.
func (p *Preparer) checkPorts(ctx context.Context, ports map[string]int) error {
	var config net.ListenConfig
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		if ports[name] == 0 {
			return fmt.Errorf("port %s: dynamic, and the farm gave it no number", name)
		}
		addr := net.JoinHostPort(p.cfg.Node.Address, strconv.Itoa(ports[name]))
		listener, err := config.Listen(ctx, "tcp", addr)
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			return fmt.Errorf("port %s: something else on the node holds %s; stop it, or let the pod use another port", name, addr)
		case err != nil:
			return fmt.Errorf("port %s: the node cannot listen on %s: %w", name, addr, err)
		}
		if err := listener.Close(); err != nil {
			return fmt.Errorf("port %s: close the trial listener on %s: %w", name, addr, err)
		}
	}
	return nil
}
