package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/rcfarm/rcfarm/pkg/internal/archive"
	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/registry"
	"github.com/rcfarm/rcfarm/pkg/internal/patience"
	unpacker "github.com/rcfarm/rcfarm/pkg/preparer/image/layer"
)

// limitsLeft is what the rest of an image's layers may unpack to.
type limitsLeft struct {
	bytes   int64
	entries int
}

// have returns the name of the tree of a layer, if it is on the disk. What it finds remains until the pull ends.
func (s *Store) have(l layer) (string, bool, error) {
	s.gate.RLock()
	defer s.gate.RUnlock()
	for _, name := range l.names() {
		_, err := os.Lstat(s.tree(name))
		if err == nil {
			return name, true, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", false, fmt.Errorf("look at an unpacked layer: %w", err)
		}
	}
	return "", false, nil
}

// download makes the partial file of a layer complete, unless the layer is unpacked already. One caller at a time
// downloads a layer, and the others wait for it.
func (p *pull) download(ctx context.Context, l layer) error {
	if _, ok, err := p.s.have(l); ok || err != nil {
		return err
	}
	release, err := p.s.locks.acquire(ctx, "blob "+l.digest)
	if err != nil {
		return err
	}
	defer release()
	if _, ok, err := p.s.have(l); ok || err != nil {
		return err
	}
	return p.fetch(ctx, l)
}

// fetch downloads. The caller holds the lock of the blob.
func (p *pull) fetch(ctx context.Context, l layer) (err error) {
	if p.s.isVerified(l.digest) {
		return nil
	}
	slots := p.s.slotsOf(p.ref.Registry)
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return patience.Ended(ctx)
	}
	repo, err := p.open()
	if err != nil {
		return err
	}
	f, err := p.s.openPartial(l.digest)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	room := p.s.room()
	if info, err := f.Stat(); err == nil {
		if err := room.Check(max(0, l.size-info.Size()), "downloading"); err != nil {
			return err
		}
	}
	blob := registry.Blob{Digest: l.digest, Size: l.size}
	if err := repo.Blob(ctx, blob, f, room, func(size int64) { p.s.setArrived(l.digest, size) }); err != nil {
		return err
	}
	p.s.setVerified(l.digest)
	return nil
}

// install unpacks a layer above those that are unpacked already, and returns the name of its tree.
func (p *pull) install(ctx context.Context, l layer, lower []string, left *limitsLeft) (string, error) {
	release, err := p.s.locks.acquire(ctx, "diff "+l.diff) // other blobs may have the same content
	if err != nil {
		return "", err
	}
	defer release()
	name, ok, err := p.s.have(l)
	if err == nil && !ok {
		name, err = p.unpack(ctx, l, lower, *left)
	}
	if err != nil {
		return "", err
	}
	size, err := p.s.size(name)
	if err != nil {
		return "", fmt.Errorf("measure a layer: %w", err)
	}
	// A tree that another image brought counts as if it had been unpacked for this one.
	left.bytes, left.entries = left.bytes-size.Bytes, left.entries-size.Entries
	if left.bytes < 0 || left.entries < 0 {
		return "", fmt.Errorf("%w; allowed: images of at most %d bytes and %d entries unpacked", archive.ErrTooLarge,
			p.s.cfg.MaxUnpackedBytes, p.s.cfg.MaxFiles)
	}
	return name, nil
}

// unpack makes the tree of a layer. The caller holds the lock of the diff id.
func (p *pull) unpack(ctx context.Context, l layer, lower []string, left limitsLeft) (string, error) {
	release, err := p.s.locks.acquire(ctx, "blob "+l.digest)
	if err != nil {
		return "", err
	}
	defer release()
	// Another image may have used up what was downloaded.
	if err := p.fetch(ctx, l); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(p.s.treeDir(), tempPrefix)
	if err != nil {
		return "", fmt.Errorf("make a directory for a layer: %w", err)
	}
	name, err := p.fill(ctx, temp, l, lower, left)
	if err != nil {
		p.s.distrust(l.digest)
		return "", errors.Join(err, archive.RemoveTree(temp))
	}
	p.s.forgetPartial(l.digest)
	// After an error here, the partial file is more than nothing needs, and a Prune removes it.
	_ = os.Remove(p.s.partial(l.digest))
	return name, nil
}

// fill unpacks a layer into temp, and renames it when it is on the disk.
func (p *pull) fill(ctx context.Context, temp string, l layer, lower []string, left limitsLeft) (string, error) {
	blob, err := os.Open(p.s.partial(l.digest))
	if err != nil {
		return "", fmt.Errorf("open a downloaded layer: %w", err)
	}
	defer func() { _ = blob.Close() }()
	below := make([]string, len(lower))
	for i, name := range lower {
		below[len(lower)-1-i] = p.s.tree(name)
	}
	limits := unpacker.Limits{Bytes: left.bytes, Entries: left.entries, Room: p.s.room()}
	res, err := unpacker.Unpack(ctx, blob, temp, below, limits)
	if err != nil {
		return "", err
	}
	if res.DiffID != l.diff {
		return "", fmt.Errorf("%w: diff id %s, unpacked %s", registry.ErrDigest, l.diff, res.DiffID)
	}
	if err := archive.SyncFilesystem(temp); err != nil {
		return "", err
	}
	name := l.names()[0]
	if res.Dependent {
		name = l.names()[1]
	}
	if err := p.s.writeListing(name, listing{Bytes: res.Bytes, Entries: res.Entries}); err != nil {
		return "", err
	}
	if err := p.s.rename(temp, name); err != nil {
		return "", fmt.Errorf("put a layer in place: %w", err)
	}
	if err := durable.SyncDir(p.s.treeDir()); err != nil {
		return "", fmt.Errorf("write the directory of layers to disk: %w", err)
	}
	return name, nil
}

func (s *Store) rename(temp, name string) error {
	s.gate.RLock()
	defer s.gate.RUnlock()
	return os.Rename(temp, s.tree(name))
}

// openPartial opens the partial file of a blob, or makes it. The file remains until the pull ends.
func (s *Store) openPartial(digest string) (*os.File, error) {
	s.gate.RLock()
	defer s.gate.RUnlock()
	f, err := os.OpenFile(s.partial(digest), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open what has arrived: %w", err)
	}
	return f, nil
}

func (s *Store) slotsOf(registry string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	slots, ok := s.slots[registry]
	if !ok {
		slots = make(chan struct{}, s.cfg.Downloads)
		s.slots[registry] = slots
	}
	return slots
}

func (s *Store) isVerified(digest string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.verified[digest]
}

func (s *Store) setVerified(digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.verified[digest] = true
}

// distrust makes the next pull read the partial file again. If the disk has changed it, it is downloaded again.
func (s *Store) distrust(digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.verified, digest)
}

func (s *Store) setArrived(digest string, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrived[digest] = size
}

func (s *Store) forgetPartial(digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.verified, digest)
	delete(s.arrived, digest)
}
