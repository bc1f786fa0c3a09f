package install

import (
	"context"
	"fmt"
	goruntime "runtime"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/internal/oci/reference"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/preparer/image"
)

// Images pulls images, and keeps them on the node's disk.
type Images interface {
	// Pull returns an image that is complete on the disk. What is there causes no request. If another try would not
	// help, its error has a method Refused() bool that returns true.
	Pull(ctx context.Context, ref reference.Ref, platform reference.Platform) (image.Image, error)
	// Progress returns how far the pull of an image is. ok: there is one.
	Progress(digest string) (progress image.Progress, ok bool)
	// Prune removes images that are not needed. If needed returns false, it removes none.
	Prune(now time.Time, needed func() (digests map[string]bool, known bool)) (image.Removed, error)
}

// Fetched has what a pod's launchables are made of. A program of the node needs nothing.
type Fetched struct {
	dirs   map[string]string      // unpacked artifacts, by launchable
	images map[string]image.Image // by launchable
}

// pull returns the image of a launchable.
func (n *Node) pull(ctx context.Context, l *manifest.Launchable, progress Progress) (image.Image, error) {
	if n.cfg.Images == nil {
		lacks := n.cfg.NoImages
		if len(lacks) == 0 {
			lacks = []string{"it has no store of images"}
		}
		return image.Image{}, forGood(fmt.Errorf("this node runs no containers: %s", strings.Join(lacks, "; ")))
	}
	ref, platform, err := parseImage(&l.Artifact)
	if err != nil {
		return image.Image{}, forGood(err)
	}
	defer n.watchPull(l.Name, ref.Digest, progress)()
	return n.cfg.Images.Pull(ctx, ref, platform)
}

// parseImage returns what an artifact names. Without a platform it is the node's own.
func parseImage(a *manifest.Artifact) (ref reference.Ref, platform reference.Platform, err error) {
	if ref, err = reference.Parse(a.Ref); err != nil {
		return ref, platform, err
	}
	if a.Platform == "" {
		return ref, reference.Platform{OS: "linux", Architecture: goruntime.GOARCH}, nil
	}
	platform, err = reference.ParsePlatform(a.Platform)
	return ref, platform, err
}

// PruneImages removes images that are not needed; see Images. Without a store it does nothing.
func (n *Node) PruneImages(
	needed func() (digests map[string]bool, known bool),
) (removed []string, left int64, err error) {
	if n.cfg.Images == nil {
		return nil, 0, nil
	}
	r, err := n.cfg.Images.Prune(time.Now(), needed)
	return r.Images, r.Left, err
}

// ImageDigests adds the digests of a manifest's images to a set.
func ImageDigests(m *manifest.Manifest, into map[string]bool) {
	for i := range m.Launchables {
		if a := &m.Launchables[i].Artifact; a.IsImage() {
			if ref, err := reference.Parse(a.Ref); err == nil && ref.Digest != "" {
				into[ref.Digest] = true
			}
		}
	}
}
