package overlay_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/internal/disktest"
	"github.com/rcfarm/rcfarm/pkg/preparer/image/overlay"
)

const needs = "these tests need root and a kernel with overlayfs"

func TestProbe(t *testing.T) {
	dir := t.TempDir()
	if err := overlay.Probe(dir); err != nil {
		t.Fatalf("%v (%s)", err, needs)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the probe left %v, %v", left, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("the probe left a mount: %v", err)
	}
	if err := overlay.Probe(filepath.Join(dir, "missing")); err == nil || errors.Is(err, overlay.ErrUnsupported) {
		t.Errorf("a missing directory: %v", err)
	}
}

// Programs in containers often see an overlay mount as their disk. It cannot be the upper layer of another one.
func TestProbeRefusesOverlays(t *testing.T) {
	disktest.Run(t, 8<<20, func(t *testing.T, dir string) {
		if err := overlay.Probe(dir); err != nil {
			t.Fatalf("on tmpfs: %v (%s)", err, needs)
		}
		target := mountLayers(t, dir, 1)
		t.Cleanup(func() { unmount(t, target) })
		if err := overlay.Probe(target); !errors.Is(err, overlay.ErrUnsupported) ||
			!strings.Contains(err.Error(), "ext4, xfs or tmpfs") {
			t.Errorf("on an overlay mount: %v", err)
		}
	})
}

// An image may have 128 layers, below a long path.
func TestManyLayers(t *testing.T) {
	disktest.Run(t, 8<<20, func(t *testing.T, dir string) {
		dir = filepath.Join(dir, strings.Repeat("long-", 40))
		target := mountLayers(t, dir, 128)
		t.Cleanup(func() { unmount(t, target) })
		for i := range 128 {
			if _, err := os.Stat(filepath.Join(target, fmt.Sprint(i))); err != nil {
				t.Errorf("layer %d: %v", i, err)
			}
		}
		if content, err := os.ReadFile(filepath.Join(target, "same")); err != nil || string(content) != "0" {
			t.Errorf("the highest layer does not win: %q, %v", content, err)
		}
	})
}

// mountLayers mounts layers with one file each, and one that all have.
func mountLayers(t *testing.T, dir string, count int) (target string) {
	t.Helper()
	layers := overlay.Layers{Upper: filepath.Join(dir, "upper"), Work: filepath.Join(dir, "work")}
	target = filepath.Join(dir, "target")
	for _, made := range []string{layers.Upper, layers.Work, target} {
		if err := os.MkdirAll(made, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i := range count {
		lower := filepath.Join(dir, "lower", fmt.Sprint(i))
		layers.Lower = append(layers.Lower, lower)
		err := errors.Join(os.MkdirAll(lower, 0o755), os.WriteFile(filepath.Join(lower, fmt.Sprint(i)), nil, 0o644),
			os.WriteFile(filepath.Join(lower, "same"), fmt.Append(nil, i), 0o644))
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := overlay.Mount(target, layers); err != nil {
		t.Fatalf("%v (%s)", err, needs)
	}
	return target
}

func unmount(t *testing.T, target string) {
	t.Helper()
	if err := unix.Unmount(target, 0); err != nil {
		t.Error(err)
	}
}

// A lower layer can have other owners in the mount, where the kernel and the file system allow that.
func TestProbeIdmapped(t *testing.T) {
	disktest.Run(t, 8<<20, func(t *testing.T, dir string) {
		if err := overlay.ProbeIdmapped(dir); err != nil {
			t.Fatalf("on tmpfs: %v (%s)", err, needs)
		}
		target := mountLayers(t, dir, 1)
		t.Cleanup(func() { unmount(t, target) })
		if err := overlay.ProbeIdmapped(target); !errors.Is(err, overlay.ErrNotIdmapped) {
			t.Errorf("on an overlay mount: %v", err)
		}
		if left, err := filepath.Glob(filepath.Join(dir, "tmp-probe-*")); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	})
}
