package image_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/rcfarm/rcfarm/pkg/imagetest"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/registry"
	"github.com/rcfarm/rcfarm/pkg/preparer/image"
)

// A manifest can name a layer of another image as its configuration, with a wrong size. That must not spoil the pull of
// the other image, which has downloaded the layer and waits for the layers below.
func TestLayerAsConfigurationOfAnotherImage(t *testing.T) {
	reg := imagetest.New(t)
	low, high := simple(t, "low", "1"), simple(t, "high", "2")
	good := reg.Push(t, "good", imagetest.Image{Layers: []imagetest.Layer{low, high}})
	layerOf := func(l imagetest.Layer) v1.Descriptor {
		return v1.Descriptor{
			MediaType: v1.MediaTypeImageConfig, Digest: digest.Digest(imagetest.Digest(l.Blob)),
			Size: int64(len(l.Blob)),
		}
	}
	config, layer := layerOf(high), layerOf(low)
	config.Size, layer.MediaType = 5, low.MediaType
	hostile := reg.Put("hostile", v1.MediaTypeImageManifest, imagetest.Marshal(t, v1.Manifest{
		Versioned: versioned, MediaType: v1.MediaTypeImageManifest, Config: config, Layers: []v1.Descriptor{layer},
	}))
	s, _ := newStore(t, reg)
	waits, goOn := make(chan struct{}), make(chan struct{})
	reg.Before(func(_ http.ResponseWriter, req *http.Request) bool {
		if strings.HasSuffix(req.URL.Path, "/good/blobs/"+layer.Digest.String()) {
			close(waits)
			<-goOn
		}
		return false
	})
	done := make(chan error)
	go func() {
		_, err := s.Pull(t.Context(), refOf(t, reg, "good", good), amd64)
		done <- err
	}()
	<-waits
	for p, _ := s.Progress(good); p.Done < int64(len(high.Blob)); p, _ = s.Progress(good) {
		if t.Context().Err() != nil {
			t.Fatal("the higher layer does not arrive")
		}
	}
	if _, err := s.Pull(t.Context(), refOf(t, reg, "hostile", hostile), amd64); err == nil {
		t.Error("the hostile image was pulled")
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Errorf("the good image: refused %v: %v", refused(err), err)
	}
}

// The whiteout of everything hides everything.
func TestOpaqueRoot(t *testing.T) {
	reg := imagetest.New(t)
	above := imagetest.Gzip(t, imagetest.Tar(t, imagetest.File(".wh..wh..opq", ""), imagetest.File("new", "1")))
	top := imagetest.Gzip(t, imagetest.Tar(t, imagetest.File("secret.d/top", "1")))
	below := imagetest.Gzip(t, imagetest.Tar(t, imagetest.File("secret", "1"), imagetest.Dir("secret.d", 0o700, 7)))
	digest := reg.Push(t, "web", imagetest.Image{Layers: []imagetest.Layer{below, above, top}})
	s, _ := newStore(t, reg)
	img := mustPull(t, s, refOf(t, reg, "web", digest))
	if len(img.Layers) != 2 {
		t.Errorf("%d layers, want the two that are visible", len(img.Layers))
	}
	if info, err := os.Stat(filepath.Join(img.Layers[0], "secret.d")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("a new directory has the mode of a hidden one: %v, %v", info.Mode(), err)
	}
}

// What a layer means does not depend on the images that were pulled before. This one has a file in a directory that is
// a link in one image, and a directory in the other.
func TestPulledBeforeAboveOtherLayers(t *testing.T) {
	reg := imagetest.New(t)
	layer := imagetest.Gzip(t, imagetest.Tar(t, imagetest.File("l/x", "1"), imagetest.Dir("l", 0o755, 0)))
	push := func(base imagetest.Layer) string {
		return reg.Push(t, "web", imagetest.Image{Layers: []imagetest.Layer{base, layer}})
	}
	linked := push(imagetest.Gzip(t, imagetest.Tar(t, imagetest.Dir("a", 0o755, 0), imagetest.Link("l", "a"))))
	other := push(simple(t, "other", "1"))
	fresh, _ := newStore(t, reg)
	used, _ := newStore(t, reg)
	mustPull(t, used, refOf(t, reg, "web", other))
	want := fingerprint(t, mustPull(t, fresh, refOf(t, reg, "web", linked)).Layers[0])
	if got := fingerprint(t, mustPull(t, used, refOf(t, reg, "web", linked)).Layers[0]); got != want {
		t.Error("the layer has other files after a pull of another image")
	}
}

// A registry that sends almost nothing delays its own images only.
func TestSlowRegistryDelaysNoOther(t *testing.T) {
	slow, quick := imagetest.New(t), imagetest.New(t)
	delayed := slow.Push(t, "web", imagetest.Image{Layers: []imagetest.Layer{simple(t, "slow", "1")}})
	good := quick.Push(t, "web", imagetest.Image{Layers: []imagetest.Layer{simple(t, "quick", "1")}})
	s, _ := newStore(t, slow, func(c *image.Config) {
		c.Downloads, c.PullTimeout = 1, 20*time.Second
		c.Registries = registry.New(registry.Config{Hosts: map[string]registry.Host{
			slow.Host: {PlainHTTP: true}, quick.Host: {PlainHTTP: true},
		}})
	})
	layer := imagetest.Digest(simple(t, "slow", "1").Blob)
	waits, goOn := make(chan struct{}), make(chan struct{})
	slow.Before(func(_ http.ResponseWriter, req *http.Request) bool {
		if strings.HasSuffix(req.URL.Path, layer) {
			close(waits)
			<-goOn
		}
		return false
	})
	done := make(chan error)
	go func() {
		_, err := s.Pull(t.Context(), refOf(t, slow, "web", delayed), amd64)
		done <- err
	}()
	<-waits
	if _, err := s.Pull(t.Context(), refOf(t, quick, "web", good), amd64); err != nil {
		t.Error(err)
	}
	close(goOn)
	<-done
}

// The removal of a layer can be under way, or have failed in the middle, when the same layer is removed again.
func TestPruneOfALayerThatIsBeingRemoved(t *testing.T) {
	reg := imagetest.New(t)
	digest := reg.Push(t, "web", imagetest.Image{Layers: []imagetest.Layer{simple(t, "file", "1")}})
	s, dir := newStore(t, reg)
	img := mustPull(t, s, refOf(t, reg, "web", digest))
	left := filepath.Join(dir, "trees", "tmp-removed-"+filepath.Base(img.Layers[0]))
	if err := os.MkdirAll(filepath.Join(left, "part"), 0o700); err != nil {
		t.Fatal(err)
	}
	now := time.Now().Add(10_000 * time.Hour)
	removed, err := s.Prune(now, func() (map[string]bool, bool) { return nil, true })
	if err != nil || removed.Layers != 1 {
		t.Errorf("%+v, %v", removed, err)
	}
}
