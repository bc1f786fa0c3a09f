package app

import (
	"fmt"
	"path/filepath"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/trust"
)

// trustPolicy returns what decides about manifests by the policy in a file, nil where no file is named. A policy that
// cannot be read keeps new manifests out and no pod down, so it does not keep the preparer from starting either.
func trustPolicy(file string, log obs.Logger) (install.Trust, error) {
	if file == "" {
		return nil, nil
	}
	absolute, err := filepath.Abs(file)
	if err != nil {
		return nil, fmt.Errorf("trust policy %s: %w", file, err)
	}
	node := trust.NewNode(absolute)
	policy, err := node.Policy()
	log = log.WithField("policy", absolute)
	if err != nil {
		log.WithField(obs.Error, err).Error("trust policy unreadable; no new manifest is run until it is mended")
	} else {
		log.WithFields(obs.Fields{"require_signature": *policy.RequireSignature, "rules": len(policy.Rules)}).Info("trust policy read")
	}
	return node, nil
}
