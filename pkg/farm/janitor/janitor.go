// Package janitor removes records that would otherwise pile up, and asks owners to release leaked shares and to stop
// pods whose controllers are gone. The leader runs it (ADR 27). It keeps records that have changed since it read them.
package janitor

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Defaults of Config.
const (
	DefaultEvery         = 10 * time.Minute
	DefaultAuditKeep     = 10_000
	DefaultAuditAge      = 30 * 24 * time.Hour
	DefaultManifestGrace = time.Hour
	DefaultMost          = 2_000
)

// Records is what a janitor needs of the store. *store.Leader implements it.
type Records interface {
	AuditIDs(ctx context.Context) ([]string, error)
	DeleteAudit(ctx context.Context, ids []string) (int, error)
	UnusedManifests(ctx context.Context) ([]store.ManifestRef, error)
	DeleteManifest(ctx context.Context, ref store.ManifestRef) error
	SweepDrops(ctx context.Context, most int) (removed int, err error)
}

// Config is what a janitor needs. Zero values mean the defaults above.
type Config struct {
	Records Records
	Log     obs.Logger

	Every         time.Duration // between two rounds, plus jitter
	AuditKeep     int           // how many audit records are kept, the newest
	AuditAge      time.Duration // for how long an audit record is kept
	ManifestGrace time.Duration // for how long a manifest must have been unused and unchanged
	Most          int           // of manifests, and of drops, in one round; of audit records, in one request
}

// Janitor removes old audit records, unused manifests and drops.
type Janitor struct {
	cfg Config
	// unused is when each manifest was first seen unused. The next leader starts anew.
	unused map[store.ManifestRef]time.Time
}

// New returns a janitor.
func New(cfg Config) *Janitor {
	cfg.Every = cmp.Or(cfg.Every, DefaultEvery)
	cfg.AuditKeep, cfg.AuditAge = cmp.Or(cfg.AuditKeep, DefaultAuditKeep), cmp.Or(cfg.AuditAge, DefaultAuditAge)
	cfg.ManifestGrace, cfg.Most = cmp.Or(cfg.ManifestGrace, DefaultManifestGrace), cmp.Or(cfg.Most, DefaultMost)
	return &Janitor{cfg: cfg, unused: map[store.ManifestRef]time.Time{}}
}

// Run cleans up at intervals until ctx ends. It logs errors.
func (j *Janitor) Run(ctx context.Context) error {
	for {
		if err := wait.Pause(ctx, j.cfg.Every+rand.N(j.cfg.Every/10+1)); err != nil {
			return err
		}
		if err := j.Round(ctx, time.Now()); err != nil && ctx.Err() == nil {
			j.cfg.Log.WithError(err).Warn("cleaning up failed")
		}
	}
}

// Round cleans up once.
func (j *Janitor) Round(ctx context.Context, now time.Time) error {
	return errors.Join(j.audit(ctx, now), j.manifests(ctx, now), j.drops(ctx))
}

func (j *Janitor) drops(ctx context.Context) error {
	n, err := j.cfg.Records.SweepDrops(ctx, j.cfg.Most)
	if n > 0 {
		j.cfg.Log.WithField("removed", n).Info("removed the drops of controllers that are gone")
	}
	if errors.Is(err, store.ErrRefused) {
		return nil // a controller came back meanwhile
	}
	return err
}

func (j *Janitor) audit(ctx context.Context, now time.Time) error {
	ids, err := j.cfg.Records.AuditIDs(ctx)
	if err != nil {
		return err
	}
	old := Expired(ids, now, j.cfg.AuditKeep, j.cfg.AuditAge)
	n := 0
	for some := range slices.Chunk(old, j.cfg.Most) {
		var removed int
		removed, err = j.cfg.Records.DeleteAudit(ctx, some)
		if n += removed; err != nil {
			break
		}
	}
	if n > 0 {
		j.cfg.Log.WithFields(obs.Fields{"removed": n, "kept": len(ids) - n}).Info("removed old audit records")
	}
	return err
}

// Expired returns the audit records that are too many or too old. The ids come oldest first. One without a time is
// kept, and left out of the number.
func Expired(ids []string, now time.Time, keep int, age time.Duration) []string {
	var out []string
	for _, id := range slices.Backward(ids) {
		at, known := store.AuditTime(id)
		if !known {
			continue
		}
		if keep--; keep < 0 || now.Sub(at) > age {
			out = append(out, id)
		}
	}
	slices.Reverse(out)
	return out
}

func (j *Janitor) manifests(ctx context.Context, now time.Time) error {
	refs, err := j.cfg.Records.UnusedManifests(ctx)
	if err != nil {
		return err
	}
	before := j.unused
	j.unused = make(map[store.ManifestRef]time.Time, len(refs))
	removed := 0
	for _, ref := range refs {
		since, known := before[ref]
		if !known {
			since = now
		}
		if now.Sub(since) < j.cfg.ManifestGrace || removed == j.cfg.Most {
			j.unused[ref] = since
			continue
		}
		// A refusal means that a controller has begun to use the manifest.
		if err := j.cfg.Records.DeleteManifest(ctx, ref); err != nil && !errors.Is(err, store.ErrRefused) {
			return err
		} else if err == nil {
			removed++
		}
	}
	if removed > 0 {
		j.cfg.Log.WithField("removed", removed).Info("removed unused manifests")
	}
	return nil
}
