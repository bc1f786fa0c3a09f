package app

import (
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/disktest"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/registry"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
)

func TestImageConfig(t *testing.T) {
	t.Parallel()
	good := ImageConfig{
		CacheBytes: 1, MaxBytes: 1, MaxUnpackedBytes: 1, PullDeadline: time.Second,
		CAs: []string{"r.example.com:5000=/ca.pem"}, TokenFiles: []string{"R.example.com:5000=/token"},
		PlainHTTP: []string{"127.0.0.1:5000", "docker.io"}, DockerConfig: "/config.json",
	}
	var errs field.Errors
	good.check(&errs)
	want := map[string]registry.Host{
		"r.example.com:5000": {CAFile: "/ca.pem", TokenFile: "/token"},
		"127.0.0.1:5000":     {PlainHTTP: true}, "docker.io": {PlainHTTP: true},
	}
	if got := good.hosts(&errs); !maps.Equal(got, want) || errs.Err() != nil {
		t.Errorf("%v, %v; want %v", got, errs.Err(), want)
	}
	for name, spoil := range map[string]func(*ImageConfig){
		"image-cache-bytes":        func(c *ImageConfig) { c.CacheBytes = 0 },
		"image-max-bytes":          func(c *ImageConfig) { c.MaxBytes = -1 },
		"image-max-unpacked-bytes": func(c *ImageConfig) { c.MaxUnpackedBytes = 0 },
		"pull-deadline":            func(c *ImageConfig) { c.PullDeadline = time.Millisecond },
		"registry-ca":              func(c *ImageConfig) { c.CAs = []string{"r.example.com"} },
		"registry-token-file":      func(c *ImageConfig) { c.TokenFiles = []string{"r.example.com=token"} },
		"registry-plain-http":      func(c *ImageConfig) { c.PlainHTTP = []string{"r.example.com/name"} },
		"registry-config":          func(c *ImageConfig) { c.DockerConfig = "config.json" },
	} {
		bad := good
		spoil(&bad)
		var errs field.Errors
		if bad.check(&errs); len(errs) != 1 || !strings.HasPrefix(errs.Error(), name+": ") {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

// A node names each part that it lacks. Trials leave nothing.
func TestProbeContainers(t *testing.T) {
	disktest.Run(t, 8<<20, func(t *testing.T, dir string) {
		log, err := obs.NewLogger(io.Discard, "info", "text")
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(dir, "images")
		isolated := install.Isolation{Users: install.UserRange{First: 2000, Last: 3000}}
		can := probeContainers(t.Context(), dir, isolated, "/cgroup", log)
		if can.Runc == "" || len(can.Lacks) > 0 || !can.Idmapped {
			t.Errorf("%+v; this test needs root, runc, overlayfs, and Linux 5.19", can)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
		t.Setenv("PATH", t.TempDir())
		can = probeContainers(t.Context(), "/proc/no-directory", install.Isolation{}, "", log)
		for _, part := range []string{
			"no users of their own", "no cgroups", "install runc 1.1.5 or newer", "no overlay mounts: ",
		} {
			if !slices.ContainsFunc(can.Lacks, func(lack string) bool { return strings.Contains(lack, part) }) {
				t.Errorf("%q does not name %q", can.Lacks, part)
			}
		}
		if len(can.Lacks) != 4 || can.Runc != "" || can.Idmapped {
			t.Errorf("%+v", can)
		}
	})
}
