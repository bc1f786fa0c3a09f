package image_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/imagetest"
	"github.com/rcfarm/rcfarm/pkg/internal/archive"
	"github.com/rcfarm/rcfarm/pkg/internal/disktest"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/reference"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/registry"
	"github.com/rcfarm/rcfarm/pkg/preparer/image"
	"github.com/rcfarm/rcfarm/pkg/preparer/image/overlay"
)

// An image goes from the registry to a mounted tree: an index, three compressions, whiteouts, owners.
func TestPulledImagesCanBeMounted(t *testing.T) {
	disktest.Run(t, 64<<20, func(t *testing.T, disk string) {
		reg := imagetest.New(t)
		manifest := reg.Push(t, "web", imagetest.Image{
			Config: v1.ImageConfig{User: "app", Cmd: []string{"/bin/web"}},
			Layers: []imagetest.Layer{
				imagetest.Gzip(t, imagetest.Tar(t, imagetest.Dir("home", 0o755, 0),
					imagetest.Dir("home/app", 0o750, 1000), imagetest.File("old", "old"),
					imagetest.File("kept", "kept"))),
				imagetest.Zstd(t, imagetest.Tar(t, imagetest.File("home/app/data", "data"),
					imagetest.File(".wh.old", ""))),
				imagetest.Plain(imagetest.Tar(t, imagetest.File("top", "top"))),
			},
		})
		other := pushFor(t, reg, "riscv64")
		index := reg.PushIndex(t, "web", reg.Of("web", other, "linux", "riscv64", ""),
			reg.Of("web", manifest, "linux", "amd64", ""), reg.Of("web", other, "unknown", "unknown", ""))
		s := reopen(t, filepath.Join(disk, "images"), reg)
		img := mustPull(t, s, refOf(t, reg, "web", index))
		if img.Config.User != "app" || img.Platform != "linux/amd64" || img.Digest != index || len(img.Layers) != 3 ||
			img.Bytes == 0 {
			t.Errorf("image: %+v", img)
		}
		for _, request := range reg.Requests() {
			if strings.Contains(request, other) {
				t.Errorf("another platform's manifest was read: %s", request)
			}
		}
		root := filepath.Join(disk, "root")
		mount := overlay.Layers{
			Lower: img.Layers, Upper: filepath.Join(disk, "upper"), Work: filepath.Join(disk, "work"),
		}
		for _, made := range []string{root, mount.Upper, mount.Work} {
			if err := os.Mkdir(made, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := overlay.Mount(root, mount); err != nil {
			t.Fatalf("%v (%s)", err, needs)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(root, 0); err != nil {
				t.Error(err)
			}
		})
		if got := names(t, root); !slices.Equal(got, []string{"home", "kept", "top"}) {
			t.Errorf("the mount has %q", got)
		}
		var st unix.Stat_t
		if err := unix.Stat(root+"/home/app", &st); err != nil || st.Uid != 1000 || st.Mode&0o7777 != 0o750 {
			t.Errorf("a directory that a layer leaves out: %d %o, %v", st.Uid, st.Mode, err)
		}
	})
}

// pushFor pushes an image for another architecture.
func pushFor(t *testing.T, reg *imagetest.Registry, architecture string) string {
	t.Helper()
	image := imagetest.Image{Architecture: architecture, Layers: []imagetest.Layer{simple(t, "a", "")}}
	return reg.Push(t, "web", image)
}

// What is on the disk causes no request, also after a restart, and a registry that is away changes nothing.
func TestNoRequestsForWhatIsThere(t *testing.T) {
	reg := imagetest.New(t)
	digest := reg.Push(t, "web", imagetest.Image{Layers: []imagetest.Layer{simple(t, "a", "a"), simple(t, "b", "b")}})
	ref := refOf(t, reg, "web", digest)
	s, dir := newStore(t, reg)
	first := mustPull(t, s, ref)
	if len(reg.Requests()) == 0 {
		t.Error("no requests")
	}
	reg.Server.Close()
	for _, s := range []*image.Store{s, reopen(t, dir, reg)} {
		if again := mustPull(t, s, ref); !slices.Equal(again.Layers, first.Layers) || again.Bytes != first.Bytes {
			t.Errorf("got %+v, want %+v", again, first)
		}
	}
	if got := reg.Requests(); len(got) != 0 {
		t.Errorf("requests: %q", got)
	}
	wantLayout(t, dir)
	if left := names(t, filepath.Join(dir, "partial")); len(left) > 0 {
		t.Errorf("partial files: %q", left)
	}
	var index v1.Index
	data, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err := errors.Join(err, json.Unmarshal(data, &index)); err != nil {
		t.Fatal(err)
	}
	if len(index.Manifests) != 1 || index.Manifests[0].Digest.String() != digest ||
		index.Manifests[0].MediaType != v1.MediaTypeImageManifest ||
		index.Manifests[0].Annotations[v1.AnnotationRefName] != ref.String() {
		t.Errorf("index.json: %s", data)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("users may enter the directory: %v, %v", info.Mode(), err)
	}
}

// Images share layers: on the disk and in downloads at the same time.
func TestEachLayerOnce(t *testing.T) {
	reg := imagetest.New(t)
	base := simple(t, "base", string(imagetest.Noise(1, 200_000)))
	var refs []reference.Ref
	for i := range 8 {
		layers := []imagetest.Layer{base, simple(t, "own", fmt.Sprint(i)), base}
		digest := reg.Push(t, "web", imagetest.Image{Layers: layers})
		refs = append(refs, refOf(t, reg, "web", digest))
	}
	s, dir := newStore(t, reg)
	var group sync.WaitGroup
	for range 2 {
		for _, ref := range refs {
			group.Go(func() {
				img, err := s.Pull(t.Context(), ref, amd64)
				if err != nil {
					t.Error(err)
				} else if len(img.Layers) != 2 { // the kernel takes no directory twice
					t.Errorf("layers: %q", img.Layers)
				}
			})
		}
	}
	group.Wait()
	downloads := 0
	for _, request := range reg.Requests() {
		if request == "GET /v2/web/blobs/"+imagetest.Digest(base.Blob) {
			downloads++
		}
	}
	if downloads != 1 {
		t.Errorf("the base was downloaded %d times", downloads)
	}
	if got := len(trees(t, dir)); got != 9 {
		t.Errorf("%d trees, want 9", got)
	}
}

// A layer that leaves out a directory is not the same above another layer.
func TestDependentLayersAreNotShared(t *testing.T) {
	reg := imagetest.New(t)
	top := simple(t, "srv/x", "x")
	s, dir := newStore(t, reg)
	for owner := range 3 {
		base := imagetest.Gzip(t, imagetest.Tar(t, imagetest.Dir("srv", 0o755, owner)))
		layers := []imagetest.Layer{base, top}
		if owner == 0 {
			layers = []imagetest.Layer{top} // lowest, where chain id and diff id are the same
		}
		img := mustPull(t, s, refOf(t, reg, "web", reg.Push(t, "web", imagetest.Image{Layers: layers})))
		var st unix.Stat_t
		if err := unix.Stat(img.Layers[0]+"/srv", &st); err != nil || st.Uid != uint32(owner) {
			t.Errorf("above the layer of %d: %d, %v (%s)", owner, st.Uid, err, needs)
		}
	}
	if got := len(trees(t, dir)); got != 5 {
		t.Errorf("%d trees, want 5", got)
	}
}

func TestRefusedImages(t *testing.T) {
	layerOf := func(mediaType string) imagetest.Layer {
		l := simple(t, "a", "a")
		l.MediaType = mediaType
		return l
	}
	wrongDiff, hostile := simple(t, "a", "a"), simple(t, "../a", "a")
	wrongDiff.DiffID = imagetest.Digest(nil)
	push := func(layers ...imagetest.Layer) func(*imagetest.Registry) string {
		return func(reg *imagetest.Registry) string { return reg.Push(t, "web", imagetest.Image{Layers: layers}) }
	}
	put := func(mediaType string, value any) func(*imagetest.Registry) string {
		return func(reg *imagetest.Registry) string { return reg.Put("web", mediaType, imagetest.Marshal(t, value)) }
	}
	of := func(size int64) v1.Descriptor {
		empty := digest.Digest(imagetest.Digest(nil))
		return v1.Descriptor{MediaType: v1.MediaTypeImageLayerGzip, Digest: empty, Size: size}
	}
	conf := of(2)
	conf.MediaType = v1.MediaTypeImageConfig
	withLayers := func(layers ...v1.Descriptor) func(*imagetest.Registry) string {
		return put(v1.MediaTypeImageManifest, v1.Manifest{Versioned: versioned, Config: conf, Layers: layers})
	}
	mib := func(name string, count int) imagetest.Layer { return simple(t, name, strings.Repeat("a", count<<20)) }
	const encrypted = "application/vnd.oci.image.layer.v1.tar+gzip+encrypted"
	const chart = `{"schemaVersion":2,"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json"}}`
	raw := func(text string) json.RawMessage { return json.RawMessage(text) }
	manifest := v1.MediaTypeImageManifest
	tests := []struct {
		name string
		make func(*imagetest.Registry) string
		want error
	}{
		{"missing", func(*imagetest.Registry) string { return imagetest.Digest([]byte("x")) }, registry.ErrNotFound},
		{"no JSON", put(manifest, raw(`[1]`)), image.ErrManifest},
		{"schema 1", put(manifest, raw(`{"schemaVersion":1}`)), image.ErrManifest},
		{"another media type", put(manifest, raw(`{"schemaVersion":2,"mediaType":"text/plain"}`)), image.ErrUnsupported},
		{"manifest and index", put(manifest, raw(`{"schemaVersion":2,"layers":[],"manifests":[]}`)), image.ErrManifest},
		{"no layers", push(), image.ErrUnsupported},
		{"an artifact", put(manifest, raw(chart)), image.ErrUnsupported},
		{"an encrypted layer", push(layerOf(encrypted)), image.ErrUnsupported},
		{"a layer without content", withLayers(of(0)), image.ErrManifest},
		{"a layer of negative size", withLayers(of(-1)), image.ErrManifest},
		{"large layers", withLayers(of(6e5), of(6e5)), archive.ErrTooLarge},
		{"many layers", withLayers(slices.Repeat([]v1.Descriptor{of(1)}, 129)...), archive.ErrTooLarge},
		{"a path for a digest", withLayers(v1.Descriptor{
			MediaType: v1.MediaTypeImageLayer, Digest: "sha256:../../../../etc/passwd", Size: 1,
		}), image.ErrManifest},
		{"another platform", func(reg *imagetest.Registry) string {
			return pushFor(t, reg, "s390x")
		}, image.ErrPlatform},
		{"an index without this platform", func(reg *imagetest.Registry) string {
			return reg.PushIndex(t, "web", reg.Of("web", push(simple(t, "a", ""))(reg), "linux", "s390x", ""))
		}, image.ErrPlatform},
		{"an index in an index", func(reg *imagetest.Registry) string {
			inner := reg.Of("web", reg.PushIndex(t, "web"), "linux", "amd64", "")
			return reg.PushIndex(t, "web", inner)
		}, image.ErrUnsupported},
		{"another configuration", func(reg *imagetest.Registry) string {
			empty := reg.Put("web", "", []byte(`{}`))
			c := conf
			c.Digest = digest.Digest(empty)
			return put(manifest, v1.Manifest{Versioned: versioned, Config: c, Layers: []v1.Descriptor{of(1)}})(reg)
		}, image.ErrManifest},
		{"another diff id", push(wrongDiff), registry.ErrDigest},
		{"a hostile layer", push(simple(t, "fine", ""), hostile), archive.ErrArchive},
		{"unpacks to too much", push(mib("a", 3)), archive.ErrTooLarge},
		{"unpacks to too much together", push(mib("a", 1), mib("b", 1)), archive.ErrTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reg := imagetest.New(t)
			s, dir := newStore(t, reg, func(c *image.Config) { c.MaxBytes, c.MaxUnpackedBytes = 1e6, 2<<20 })
			ref := refOf(t, reg, "web", tt.make(reg))
			_, err := s.Pull(t.Context(), ref, amd64)
			if !errors.Is(err, tt.want) || !refused(err) {
				t.Fatalf("got %v, want %v; refused: %v", err, tt.want, refused(err))
			}
			for _, name := range trees(t, dir) {
				if !strings.HasPrefix(name, "diff-") {
					t.Errorf("tree %s", name)
				}
			}
			data, err := os.ReadFile(filepath.Join(dir, "index.json"))
			if err != nil || strings.Contains(string(data), ref.Digest) {
				t.Errorf("index.json: %s, %v", data, err)
			}
		})
	}
	reg := imagetest.New(t)
	s, _ := newStore(t, reg)
	ref, err := reference.Parse(reg.Host + "/web:latest")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pull(t.Context(), ref, amd64); !errors.Is(err, reference.ErrInvalid) || len(reg.Requests()) > 0 {
		t.Errorf("a reference without a digest: %v", err)
	}
}

// A download that broke goes on after a restart of the node's program.
func TestDownloadsSurviveARestart(t *testing.T) {
	reg := imagetest.New(t)
	layers := []imagetest.Layer{simple(t, "a", string(imagetest.Noise(1, 500_000)))}
	ref := refOf(t, reg, "web", reg.Push(t, "web", imagetest.Image{Layers: layers}))
	ctx, cancel := context.WithCancel(t.Context())
	s, dir := newStore(t, reg)
	reg.Cut(func(served int) bool {
		if served < 200_000 {
			return false
		}
		waitFor(t, func() bool { p, _ := s.Progress(ref.Digest); return p.Done > 100_000 })
		cancel()
		return true
	})
	if _, err := s.Pull(ctx, ref, amd64); !errors.Is(err, context.Canceled) || refused(err) {
		t.Fatal(err)
	}
	reg.Cut(nil)
	reg.Requests()
	mustPull(t, reopen(t, dir, reg), ref)
	if got := reg.Requests(); len(got) != 1 || !strings.Contains(got[0], "bytes=") {
		t.Errorf("requests after the restart: %q", got)
	}
	if served := reg.Served(); served > int64(len(layers[0].Blob))+200_000 {
		t.Errorf("%d bytes were sent", served)
	}
}

// A pull that waits for another one's download takes it over when the other one is cancelled.
func TestWaitingPullsTakeOver(t *testing.T) {
	reg := imagetest.New(t)
	base := simple(t, "base", string(imagetest.Noise(1, 100_000)))
	one := refOf(t, reg, "web", reg.Push(t, "web", imagetest.Image{Layers: []imagetest.Layer{base}}))
	layers := []imagetest.Layer{base, simple(t, "x", "")}
	two := refOf(t, reg, "web", reg.Push(t, "web", imagetest.Image{Layers: layers}))
	ctx, cancel := context.WithCancel(t.Context())
	var first atomic.Bool
	second := make(chan struct{})
	reg.Before(func(_ http.ResponseWriter, r *http.Request) bool {
		switch {
		case strings.HasSuffix(r.URL.Path, imagetest.Digest(base.Blob)) && first.CompareAndSwap(false, true):
			<-second
			cancel()
			<-r.Context().Done()
			return true
		case r.URL.Path == "/v2/web/manifests/"+two.Digest:
			close(second)
		}
		return false
	})
	s, _ := newStore(t, reg)
	done := make(chan error)
	go func() {
		_, err := s.Pull(ctx, one, amd64)
		done <- err
	}()
	waitFor(t, first.Load)
	mustPull(t, s, two)
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestPullsHaveADeadline(t *testing.T) {
	reg := imagetest.New(t)
	ref := refOf(t, reg, "web", reg.Push(t, "web", imagetest.Image{Layers: []imagetest.Layer{simple(t, "a", "")}}))
	reg.Before(func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true })
	s, _ := newStore(t, reg, func(c *image.Config) { c.PullTimeout = 50 * time.Millisecond })
	_, err := s.Pull(t.Context(), ref, amd64)
	if !errors.Is(err, context.DeadlineExceeded) || refused(err) || !strings.Contains(err.Error(), "longer than 50ms") {
		t.Error(err)
	}
}

func TestProgress(t *testing.T) {
	reg := imagetest.New(t)
	small, large := simple(t, "a", "a"), simple(t, "b", string(imagetest.Noise(1, 400_000)))
	there := refOf(t, reg, "web", reg.Push(t, "web", imagetest.Image{Layers: []imagetest.Layer{small}}))
	ref := refOf(t, reg, "web", reg.Push(t, "web", imagetest.Image{Layers: []imagetest.Layer{small, large}}))
	s, _ := newStore(t, reg)
	mustPull(t, s, there)
	if _, ok := s.Progress(ref.Digest); ok {
		t.Error("progress of a pull that has not begun")
	}
	reached, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	reg.Cut(func(served int) bool {
		if served >= 200_000 {
			once.Do(func() { close(reached); <-goOn })
		}
		return false
	})
	done := make(chan error)
	go func() {
		_, err := s.Pull(t.Context(), ref, amd64)
		done <- err
	}()
	<-reached
	total := int64(len(large.Blob)) // the other layer is there
	waitFor(t, func() bool {
		p, ok := s.Progress(ref.Digest)
		if !ok || p.Total != total || p.Layers != 2 || p.Unpacked != 1 || p.Done > total {
			t.Errorf("progress: %+v, %v", p, ok)
			return true
		}
		return p.Done > 100_000
	})
	close(goOn)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, ok := s.Progress(ref.Digest); ok {
		t.Error("progress of a pull that has ended")
	}
}

// waitFor waits for a condition.
func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	for tick := time.NewTicker(time.Millisecond); !done(); {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("the condition did not come")
		}
	}
}

// What a damaged disk changed is read again from the registry.
func TestDamagedFiles(t *testing.T) {
	reg := imagetest.New(t)
	layers := []imagetest.Layer{simple(t, "a", string(imagetest.Noise(1, 100_000)))}
	ref := refOf(t, reg, "web", reg.Push(t, "web", imagetest.Image{Layers: layers}))
	s, dir := newStore(t, reg)
	mustPull(t, s, ref)
	blobs := filepath.Join(dir, "blobs", "sha256")
	for _, name := range names(t, blobs) {
		if err := os.WriteFile(filepath.Join(blobs, name), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "index.json"), []byte("\x00\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	mustPull(t, reopen(t, dir, reg), ref)
	wantLayout(t, dir)
}

// A full disk is no fault of the image. When a Prune has made space, the image can be pulled.
func TestPullOnAFullDisk(t *testing.T) {
	disktest.Run(t, 4<<20, func(t *testing.T, disk string) {
		reg := imagetest.New(t)
		var refs []reference.Ref
		for i := range 2 {
			l := simple(t, "a", string(imagetest.Noise(uint64(i), 2<<20-200_000)))
			refs = append(refs, refOf(t, reg, "web", reg.Push(t, "web", imagetest.Image{Layers: []imagetest.Layer{l}})))
		}
		s := reopen(t, filepath.Join(disk, "images"), reg)
		mustPull(t, s, refs[0])
		_, err := s.Pull(t.Context(), refs[1], amd64)
		if !errors.Is(err, archive.ErrNoSpace) || refused(err) {
			t.Fatal(err)
		}
		needed := map[string]bool{refs[1].Digest: true}
		removed, err := s.Prune(time.Now(), func() (map[string]bool, bool) { return needed, true })
		if err != nil || !slices.Equal(removed.Images, []string{refs[0].Digest}) {
			t.Fatalf("%+v, %v", removed, err)
		}
		mustPull(t, s, refs[1])
	})
}

// A disk may become full at any step of a pull. Each time the error says so, nothing unfinished takes space, and a pull
// goes on when there is a little more space.
func TestDiskIsFullAnywhere(t *testing.T) {
	disktest.Run(t, 64<<10, func(t *testing.T, disk string) {
		reg := imagetest.New(t)
		layers := []imagetest.Layer{
			simple(t, "a", string(imagetest.Noise(1, 100_000))), simple(t, "b", strings.Repeat("b", 200_000)),
			simple(t, "c", "c"),
		}
		ref := refOf(t, reg, "web", reg.Push(t, "web", imagetest.Image{Layers: layers}))
		var s *image.Store
		failures := 0
		for size := 16 << 10; ; size += 12 << 10 {
			if size > 4<<20 {
				t.Fatal("the disk is never large enough")
			}
			if err := unix.Mount("", disk, "", unix.MS_REMOUNT, fmt.Sprintf("size=%d", size)); err != nil {
				t.Fatal(err)
			}
			var err error
			if s == nil {
				if s, err = image.New(config(filepath.Join(disk, "images"), reg.Host)); err != nil {
					continue
				}
			}
			_, err = s.Pull(t.Context(), ref, amd64)
			if err == nil {
				break
			}
			if !errors.Is(err, archive.ErrNoSpace) || refused(err) {
				t.Fatalf("with %d bytes: %v", size, err)
			}
			trees(t, filepath.Join(disk, "images"))
			failures++
		}
		if failures < 10 {
			t.Errorf("the disk was full %d times, want more", failures)
		}
		wantLayout(t, filepath.Join(disk, "images"))
		if served, all := reg.Served(), 2*int64(len(layers[0].Blob)); served > all {
			t.Errorf("%d bytes were sent, although what had arrived was kept", served)
		}
	})
}
