package image

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/rcfarm/rcfarm/pkg/internal/archive"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/reference"
)

// Media types of Docker, which mean the same as the types of the specification.
const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerIndex    = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerConfig   = "application/vnd.docker.container.image.v1+json"
	dockerLayer    = "application/vnd.docker.image.rootfs.diff.tar"
	dockerGzip     = "application/vnd.docker.image.rootfs.diff.tar.gzip"
	dockerZstd     = "application/vnd.docker.image.rootfs.diff.tar.zstd"
)

var (
	manifestTypes = []string{v1.MediaTypeImageManifest, dockerManifest}
	indexTypes    = []string{v1.MediaTypeImageIndex, dockerIndex}
	configTypes   = []string{v1.MediaTypeImageConfig, dockerConfig}
	layerTypes    = []string{
		v1.MediaTypeImageLayer, v1.MediaTypeImageLayerGzip, v1.MediaTypeImageLayerZstd,
		dockerLayer, dockerGzip, dockerZstd,
	}
)

// Limits of what a manifest may say.
const (
	maxEntries     = 1000 // manifests of an index, or layers
	maxConfigBytes = 4 << 20
)

// document is a manifest or an index.
type document struct {
	SchemaVersion int           `json:"schemaVersion"`
	MediaType     string        `json:"mediaType"`
	Manifests     descriptors   `json:"manifests"` // of an index
	Config        v1.Descriptor `json:"config"`    // of a manifest
	Layers        descriptors   `json:"layers"`    // of a manifest
}

// descriptors has at most maxEntries elements. A list in a document of 4 MiB can have so many empty elements that they
// need hundreds of MiB in memory.
type descriptors []v1.Descriptor

// UnmarshalJSON implements json.Unmarshaler.
func (d *descriptors) UnmarshalJSON(data []byte) error {
	*d = nil
	elements := json.NewDecoder(bytes.NewReader(data))
	switch begin, err := elements.Token(); {
	case err != nil:
		return err
	case begin == nil:
		return nil
	case begin != json.Delim('['):
		return errors.New("a list of blobs is not an array")
	}
	*d = descriptors{}
	for elements.More() {
		if len(*d) == maxEntries {
			return fmt.Errorf("a list of blobs: %w; allowed: at most %d", archive.ErrTooLarge, maxEntries)
		}
		var one v1.Descriptor
		if err := elements.Decode(&one); err != nil {
			return err
		}
		*d = append(*d, one)
	}
	return nil
}

// ignored is a field that is not read, because it could need much memory.
type ignored struct{}

// UnmarshalJSON implements json.Unmarshaler.
func (ignored) UnmarshalJSON([]byte) error { return nil }

func (d document) isIndex() bool {
	return slices.Contains(indexTypes, d.MediaType) || d.MediaType == "" && d.Manifests != nil
}

// parse reads a manifest or an index. A document that could be both is refused, because two readers of one digest could
// see two images.
func parse(data []byte) (document, error) {
	var d document
	if err := json.Unmarshal(data, &d); err != nil {
		return document{}, fmt.Errorf("%w: %w", ErrManifest, err)
	}
	isManifest := d.Layers != nil || d.Config.Digest != ""
	switch {
	case d.SchemaVersion != 2:
		return document{}, fmt.Errorf("%w: schemaVersion %d; allowed: 2", ErrManifest, d.SchemaVersion)
	case d.MediaType != "" && !slices.Contains(manifestTypes, d.MediaType) && !slices.Contains(indexTypes, d.MediaType):
		return document{}, fmt.Errorf("%w: media type %.100q; allowed: image manifests and indexes", ErrUnsupported,
			d.MediaType)
	case d.isIndex() && isManifest, !d.isIndex() && d.Manifests != nil:
		return document{}, fmt.Errorf("%w: manifest and index at once; allowed: one of them", ErrManifest)
	}
	return d, nil
}

// choose returns the entry of an index for a platform. It skips entries for other platforms, and entries that are no
// manifests, such as attestations.
func (d document) choose(platform reference.Platform) (v1.Descriptor, error) {
	var best v1.Descriptor
	rank, found := 0, []string{}
	for _, m := range d.Manifests {
		if m.Platform == nil || !slices.Contains(manifestTypes, m.MediaType) {
			continue
		}
		of := reference.Platform{OS: m.Platform.OS, Architecture: m.Platform.Architecture, Variant: m.Platform.Variant}
		if r := platform.Rank(of); r > rank {
			best, rank = m, r
		}
		if len(found) < 10 {
			found = append(found, fmt.Sprintf("%.64s", of))
		}
	}
	if rank == 0 {
		return v1.Descriptor{}, fmt.Errorf("%w: %s is wanted, the index has %s", ErrPlatform, platform, found)
	}
	return best, checkDescriptor("manifest", best, manifestTypes, maxDocumentBytes)
}

// checkDescriptor checks what a document says about a blob.
func checkDescriptor(what string, d v1.Descriptor, types []string, most int64) error {
	switch {
	case !slices.Contains(types, d.MediaType):
		return fmt.Errorf("%w: %s of media type %.100q; allowed: %s", ErrUnsupported, what, d.MediaType, types)
	case !reference.IsDigest(d.Digest.String()):
		return fmt.Errorf("%w: %s with the digest %.100q; allowed: sha256", ErrManifest, what, d.Digest)
	case d.Size < 1:
		return fmt.Errorf("%w: %s of %d bytes", ErrManifest, what, d.Size)
	case d.Size > most:
		return fmt.Errorf("%s of %d bytes: %w; allowed: at most %d", what, d.Size, archive.ErrTooLarge, most)
	}
	return nil
}

// checkManifest checks a manifest before anything that it names is downloaded.
func (c Config) checkManifest(d document) error {
	if d.isIndex() {
		return fmt.Errorf("%w: an index in an index; allowed: manifests", ErrUnsupported)
	}
	if err := checkDescriptor("configuration", d.Config, configTypes, maxConfigBytes); err != nil {
		return err
	}
	if len(d.Layers) == 0 {
		return fmt.Errorf("%w: no layers; allowed: at least one", ErrUnsupported)
	}
	if len(d.Layers) > c.MaxLayers {
		return fmt.Errorf("%d layers: %w; allowed: at most %d", len(d.Layers), archive.ErrTooLarge, c.MaxLayers)
	}
	left := c.MaxBytes
	for i, l := range d.Layers {
		if err := checkDescriptor(fmt.Sprintf("layer %d", i), l, layerTypes, left); err != nil {
			return err
		}
		left -= l.Size
	}
	return nil
}

// parseConfig reads the configuration of an image with this many layers.
func parseConfig(data []byte, layers int) (v1.Image, error) {
	var read struct {
		v1.Image
		History ignored `json:"history"`
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return v1.Image{}, fmt.Errorf("%w: configuration: %w", ErrManifest, err)
	}
	config := read.Image
	if len(config.RootFS.DiffIDs) != layers {
		return v1.Image{}, fmt.Errorf("%w: %d layers, and a configuration of %d", ErrManifest, layers,
			len(config.RootFS.DiffIDs))
	}
	for _, id := range config.RootFS.DiffIDs {
		if !reference.IsDigest(id.String()) {
			return v1.Image{}, fmt.Errorf("%w: diff id %.100q; allowed: sha256", ErrManifest, id)
		}
	}
	return config, nil
}

// platformOf returns the platform that a configuration names.
func platformOf(config v1.Image) reference.Platform {
	return reference.Platform{OS: config.OS, Architecture: config.Architecture, Variant: config.Variant}
}

// layer is one layer of an image.
type layer struct {
	digest string // of the blob
	size   int64  // of the blob
	diff   string // diff id
	chain  string // chain id: of this layer and all below
}

// layersOf returns the layers, the lowest first. The chain id is
// https://github.com/opencontainers/image-spec/blob/main/config.md#layer-chainid
func layersOf(d document, diffs []digest.Digest) []layer {
	layers, chain := make([]layer, len(d.Layers)), ""
	for i, l := range d.Layers {
		diff := diffs[i].String()
		if i == 0 {
			chain = diff
		} else {
			sum := sha256.Sum256([]byte(chain + " " + diff))
			chain = "sha256:" + hex.EncodeToString(sum[:])
		}
		layers[i] = layer{digest: l.Digest.String(), size: l.Size, diff: diff, chain: chain}
	}
	return layers
}

const (
	diffPrefix  = "diff-"
	chainPrefix = "chain-"
)

func (l layer) names() [2]string {
	return [2]string{diffPrefix + reference.Hex(l.diff), chainPrefix + reference.Hex(l.chain)}
}
