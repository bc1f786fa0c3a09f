package image_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/imagetest"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/reference"
	"github.com/rcfarm/rcfarm/pkg/preparer/image"
)

// prune removes what is not needed, at a time.
func prune(t *testing.T, s *image.Store, now time.Time, needed ...reference.Ref) image.Removed {
	t.Helper()
	digests := map[string]bool{}
	for _, ref := range needed {
		digests[ref.Digest] = true
	}
	removed, err := s.Prune(now, func() (map[string]bool, bool) { return digests, true })
	if err != nil {
		t.Fatal(err)
	}
	return removed
}

// shared pushes images that share their base layer. Each has 100 KB of its own.
func shared(t *testing.T, reg *imagetest.Registry, count int) (refs []reference.Ref) {
	t.Helper()
	base := simple(t, "base", string(imagetest.Noise(1000, 100_000)))
	for i := range count {
		own := simple(t, "own", string(imagetest.Noise(uint64(i), 100_000)))
		digest := reg.Push(t, "web", imagetest.Image{Layers: []imagetest.Layer{base, own}})
		refs = append(refs, refOf(t, reg, "web", digest))
	}
	return refs
}

// setUsed sets when an image was last used.
func setUsed(t *testing.T, dir string, ref reference.Ref, at time.Time) {
	t.Helper()
	if err := os.Chtimes(filepath.Join(dir, "blobs", "sha256", reference.Hex(ref.Digest)), at, at); err != nil {
		t.Fatal(err)
	}
}

func TestPruneBySpace(t *testing.T) {
	reg := imagetest.New(t)
	refs := shared(t, reg, 4)
	s, dir := newStore(t, reg, func(c *image.Config) { c.CacheBytes = 350_000 })
	now := time.Now()
	for i, ref := range refs {
		mustPull(t, s, ref)
		setUsed(t, dir, ref, now.Add(time.Duration(i-10)*time.Hour))
	}
	// 100 KB for the base and each image: two images have to go, and the oldest one is needed.
	removed := prune(t, s, now, refs[0])
	if !slices.Equal(removed.Images, []string{refs[1].Digest, refs[2].Digest}) || removed.Layers != 2 ||
		removed.Left > 350_000 || removed.Left < 300_000 {
		t.Errorf("removed %+v", removed)
	}
	reg.Requests()
	mustPull(t, s, refs[0])
	mustPull(t, s, refs[3])
	if got := reg.Requests(); len(got) != 0 {
		t.Errorf("images that remain caused %q", got)
	}
	if got := len(trees(t, dir)); got != 3 {
		t.Errorf("%d trees, want 3", got)
	}
	mustPull(t, s, refs[1])
	if got := reg.Requests(); len(got) != 3 {
		t.Errorf("pulling again caused %q, want manifest, configuration and one layer", got)
	}
	wantLayout(t, dir)
}

func TestPruneByAge(t *testing.T) {
	reg := imagetest.New(t)
	refs := shared(t, reg, 3)
	s, dir := newStore(t, reg, func(c *image.Config) { c.MaxAge = 24 * time.Hour })
	now := time.Now()
	for _, ref := range refs {
		mustPull(t, s, ref)
		setUsed(t, dir, ref, now.Add(-25*time.Hour))
	}
	setUsed(t, dir, refs[2], now.Add(-23*time.Hour))
	s = reopen(t, dir, reg, func(c *image.Config) { c.MaxAge = 24 * time.Hour })
	if removed := prune(t, s, now, refs[0]); !slices.Equal(removed.Images, []string{refs[1].Digest}) {
		t.Errorf("removed %+v", removed)
	}
	// The time of use survives a restart, and being needed is a use.
	s = reopen(t, dir, reg, func(c *image.Config) { c.MaxAge = 24 * time.Hour })
	if removed := prune(t, s, now.Add(2*time.Hour)); !slices.Equal(removed.Images, []string{refs[2].Digest}) {
		t.Errorf("removed %+v", removed)
	}
	if removed := prune(t, s, now.Add(48*time.Hour)); !slices.Equal(removed.Images, []string{refs[0].Digest}) ||
		len(trees(t, dir)) != 0 || removed.Left != 0 {
		t.Errorf("removed %+v, left %q", removed, trees(t, dir))
	}
	if left := names(t, filepath.Join(dir, "blobs", "sha256")); len(left) != 0 {
		t.Errorf("blobs left: %q", left)
	}
}

// What an unfinished pull left is kept for a while, and longer if its image is needed.
func TestPruneOfUnfinishedPulls(t *testing.T) {
	reg := imagetest.New(t)
	ref := shared(t, reg, 1)[0]
	reg.Cut(func(int) bool { return true })
	s, dir := newStore(t, reg)
	if _, err := s.Pull(t.Context(), ref, amd64); err == nil {
		t.Fatal("no error")
	}
	partial := filepath.Join(dir, "partial")
	before := len(names(t, partial))
	if before == 0 {
		t.Fatal("nothing has arrived")
	}
	now := time.Now()
	prune(t, s, now)
	prune(t, s, now.Add(48*time.Hour), ref)
	if got := len(names(t, partial)); got != before {
		t.Errorf("%d partial files of %d are left", got, before)
	}
	prune(t, s, now.Add(48*time.Hour))
	if got := names(t, partial); len(got) != 0 {
		t.Errorf("left: %q", got)
	}
	reg.Cut(nil)
	mustPull(t, s, ref)
}

// A pull under way keeps what it has found, although no caller names its image.
func TestPruneDuringAPull(t *testing.T) {
	reg := imagetest.New(t)
	refs := shared(t, reg, 2)
	s, dir := newStore(t, reg, func(c *image.Config) { c.CacheBytes = 1 })
	mustPull(t, s, refs[0])
	reg.Before(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			prune(t, s, time.Now().Add(1000*time.Hour))
		}
		return false
	})
	img := mustPull(t, s, refs[1])
	for _, layer := range img.Layers {
		if _, err := os.Stat(filepath.Join(layer)); err != nil {
			t.Error(err)
		}
	}
	reg.Before(nil)
	if got := len(trees(t, dir)); got != 2 {
		t.Errorf("%d trees, want the two of the image", got)
	}
}

// Prune removes nothing if it does not know what is needed, or cannot read what a needed image has.
func TestPruneInDoubt(t *testing.T) {
	reg := imagetest.New(t)
	refs := shared(t, reg, 2)
	s, dir := newStore(t, reg, func(c *image.Config) { c.CacheBytes = 1 })
	for _, ref := range refs {
		mustPull(t, s, ref)
	}
	late := time.Now().Add(1000 * time.Hour)
	removed, err := s.Prune(late, func() (map[string]bool, bool) { return nil, false })
	if err != nil || len(removed.Images) > 0 {
		t.Errorf("%+v, %v", removed, err)
	}
	for _, damage := range []func(path string) error{
		func(path string) error { return os.WriteFile(path, []byte("{}"), 0o600) }, os.Remove,
	} {
		for _, name := range names(t, filepath.Join(dir, "blobs", "sha256")) {
			path := filepath.Join(dir, "blobs", "sha256", name)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(data), reference.Hex(refs[0].Digest)) && name != reference.Hex(refs[0].Digest) {
				continue
			}
			if err := damage(path); err != nil {
				t.Fatal(err)
			}
			needed := map[string]bool{refs[0].Digest: true}
			removed, err = s.Prune(late, func() (map[string]bool, bool) { return needed, true })
			if err == nil || len(removed.Images) > 0 || len(trees(t, dir)) != 3 {
				t.Errorf("with a damaged blob: %+v, %v", removed, err)
			}
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	path := map[string]bool{"../x": true}
	if _, err := s.Prune(late, func() (map[string]bool, bool) { return path, true }); err == nil {
		t.Error("a path was taken for a digest")
	}
	if removed := prune(t, s, late, refs...); len(removed.Images) > 0 || len(trees(t, dir)) != 3 {
		t.Errorf("removed %+v", removed)
	}
}

// For many random images, needs and restarts: a needed image is complete, and causes no request.
func TestPruneNeverTakesWhatIsNeeded(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	reg := imagetest.New(t)
	layers := make([]imagetest.Layer, 10)
	for i := range layers {
		name := fmt.Sprintf("d%d/f", i%3) // some depend on those below
		stream := imagetest.Tar(t, imagetest.File(name, fmt.Sprint(i)), imagetest.File(".wh.x", ""))
		layers[i] = imagetest.Gzip(t, stream)
		if i%2 == 0 {
			layers[i] = simple(t, fmt.Sprint(i), fmt.Sprint(i))
		}
	}
	var refs []reference.Ref
	for range 8 {
		var chosen []imagetest.Layer
		for range 1 + random.IntN(4) {
			chosen = append(chosen, layers[random.IntN(len(layers))])
		}
		refs = append(refs, refOf(t, reg, "web", reg.Push(t, "web", imagetest.Image{Layers: chosen})))
	}
	tiny := func(c *image.Config) {
		c.CacheBytes, c.MaxAge = 1+random.Int64N(60_000), time.Duration(random.IntN(3)+1)*time.Hour
	}
	s, dir := newStore(t, reg, tiny)
	pulled, prints := map[string]bool{}, map[string]string{}
	for step := range 60 {
		ref := refs[random.IntN(len(refs))]
		img := mustPull(t, s, ref)
		pulled[ref.Digest] = true
		for _, layer := range img.Layers {
			now := fingerprint(t, layer)
			if prints[layer] != "" && prints[layer] != now {
				t.Fatalf("seed %d, step %d: %s has changed", seed, step, layer)
			}
			prints[layer] = now
		}
		if random.IntN(4) == 0 {
			s = reopen(t, dir, reg, tiny)
		}
		needed := map[string]bool{}
		for digest := range pulled {
			needed[digest] = random.IntN(2) == 0
		}
		maps.DeleteFunc(needed, func(_ string, is bool) bool { return !is })
		now := time.Now().Add(time.Duration(random.IntN(5)) * time.Hour)
		removed, err := s.Prune(now, func() (map[string]bool, bool) { return needed, true })
		if err != nil {
			t.Fatalf("seed %d, step %d: %v", seed, step, err)
		}
		for _, digest := range removed.Images {
			delete(pulled, digest)
		}
		reg.Requests()
		for _, ref := range refs {
			if needed[ref.Digest] {
				mustPull(t, s, ref)
			}
		}
		if got := reg.Requests(); len(got) > 0 {
			t.Fatalf("seed %d, step %d: needed images caused %q", seed, step, got)
		}
		wantLayout(t, dir)
		trees(t, dir)
	}
}

// Pulls and Prunes at the same time: what a caller needs from before its pull on is there after the pull.
func TestPruneBesidePulls(t *testing.T) {
	reg := imagetest.New(t)
	refs := shared(t, reg, 6)
	s, dir := newStore(t, reg, func(c *image.Config) { c.CacheBytes = 1 })
	var mu sync.Mutex
	needed := map[string]int{}
	need := func(digest string, change int) {
		mu.Lock()
		defer mu.Unlock()
		needed[digest] += change
	}
	current := func() (map[string]bool, bool) {
		mu.Lock()
		defer mu.Unlock()
		digests := map[string]bool{}
		for digest, users := range needed {
			if users > 0 {
				digests[digest] = true
			}
		}
		return digests, true
	}
	var pulls, prunes sync.WaitGroup
	done := make(chan struct{})
	prunes.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				if _, err := s.Prune(time.Now().Add(1000*time.Hour), current); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for worker := range 4 {
		pulls.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 0))
			for range 8 {
				ref := refs[random.IntN(len(refs))]
				need(ref.Digest, 1)
				img, err := s.Pull(t.Context(), ref, amd64)
				if err != nil {
					t.Error(err)
				}
				for _, layer := range img.Layers {
					if got := len(names(t, layer)); got != 1 {
						t.Errorf("%s has %d entries", layer, got)
					}
				}
				need(ref.Digest, -1)
			}
		})
	}
	pulls.Wait()
	close(done)
	prunes.Wait()
	prune(t, s, time.Now().Add(1000*time.Hour))
	if left := trees(t, dir); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
