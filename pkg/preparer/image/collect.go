package image

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/internal/archive"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/reference"
)

// reach is what an image has on the disk. The keys are names in their directories.
type reach struct {
	blobs, partials, trees map[string]bool
}

func newReach() reach { return reach{map[string]bool{}, map[string]bool{}, map[string]bool{}} }

func (r reach) add(other reach) {
	maps.Copy(r.blobs, other.blobs)
	maps.Copy(r.partials, other.partials)
	maps.Copy(r.trees, other.trees)
}

// reachOf reads what belongs to an image. complete: nothing was missing on the way. For an index, all manifests on the
// disk belong to it.
func (s *Store) reachOf(digest string) (r reach, complete bool, err error) {
	r = newReach()
	complete, err = s.follow(digest, r)
	return r, complete, err
}

func (s *Store) follow(digest string, r reach) (complete bool, err error) {
	r.blobs[reference.Hex(digest)] = true
	data, err := s.readBlob(digest)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	d, err := parse(data)
	if err != nil {
		return false, nil //nolint:nilerr // no pull got further than this, so there is nothing else
	}
	for _, m := range d.Manifests { // one of them is enough, because a node pulls for one platform
		if !reference.IsDigest(m.Digest.String()) {
			continue
		}
		one, err := s.followManifest(m.Digest.String(), r)
		if err != nil {
			return false, err
		}
		complete = complete || one
	}
	if d.isIndex() {
		return complete, nil
	}
	return s.followManifest(digest, r)
}

func (s *Store) followManifest(digest string, r reach) (complete bool, err error) {
	r.blobs[reference.Hex(digest)] = true
	data, err := s.readBlob(digest)
	if err != nil {
		return false, ignoreMissing(err)
	}
	d, err := parse(data)
	if err != nil || s.cfg.checkManifest(d) != nil {
		return false, nil //nolint:nilerr // as above
	}
	r.blobs[reference.Hex(d.Config.Digest.String())] = true
	r.partials[reference.Hex(d.Config.Digest.String())] = true
	for _, l := range d.Layers {
		r.partials[reference.Hex(l.Digest.String())] = true
	}
	data, err = s.readBlob(d.Config.Digest.String())
	if err != nil {
		return false, ignoreMissing(err)
	}
	config, err := parseConfig(data, len(d.Layers))
	if err != nil {
		return false, nil //nolint:nilerr // as above
	}
	for _, l := range layersOf(d, config.RootFS.DiffIDs) {
		for _, name := range l.names() {
			r.trees[name] = true
		}
	}
	return true, nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Removed is what a Prune has done.
type Removed struct {
	Images []string // digests
	Layers int
	Left   int64 // bytes of the trees that remain, roughly
}

// Prune removes images that nothing needs: those that were not used for Config.MaxAge, and the least recently used ones
// until the store is not larger than Config.CacheBytes and there is space for the pulls that failed for lack of space.
// A layer goes with the last image that has it. What belongs to no image goes when it is older than Config.PartialAge,
// or when space is needed.
//
// needed returns the digests of the images in use. If it returns false, Prune removes nothing. It must not use the
// store. Nothing changes while it runs: a caller that adds a digest to its result before it calls Pull finds the
// image's layers afterwards. If Prune cannot read what a needed image has, it removes nothing and returns an error.
func (s *Store) Prune(now time.Time, needed func() (digests map[string]bool, known bool)) (Removed, error) {
	doomed, removed, err := s.evict(now, needed)
	for _, path := range doomed {
		err = errors.Join(err, archive.RemoveTree(path)) // after an error, New removes the rest later
	}
	return removed, err
}

// evict chooses what to remove. Trees get a temporary name in one step each, so a mount never finds a part of one.
func (s *Store) evict(now time.Time, needed func() (map[string]bool, bool),
) (doomed []string, removed Removed, err error) {
	s.gate.Lock()
	defer s.gate.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	inUse, known := needed()
	if !known {
		return nil, Removed{}, nil
	}
	inUse = maps.Clone(inUse)
	if inUse == nil {
		inUse = map[string]bool{}
	}
	for p := range s.pulls {
		inUse[p.ref.Digest] = true
	}
	c, err := s.survey(inUse, now)
	if err != nil {
		return nil, Removed{}, err
	}
	removed.Images = c.choose(s.cfg, s.lacking)
	if len(removed.Images) > 0 {
		if err := s.forgetRoots(removed.Images); err != nil {
			return nil, Removed{}, err
		}
	}
	keep := c.kept()
	doomed, trees, err := s.sweepTrees(c, keep)
	removed.Layers, removed.Left = trees, c.left
	err = errors.Join(err, s.sweepFiles(s.blobDir(), c, keep.blobs), s.sweepFiles(s.partialDir(), c, keep.partials))
	s.lacking = 0
	return doomed, removed, err
}

// candidate is an image that may be removed.
type candidate struct {
	digest string
	used   time.Time
	reach  reach
}

// census is what Prune knows before it chooses.
type census struct {
	now    time.Time
	needed reach            // of images in use
	idle   []candidate      // the least recently used ones first
	sizes  map[string]int64 // by name of a tree
	left   int64            // bytes of all trees
	urgent bool             // space is needed
	gone   reach            // of images that are being removed
}

// survey reads what all images have.
func (s *Store) survey(inUse map[string]bool, now time.Time) (*census, error) {
	c := &census{now: now, needed: newReach(), gone: newReach(), sizes: map[string]int64{}}
	for digest := range inUse {
		if !reference.IsDigest(digest) {
			return nil, fmt.Errorf("needed image %.100q: not valid; allowed: digests", digest)
		}
		r, complete, err := s.reachOf(digest)
		if _, listed := s.roots[digest]; err == nil && listed && !complete {
			err = errDamaged
		}
		if err != nil {
			return nil, fmt.Errorf("look at needed image %s, so nothing is removed: %w", digest, err)
		}
		c.needed.add(r)
	}
	for digest := range s.roots {
		if inUse[digest] {
			s.markUsed(digest, now)
			continue
		}
		r, _, err := s.reachOf(digest)
		if err != nil && !errors.Is(err, errDamaged) {
			return nil, fmt.Errorf("look at image %s: %w", digest, err)
		}
		idle := candidate{digest: digest, reach: r}
		if info, err := os.Stat(s.blob(digest)); err == nil {
			idle.used = info.ModTime()
		}
		c.idle = append(c.idle, idle)
	}
	slices.SortFunc(c.idle, func(a, b candidate) int {
		return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.digest, b.digest))
	})
	names, err := s.treeNames()
	for _, name := range names {
		size, sizeErr := s.size(name)
		err = errors.Join(err, sizeErr)
		c.sizes[name] = size.Bytes
		c.left += size.Bytes
	}
	return c, err
}

// choose takes images out of idle until the conditions of Prune hold, and returns their digests.
func (c *census) choose(cfg Config, lacking int64) (digests []string) {
	users := map[string]int{} // by tree: how many images have it
	for _, i := range c.idle {
		for name := range i.reach.trees {
			users[name]++
		}
	}
	excess := max(c.left-cfg.CacheBytes, lacking)
	c.urgent = excess > 0
	for name, bytes := range c.sizes { // what belongs to no image goes first
		if users[name] == 0 && !c.needed.trees[name] {
			excess -= bytes
		}
	}
	var remain []candidate
	for _, i := range c.idle {
		if excess <= 0 && c.now.Sub(i.used) < cfg.MaxAge {
			remain = append(remain, i)
			continue
		}
		digests = append(digests, i.digest)
		c.gone.add(i.reach)
		for name := range i.reach.trees {
			if users[name]--; users[name] == 0 && !c.needed.trees[name] {
				excess -= c.sizes[name]
			}
		}
	}
	c.idle = remain
	return digests
}

// kept returns what the images that remain have.
func (c *census) kept() reach {
	keep := newReach()
	keep.add(c.needed)
	for _, i := range c.idle {
		keep.add(i.reach)
	}
	return keep
}

// expired reports whether something that belongs to no image goes now.
func (s *Store) expired(c *census, ofRemoved bool, modified time.Time) bool {
	return ofRemoved || c.urgent || c.now.Sub(modified) >= s.cfg.PartialAge
}

// sweepTrees gives trees that go temporary names. The caller removes them without the lock.
func (s *Store) sweepTrees(c *census, keep reach) (doomed []string, count int, err error) {
	for name, bytes := range c.sizes {
		if keep.trees[name] {
			continue
		}
		var made time.Time
		if info, err := os.Stat(s.listingPath(name)); err == nil {
			made = info.ModTime()
		}
		if !s.expired(c, c.gone.trees[name], made) {
			continue
		}
		// The same layer may have been removed before, and a part of it may be left.
		to := s.tree(fmt.Sprintf("%sremoved-%s-%d", tempPrefix, name, c.now.UnixNano()))
		if renameErr := os.Rename(s.tree(name), to); renameErr != nil {
			err = errors.Join(err, fmt.Errorf("remove a layer: %w", renameErr))
			continue
		}
		err = errors.Join(err, ignoreMissing(os.Remove(s.listingPath(name))))
		doomed, count, c.left = append(doomed, to), count+1, c.left-bytes
	}
	return doomed, count, err
}

// sweepFiles removes blobs or partial files.
func (s *Store) sweepFiles(dir string, c *census, keep map[string]bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read image directory: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		name := entry.Name()
		if keep[name] || !reference.IsDigest("sha256:"+name) {
			continue // other names are being written
		}
		info, err := entry.Info()
		if err != nil {
			errs = append(errs, ignoreMissing(err))
			continue
		}
		if !s.expired(c, c.gone.blobs[name] || c.gone.partials[name], info.ModTime()) {
			continue
		}
		errs = append(errs, ignoreMissing(os.Remove(filepath.Join(dir, name))))
		if dir == s.partialDir() {
			delete(s.verified, "sha256:"+name)
			delete(s.arrived, "sha256:"+name)
		}
	}
	return errors.Join(errs...)
}

// forgetRoots takes images out of index.json, before their layers go.
func (s *Store) forgetRoots(digests []string) error {
	before := maps.Clone(s.roots)
	for _, digest := range digests {
		delete(s.roots, digest)
		delete(s.usedAt, digest)
	}
	if err := s.writeIndex(); err != nil {
		s.roots = before
		return err
	}
	return nil
}

// treeNames returns the names of all finished trees.
func (s *Store) treeNames() ([]string, error) {
	entries, err := os.ReadDir(s.treeDir())
	if err != nil {
		return nil, fmt.Errorf("read the directory of layers: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if treeName(entry.Name()) {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// treeName reports whether a name belongs to a finished tree.
func treeName(name string) bool {
	for _, prefix := range []string{diffPrefix, chainPrefix} {
		if hex, ok := strings.CutPrefix(name, prefix); ok && reference.IsDigest("sha256:"+hex) {
			return true
		}
	}
	return false
}

// markEvery is how precisely the time of use is recorded.
const markEvery = time.Minute

// markUsed records that an image is used now: its first blob has this time. If that fails, it does nothing. The caller
// holds s.mu.
func (s *Store) markUsed(digest string, now time.Time) {
	if now.Sub(s.usedAt[digest]) >= markEvery {
		s.usedAt[digest] = now
		_ = os.Chtimes(s.blob(digest), now, now)
	}
}
