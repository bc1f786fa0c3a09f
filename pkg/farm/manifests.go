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

func (ps *reader) useManifest(s *reconcile.Snapshot, d store.Details) error {
	switch err := d.ManifestErr; {
	case err == nil:
		s.Manifest = d.Manifest
		ps.kit.manifests.put(s.RC.ManifestDigest, d.Manifest)
	case errors.Is(err, store.ErrNotFound), store.IsCorrupt(err):
		s.Errors = append(s.Errors, fmt.Sprintf("manifest %.8s: %v; apply the controller again", s.RC.ManifestDigest, err))
	default:
		return err
	}
	return nil
}

// maxOthers is how many manifests besides the controller's own a pass looks at.
const maxOthers = 16 + 2*rc.MaxGroups

// otherManifests takes the manifests that pods keep from the cache, and returns the digests of those that must be read.
func (ps *reader) otherManifests(s *reconcile.Snapshot) (unknown []string) {
	if s.Manifests == nil {
		s.Manifests = map[string]*manifest.Manifest{}
	}
	for _, digest := range s.OtherDigests(maxOthers) {
		if m := ps.kit.manifests.get(digest); m != nil {
			s.Manifests[digest] = m
		} else if s.Manifests[digest] == nil {
			unknown = append(unknown, digest)
		}
	}
	return unknown
}

// useOthers takes in manifests that were read. Pods of those that cannot be stay where they are.
func (ps *reader) useOthers(s *reconcile.Snapshot, d store.Details) error {
	for digest, m := range d.Others {
		s.Manifests[digest] = m
		ps.kit.manifests.put(digest, m)
	}
	for digest, err := range d.OthersErrs {
		if !errors.Is(err, store.ErrNotFound) && !store.IsCorrupt(err) {
			return err
		}
		s.Errors = append(s.Errors, fmt.Sprintf("manifest %.8s, which pods have: %v", digest, err))
	}
	return nil
}

// manifestCache keeps manifests by digest. They never change, so that nothing in it is ever stale.
type manifestCache struct {
	mu   sync.Mutex
	byID map[string]*manifest.Manifest
}

const maxCachedManifests = 1000

func newManifestCache() *manifestCache { return &manifestCache{byID: map[string]*manifest.Manifest{}} }

// get returns nil for one that it does not have.
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
