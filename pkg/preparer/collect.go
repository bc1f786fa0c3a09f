package preparer

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// minTombstone is how long a tombstone stays however many there are: a farm that is behind writes nothing this old.
const minTombstone = 24 * time.Hour

// collector removes what nobody needs any more: what stopped pods left, their tombstones, and artifacts.
type collector struct{ *kit }

// run removes, now and then until ctx ends, what stopped pods leave behind: first their directories, except for
// volumes, then their tombstones.
func (c *collector) run(ctx context.Context) {
	if !c.awaitReady(ctx) {
		return
	}
	c.node.ReportStrangers(c.known())
	wait.Each(ctx, nil, func() time.Duration {
		c.look(thisInstant())
		return c.cfg.CollectEvery
	})
}

// look touches the disk while anybody may look at the pods, which everything that is reported needs.
func (c *collector) look(now instant) {
	c.limiter.Saw("times of tombstones", "wrong times of stops cannot be replaced", c.redate(now))
	stopped, old := c.collectable(now)
	for _, e := range stopped {
		left := c.node.Left(e.id)
		c.pods.do(func() {
			switch {
			case left:
				c.pods.enqueue(e) // its worker removes it, so that nothing is removed under a pod that starts again
			case e.state == Stopped:
				c.pods.enter(e, Cleared)
			}
		})
	}
	var errs []error
	for _, e := range old {
		errs = append(errs, c.forget(e))
	}
	c.limiter.Saw("tombstones", "old tombstones cannot be removed", errors.Join(errs...))
	c.node.ReleaseUsers(c.known)
}

// collectable returns the pods that have been stopped for long enough, and those whose tombstones may go. Of these no worker
// begins until forget is done.
func (c *collector) collectable(now instant) (stopped, old []*entry) {
	c.pods.do(func() {
		for _, e := range c.pods.all {
			switch {
			case e.want != nil || e.working:
			case e.state == Stopped && stoppedFor(&e.rec, now) >= c.cfg.KeepStopped:
				stopped = append(stopped, e)
			case e.state == Collected && e.decided.verdict == Forgotten && c.board.Erased(e.id):
				old = append(old, e)
			}
		}
		old = expired(&c.cfg, now, old)
		for _, e := range old {
			e.working, e.again = true, false
		}
	})
	return stopped, old
}

// forget removes a tombstone. A pod that was told something meanwhile stays, and gets its worker.
func (c *collector) forget(e *entry) error {
	err := c.cfg.State.Forget(install.FileName(e.id))
	c.pods.do(func() {
		e.working = false
		switch {
		case e.again || e.want != nil:
			e.unsaved = true
			c.pods.enqueue(e)
		case err == nil:
			delete(c.pods.all, e.id)
			c.board.Forget(e.id)
			c.agent.Forget(e.id)
			c.cfg.Step("tombstone removed")
		}
	})
	return err
}

// redate replaces the times of stops that cannot be by now, in the records and once: else a tombstone would stay until
// the clock gets there, or would begin to count with each start of a preparer. Of these pods no worker begins
// meanwhile.
func (c *collector) redate(now instant) error {
	var wrong []*entry
	c.pods.do(func() {
		for _, e := range c.pods.all {
			if !e.working && wrongStop(&e.rec, now) {
				e.working, e.again = true, false
				wrong = append(wrong, e)
			}
		}
	})
	var errs []error
	for _, e := range wrong {
		rec := e.rec.stoppedAt(now)
		err := c.cfg.State.Save(rec)
		errs = append(errs, err)
		c.pods.do(func() {
			e.working = false
			if err == nil {
				e.rec = rec
			}
			if e.again {
				c.pods.enqueue(e)
			}
		})
	}
	return errors.Join(errs...)
}

// expired returns the tombstones that may go: those that have stood their time, and the oldest of those that are too many.
func expired(cfg *Config, now instant, tombs []*entry) []*entry {
	age := func(e *entry) time.Duration { return stoppedFor(&e.rec, now) }
	slices.SortFunc(tombs, func(a, b *entry) int { return cmp.Compare(age(b), age(a)) })
	n := 0
	for n < len(tombs) && (age(tombs[n]) >= cfg.KeepTombstones || len(tombs)-n > cfg.MaxTombstones && age(tombs[n]) >= minTombstone) {
		n++
	}
	return tombs[:n]
}

// known returns the identities of all pods that the node knows.
func (c *collector) known() (known map[pod.Identity]bool) {
	c.pods.do(func() {
		known = make(map[pod.Identity]bool, len(c.pods.all))
		for id := range c.pods.all {
			known[id] = true
		}
	})
	return known
}

// LiveArtifacts returns the digests of the artifacts that installed versions need, or one that is being installed. known is
// false while they cannot all be told, because of a pod whose record was lost.
func (k *kit) LiveArtifacts() (live map[string]bool, known bool) {
	live, known = map[string]bool{}, true // whoever asks has awaited that all pods are known
	k.pods.do(func() {
		for _, e := range k.pods.all {
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
	})
	return live, known
}

// Cache looks after the artifacts that are on the node's disk; *artifact.Store is one.
type Cache interface {
	// Renew fetches an artifact anew that is not whole.
	Renew(ctx context.Context, a manifest.Artifact) error
	// Prune removes what is too much and not among the live ones, and nothing while those are not known. It returns the
	// digests that it removed, and how many bytes are left.
	Prune(live func() (digests map[string]bool, known bool)) (removed []string, left int64, err error)
}

// minPruneGap is between two times that the cache is pruned.
const minPruneGap = 10 * time.Second

// pruneArtifacts keeps the cache small until ctx ends: now and then, and when the pods need other artifacts than before or
// one could not be fetched, which may be for lack of space.
func (c *collector) pruneArtifacts(ctx context.Context) {
	if c.cfg.Cache == nil || !c.awaitReady(ctx) {
		return
	}
	for {
		c.pruneOnce()
		if wait.Pause(ctx, min(minPruneGap, c.cfg.PruneArtifacts)) != nil {
			return
		}
		if _, err := wait.PauseUnless(ctx, c.prunable, c.cfg.PruneArtifacts); err != nil {
			return
		}
	}
}

func (c *collector) pruneOnce() {
	removed, left, err := c.cfg.Cache.Prune(c.LiveArtifacts)
	c.cfg.Metrics.artifactsPruned.Add(float64(len(removed)))
	c.cfg.Metrics.artifactBytes.Set(float64(left))
	for _, digest := range removed {
		c.log.WithField(fieldDigest, install.Short(digest)).Info("artifact removed from the cache")
	}
	c.limiter.Saw("artifact cache", "artifacts that are not needed cannot be removed", err)
}
