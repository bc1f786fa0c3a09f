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
// rest. Until then an older version keeps running. A newer intent interrupts it.
func (p *Preparer) install(ctx context.Context, e *entry, rec Record) (Record, error) {
	ctx, done := p.interruptible(ctx, e, rec.Intent.Revision)
	defer done()
	m, rec, err := p.wanted(ctx, e, rec)
	if err != nil {
		return rec, err
	}
	fail := func(err error) (Record, error) {
		if ctx.Err() == nil {
			p.cfg.Metrics.installFailed()
			p.setActivity(e, pod.StateFailed, fmt.Sprintf("cannot install %s: %v", short(rec.Intent.Digest), err))
		}
		return rec, err
	}
	p.setActivity(e, pod.StateFetching, "")
	select {
	case p.installs <- struct{}{}:
	case <-ctx.Done():
		return rec, ctx.Err()
	}
	_, err = p.fetch(ctx, m)
	<-p.installs
	if err != nil {
		return fail(err)
	}
	p.setActivity(e, pod.StateInstalling, "")
	ports := effectivePorts(m, rec.Intent.Ports)
	if err := p.checkPorts(ctx, newPorts(ports, rec.Installed)); err != nil {
		return fail(err)
	}
	next := rec
	next.Installed = &Installed{Digest: rec.Intent.Digest, Revision: rec.Intent.Revision, Manifest: rec.Wanted, Ports: ports}
	next.Wanted = nil
	p.mu.Lock()
	e.up = false // the service stays that of the earlier version until its processes go
	p.mu.Unlock()
	saved, err := p.save(e, next)
	if err != nil {
		return fail(err)
	}
	p.logChange(e, "install", obs.Fields{fieldDigest: short(saved.Installed.Digest), fieldRevision: saved.Installed.Revision})
	p.setActivity(e, "", "")
	return saved, nil
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
// that Consul is not needed again.
func (p *Preparer) wanted(ctx context.Context, e *entry, rec Record) (*manifest.Manifest, Record, error) {
	digest := rec.Intent.Digest
	if rec.Wanted != nil {
		var m manifest.Manifest
		if err := json.Unmarshal(rec.Wanted, &m); err == nil {
			return &m, rec, nil
		}
	}
	m, canonical, signature, err := p.readManifest(ctx, digest)
	if err == nil {
		err = p.trusted(m, canonical, signature)
	}
	if err != nil {
		if ctx.Err() == nil {
			p.cfg.Metrics.installFailed()
			p.setActivity(e, stateOf(err), fmt.Sprintf("cannot install %s: %v", short(digest), err))
		}
		return nil, rec, err
	}
	rec.Wanted = canonical
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

// identify finds the manifest of a pod whose record was rebuilt from the runtime.
func (p *Preparer) identify(ctx context.Context, e *entry, rec Record) (Record, *manifest.Manifest, error) {
	m, canonical, _, err := p.readManifest(ctx, rec.Installed.Digest)
	if err != nil {
		p.setActivity(e, "", fmt.Sprintf("its local record was lost, and what it runs cannot be looked up: %v", err))
		return rec, nil, err
	}
	installed := *rec.Installed
	installed.Manifest, installed.Ports = canonical, effectivePorts(m, installed.Ports)
	rec.Installed = &installed
	rec, err = p.save(e, rec)
	return rec, m, err
}

// fetch makes all artifacts of a pod present and returns their directories by launchable.
func (p *Preparer) fetch(ctx context.Context, m *manifest.Manifest) (map[string]string, error) {
	dirs := make(map[string]string, len(m.Launchables))
	for i := range m.Launchables {
		l := &m.Launchables[i]
		dir, err := p.cfg.Artifacts.Ensure(ctx, l.Artifact)
		if err != nil {
			return nil, fmt.Errorf("artifact of %s: %w", l.Name, err)
		}
		dirs[l.Name] = dir
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
