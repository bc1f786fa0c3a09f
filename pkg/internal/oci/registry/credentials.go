package registry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"github.com/rcfarm/rcfarm/pkg/internal/regular"
)

// maxTokenBytes is how long a token file may be.
const maxTokenBytes = 64 << 10

// credential returns the function that finds the credentials of a registry. The files are read now, so that a changed
// file is used by the next pull. Only the configuration names them: the environment and the home directory do not.
func (c Config) credential(registry string) (auth.CredentialFunc, error) {
	if host := c.Hosts[registry]; host.TokenFile != "" {
		cred, err := host.readToken()
		if err != nil {
			return nil, err
		}
		return auth.StaticCredential(registry, cred), nil
	}
	if c.DockerConfig == "" {
		return nil, nil
	}
	if _, err := os.Stat(c.DockerConfig); err != nil { // oras-go takes a missing file for an empty one
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	store, err := credentials.NewStore(c.DockerConfig, credentials.StoreOptions{})
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	find := credentials.Credential(store)
	return func(ctx context.Context, hostport string) (auth.Credential, error) {
		cred, err := find(ctx, hostport)
		if err != nil {
			err = fmt.Errorf("credentials for %s: %w", hostport, err)
		}
		return cred, err
	}, nil
}

func (h Host) readToken() (auth.Credential, error) {
	f, _, err := regular.Open(h.TokenFile, os.O_RDONLY)
	if err != nil {
		return auth.Credential{}, fmt.Errorf("read token: %w", err)
	}
	data, err := regular.ReadAll(f, maxTokenBytes)
	if err = errors.Join(err, f.Close()); err != nil {
		return auth.Credential{}, fmt.Errorf("read token: %w", err)
	}
	token := strings.TrimSpace(string(data))
	switch {
	case token == "":
		return auth.Credential{}, fmt.Errorf("token file %s: empty; allowed: a token or a password", h.TokenFile)
	case h.User != "":
		return auth.Credential{Username: h.User, Password: token}, nil
	}
	return auth.Credential{AccessToken: token}, nil
}
