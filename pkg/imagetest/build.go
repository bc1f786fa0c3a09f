package imagetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Entry is an entry of a layer. Body is the content of a regular file.
type Entry struct {
	tar.Header
	Body string
}

// File is a regular file of root.
func File(name, body string) Entry {
	return Entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, body}
}

// Dir is a directory with a mode and an owner.
func Dir(name string, mode int64, owner int) Entry {
	return Entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode, Uid: owner, Gid: owner}}
}

// Link is a symbolic link.
func Link(name, target string) Entry {
	return Entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}}
}

// Tar returns a tar stream.
func Tar(tb testing.TB, entries ...Entry) []byte {
	tb.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		hdr := e.Header
		hdr.Size = int64(len(e.Body))
		if err := w.WriteHeader(&hdr); err != nil {
			tb.Fatalf("entry %s: %v", hdr.Name, err)
		}
		if _, err := w.Write([]byte(e.Body)); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// Layer is one layer of an image.
type Layer struct {
	MediaType string
	Blob      []byte
	DiffID    string
}

// Gzip compresses a tar stream.
func Gzip(tb testing.TB, stream []byte) Layer {
	tb.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(stream); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return Layer{v1.MediaTypeImageLayerGzip, out.Bytes(), Digest(stream)}
}

// Zstd compresses a tar stream.
func Zstd(tb testing.TB, stream []byte) Layer {
	tb.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		tb.Fatal(err)
	}
	blob := w.EncodeAll(stream, nil)
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return Layer{v1.MediaTypeImageLayerZstd, blob, Digest(stream)}
}

// Plain does not compress.
func Plain(stream []byte) Layer { return Layer{v1.MediaTypeImageLayer, stream, Digest(stream)} }

// Image is what Push needs.
type Image struct {
	Config       v1.ImageConfig
	Architecture string // empty: amd64
	Layers       []Layer
}

// Push stores an image, and returns the digest of its manifest.
func (r *Registry) Push(tb testing.TB, repository string, image Image) string {
	tb.Helper()
	config := v1.Image{Config: image.Config, Platform: v1.Platform{OS: "linux", Architecture: image.Architecture}}
	if config.Architecture == "" {
		config.Architecture = "amd64"
	}
	config.RootFS.Type = "layers"
	manifest := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest}
	for _, l := range image.Layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.Digest(l.DiffID))
		manifest.Layers = append(manifest.Layers, v1.Descriptor{
			MediaType: l.MediaType, Digest: digest.Digest(r.Put(repository, "", l.Blob)), Size: int64(len(l.Blob)),
		})
	}
	data := Marshal(tb, config)
	manifest.Config = v1.Descriptor{
		MediaType: v1.MediaTypeImageConfig, Digest: digest.Digest(r.Put(repository, "", data)), Size: int64(len(data)),
	}
	return r.Put(repository, manifest.MediaType, Marshal(tb, manifest))
}

// PushIndex stores an index of manifests by platform, such as linux/amd64, and returns its digest.
func (r *Registry) PushIndex(tb testing.TB, repository string, entries ...v1.Descriptor) string {
	tb.Helper()
	index := v1.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Manifests: entries,
	}
	return r.Put(repository, index.MediaType, Marshal(tb, index))
}

// Of describes a manifest in an index.
func (r *Registry) Of(repository, digestOf, os, architecture, variant string) v1.Descriptor {
	r.mu.Lock()
	defer r.mu.Unlock()
	return v1.Descriptor{
		MediaType: v1.MediaTypeImageManifest, Digest: digest.Digest(digestOf),
		Size:     int64(len(r.contents[repository+"@"+digestOf].data)),
		Platform: &v1.Platform{OS: os, Architecture: architecture, Variant: variant},
	}
}

// Marshal returns JSON.
func Marshal(tb testing.TB, value any) []byte {
	tb.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// Noise returns bytes that cannot be compressed, always the same for a seed.
func Noise(seed uint64, size int) []byte {
	out := make([]byte, size)
	random := rand.NewPCG(seed, 0)
	for i := range out {
		out[i] = byte(random.Uint64())
	}
	return out
}
