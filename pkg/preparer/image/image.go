// Package image pulls images of containers, and keeps them on the node: each layer once, unpacked for overlay mounts.
//
// The directory of a Store is an OCI image layout. Its blobs are manifests, indexes and configurations. A layer's blob
// is removed when the layer is unpacked, because a node has no space for both.
//
//	oci-layout, index.json    the images that were pulled
//	blobs/sha256/<hex>        manifests, indexes and configurations
//	partial/<hex>             what has arrived of a blob
//	trees/diff-<hex>          an unpacked layer, by its diff id
//	trees/chain-<hex>         an unpacked layer that is valid above certain layers only, by its chain id
//	trees/<name>.json         its size; the modification time is when it was made
//	trees/tmp-*               unfinished work
//
// Pull reads the manifest or index by digest, and of an index only the entry for the node's platform. It checks sizes,
// counts and media types before it downloads anything else. Then it downloads the configuration and all missing layers
// at the same time, each layer once for the node: other pulls wait for it. From the lowest layer on it unpacks into
// trees/tmp-*, compares the diff id, syncs the file system, renames the tree, and removes the blob. At the end it lists
// the image in index.json. What is on the disk causes no request. If a partial file of an earlier preparer leads to a
// wrong digest, the blob is downloaded again.
//
// Nothing unfinished has a final name, and a final name appears when the content is on the disk. So a crash loses at
// most what arrived last. All errors of Pull have a method Refused() bool: whether another pull would end in the same
// way.
package image

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/rcfarm/rcfarm/pkg/internal/archive"
	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/reference"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/registry"
)

// Errors that a caller can test for. Pull also returns errors of the packages registry, reference and archive. These
// three are about the image itself.
var (
	ErrManifest    = errors.New("not a valid image")
	ErrUnsupported = errors.New("not an image that this node can run")
	ErrPlatform    = errors.New("no image for this platform")
)

// Defaults of settings that operators choose.
const (
	DefaultMaxBytes         = 16 << 30
	DefaultMaxUnpackedBytes = 32 << 30
	DefaultCacheBytes       = 20 << 30
	DefaultReserveBytes     = 256 << 20
	DefaultPullTimeout      = 15 * time.Minute
	DefaultMaxAge           = 14 * 24 * time.Hour
)

// Config has what New needs. If a field is zero, withDefaults sets its default.
type Config struct {
	Dir        string           // belongs to one daemon; made if missing
	Registries *registry.Client // required

	MaxBytes         int64 // of all layers of an image as downloaded
	MaxUnpackedBytes int64 // of all layers of an image, unpacked
	MaxFiles         int   // entries of all layers of an image
	MaxLayers        int

	PullTimeout time.Duration // of one whole pull with its retries
	Downloads   int           // how many layers are downloaded from one registry at the same time

	CacheBytes   int64         // size of the store after Prune; it is larger if the images in use are
	ReserveBytes int64         // bytes of the disk that stay free; negative for none
	MaxAge       time.Duration // Prune removes images that were not used for so long
	PartialAge   time.Duration // Prune removes what belongs to no image when it is so old
}

func (c Config) withDefaults() Config {
	c.MaxBytes = cmp.Or(c.MaxBytes, DefaultMaxBytes)
	c.MaxUnpackedBytes = cmp.Or(c.MaxUnpackedBytes, DefaultMaxUnpackedBytes)
	c.MaxFiles = cmp.Or(c.MaxFiles, 500_000)
	c.MaxLayers = cmp.Or(c.MaxLayers, 128)
	c.PullTimeout = cmp.Or(c.PullTimeout, DefaultPullTimeout)
	c.Downloads = cmp.Or(c.Downloads, 4)
	c.CacheBytes = cmp.Or(c.CacheBytes, DefaultCacheBytes)
	c.ReserveBytes = max(0, cmp.Or(c.ReserveBytes, DefaultReserveBytes))
	c.MaxAge = cmp.Or(c.MaxAge, DefaultMaxAge)
	c.PartialAge = cmp.Or(c.PartialAge, 24*time.Hour)
	return c
}

// Image is an image that is complete on the disk.
type Image struct {
	Digest   string         // as the reference has it: of a manifest or an index
	Platform string         // that its configuration names
	Config   v1.ImageConfig // what the image says about running it
	Layers   []string       // directories for an overlay mount, the highest first. They never change
	Bytes    int64          // of the layers on the disk, roughly
}

// Store keeps images. It is safe for concurrent use.
type Store struct {
	cfg   Config
	locks locks // by blob and by diff id

	// gate keeps what Prune sees and what pulls do apart. A pull holds it for reading while it looks whether a tree is
	// there, and while a file or tree gets a name. Before that, the pull's manifest and configuration are on the disk.
	// So Prune, which holds it for writing, knows that the file or tree is needed. It comes before mu.
	gate sync.RWMutex

	mu       sync.Mutex
	slots    map[string]chan struct{} // by registry: has a token for each download. A slow one does not delay others
	roots    map[string]v1.Descriptor // by digest: the images of index.json
	usedAt   map[string]time.Time     // by digest of an image: when the use was last recorded
	pulls    map[*pull]bool           // under way
	arrived  map[string]int64         // by digest of a layer: bytes in its partial file
	verified map[string]bool          // by digest of a layer: its partial file is complete and right
	lacking  int64                    // most bytes that were missing for a pull since the last Prune
}

// New opens the store. It makes the directory if it is missing, and removes unfinished work that a crash has left.
func New(cfg Config) (*Store, error) {
	if !filepath.IsAbs(cfg.Dir) {
		return nil, fmt.Errorf("image directory %q: not valid; allowed: an absolute path", cfg.Dir)
	}
	if cfg.Registries == nil {
		return nil, errors.New("image store: no client for registries; allowed: one")
	}
	s := &Store{
		cfg: cfg.withDefaults(), usedAt: map[string]time.Time{}, pulls: map[*pull]bool{}, arrived: map[string]int64{},
		verified: map[string]bool{}, slots: map[string]chan struct{}{}, locks: locks{held: map[string]chan struct{}{}},
	}
	for _, dir := range []string{s.cfg.Dir, s.blobDir(), s.partialDir(), s.treeDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make image directory: %w", err)
		}
	}
	// Programs with setuid bits are below this directory, and no user of the node may start them.
	if err := os.Chmod(s.cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("close image directory to users: %w", err)
	}
	for _, dir := range []string{s.cfg.Dir, s.blobDir(), s.treeDir()} {
		if err := removeLeftovers(dir); err != nil {
			return nil, err
		}
	}
	return s, s.openLayout()
}

func (s *Store) blobDir() string    { return filepath.Join(s.cfg.Dir, "blobs", "sha256") }
func (s *Store) partialDir() string { return filepath.Join(s.cfg.Dir, "partial") }
func (s *Store) treeDir() string    { return filepath.Join(s.cfg.Dir, "trees") }

func (s *Store) blob(digest string) string { return filepath.Join(s.blobDir(), reference.Hex(digest)) }
func (s *Store) partial(digest string) string {
	return filepath.Join(s.partialDir(), reference.Hex(digest))
}
func (s *Store) tree(name string) string { return filepath.Join(s.treeDir(), name) }

func (s *Store) room() *archive.Room {
	return &archive.Room{Dir: s.cfg.Dir, Reserve: s.cfg.ReserveBytes}
}

// tempPrefix begins the names of unfinished trees, and of trees that are being removed.
const tempPrefix = "tmp-"

// removeLeftovers removes unfinished work of a directory, and listings without a tree.
func removeLeftovers(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read image directory: %w", err)
	}
	for _, entry := range entries {
		name := entry.Name()
		tree, isListing := strings.CutSuffix(name, listingSuffix)
		if isListing = isListing && treeName(tree); isListing {
			_, err := os.Lstat(filepath.Join(dir, tree))
			isListing = errors.Is(err, fs.ErrNotExist)
		}
		if !strings.HasPrefix(name, tempPrefix) && !strings.HasSuffix(name, durable.TempSuffix) && !isListing {
			continue
		}
		if err := archive.RemoveTree(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("remove leftover: %w", err)
		}
	}
	return nil
}

// failed is an error of Pull.
type failed struct{ error }

func (f failed) Unwrap() error { return f.error }

// Refused reports whether the error is about the image itself, so that another pull would end in the same way.
func (f failed) Refused() bool {
	return slices.ContainsFunc([]error{
		ErrManifest, ErrUnsupported, ErrPlatform, reference.ErrInvalid, registry.ErrDigest, registry.ErrNotFound,
		archive.ErrTooLarge, archive.ErrArchive,
	}, func(is error) bool { return errors.Is(f.error, is) })
}
