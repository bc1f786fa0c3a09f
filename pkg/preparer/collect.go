package preparer

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
)

// minTombstone is how long a tombstone stays however many there are: a farm that is behind writes nothing this old.
const minTombstone = 24 * time.Hour

// collect removes, now and then until ctx ends, what stopped pods leave behind: first their directories, except for
// volumes, then their tombstones.
func (p *Preparer) collect(ctx context.Context) {
	if !p.awaitReady(ctx) {
		return
	}
	p.node.ReportStrangers(p.known())
	for ctx.Err() == nil {
		p.collectOnce(time.Now())
		if loop.Pause(ctx, p.cfg.CollectEvery) != nil {
			return
		}
	}
}

// collectOnce touches the disk without p.mu, which everything that is reported needs.
func (p *Preparer) collectOnce(now time.Time) {
	stopped, old := p.collectable(now)
	for _, e := range stopped {
		left := p.node.Left(e.id)
		p.mu.Lock()
		if e.collected = !left; left {
			p.enqueue(e) // its worker removes them, so that nothing is removed under a pod that starts again
		}
		p.mu.Unlock()
	}
	const key = "tombstones"
	var errs []error
	for _, e := range old {
		errs = append(errs, p.forget(e))
	}
	if err := errors.Join(errs...); err != nil {
		p.trouble.Report(key, "old tombstones cannot be removed", err)
	} else {
		p.trouble.Over(key)
	}
	p.node.ReleaseUsers(p.known)
}

// collectable returns the pods that have been stopped for long enough, and those whose tombstones may go. Of these no worker
// begins until forget is done.
func (p *Preparer) collectable(now time.Time) (stopped, old []*entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.pods {
		switch {
		case e.rec.StoppedAt == nil || e.want != nil || e.working:
		case !e.collected && p.stoppedFor(&e.rec, now) >= p.cfg.KeepStopped:
			stopped = append(stopped, e)
		case e.collected && e.standing.verdict == Gone && p.board.Erased(e.id):
			old = append(old, e)
		}
	}
	old = p.expired(now, old)
	for _, e := range old {
		e.working, e.again = true, false
	}
	return stopped, old
}

// forget removes a tombstone. A pod that was told something meanwhile stays, and gets its worker.
func (p *Preparer) forget(e *entry) error {
	err := p.cfg.State.Forget(e.id)
	p.mu.Lock()
	defer p.mu.Unlock()
	e.working = false
	switch {
	case e.again || e.want != nil:
		e.unsaved = true
		p.enqueue(e)
	case err == nil:
		delete(p.pods, e.id)
		p.board.Forget(e.id)
		p.agent.Forget(e.id)
		p.step("tombstone removed")
	}
	return err
}

// plausible is before any pod was stopped. A clock that says less had not been set.
var plausible = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// stoppedFor returns for how long a pod has been stopped: by the monotonic clock where this preparer stopped it, else by the
// time on the record. Where that cannot be, because the clock was wrong, it counts from the start of this preparer.
func (p *Preparer) stoppedFor(rec *Record, now time.Time) time.Duration {
	if rec.StoppedAt.Before(plausible) {
		return now.Sub(p.began)
	}
	return now.Sub(*rec.StoppedAt)
}

// expired returns the tombstones that may go: those that have stood their time, and the oldest of those that are too many.
func (p *Preparer) expired(now time.Time, tombs []*entry) []*entry {
	age := func(e *entry) time.Duration { return p.stoppedFor(&e.rec, now) }
	slices.SortFunc(tombs, func(a, b *entry) int { return a.rec.StoppedAt.Compare(*b.rec.StoppedAt) })
	n := 0
	for n < len(tombs) && (age(tombs[n]) >= p.cfg.KeepTombstones || len(tombs)-n > p.cfg.MaxTombstones && age(tombs[n]) >= minTombstone) {
		n++
	}
	return tombs[:n]
}

// removeDirs takes away what a stopped pod left on the disk, once it has been stopped for long enough. Volumes stay.
func (p *Preparer) removeDirs(e *entry, rec *Record) error {
	collected := rec.StoppedAt != nil && p.stoppedFor(rec, time.Now()) >= p.cfg.KeepStopped
	var err error
	if collected {
		err = p.node.Discard(e.id)
		_ = os.Remove(p.commandsPath(e.id)) // it is empty, and may be made again
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e.collected = collected && err == nil
	return err
}

// known returns the identities of all pods that the node knows.
func (p *Preparer) known() map[pod.Identity]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := make(map[pod.Identity]bool, len(p.pods))
	for id := range p.pods {
		known[id] = true
	}
	return known
}

// LiveArtifacts returns the digests of the artifacts that installed versions need, or one that is being installed. known is
// false while they cannot all be told, because of a pod whose record was lost.
func (p *Preparer) LiveArtifacts() (live map[string]bool, known bool) {
	live = map[string]bool{}
	p.mu.Lock()
	defer p.mu.Unlock()
	known = p.runtimeSeen
	for _, e := range p.pods {
		versions := e.rec.versions()
		if e.rec.Wanted != nil {
			versions = append(versions, &install.Installed{Manifest: e.rec.Wanted})
		}
		for _, in := range versions {
			m := in.Decode()
			if m == nil {
				known = false
				continue
			}
			for _, l := range m.Launchables {
				if l.Artifact.Kind == manifest.ArtifactTar {
					live[l.Artifact.SHA256] = true
				}
			}
		}
	}
	return live, known
}
