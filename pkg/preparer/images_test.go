package preparer_test

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/rcfarm/rcfarm/pkg/imagetest"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/registry"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/image"
)

// realImages gives the node a store of images that keeps only what pods need. layers is the directory of the layers.
func (b *bench) realImages(reg *imagetest.Registry) (layers string) {
	b.t.Helper()
	dir := filepath.Join(filepath.Dir(b.cfg.Dir), "images")
	s, err := image.New(image.Config{
		Dir: dir, ReserveBytes: -1, CacheBytes: 1,
		Registries: registry.New(registry.Config{
			Hosts: map[string]registry.Host{reg.Host: {PlainHTTP: true}}, StallTimeout: patience,
		}),
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.cfg.Images, b.cfg.PruneArtifacts = s, 50*time.Millisecond
	return filepath.Join(dir, "trees")
}

// imaged is the manifest of an image with one layer that has this content. tree is the layer's name on the disk.
func (b *bench) imaged(reg *imagetest.Registry, content string) (m manifest.Manifest, tree string) {
	b.t.Helper()
	layer := imagetest.Gzip(b.t, imagetest.Tar(b.t, imagetest.File("app", content)))
	digest := reg.Push(b.t, "web", imagetest.Image{
		Config: v1.ImageConfig{Entrypoint: []string{"/app"}}, Layers: []imagetest.Layer{layer},
	})
	m = b.sleeper(content)
	m.Launchables[0].Artifact = manifest.Artifact{
		Kind: manifest.ArtifactImage, Ref: reg.Host + "/web@" + digest, Platform: "linux/amd64",
	}
	return m, "diff-" + strings.TrimPrefix(layer.DiffID, "sha256:")
}

// While the image of a pod arrives, the pod's report says how far it is, and for how long that has taken.
func TestTheReportSaysHowFarAPullIs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	reg := imagetest.New(t)
	layers := b.realImages(reg)
	m, tree := b.imaged(reg, "1")
	open := make(chan struct{})
	pass := sync.OnceFunc(func() { close(open) })
	t.Cleanup(pass) // before the registry ends
	reg.Before(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			<-open
		}
		return false
	})
	b.start()
	b.write(intent(0, b.upload(m), pod.Running, 10))
	b.awaitReality(0, "how far the pull is", func(r pod.Reality) bool {
		return r.State == pod.StateFetching && strings.Contains(r.Message, "pulling ") && r.PullSeconds >= 10
	})
	pass()
	b.eventually(func() error { _, err := os.Stat(filepath.Join(layers, tree)); return err })
	b.awaitReality(0, "that the pull is over", func(r pod.Reality) bool {
		return r.State != pod.StateFetching && !strings.Contains(r.Message, "pulling ")
	})
}

// The node keeps the images of installed versions, and removes the others.
func TestImagesThatNoVersionNeedsAreRemoved(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	reg := imagetest.New(t)
	layers := b.realImages(reg)
	first, kept := b.imaged(reg, "1")
	second, gone := b.imaged(reg, "2")
	b.start()
	b.write(intent(0, b.upload(first), pod.Running, 10), intent(1, b.upload(second), pod.Running, 10))
	for _, tree := range []string{kept, gone} {
		b.eventually(func() error { _, err := os.Stat(filepath.Join(layers, tree)); return err })
	}
	b.write(intent(1, b.upload(second), pod.Stopped, 20))
	b.eventually(func() error {
		if _, err := os.Stat(filepath.Join(layers, gone)); !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(errors.New("the layer of a stopped pod is still there"), err)
		}
		return nil
	})
	if _, err := os.Stat(filepath.Join(layers, kept)); err != nil {
		t.Error(err)
	}
	if live, known := b.current.LiveImages(); len(live) != 1 || !known {
		t.Errorf("live: %v, known: %t", live, known)
	}
}

// A node without a store refuses a pod with an image for good, and its report says what is missing.
func TestANodeThatRunsNoContainersSaysWhy(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.cfg.NoImages = []string{"no runc: install runc 1.1.5 or newer"}
	m, _ := b.imaged(imagetest.New(t), "1")
	b.start()
	b.write(intent(0, b.upload(m), pod.Running, 10))
	r := b.awaitState(0, pod.StateFailed, 10, "this node runs no containers: no runc: install runc 1.1.5 or newer")
	if !r.Hopeless {
		t.Errorf("%+v is not hopeless", r)
	}
}
