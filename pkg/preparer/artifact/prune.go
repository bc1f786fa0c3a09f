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

	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// cached is one unpacked artifact.
type cached struct {
	digest string
	bytes  int64 // on the disk, roughly
	used   time.Time
}

// Prune removes artifacts until the cache is no larger than Config.CacheBytes and what a fetch lacked is free, the least
// recently used first, and never one that is in use. live returns the digests in use; it is called while no Ensure can
// end, so that whoever has what it asks for in that answer before it calls Ensure cannot lose it again. When live cannot
// say, nothing is removed. Prune returns the digests that it removed and what is left, in bytes.
func (s *Store) Prune(live func() (digests map[string]bool, known bool)) (removed []string, left int64, err error) {
	doomed, removed, left, err := s.evict(live)
	for _, path := range doomed {
		err = errors.Join(err, removeTree(path)) // what stays for now, New removes
	}
	return removed, left, err
}

// evict takes the trees that shall go out of sight at one stroke each, so that nobody sees half of one.
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

// victims returns the least recently used that are excess bytes large together, or all if that is not enough.
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

// cached returns what is unpacked. The caller holds s.mu.
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
			l, err = measure(s.tree(c.digest)) // its listing was lost: it counts as never used
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

// markEvery is how exact the order of use is.
const markEvery = time.Minute

// markUsed notes that an artifact is used. That this fails is no reason not to use it. The caller holds s.mu.
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
