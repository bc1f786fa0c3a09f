package reconcile

import (
	"slices"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// Lot is a group of pods that get their nodes together, because manifest and placement preferences are the same.
type Lot struct {
	Pods        []pod.Identity
	Digest      string
	Role        string             // set if its group has its own placement preferences; else empty
	Manifest    *manifest.Manifest // nil: it is not known
	Preferences rc.Preferences
	Nodes       []string       // the nodes that get the pods, if the controller has a pod on each node; else nil
	Rule        scheduler.Rule // which nodes may take the pods; each pod reserves Rule.Ask
}

// DefaultLot has the controller's own manifest and preferences, and no pods.
func (f *Facts) DefaultLot() Lot { return f.lot(f.RC.ManifestDigest, "") }

func (f *Facts) lot(digest, role string) Lot {
	m := f.ManifestOf(digest)
	return Lot{Digest: digest, Role: role, Manifest: m, Preferences: f.RC.PreferencesOf(role), Rule: f.ruleFor(m)}
}

// Lots groups pods into lots, in their order. Each pod is one of the plan's adds, or exists already.
func (p *Plan) Lots(ids []pod.Identity) (lots []Lot) {
	for _, id := range ids {
		digest, role := p.DigestOf(id), ""
		if p.facts.RC.HasPreferences(id.Role) {
			role = id.Role
		}
		i := slices.IndexFunc(lots, func(l Lot) bool { return l.Digest == digest && l.Role == role })
		if i < 0 {
			i, lots = len(lots), append(lots, p.facts.lot(digest, role))
			lots[i].Nodes = p.nodes
		}
		lots[i].Pods = append(lots[i].Pods, id)
	}
	return lots
}

// DigestOf returns the digest that the plan gives a pod.
func (p *Plan) DigestOf(id pod.Identity) string {
	if at := p.facts.find(id); at != nil {
		return p.facts.digestFor(&at.Placement)
	}
	if digest, chosen := p.digests[id]; chosen {
		return digest
	}
	return p.facts.RC.ManifestOf(id.Role)
}
