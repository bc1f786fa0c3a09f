package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/internal/oci/reference"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/registry"
)

// ResolveTimeout limits how long a registry may take to name the digest of a tag, with all tries.
const ResolveTimeout = 10 * time.Second

// ErrDenied means that a registry refused the credentials, or that there were none.
var ErrDenied = registry.ErrDenied

// Registries are the settings with which digests of images are asked for.
type Registries struct {
	DockerConfig string   // path of a config.json with credentials; empty: none
	CAFile       string   // certificates of authorities in PEM, accepted beside the machine's
	PlainHTTP    []string // registries without TLS
}

// DockerConfig returns the path of the config.json that docker login writes, or an empty text if it does not exist.
func DockerConfig() string {
	dir := os.Getenv("DOCKER_CONFIG")
	if home, err := os.UserHomeDir(); dir == "" && err == nil {
		dir = filepath.Join(home, ".docker")
	}
	path := filepath.Join(dir, "config.json")
	if _, err := os.Stat(path); dir == "" || err != nil {
		return ""
	}
	return path
}

// digest asks the registry for the digest of a tag. It is an index's if the image is for several platforms.
func (r *Registries) digest(ctx context.Context, text string) (string, error) {
	ref, err := reference.Parse(text)
	if err != nil {
		return "", err
	}
	client := registry.New(registry.Config{
		DockerConfig: r.DockerConfig, Retries: 2,
		Hosts: map[string]registry.Host{
			ref.Registry: {CAFile: r.CAFile, PlainHTTP: slices.Contains(r.PlainHTTP, ref.Registry)},
		},
	})
	repository, err := client.Open(ref)
	if err != nil {
		return "", err
	}
	defer repository.Close()
	late := fmt.Errorf("resolve %s: the registry did not answer within %s", ref, ResolveTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, ResolveTimeout, late)
	defer cancel()
	digest, err := repository.Resolve(ctx)
	if err != nil && errors.Is(context.Cause(ctx), late) {
		return "", late
	}
	return digest, err
}
