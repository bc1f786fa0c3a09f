package preparer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/consul"
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
func (p *Preparer) vouchAnew(ctx context.Context) error {
	token := p.cfg.Services.TokenID()
	changes, due := p.toVouch(token)
	if !due {
		return nil
	}
	for _, change := range changes {
		if err := p.registerAgain(ctx, change); err != nil {
			return err
		}
	}
	if err := p.reserve.WriteFile(filepath.Join(p.cfg.Dir, vouchedFile), []byte(token+"\n")); err != nil {
		return fmt.Errorf("note which token services were registered with: %w", err)
	}
	p.mu.Lock()
	p.vouched = token
	p.mu.Unlock()
	p.log.WithField("services", len(changes)).Info("services registered with another token")
	return nil
}

// toVouch returns the services that are registered, and whether that was with another token.
func (p *Preparer) toVouch(token string) (changes []serviceChange, due bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.vouched == token {
		return nil, false
	}
	for _, e := range p.pods {
		m := e.manifest()
		if !e.up || m == nil {
			continue
		}
		s := servicesOf(&p.cfg.Node, &e.rec, m, e.rec.Intent.Standby)
		if change := (serviceChange{entry: e, services: s, fingerprint: fingerprint(s)}); e.service == change.fingerprint {
			changes = append(changes, change)
		}
	}
	return changes, true
}

// registerAgain registers the services of a pod as they are, unless they were withdrawn or changed since.
func (p *Preparer) registerAgain(ctx context.Context, c serviceChange) error {
	c.entry.registering.Lock()
	defer c.entry.registering.Unlock()
	p.mu.Lock()
	same := c.entry.up && c.entry.service == c.fingerprint
	p.mu.Unlock()
	if !same {
		return nil
	}
	return p.registerAll(ctx, c.services)
}

func (p *Preparer) registerAll(ctx context.Context, services []consul.Service) error {
	for _, s := range services {
		if err := p.cfg.Services.RegisterService(ctx, s); err != nil {
			return err
		}
	}
	return nil
}
