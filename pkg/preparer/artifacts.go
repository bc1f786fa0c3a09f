package preparer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/runtime"
)

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
	p.cfg.Metrics.artifactsPruned.Add(float64(len(removed)))
	p.cfg.Metrics.artifactBytes.Set(float64(left))
	for _, digest := range removed {
		p.log.WithField(fieldDigest, install.Short(digest)).Info("artifact removed from the cache")
	}
	if err != nil {
		p.trouble.Report(key, "artifacts that are not needed cannot be removed", err)
		return
	}
	p.trouble.Over(key)
}

// mend has everything present again that the installed version is launched from, when a process cannot be started. The runtime tries again by
// itself.
func (w *worker) mend(ctx context.Context, rec *Record) error {
	broken := slices.DeleteFunc(slices.Clone(w.procs()), func(s runtime.Status) bool { return s.Phase != runtime.Backoff || s.Message == "" })
	v := w.version(rec, rec.Installed)
	if len(broken) == 0 || v == nil || w.cfg.Cache == nil {
		return nil
	}
	if err := v.Ensure(ctx, w); err != nil {
		return err
	}
	for _, one := range rec.Installed.Processes {
		a := v.M.LaunchableOf(one.Launchable).Artifact
		program := v.Path(one.Launchable, one.Path)
		missing := install.CheckProgram(program)
		if missing == nil || a.Kind != manifest.ArtifactTar {
			continue
		}
		w.Failed("a program is not there as it was unpacked; its artifact is fetched again", missing)
		err := w.cfg.Cache.Renew(ctx, a)
		if err == nil {
			err = install.CheckProgram(program)
		}
		if err != nil {
			return fmt.Errorf("the artifact of %s is not whole on the disk and cannot be fetched: %w", one.Launchable, err)
		}
		w.cfg.Metrics.artifactsRestored.Inc()
	}
	return nil
}
