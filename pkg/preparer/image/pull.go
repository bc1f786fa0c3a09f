package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/internal/archive"
	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/reference"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/registry"
	"github.com/rcfarm/rcfarm/pkg/internal/patience"
	unpacker "github.com/rcfarm/rcfarm/pkg/preparer/image/layer"
)

// pull is one call of Pull.
type pull struct {
	s        *Store
	ref      reference.Ref
	platform reference.Platform
	open     func() (*registry.Repository, error) // opens the repository once, when something is missing

	layers  []layer         // guarded by Store.mu for other goroutines
	missing map[string]bool // by digest of a layer: it was not on the disk at the beginning. As layers
}

// Pull returns the image that the reference's digest names, for a platform. What is on the disk causes no request.
// Pulls at the same time share downloads of layers. Errors to test for: errors of this package, registry,
// reference and archive, and the context's.
func (s *Store) Pull(ctx context.Context, ref reference.Ref, platform reference.Platform) (Image, error) {
	image, err := s.pull(ctx, ref, platform)
	if err != nil {
		return Image{}, failed{fmt.Errorf("image %s: %w", ref, err)}
	}
	return image, nil
}

func (s *Store) pull(ctx context.Context, ref reference.Ref, platform reference.Platform) (Image, error) {
	if !reference.IsDigest(ref.Digest) {
		return Image{}, fmt.Errorf("%w: no digest; allowed: references with a digest", reference.ErrInvalid)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.PullTimeout,
		fmt.Errorf("the pull took longer than %s: %w", s.cfg.PullTimeout, context.DeadlineExceeded))
	defer cancel()
	p := &pull{s: s, ref: ref, platform: platform}
	var opened *registry.Repository
	p.open = sync.OnceValues(func() (repo *registry.Repository, err error) {
		opened, err = s.cfg.Registries.Open(ref)
		return opened, err
	})
	defer func() {
		if opened != nil {
			opened.Close()
		}
	}()
	s.begin(p)
	image, err := p.run(ctx)
	s.end(p, err)
	if err != nil && ctx.Err() != nil && !errors.Is(err, context.Cause(ctx)) {
		err = fmt.Errorf("%w: %w", patience.Ended(ctx), err)
	}
	if durable.Full(err) && !errors.Is(err, archive.ErrNoSpace) {
		err = fmt.Errorf("%w in %s: %w; free some", archive.ErrNoSpace, s.cfg.Dir, err)
	}
	return image, err
}

// begin makes Prune keep all that the pull may use. It comes before the pull looks at the disk.
func (s *Store) begin(p *pull) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pulls[p] = true
}

// end stores what Prune must know.
func (s *Store) end(p *pull, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pulls, p)
	if space, ok := errors.AsType[*archive.SpaceError](err); ok {
		s.lacking = max(s.lacking, space.Missing())
	} else if durable.Full(err) {
		s.lacking = max(s.lacking, archive.AskAgain)
	}
	if err == nil {
		s.markUsed(p.ref.Digest, time.Now())
	}
}

func (p *pull) run(ctx context.Context) (Image, error) {
	root, data, err := p.document(ctx, p.ref.Digest)
	if err != nil {
		return Image{}, err
	}
	manifest := root
	if root.isIndex() {
		entry, err := root.choose(p.platform)
		if err != nil {
			return Image{}, err
		}
		if manifest, _, err = p.document(ctx, entry.Digest.String()); err != nil {
			return Image{}, err
		}
	}
	if err := p.s.cfg.checkManifest(manifest); err != nil {
		return Image{}, err
	}
	config, err := p.config(ctx, manifest)
	if err != nil {
		return Image{}, err
	}
	of := platformOf(config)
	if of.Architecture != "" && p.platform.Rank(of) == 0 {
		return Image{}, fmt.Errorf("%w: %s is wanted, the image is for %.100s", ErrPlatform, p.platform, of)
	}
	p.setLayers(layersOf(manifest, config.RootFS.DiffIDs))
	trees, err := p.pullLayers(ctx)
	if err != nil {
		return Image{}, err
	}
	mediaType := manifestTypes[0]
	if root.isIndex() {
		mediaType = indexTypes[0]
	}
	if root.MediaType != "" {
		mediaType = root.MediaType
	}
	if err := p.s.addRoot(p.ref, mediaType, int64(len(data))); err != nil {
		return Image{}, err
	}
	return p.s.complete(p.ref.Digest, config, trees)
}

// complete returns the image with these trees, which are the lowest first.
func (s *Store) complete(digest string, config v1.Image, trees []string) (Image, error) {
	image := Image{Digest: digest, Config: config.Config, Platform: platformOf(config).String()}
	seen := map[string]bool{} // the kernel refuses a directory that is there twice, and the higher one hides the lower
	for _, tree := range slices.Backward(trees) {
		if seen[tree] {
			continue
		}
		seen[tree] = true
		size, err := s.size(tree)
		if err != nil {
			return Image{}, fmt.Errorf("measure a layer: %w", err)
		}
		image.Bytes += size.Bytes
		image.Layers = append(image.Layers, s.tree(tree))
		opaque, err := unpacker.IsOpaque(s.tree(tree))
		if err != nil {
			return Image{}, err
		}
		if opaque { // a mount would show what is below, because overlayfs reads the mark of subdirectories only
			break
		}
	}
	return image, nil
}

// document returns a manifest or an index, from the disk or the registry.
func (p *pull) document(ctx context.Context, digest string) (d document, data []byte, err error) {
	data, err = p.blob(ctx, digest, func() ([]byte, error) {
		repo, err := p.open()
		if err != nil {
			return nil, err
		}
		return repo.Manifest(ctx, digest)
	})
	if err == nil {
		d, err = parse(data)
	}
	return d, data, err
}

// config returns the configuration, from the disk or the registry.
func (p *pull) config(ctx context.Context, manifest document) (v1.Image, error) {
	digest := manifest.Config.Digest.String()
	data, err := p.blob(ctx, digest, func() ([]byte, error) {
		return p.fetchConfig(ctx, registry.Blob{Digest: digest, Size: manifest.Config.Size})
	})
	if err != nil {
		return v1.Image{}, err
	}
	return parseConfig(data, len(manifest.Layers))
}

// blob returns a blob from the disk. If it is missing or damaged, blob fetches and writes it. One caller at a time does
// that for a blob, and the others wait.
func (p *pull) blob(ctx context.Context, digest string, fetch func() ([]byte, error)) ([]byte, error) {
	release, err := p.s.locks.acquire(ctx, "blob "+digest)
	if err != nil {
		return nil, err
	}
	defer release()
	data, err := p.s.readBlob(digest)
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errDamaged) {
		return data, err
	}
	if data, err = fetch(); err != nil {
		return nil, err
	}
	if err := p.s.writeBlob(digest, data); err != nil {
		return nil, err
	}
	if err := os.Remove(p.s.partial(digest)); err != nil {
		return data, ignoreMissing(err)
	}
	return data, nil
}

func (p *pull) fetchConfig(ctx context.Context, blob registry.Blob) ([]byte, error) {
	repo, err := p.open()
	if err != nil {
		return nil, err
	}
	p.s.distrust(blob.Digest) // another image may have it as a layer, with another size
	f, err := p.s.openPartial(blob.Digest)
	if err != nil {
		return nil, err
	}
	err = repo.Blob(ctx, blob, f, p.s.room(), func(int64) {})
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	data, err := readFile(p.s.partial(blob.Digest), maxConfigBytes)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return data, nil
}

func (p *pull) setLayers(layers []layer) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.layers, p.missing = layers, map[string]bool{}
	for _, l := range layers {
		p.missing[l.digest] = !p.s.isUnpacked(l)
	}
}

// pullLayers makes all trees exist, and returns their names, the lowest first. Layers are downloaded at the same time,
// and unpacked one after the other from the lowest on, because a layer may depend on those below.
func (p *pull) pullLayers(ctx context.Context) (trees []string, err error) {
	group, groupCtx := errgroup.WithContext(ctx)
	ready := make([]chan struct{}, len(p.layers))
	for i, l := range p.layers {
		ready[i] = make(chan struct{})
		group.Go(func() error {
			if err := p.download(groupCtx, l); err != nil {
				return err
			}
			close(ready[i])
			return nil
		})
	}
	group.Go(func() error {
		left := limitsLeft{bytes: p.s.cfg.MaxUnpackedBytes, entries: p.s.cfg.MaxFiles}
		for i, l := range p.layers {
			select {
			case <-ready[i]:
			case <-groupCtx.Done():
				return groupCtx.Err() // the group has the error of the download already, or the caller's context ended
			}
			tree, err := p.install(groupCtx, l, trees, &left)
			if err != nil {
				return fmt.Errorf("layer %d: %w", i, err)
			}
			trees = append(trees, tree)
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		if ctx.Err() != nil {
			err = patience.Ended(ctx) // the group's error may name another cause
		}
		return nil, err
	}
	return trees, nil
}
