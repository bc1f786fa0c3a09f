package preparer

import (
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// Trust says whether the node runs a manifest; *trust.Node is one. It is asked before a manifest is taken over, and again
// after a refusal; what was taken over once keeps running whatever it says later (P4).
type Trust interface {
	Check(podID string, canonical []byte, signature string) error
}

// trusted marks a refusal as one that trying again does not mend by itself.
func (p *Preparer) trusted(m *manifest.Manifest, canonical []byte, signature string) error {
	if p.cfg.Trust == nil {
		return nil
	}
	if err := p.cfg.Trust.Check(m.ID, canonical, signature); err != nil {
		return fmt.Errorf("%w: %w", errManifest, err)
	}
	return nil
}
