package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/rcfarm/rcfarm/pkg/internal/archive"
	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/reference"
	"github.com/rcfarm/rcfarm/pkg/internal/regular"
)

// Limits of what is read into memory, in bytes.
const (
	maxIndexBytes    = 64 << 20 // index.json, which this package writes
	maxDocumentBytes = 8 << 20  // of a manifest, an index or a configuration
)

func (s *Store) indexPath() string { return filepath.Join(s.cfg.Dir, v1.ImageIndexFile) }

// openLayout reads index.json, and writes what an OCI layout must have. If index.json has no index, it is set aside:
// pulls find their images by digest, and list them again.
func (s *Store) openLayout() error {
	s.roots = map[string]v1.Descriptor{}
	layout := filepath.Join(s.cfg.Dir, v1.ImageLayoutFile)
	if _, err := os.Lstat(layout); errors.Is(err, fs.ErrNotExist) {
		data, err := json.Marshal(v1.ImageLayout{Version: v1.ImageLayoutVersion})
		if err == nil {
			err = durable.WriteFile(layout, data)
		}
		if err != nil {
			return fmt.Errorf("write the image layout: %w", err)
		}
	}
	data, err := readFile(s.indexPath(), maxIndexBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return s.writeIndex()
	}
	var index v1.Index
	if err == nil {
		if err = json.Unmarshal(data, &index); err == nil {
			for _, root := range index.Manifests {
				if reference.IsDigest(root.Digest.String()) {
					s.roots[root.Digest.String()] = root
				}
			}
			return nil
		}
		aside := s.indexPath() + "." + strconv.FormatInt(time.Now().UnixNano(), 10) + durable.AsideSuffix
		if err = os.Rename(s.indexPath(), aside); err == nil {
			return s.writeIndex()
		}
	}
	return fmt.Errorf("read the list of images: %w", err)
}

// writeIndex writes index.json durably. The caller holds s.mu, except in New.
func (s *Store) writeIndex() error {
	index := v1.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{},
	}
	for _, digest := range slices.Sorted(maps.Keys(s.roots)) {
		index.Manifests = append(index.Manifests, s.roots[digest])
	}
	data, err := json.Marshal(index)
	if err == nil {
		err = durable.WriteFile(s.indexPath(), data)
	}
	if err != nil {
		return fmt.Errorf("write the list of images: %w", err)
	}
	return nil
}

// addRoot lists an image in index.json.
func (s *Store) addRoot(ref reference.Ref, mediaType string, size int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.roots[ref.Digest]; ok {
		return nil
	}
	s.roots[ref.Digest] = v1.Descriptor{
		MediaType: mediaType, Digest: digest.Digest(ref.Digest), Size: size,
		Annotations: map[string]string{v1.AnnotationRefName: ref.String()},
	}
	if err := s.writeIndex(); err != nil {
		delete(s.roots, ref.Digest)
		return err
	}
	return nil
}

// errDamaged means that a blob on the disk is not what its name says.
var errDamaged = errors.New("damaged on the disk")

// readBlob reads a blob, and checks its digest. It returns fs.ErrNotExist if there is none.
func (s *Store) readBlob(digest string) ([]byte, error) {
	data, err := readFile(s.blob(digest), maxDocumentBytes)
	if err != nil {
		return nil, fmt.Errorf("read blob: %w", err)
	}
	sum := sha256.Sum256(data)
	if hex.EncodeToString(sum[:]) != reference.Hex(digest) {
		return nil, fmt.Errorf("blob %s: %w", digest, errDamaged)
	}
	return data, nil
}

func (s *Store) writeBlob(digest string, data []byte) error {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if err := durable.WriteFile(s.blob(digest), data); err != nil {
		return fmt.Errorf("write blob: %w", err)
	}
	return nil
}

func readFile(path string, most int64) ([]byte, error) {
	f, _, err := regular.Open(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	data, err := regular.ReadAll(f, most)
	return data, errors.Join(err, f.Close())
}

// listingSuffix ends the name of a listing: a file beside a tree.
const listingSuffix = ".json"

// listing has the size of a tree.
type listing struct {
	Bytes   int64 `json:"bytes"` // on the disk, roughly
	Entries int   `json:"entries"`
}

func (s *Store) listingPath(name string) string { return s.tree(name) + listingSuffix }

// writeListing writes a listing durably, before the tree gets its name.
func (s *Store) writeListing(name string, l listing) error {
	data, err := json.Marshal(l)
	if err == nil {
		err = durable.WriteFile(s.listingPath(name), data)
	}
	if err != nil {
		return fmt.Errorf("write the listing of a layer: %w", err)
	}
	return nil
}

// size returns the size of a tree. If the listing was lost, it walks the tree.
func (s *Store) size(name string) (listing, error) {
	var l listing
	data, err := os.ReadFile(s.listingPath(name))
	if err == nil {
		err = json.Unmarshal(data, &l)
	}
	if err != nil || l.Bytes < 0 || l.Entries < 0 {
		l = listing{}
		l.Bytes, l.Entries, err = archive.Measure(s.tree(name))
	}
	return l, err
}
