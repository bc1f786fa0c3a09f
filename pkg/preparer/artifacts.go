package preparer

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/runtime"
)

// Cache looks after the artifacts that are on the node's disk; *artifact.Store is one.
type Cache interface {
	// Check returns nil when the artifact is on the disk as it was unpacked.
	Check(a manifest.Artifact) error
	// Restore fetches what Check complains about anew.
	Restore(ctx context.Context, a manifest.Artifact) error
	// Prune removes what is too much and not among the live ones, and nothing while those are not known. It returns the
	// digests that it removed, and how many bytes are left.
	Prune(live func() (digests map[string]bool, known bool)) (removed []string, left int64, err error)
}

// How looking after artifacts is paced.
const (
	minPruneGap  = 10 * time.Second // between two times that the cache is pruned
	suspectEvery = time.Minute      // between two looks for processes that cannot be started
)

// pruneArtifacts keeps the cache small until ctx ends: now and then, and when the pods need other artifacts than before or
// one could not be fetched, which may be for lack of space.
func (p *Preparer) pruneArtifacts(ctx context.Context) {
	if p.cfg.Cache == nil || !p.awaitReady(ctx) {
		return
	}
	for {
		p.pruneOnce()
		if loop.Pause(ctx, min(minPruneGap, p.cfg.PruneArtifacts)) != nil {
			return
		}
		select {
		case <-p.prunable:
		case <-time.After(p.cfg.PruneArtifacts):
		case <-ctx.Done():
			return
		}
	}
}

func (p *Preparer) pruneOnce() {
	const key = "artifact cache"
	removed, left, err := p.cfg.Cache.Prune(p.LiveArtifacts)
	p.cfg.Metrics.pruned(len(removed), left)
	for _, digest := range removed {
		p.log.WithField(fieldDigest, short(digest)).Info("artifact removed from the cache")
	}
	if err != nil {
		p.trouble.Report(key, "artifacts that are not needed cannot be removed", err)
		return
	}
	p.trouble.Over(key)
}

// checkArtifacts looks, once in Config.CheckArtifacts, whether the artifacts of running pods are still whole, so that a
// missing one is fetched again before the next start needs it. Those of a process that cannot be started are looked at
// within a minute.
func (p *Preparer) checkArtifacts(ctx context.Context) {
	if p.cfg.Cache == nil || !p.awaitReady(ctx) {
		return
	}
	// Nodes that start together do not fetch together. A node that is started anew every day looks, too.
	due := time.Now().Add(rand.N(p.cfg.CheckArtifacts/16 + 1))
	for {
		now := time.Now()
		all := !now.Before(due)
		due = nextCheck(now, due, p.cfg.CheckArtifacts, p.checkOnce(ctx, all) > 0)
		if loop.Pause(ctx, min(suspectEvery, max(time.Until(due), 0), p.cfg.CheckArtifacts)) != nil {
			return
		}
	}
}

// nextCheck returns when all artifacts are to be looked at next: in time again after they were, and soon while one is broken.
// Nothing puts off what is due: a look at a few may find one broken each minute.
func nextCheck(now, due time.Time, every time.Duration, broken bool) time.Time {
	if !now.Before(due) {
		due = now.Add(spread(every))
	}
	if soon := now.Add(spread(every / 256)); broken && soon.Before(due) { // some five minutes of a day
		return soon
	}
	return due
}

// spread returns d, up to an eighth shorter or longer.
func spread(d time.Duration) time.Duration { return d*7/8 + rand.N(d/4+1) }

// checkOnce returns how many artifacts are not whole.
func (p *Preparer) checkOnce(ctx context.Context, all bool) (broken int) {
	needed := p.neededArtifacts(all)
	for _, key := range slices.Sorted(maps.Keys(needed)) {
		if ctx.Err() != nil {
			return broken
		}
		check := p.checkArtifact
		if needed[key].Kind == manifest.ArtifactExec {
			check = p.checkExec
		}
		if !check(ctx, needed[key]) {
			broken++
		}
	}
	if all || broken > 0 {
		p.cfg.Metrics.broken(broken)
	}
	return broken
}

// checkArtifact returns whether the artifact is whole, now if not before.
func (p *Preparer) checkArtifact(ctx context.Context, a manifest.Artifact) bool {
	key := "artifact " + short(a.SHA256)
	err := p.cfg.Cache.Check(a)
	if err == nil {
		p.trouble.Over(key)
		return true
	}
	p.trouble.Report(key, "an artifact of a running pod is not whole on the disk; fetching it again", err)
	if err := p.cfg.Cache.Restore(ctx, a); err != nil {
		if !errors.Is(err, context.Canceled) {
			p.trouble.Report(key, "an artifact of a running pod is not whole on the disk and cannot be fetched; its pods run on, and may not start again", err)
		}
		return false
	}
	p.cfg.Metrics.restored()
	p.log.WithFields(obs.Fields{fieldDigest: short(a.SHA256)}).Info("artifact restored")
	p.trouble.Over(key)
	return true
}

// checkExec returns whether a program of the node's own is there. Nobody but the operator can bring it back.
func (p *Preparer) checkExec(_ context.Context, a manifest.Artifact) bool {
	key := "program " + a.Path
	info, err := os.Stat(a.Path)
	if err == nil {
		err = install.CheckProgram(a.Path, info)
	}
	if err != nil {
		p.trouble.Report(key, "a program of the node that a running pod is started from is missing or cannot be executed; its pods run on, and may not start again", err)
		return false
	}
	p.trouble.Over(key)
	return true
}

// neededArtifacts returns by digest, or path, what the installed versions run from: of all pods that shall run, or of those that
// have a process which cannot be started.
func (p *Preparer) neededArtifacts(all bool) map[string]manifest.Artifact {
	needed := map[string]manifest.Artifact{}
	p.pods.do(func() {
		for _, e := range p.pods.all {
			m := e.manifest()
			if m == nil || e.rec.Intent.State != pod.Running || !all && !slices.ContainsFunc(e.procs, cannotStart) {
				continue
			}
			for _, l := range m.Launchables {
				needed[cmp.Or(l.Artifact.SHA256, l.Artifact.Path)] = l.Artifact
			}
		}
	})
	return needed
}

// cannotStart reports whether the runtime has said why a process does not run.
func cannotStart(status runtime.Status) bool {
	return status.Phase == runtime.Backoff && status.Message != ""
}
