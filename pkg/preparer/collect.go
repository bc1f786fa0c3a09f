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

// minTombstone is how long each tombstone is kept, even if there are more than MaxTombstones. After it, no farm can
// still write an intent from before the stop.
const minTombstone = 24 * time.Hour

type collector struct{ *kit }

// run removes the directories of stopped pods, except for volumes, and later their tombstones.
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

// look uses the disk without the lock on the pods, because every report needs that lock.
func (c *collector) look(now instant) {
	c.limiter.Saw("times of tombstones", "wrong times in tombstones cannot be replaced", c.redate(now))
	stopped, old := c.collectable(now)
	for _, e := range stopped {
		left := c.node.Left(e.id)
		c.pods.do(func() {
			switch {
			case left:
				c.pods.enqueue(e) // its worker removes them, because the pod may start again meanwhile
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

// collectable returns the pods that have been stopped for KeepStopped, and those whose tombstones can be removed. It
// marks the latter as working, so that no worker begins for them before forget has returned.
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

// forget removes a tombstone. If an intent was accepted meanwhile, it keeps the entry and starts a worker.
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

// redate replaces impossible times in tombstones by the present time. Otherwise a tombstone would stay until the clock
// reaches its time, or its age would be zero after each start of a preparer. No worker of these pods begins meanwhile.
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

// expired returns the tombstones to remove: those older than KeepTombstones, and the oldest beyond MaxTombstones, but
// none younger than minTombstone.
func expired(cfg *Config, now instant, tombs []*entry) []*entry {
	age := func(e *entry) time.Duration { return stoppedFor(&e.rec, now) }
	slices.SortFunc(tombs, func(a, b *entry) int { return cmp.Compare(age(b), age(a)) })
	n := 0
	for n < len(tombs) && (age(tombs[n]) >= cfg.KeepTombstones ||
		len(tombs)-n > cfg.MaxTombstones && age(tombs[n]) >= minTombstone) {
		n++
	}
	return tombs[:n]
}

func (c *collector) known() (known map[pod.Identity]bool) {
	c.pods.do(func() {
		known = make(map[pod.Identity]bool, len(c.pods.all))
		for id := range c.pods.all {
			known[id] = true
		}
	})
	return known
}

// LiveArtifacts returns the digests of the artifacts that installed versions, and versions under installation, need.
// known is false if the manifest of a pod is not known.
func (k *kit) LiveArtifacts() (live map[string]bool, known bool) {
	return k.live(func(m *manifest.Manifest, live map[string]bool) {
		for _, l := range m.Launchables {
			if l.Artifact.IsFetched() {
				live[l.Artifact.SHA256] = true
			}
		}
	})
}

// LiveImages returns the same for digests of images.
func (k *kit) LiveImages() (live map[string]bool, known bool) { return k.live(install.ImageDigests) }

// live calls add for each manifest that a pod needs.
func (k *kit) live(add func(*manifest.Manifest, map[string]bool)) (live map[string]bool, known bool) {
	live, known = map[string]bool{}, true // the caller has called awaitReady
	k.pods.do(func() {
		for _, e := range k.pods.all {
			versions := e.rec.versions()
			if e.rec.Wanted != nil {
				versions = append(versions, &install.Installed{Manifest: e.rec.Wanted})
			}
			for _, in := range versions {
				if m := in.Decode(); m == nil {
					known = false
				} else {
					add(m, live)
				}
			}
		}
	})
	return live, known
}

// Cache manages the artifacts on the node's disk.
type Cache interface {
	// Renew fetches an incomplete artifact again.
	Renew(ctx context.Context, a manifest.Artifact) error
	// Prune removes artifacts that are not live, as long as the cache is too large. If the live artifacts are not
	// known, it removes none. left is in bytes.
	Prune(live func() (digests map[string]bool, known bool)) (removed []string, left int64, err error)
}

const minPruneGap = 10 * time.Second

// pruneArtifacts prunes artifacts and images regularly, when the pods need others, and when one could not be fetched,
// because the disk may be full.
func (c *collector) pruneArtifacts(ctx context.Context) {
	if c.cfg.Cache == nil && c.cfg.Images == nil || !c.awaitReady(ctx) {
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
	if c.cfg.Cache != nil {
		removed, left, err := c.cfg.Cache.Prune(c.LiveArtifacts)
		c.cfg.Metrics.artifactsPruned.Add(float64(len(removed)))
		c.cfg.Metrics.artifactBytes.Set(float64(left))
		for _, digest := range removed {
			c.log.WithField(fieldDigest, install.Short(digest)).Info("artifact removed from the cache")
		}
		c.limiter.Saw("artifact cache", "artifacts that are not needed cannot be removed", err)
	}
	removed, left, err := c.node.PruneImages(c.LiveImages)
	c.cfg.Metrics.imagesPruned.Add(float64(len(removed)))
	c.cfg.Metrics.imageBytes.Set(float64(left))
	for _, digest := range removed {
		c.log.WithField(fieldDigest, digest).Info("image removed from the node")
	}
	c.limiter.Saw("image store", "images that are not needed cannot be removed", err)
}
