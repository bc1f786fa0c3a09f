package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/reference"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/registry"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/image"
	"github.com/rcfarm/rcfarm/pkg/preparer/image/overlay"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/runc"
)

// ImageConfig has a preparer's settings of images and registries.
type ImageConfig struct {
	CacheBytes       int64         // size of the store beyond which images go that no pod needs
	MaxBytes         int64         // of the layers of one image as downloaded
	MaxUnpackedBytes int64         // of the layers of one image, unpacked
	PullDeadline     time.Duration // of one whole pull

	DockerConfig string   // path of a config.json with credentials; empty: none
	CAs          []string // registry=file
	TokenFiles   []string // registry=file
	PlainHTTP    []string // registries without TLS
}

func (c *ImageConfig) check(errs *field.Errors) {
	for name, value := range map[string]int64{
		"image-cache-bytes": c.CacheBytes, "image-max-bytes": c.MaxBytes,
		"image-max-unpacked-bytes": c.MaxUnpackedBytes,
	} {
		if value < 1 {
			errs.Add(name, value, "a number of bytes, 1 or more")
		}
	}
	if c.PullDeadline < time.Second || c.PullDeadline > pod.MaxPullTime {
		errs.Add("pull-deadline", c.PullDeadline.String(), "a length of time from 1s to 24h")
	}
	c.hosts(errs)
}

// hosts returns the settings of registries.
func (c *ImageConfig) hosts(errs *field.Errors) map[string]registry.Host {
	hosts := map[string]registry.Host{}
	set := func(flag, name string, change func(*registry.Host)) {
		ref, err := reference.Parse(name + "/name:tag")
		if err != nil || ref.Repository != "name" && ref.Repository != "library/name" {
			errs.Add(flag, name, "a registry as in names of images, such as registry.example.com:5000")
			return
		}
		host := hosts[ref.Registry]
		change(&host)
		hosts[ref.Registry] = host
	}
	files := func(flag string, texts []string, change func(h *registry.Host, file string)) {
		for _, text := range texts {
			name, file, ok := strings.Cut(text, "=")
			if !ok || !filepath.IsAbs(file) {
				errs.Add(flag, text, "REGISTRY=FILE with an absolute path, such as registry.example.com=/etc/ca.pem")
				continue
			}
			set(flag, name, func(h *registry.Host) { change(h, file) })
		}
	}
	files("registry-ca", c.CAs, func(h *registry.Host, file string) { h.CAFile = file })
	files("registry-token-file", c.TokenFiles, func(h *registry.Host, file string) { h.TokenFile = file })
	for _, name := range c.PlainHTTP {
		set("registry-plain-http", name, func(h *registry.Host) { h.PlainHTTP = true })
	}
	if c.DockerConfig != "" && !filepath.IsAbs(c.DockerConfig) {
		errs.Add("registry-config", c.DockerConfig, "an absolute path")
	}
	return hosts
}

// open returns the store of images in dir. reserve is as in image.Config.
func (c *ImageConfig) open(dir string, reserve int64) (*image.Store, error) {
	var errs field.Errors
	client := registry.New(registry.Config{
		DockerConfig: c.DockerConfig, Hosts: c.hosts(&errs), UserAgent: "rcfarm/" + Version,
	})
	return image.New(image.Config{
		Dir: dir, Registries: client, CacheBytes: c.CacheBytes, MaxBytes: c.MaxBytes,
		MaxUnpackedBytes: c.MaxUnpackedBytes, PullTimeout: c.PullDeadline, ReserveBytes: reserve,
	})
}

// probeContainers finds out what this machine can do with images. dir is for trials, and made if it is missing. cgroup
// is as in PreparerConfig.isolation.
func probeContainers(
	ctx context.Context, dir string, in install.Isolation, cgroup string, log obs.Logger,
) (can node.Containers) {
	defer func() {
		log = log.WithFields(obs.Fields{"runc": can.Runc, "idmapped_layers": can.Idmapped})
		if len(can.Lacks) > 0 {
			log.WithField("lacks", strings.Join(can.Lacks, "; ")).Info("this node runs no containers")
		}
	}()
	if os.Getuid() != 0 {
		return node.Containers{Lacks: []string{"no root: the preparer runs as another user; start it as root"}}
	}
	if in.Users == (install.UserRange{}) {
		can.Lacks = append(can.Lacks, "no users of their own for pods: see --isolation and --user-range")
	}
	if cgroup == "" {
		can.Lacks = append(can.Lacks, "no cgroups: see --isolation, and mount cgroup v2")
	}
	version, err := runcVersion(ctx)
	if err != nil {
		can.Lacks = append(can.Lacks, fmt.Sprintf("no runc: %v; install runc %s or newer", err, runc.Oldest))
	} else {
		can.Runc = version.String()
	}
	if err = os.MkdirAll(dir, 0o700); err == nil {
		err = overlay.Probe(dir)
	}
	if err != nil {
		can.Lacks = append(can.Lacks, fmt.Sprintf("no overlay mounts: %v", err))
		return can
	}
	err = overlay.ProbeIdmapped(dir)
	can.Idmapped = err == nil
	if err != nil {
		log.WithField(obs.Error, err).Info("containers have no users of their own for the users of their images")
	}
	return can
}

func runcVersion(ctx context.Context) (version runc.Version, err error) {
	state, err := os.MkdirTemp("", "rcfarm-runc-") // to ask for the version, runc needs no state
	if err != nil {
		return version, err
	}
	defer func() { err = errors.Join(err, os.Remove(state)) }()
	r, err := runc.New(runc.Config{State: state})
	if err != nil {
		return version, err
	}
	return r.Version(ctx)
}
