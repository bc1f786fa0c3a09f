package artifact

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/internal/archive"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

type cached struct {
	digest string
	bytes  int64 // on the disk, roughly
	used   time.Time
}

// Prune removes the least recently used artifacts until the cache is not larger than Config.CacheBytes, and there is
// space for the fetches that failed for lack of space since the last Prune. live returns the digests in use, which are
// never removed; if it returns false, Prune removes nothing. Prune holds the lock while it calls live, so no Ensure can
// return in the meantime. A caller that adds the digest to the result of live before it calls Ensure never loses the
// artifact. Prune returns the removed digests, and the size of the rest in bytes.
func (s *Store) Prune(live func() (digests map[string]bool, known bool)) (removed []string, left int64, err error) {
	doomed, removed, left, err := s.evict(live)
	for _, path := range doomed {
		err = errors.Join(err, archive.RemoveTree(path)) // after an error, New removes the rest later
	}
	return removed, left, err
}

// evict gives each tree to remove a temporary name in one step, so that no pod finds a tree of which a part is missing.
func (s *Store) evict(live func() (map[string]bool, bool)) (doomed, removed []string, left int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, err := s.cached()
	if err != nil {
		return nil, nil, 0, err
	}
	inUse, known := live()
	var idle []cached
	now := time.Now()
	for _, c := range all {
		left += c.bytes
		switch {
		case inUse[c.digest]:
			s.markUsed(c.digest, now)
		case known && s.flights[c.digest] == nil:
			idle = append(idle, c)
		}
	}
	for _, c := range victims(idle, max(left-s.cfg.CacheBytes, s.lacking)) {
		to := filepath.Join(s.cfg.Dir, tempPrefix+"evicted-"+c.digest)
		if renameErr := os.Rename(s.tree(c.digest), to); renameErr != nil {
			err = errors.Join(err, fmt.Errorf("remove artifact from the cache: %w", renameErr))
			continue
		}
		err = errors.Join(err, ignoreMissing(os.Remove(s.listingPath(c.digest))))
		delete(s.usedAt, c.digest)
		doomed, removed, left = append(doomed, to), append(removed, c.digest), left-c.bytes
	}
	s.lacking = 0
	return doomed, removed, left, err
}

// victims returns the least recently used artifacts that together have at least excess bytes, or all.
func victims(idle []cached, excess int64) []cached {
	slices.SortFunc(idle, func(a, b cached) int {
		return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.digest, b.digest))
	})
	n := 0
	for n < len(idle) && excess > 0 {
		excess -= idle[n].bytes
		n++
	}
	return idle[:n]
}

// cached: the caller holds s.mu.
func (s *Store) cached() ([]cached, error) {
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("read artifact directory: %w", err)
	}
	var all []cached
	for _, entry := range entries {
		if !manifest.IsDigest(entry.Name()) {
			continue
		}
		c := cached{digest: entry.Name()}
		l, err := s.readListing(c.digest)
		if err != nil {
			l, err = measure(s.tree(c.digest)) // the listing was lost, and with it the time of use
		} else if info, statErr := os.Stat(s.listingPath(c.digest)); statErr == nil {
			c.used = info.ModTime()
		}
		if err != nil {
			return nil, fmt.Errorf("look at cached artifact: %w", err)
		}
		c.bytes = l.Bytes
		all = append(all, c)
	}
	return all, nil
}

// markEvery is how precisely the time of use is recorded.
const markEvery = time.Minute

// markUsed does nothing if it fails. The caller holds s.mu.
func (s *Store) markUsed(digest string, now time.Time) {
	if now.Sub(s.usedAt[digest]) >= markEvery {
		s.usedAt[digest] = now
		_ = os.Chtimes(s.listingPath(digest), now, now)
	}
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
