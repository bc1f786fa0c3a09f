package reconcile

import (
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Placer makes the changes for the pods in Plan.Adds: it places new pods, and moves existing ones. There may be
// thousands, so it makes their common parts once. The pods share its maps, which must not be changed.
type Placer struct {
	plan      *Plan
	templates map[string]*template // by digest
	reason    string
}

type template struct {
	pod     pod.Placement
	claim   node.Claim
	dynamic []string
}

// Placer returns the Placer of the plan.
func (p *Plan) Placer() *Placer {
	return &Placer{
		plan: p, templates: map[string]*template{},
		reason: fmt.Sprintf("%d replicas desired", p.facts.RC.Desired()),
	}
}

// On returns the change that places or moves one of the adds to a node.
func (p *Placer) On(id pod.Identity, nodeName string) Change {
	f := p.plan.facts
	switch at := f.find(id); {
	case at != nil && at.RunState == pod.Stopped:
		return placeAgain(f, at, nodeName)
	case at != nil:
		return moveChange(f, at, nodeName)
	}
	a := p.templateFor(p.plan.DigestOf(id))
	made := &struct { // one allocation instead of five
		pod     pod.Placement
		intent  pod.Intent
		claim   node.Claim
		intents [1]IntentChange
		reserve [1]ReserveChange
	}{pod: a.pod, claim: a.claim}
	made.pod.Identity, made.pod.Node, made.claim.Pod = id, nodeName, id
	made.pod.Revision, made.pod.Replicas = pod.NextRevision(f.Now, f.Stopped[id]), f.RC.CountOf(id.Role)
	if f.ordered(id.Role) {
		made.pod.Epoch = f.Epoch
	}
	made.intent = made.pod.Intent()
	made.intents[0] = IntentChange{Node: nodeName, Intent: &made.intent}
	made.reserve[0] = ReserveChange{Node: nodeName, Claim: &made.claim, Dynamic: a.dynamic}
	return Change{
		Action: Place, Identity: id, Placement: &made.pod, NeedsSchema: true,
		Reason: p.reason, Intents: made.intents[:1:1], Reserve: made.reserve[:1:1],
	}
}

func (p *Placer) templateFor(digest string) *template {
	if a := p.templates[digest]; a != nil {
		return a
	}
	f := p.plan.facts
	m := f.ManifestOf(digest)
	a := &template{
		pod:   pod.Placement{Digest: digest, Standby: f.standsBy(), RunState: pod.Running, ChangedAt: f.Now},
		claim: claimOf(m, pod.Identity{}, m.PortMap()), dynamic: m.DynamicPorts(),
	}
	applyManifest(&a.pod, &f.RC, m)
	p.templates[digest] = a
	return a
}

func applyManifest(next *pod.Placement, r *rc.RC, m *manifest.Manifest) {
	next.PodID, next.Ports, next.Labels = m.ID, m.PortMap(), r.PodLabelSet(m.ID, m.Labels, next.OwnLabels)
	next.Replicas = r.CountOf(next.Role)
}

// claimOf returns a pod's share of its node. m is nil if the manifest was not read; then the share has no resources.
func claimOf(m *manifest.Manifest, id pod.Identity, ports map[string]int) node.Claim {
	if m == nil {
		return node.NewClaim(id, ports, 0, 0)
	}
	res := m.Resources()
	return node.NewClaim(id, ports, res.CPU, res.Memory)
}

func (p *Pod) placeChange(next *pod.Placement, m *manifest.Manifest, reason string) Change {
	ch, claim := p.change(Move, next, reason), claimOf(m, p.Identity, m.PortMap())
	ch.NeedsSchema = true
	ch.setIntent(next.Node, next.Intent())
	ch.Reserve = []ReserveChange{{Node: next.Node, Claim: &claim, Dynamic: m.DynamicPorts()}}
	return ch
}
