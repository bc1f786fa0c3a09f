package farm

import (
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func (r *reader) useManifest(s *reconcile.Snapshot, d store.Details) error {
	switch err := d.ManifestErr; {
	case err == nil:
		s.Manifest = d.Manifest
		r.kit.manifests.put(s.RC.ManifestDigest, d.Manifest)
	case errors.Is(err, store.ErrNotFound), store.IsCorrupt(err):
		s.Errors = append(s.Errors,
			fmt.Sprintf("manifest %.8s: %v; apply the controller again", s.RC.ManifestDigest, err))
	default:
		return err
	}
	return nil
}

// maxOthers is how many manifests a pass reads beside the controller's own.
const maxOthers = 16 + 2*rc.MaxGroups

// otherManifests returns the digests of the manifests that the cache lacks.
func (r *reader) otherManifests(s *reconcile.Snapshot) (unknown []string) {
	if s.Manifests == nil {
		s.Manifests = map[string]*manifest.Manifest{}
	}
	for _, digest := range s.OtherDigests(maxOthers) {
		if m := r.kit.manifests.get(digest); m != nil {
			s.Manifests[digest] = m
		} else if s.Manifests[digest] == nil {
			unknown = append(unknown, digest)
		}
	}
	return unknown
}

// useOthers stores the manifests that were read. Pods whose manifest cannot be read are not moved.
func (r *reader) useOthers(s *reconcile.Snapshot, d store.Details) error {
	for digest, m := range d.Others {
		s.Manifests[digest] = m
		r.kit.manifests.put(digest, m)
	}
	for digest, err := range d.OthersErrs {
		if !errors.Is(err, store.ErrNotFound) && !store.IsCorrupt(err) {
			return err
		}
		s.Errors = append(s.Errors, fmt.Sprintf("manifest %.8s of some pods: %v", digest, err))
	}
	return nil
}

// manifestCache is never stale, because a manifest never changes.
type manifestCache struct {
	mu   sync.Mutex
	byID map[string]*manifest.Manifest
}

const maxCachedManifests = 1000

func newManifestCache() *manifestCache { return &manifestCache{byID: map[string]*manifest.Manifest{}} }

func (c *manifestCache) get(digest string) *manifest.Manifest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byID[digest]
}

func (c *manifestCache) put(digest string, m *manifest.Manifest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.byID) >= maxCachedManifests {
		for old := range maps.Keys(c.byID) {
			delete(c.byID, old)
			break
		}
	}
	c.byID[digest] = m
}
