package reconcile

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

type upgrades struct{ *budget }

// upgrade gives pods a new manifest in place, one at a time, unavailable pods first. The first failure stops the
// upgrade of the rest (R6). In a limited upgrade, an unavailable pod of a role that keeps its manifest delays only pods
// of such roles, unless it is being upgraded itself. A pod that this plan places elsewhere delays no others, because
// there may never be another node.
func (u upgrades) upgrade() {
	to := upgradeTo(u.f)
	to.most -= u.replacedByAdds()
	if u.f.Rollout != "" && u.f.RC.InPlace == nil || u.f.Hold != "" {
		return
	}
	for p := range u.f.all() {
		if u.f.evidence.betweenNodes(p) {
			return // the second node will show whether the manifest works
		}
	}
	found := u.classify(to)
	u.resolveUnchanged(&found)
	if len(found.outdated) == 0 {
		u.block(found.lastFailed) // only a pod that was upgraded and never became available is a failed upgrade
		return
	}
	u.block(found.failed)
	if !found.waiting {
		u.upgradeNext(&found, to)
	}
}

// upgradable is what an upgrade must know of a controller's pods. A text says why a pod has failed; "": none has.
type upgradable struct {
	outdated   []*Pod // those that may be upgraded next
	available  int    // for the minimum, also of companions
	waiting    bool   // another pod must become available first, or a change must land first
	failed     string // a pod for which the upgrade waits
	lastFailed string // a pod that was being upgraded
	// unchangedWaits: a pod of a role that keeps its manifest is not available.
	unchangedWaits  bool
	unchangedFailed string
}

// classify finds the pods that may be upgraded, and those for which the upgrade waits.
func (u upgrades) classify(to nextManifest) upgradable {
	found := upgradable{available: len(u.companionPods)}
	for p := range u.f.running() {
		if u.f.availableForMinimum(p) {
			found.available++
		}
		digest := to.digest(&u.f.Snapshot, p.Role)
		switch {
		case u.changed[p.Identity] && !slices.Contains(u.plan.Adds, p.Identity):
			found.waiting = true
		case u.f.unwanted(p): // the pod stops without an upgrade
		case to.back && u.f.limited(p) && !u.f.current(p) && !(p.Digest == digest && p.Switching):
			// the pod has the manifest that it should have
		case p.Digest != digest:
			if u.mayUpgrade(p, to) {
				found.outdated = append(found.outdated, p)
			}
		case !u.f.available(p) && !u.f.endedWell(p) && u.f.aliveOn(p.Node):
			u.waitFor(p, &found)
		}
	}
	return found
}

func (u upgrades) mayUpgrade(p *Pod, to nextManifest) bool {
	return !u.changed[p.Identity] && (to.most > 0 || !u.f.limited(p)) && !u.f.keptAsAdopted(p) &&
		!u.awaitsEpoch(p) && u.f.aliveOn(p.Node) && u.f.ManifestOf(to.digest(&u.f.Snapshot, p.Role)) != nil
}

// waitFor notes a pod that has its manifest and is not available.
func (u upgrades) waitFor(p *Pod, found *upgradable) {
	why := u.stalled(p)
	if p.Switching {
		found.lastFailed = cmp.Or(why, found.lastFailed)
	}
	if u.f.RC.InPlace != nil && !u.f.limited(p) && (!p.Switching || why != "") {
		found.unchangedWaits, found.unchangedFailed = true, cmp.Or(why, found.unchangedFailed)
		return
	}
	found.waiting, found.failed = true, cmp.Or(why, found.failed)
}

// resolveUnchanged handles an unavailable pod of a role that keeps its manifest. If pods of other roles can be
// upgraded, such pods are next. Otherwise the upgrade waits for that pod.
func (u upgrades) resolveUnchanged(found *upgradable) {
	if !found.unchangedWaits {
		return
	}
	changing := slices.DeleteFunc(slices.Clone(found.outdated), func(p *Pod) bool { return !u.f.limited(p) })
	if len(changing) > 0 {
		found.outdated = changing
		return
	}
	found.waiting, found.failed = true, cmp.Or(found.failed, found.unchangedFailed)
}

// upgradeNext upgrades one pod, unless the minimum needs it.
func (u upgrades) upgradeNext(found *upgradable, to nextManifest) {
	p := u.next(found.outdated, to.back)
	if u.f.availableForMinimum(p) && found.available-1 < u.limits.minimum {
		if len(u.plan.Adds) > 0 {
			return // the new pods may make the upgrade possible
		}
		u.block(fmt.Sprintf("%d available replicas and a minimum of %d leave no spare pod to upgrade in place; "+
			"lower min_available or add replicas", found.available, u.limits.minimum))
		return
	}
	u.upgradeOne(p, to.digest(&u.f.Snapshot, p.Role))
}

func (u upgrades) next(outdated []*Pod, back bool) *Pod {
	return slices.MinFunc(outdated, func(a, b *Pod) int {
		order := a.Identity.Compare(b.Identity)
		if back {
			order = -order // the last pod that got the manifest is the first that loses it
		}
		return cmp.Or(boolFirst(!u.f.available(a), !u.f.available(b)), order)
	})
}

// stalled returns why a pod that is not available delays the others: it has failed, or its deadline is over; "" if it
// has time left.
func (d *draft) stalled(p *Pod) string {
	waited, deadline := d.f.Now.Sub(p.ChangedAt), deadline(d.f, p)
	if hasFailed(p) || waited >= deadline {
		return fmt.Sprintf("%s on %s did not become available at manifest %.8s: %s",
			name(p.Identity), p.Node, p.Digest, describe(p.Reality))
	}
	d.requeueAfter(deadline - waited)
	return ""
}

// hasFailed reports whether an unavailable pod has failed, by its node's report. One process that has ended since the
// placement is enough, even if it was started again.
func hasFailed(p *Pod) bool {
	r := p.Reality
	if r == nil || r.Revision < p.Revision {
		return false
	}
	return r.State == pod.StateFailed || r.State == pod.StateCrashLooping || r.Digest == p.Digest && r.Restarts > 0
}

// deadline is how long a pod may take to become available. The time that its images have arrived comes on top.
func deadline(f *Facts, p *Pod) time.Duration {
	defaults := &manifest.Manifest{}
	m := cmp.Or(f.ManifestOf(p.Digest), f.ManifestOf(f.RC.ManifestOf(p.Role)), defaults)
	return f.RC.Deadline() + m.ReadyAfter() + pulledFor(p)
}

// pulledFor returns for how long the node reports that images of the pod's present revision have arrived.
func pulledFor(p *Pod) time.Duration {
	if p.Reality == nil || p.Reality.Revision < p.Revision {
		return 0
	}
	return p.Reality.PullTime()
}

func (u upgrades) upgradeOne(p *Pod, digest string) {
	m := u.f.ManifestOf(digest)
	next := p.Placement
	next.Digest = digest
	applyManifest(&next, &u.f.RC, m)
	next.Revision, next.ChangedAt, next.AdoptedAtGeneration = p.nextRevision(u.f.Now), u.f.Now, 0
	next.Switching, next.MayRun = true, u.f.mayRunStill(p)
	ch := p.change(Upgrade, &next, fmt.Sprintf("manifest %.8s -> %.8s", p.Digest, digest))
	claim := claimOf(m, p.Identity, m.PortMap())
	ch.NeedsMinimum, ch.NeedsSchema = true, true
	ch.setIntent(p.Node, next.Intent())
	ch.Reserve = []ReserveChange{{
		Node: p.Node, Claim: &claim, Dynamic: m.DynamicPorts(), KeepPorts: p.Ports, Keep: true,
	}}
	u.add(ch)
}
