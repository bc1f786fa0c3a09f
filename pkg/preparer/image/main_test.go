package image_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/image-spec/specs-go"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/imagetest"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/reference"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/registry"
	"github.com/rcfarm/rcfarm/pkg/preparer/image"
)

// needs is what these tests cannot do without.
const needs = "these tests need root, overlayfs, and extended attributes in the directory for temporary files"

// childEnv has the arguments of a process that pulls one image and can be killed: directory, registry and reference.
const childEnv = "RCFARM_IMAGE_CHILD"

func TestMain(m *testing.M) {
	if args := strings.Split(os.Getenv(childEnv), " "); len(args) == 3 {
		if err := child(args[0], args[1], args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func child(dir, host, text string) error {
	ref, err := reference.Parse(text)
	if err != nil {
		return err
	}
	s, err := image.New(config(dir, host))
	if err == nil {
		_, err = s.Pull(context.Background(), ref, amd64)
	}
	return err
}

var (
	amd64     = reference.Platform{OS: "linux", Architecture: "amd64"}
	versioned = specs.Versioned{SchemaVersion: 2}
)

// config has short pauses, and a registry without TLS.
func config(dir, host string) image.Config {
	return image.Config{
		Dir: dir, ReserveBytes: -1,
		Registries: registry.New(registry.Config{
			Hosts:   map[string]registry.Host{host: {PlainHTTP: true}},
			Retries: 3, RetryWait: time.Millisecond, MaxRetryWait: 20 * time.Millisecond,
		}),
	}
}

func newStore(t *testing.T, reg *imagetest.Registry, change ...func(*image.Config)) (*image.Store, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "images")
	return reopen(t, dir, reg, change...), dir
}

func reopen(t *testing.T, dir string, reg *imagetest.Registry, change ...func(*image.Config)) *image.Store {
	t.Helper()
	cfg := config(dir, reg.Host)
	for _, f := range change {
		f(&cfg)
	}
	s, err := image.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func refOf(t *testing.T, reg *imagetest.Registry, repository, digest string) reference.Ref {
	t.Helper()
	ref, err := reference.Parse(reg.Host + "/" + repository + "@" + digest)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func mustPull(t *testing.T, s *image.Store, ref reference.Ref) image.Image {
	t.Helper()
	img, err := s.Pull(t.Context(), ref, amd64)
	if err != nil {
		t.Fatalf("%v (%s)", err, needs)
	}
	return img
}

// simple returns a layer with one file.
func simple(t *testing.T, name, body string) imagetest.Layer {
	t.Helper()
	return imagetest.Gzip(t, imagetest.Tar(t, imagetest.File(name, body)))
}

// fingerprint returns a digest of all that a mount would show of a tree.
func fingerprint(t *testing.T, tree string) string {
	t.Helper()
	hash := sha256.New()
	err := filepath.WalkDir(tree, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		rel, _ := filepath.Rel(tree, path)
		fmt.Fprintf(hash, "%q %s %d:%d %d ", rel, info.Mode(), st.Uid, st.Gid, st.Rdev)
		var opaque [8]byte
		n, _ := unix.Lgetxattr(path, "trusted.overlay.opaque", opaque[:])
		fmt.Fprintf(hash, "%q ", opaque[:max(n, 0)])
		if !info.Mode().IsRegular() {
			return nil
		}
		content, err := os.ReadFile(path)
		fmt.Fprintf(hash, "%x %d", sha256.Sum256(content), info.ModTime().Unix())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// names returns the names in a directory.
func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return all
}

// trees returns the names of the unpacked layers, and fails the test if there is unfinished work.
func trees(t *testing.T, dir string) (all []string) {
	t.Helper()
	for _, name := range names(t, filepath.Join(dir, "trees")) {
		if strings.HasPrefix(name, "tmp-") {
			t.Errorf("unfinished work: %s", name)
		}
		if !strings.HasSuffix(name, ".json") {
			all = append(all, name)
		}
	}
	return all
}

// wantLayout checks what an OCI layout promises: blobs are what their names say.
func wantLayout(t *testing.T, dir string) {
	t.Helper()
	blobs := filepath.Join(dir, "blobs", "sha256")
	for _, name := range names(t, blobs) {
		data, err := os.ReadFile(filepath.Join(blobs, name))
		if err != nil {
			t.Fatal(err)
		}
		if imagetest.Digest(data) != "sha256:"+name && !strings.HasSuffix(name, ".tmp") {
			t.Errorf("blob %s has another digest", name)
		}
	}
	layout, err := os.ReadFile(filepath.Join(dir, "oci-layout"))
	if err != nil || !bytes.Equal(layout, []byte(`{"imageLayoutVersion":"1.0.0"}`)) {
		t.Errorf("oci-layout: %q, %v", layout, err)
	}
}

// refused reports what an error of Pull says of another try.
func refused(err error) bool {
	var r interface{ Refused() bool }
	return errors.As(err, &r) && r.Refused()
}
