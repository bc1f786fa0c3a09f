package install

import (
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// Trust says whether the node runs a manifest; *trust.Node is one. It is asked until a version of it is installed: when the
// manifest is taken over, before anything of it is run, and once more at the end, because an artifact or a hook may take long. What was
// installed keeps running whatever it says later (P4).
type Trust interface {
	Check(m *manifest.Manifest, canonical []byte, signature string) error
}

// Trusted marks a refusal as one that trying again does not mend by itself.
func (n *Node) Trusted(m *manifest.Manifest, signature string) error {
	if n.cfg.Trust == nil {
		return nil
	}
	canonical, err := m.Canonical()
	if err == nil {
		err = n.cfg.Trust.Check(m, canonical, signature)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrManifest, err)
	}
	return nil
}
