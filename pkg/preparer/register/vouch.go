package register

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// vouchedFile holds the id of the token with which the services of all pods were registered. The agent uses that token to tell the servers
// about them; when it is gone, what becomes of the pods' health is not heard any more.
const vouchedFile = "services-token"

// noToken is the id of no token at all, which is what earlier versions had unless they say more.
const noToken = "none"

func readVouched(dir string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, vouchedFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return noToken, nil
	case err != nil:
		return "", fmt.Errorf("read which token services were registered with: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// vouchAnew registers the services of all pods again when the token has changed. Their health stays as it is.
func (r *Registrar) vouchAnew(ctx context.Context) error {
	token := r.cfg.Services.TokenID()
	if r.vouched == token {
		return nil
	}
	registered := 0
	for _, p := range r.cfg.Pods(time.Now()) {
		if !p.Up || p.Manifest == nil {
			continue
		}
		if same, err := r.registerAgain(ctx, changeOf(&r.cfg.Node, &p)); err != nil {
			return err
		} else if same {
			registered++
		}
	}
	if err := r.cfg.Reserve.WriteFile(filepath.Join(r.cfg.Dir, vouchedFile), []byte(token+"\n")); err != nil {
		return fmt.Errorf("note which token services were registered with: %w", err)
	}
	r.vouched = token
	r.cfg.Log.WithField("services", registered).Info("services registered with another token")
	return nil
}

// registerAgain registers the services of a pod as they are, unless they were withdrawn or changed since.
func (r *Registrar) registerAgain(ctx context.Context, c change) (same bool, err error) {
	s, up := r.enter(c.id)
	defer s.registering.Unlock()
	r.mu.Lock()
	same = up && s.fingerprint == c.fingerprint
	r.mu.Unlock()
	if !same {
		return false, nil
	}
	return true, r.registerAll(ctx, c.services)
}
