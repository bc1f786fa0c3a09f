package install

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/rcfarm/rcfarm/pkg/imagetest"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/registry"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/image"
)

// quiet is a Progress.
type quiet struct{}

func (quiet) At(pod.State, string)          {}
func (quiet) During(string) (over func())   { return func() {} }
func (quiet) Pulling(string, time.Duration) {}
func (quiet) Failed(string, error)          {}

// nodeWithImages returns a node, and an image in its registry.
func nodeWithImages(t *testing.T) (n *Node, reg *imagetest.Registry, m *manifest.Manifest) {
	t.Helper()
	reg = imagetest.New(t)
	digest := reg.Push(t, "web", imagetest.Image{
		Config: v1.ImageConfig{Entrypoint: []string{"/app"}},
		Layers: []imagetest.Layer{
			imagetest.Gzip(t, imagetest.Tar(t, imagetest.Dir("etc", 0o755, 0), imagetest.File("etc/a", "low"))),
			imagetest.Gzip(t, imagetest.Tar(t, imagetest.File("app", "program"))),
		},
	})
	dir := t.TempDir()
	store, err := image.New(image.Config{
		Dir: filepath.Join(dir, "images"), ReserveBytes: -1,
		Registries: registry.New(registry.Config{
			Hosts: map[string]registry.Host{reg.Host: {PlainHTTP: true}}, Retries: -1,
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	n = New(Config{
		Host: Host{
			Dir: dir, Images: store, Isolation: Isolation{Blocks: UserRange{First: 30518, Last: 32766}},
			Step: func(string) {},
		}, Address: "127.0.0.1", FetchFailed: func() {},
	}, nil)
	return n, reg, &manifest.Manifest{ID: "web", Launchables: []manifest.Launchable{{
		Name: "main", Artifact: manifest.Artifact{
			Kind: manifest.ArtifactImage, Ref: reg.Host + "/web@" + digest, Platform: "linux/amd64",
		},
	}}}
}

// A version with an image knows the image after its installation and before each launch, without a request for what is
// on the disk.
func TestAVersionKnowsItsImages(t *testing.T) {
	n, reg, m := nodeWithImages(t)
	canonical, err := m.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	order := &Order{
		Pod: pod.Identity{RCID: "rc1", Role: "web"}, Digest: manifest.Digest(canonical), Revision: 1, Manifest: m,
		Canonical: canonical,
	}
	in, err := n.Install(t.Context(), order, quiet{})
	if err != nil {
		t.Fatal(err)
	}
	if want := (Process{Name: "main", Launchable: "main"}); len(in.Processes) != 1 || in.Processes[0] != want {
		t.Errorf("processes %+v, want %+v", in.Processes, want)
	}
	reg.Requests()
	v := n.Version(order.Pod, 0, in)
	if err := v.Ensure(t.Context(), quiet{}); err != nil {
		t.Fatal(err)
	}
	got := v.images["main"]
	if len(got.Layers) != 2 || len(got.Config.Entrypoint) != 1 || len(reg.Requests()) != 0 {
		t.Errorf("image %+v, with requests for what is on the disk", got)
	}
	for _, dir := range got.Layers {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
	needed := map[string]bool{}
	if ImageDigests(m, needed); len(needed) != 1 || !needed[got.Digest] {
		t.Errorf("needed %v, want %s", needed, got.Digest)
	}
}

// Without a store the node names what it lacks, and the cure. Such an error is final, and so is a missing image. A
// registry that is away is not.
func TestImagesThatCannotBePulled(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil    func(*Node, *imagetest.Registry, *manifest.Artifact)
		hopeless bool
		says     []string
	}{
		"no store": {
			func(n *Node, _ *imagetest.Registry, _ *manifest.Artifact) {
				n.cfg.Images, n.cfg.NoImages = nil, []string{"no runc: install it", "no overlay: move it"}
			}, true, []string{"main", "this node runs no containers: no runc: install it; no overlay: move it"},
		},
		"bad platform": {
			func(_ *Node, _ *imagetest.Registry, a *manifest.Artifact) { a.Platform = "plan9/vax" }, true,
			[]string{"plan9/vax", "linux/"},
		},
		"not there": {
			func(_ *Node, r *imagetest.Registry, a *manifest.Artifact) {
				a.Ref = r.Host + "/web@" + imagetest.Digest([]byte("other"))
			}, true, []string{registry.ErrNotFound.Error()},
		},
		"registry away": {
			func(_ *Node, r *imagetest.Registry, _ *manifest.Artifact) { r.Server.Close() }, false, []string{"refused"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, reg, m := nodeWithImages(t)
			raised := 0
			n.cfg.FetchFailed = func() { raised++ }
			tt.spoil(n, reg, &m.Launchables[0].Artifact)
			_, err := n.Fetch(t.Context(), m, quiet{})
			if err == nil || Hopeless(err) != tt.hopeless || raised != 1 {
				t.Fatalf("%v; hopeless: %t, want %t; raised %d times", err, Hopeless(err), tt.hopeless, raised)
			}
			for _, text := range tt.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%v: it does not name %q", err, text)
				}
			}
		})
	}
}

// A pull ends with its context, so that a newer intent interrupts it.
func TestAPullEndsWithItsContext(t *testing.T) {
	n, reg, m := nodeWithImages(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	reg.Cut(func(int) bool { cancel(); return true })
	if _, err := n.Fetch(ctx, m, quiet{}); !errors.Is(err, context.Canceled) || Hopeless(err) {
		t.Errorf("%v, hopeless: %t", err, Hopeless(err))
	}
}
