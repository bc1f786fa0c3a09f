package farm

import (
	"fmt"
	"maps"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// violated notes the first rule that is broken.
func (h *history) violated(format string, args ...any) {
	if h.violation == "" {
		h.violation = fmt.Sprintf(format, args...)
		h.logf("VIOLATED %s", h.violation)
	}
}

// judgeFence checks whether the writer may write (P1).
func (h *history) judgeFence(f store.Fence) func() {
	if r := h.store.at[f.Key]; r.session != f.Session || r.index != f.Index {
		h.violated("P1: a write with the fence %s %d, which is %s %d", f.Session, f.Index, r.session, r.index)
	}
	return func() {}
}

// judgeBatch checks a batch that is about to land. It returns a function that checks the store when the batch has
// landed.
func (h *history) judgeBatch(b *store.Batch, seen *simView) func() {
	h.judgeFence(b.Fence)
	h.judgeFresh(b, seen)
	least, most, deleted := h.least(b.RCID), h.most(b.RCID), h.rcs()[b.RCID].DeletedAt != nil
	counting, inUse := h.counting(seen.nodes), h.inUse(seen.nodes)
	adds, stops := false, false
	for _, w := range b.Pods {
		was := recordAt[pod.Placement](h.store, simKeys.Pods.Key(w.Identity.String()))
		adds = adds || w.Placement != nil && w.Placement.RunState == pod.Running &&
			(!slices.Contains(nodesOf(&was.Value), w.Placement.Node) || was.Value.RunState == pod.Stopped)
		stops = stops || w.Placement != nil && w.Placement.RunState == pod.Stopped && was.Value.RunState == pod.Running
		h.judgeConfirmed(&was.Value, w.Placement)
		if was.Index != w.Index {
			h.violated("P1: the placement of %s is written over another one", w.Identity)
		}
	}
	if adds && h.store.at[simKeys.Schema.Key()].index != seen.schema {
		h.violated("R1: %s is placed in another epoch", b.RCID)
	}
	if stops && recordAt[store.Breaker](h.store, simKeys.Breaker.Key()).Value.Tripped {
		h.violated("R14: %s is stopped while the breaker is tripped", b.RCID)
	}
	return func() {
		if after := h.counting(seen.nodes); after < counting && after < least && !deleted {
			h.violated("P6: %d of %d are available after a batch of %s, the minimum is %d", after, counting, b.RCID,
				least)
		}
		if after := h.inUse(seen.nodes); adds && after > inUse && after > most {
			h.violated("P6: %d copies are in use after a batch of %s, after %d, the bound is %d", after, b.RCID, inUse,
				most)
		}
		h.judgeShares()
	}
}

// nodesOf returns the nodes where a pod has copies. A pod that returns to a node has no new copy there.
func nodesOf(p *pod.Placement) []string {
	return field.Each(copiesOf(p), func(at store.At) string { return at.Node })
}

// judgeConfirmed checks what happens to a pod's copies (P5): a copy is forgotten only when its node has confirmed the
// stop, or when no preparer holds the node.
func (h *history) judgeConfirmed(was, next *pod.Placement) {
	copies := map[string]int64{}
	for _, g := range was.Ghosts {
		copies[g.Node] = g.Revision
	}
	if was.Node != "" {
		copies[was.Node] = was.Revision
	}
	if next != nil {
		for _, at := range copiesOf(next) {
			delete(copies, at.Node)
		}
	}
	for name, revision := range copies {
		r := recordAt[pod.Reality](h.store, realityKey(store.At{Node: name, Identity: was.Identity})).Value
		held := h.store.at[simKeys.Nodes.Key(name)].session != ""
		if held && !(r.State == pod.StateStopped && r.Revision >= revision) {
			h.violated("P5: %s on %s is forgotten, which is %s at %d, and not stopped at %d",
				was.Identity, name, r.State, r.Revision, revision)
		}
	}
}

// judgeFresh checks the input of a batch (P2): the records of all revisions and the rollout must be the same as in the
// owner's view.
func (h *history) judgeFresh(b *store.Batch, seen *simView) {
	if len(b.Pods) == 0 {
		return // it only has a status, which may be old
	}
	for id := range h.rcs() {
		if was, index := seen.rcs[id], h.store.at[simKeys.RCs.Key(id)].index; was != index {
			h.violated("P2: a batch of %s lands that was computed from %s at %d, which is at %d",
				b.RCID, id, was, index)
		}
	}
	if index := h.store.at[simKeys.Rollouts.Key(simUnit)].index; index != seen.rollout {
		h.violated("P2: a batch of %s lands that was computed from the rollout at %d, which is at %d",
			b.RCID, seen.rollout, index)
	}
}

// judgeShares checks the reservations (P3): each placed pod has its share, and the shares of other units are kept.
func (h *history) judgeShares() {
	shares := map[string]node.Reservation{}
	for _, n := range h.nodes {
		shares[n.name] = recordAt[node.Reservation](h.store, simKeys.Reservations.Key(n.name)).Value
		for id := range h.others[n.name] {
			if _, has := shares[n.name].Claims[id.String()]; !has {
				h.violated("P3: the share of %s on %s was overwritten", id, n.name)
			}
		}
	}
	for _, p := range h.placements() {
		if _, has := shares[p.Node].Claims[p.Identity.String()]; !has {
			h.violated("P3: %s is on %s without a share", p.Identity, p.Node)
		}
	}
}

// judgeStep checks a step that is about to land: its input has not changed (P2).
func (h *history) judgeStep(s *store.RolloutStep, t *simTxn) func() {
	h.judgeFence(s.Fence)
	for _, c := range h.store.fails(t) {
		h.violated("P2: a step lands, and %s at %s is not as it was: %s", c.kind, c.key, s.Unit.Rollout.Value.State)
	}
	return func() {
		for id, r := range h.rcs() {
			if err := r.Check(); err != nil {
				h.violated("a step makes %s invalid: %v", id, err)
			}
		}
	}
}

// rcs returns the controllers' records.
func (h *history) rcs() map[string]rc.RC {
	all := map[string]rc.RC{}
	for _, r := range h.store.at {
		if v, is := r.value.(rc.RC); is {
			all[v.ID] = v
		}
	}
	return all
}

// ids returns the controllers that have a record, the oldest revision first.
func (h *history) ids() []string { return slices.Sorted(maps.Keys(h.rcs())) }

func (h *history) placements() (all []pod.Placement) {
	for _, r := range h.store.at {
		if p, is := r.value.(pod.Placement); is {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b pod.Placement) int { return a.Identity.Compare(b.Identity) })
	return all
}

func (h *history) rollout() store.Rec[rollout.Record] {
	return recordAt[rollout.Record](h.store, simKeys.Rollouts.Key(simUnit))
}

// limits returns the minimum and the bound of the service by its records, the stricter ones; see
// docs/design/rollouts.md.
func (h *history) limits(of string) (least, most int) {
	all, asked, serving := h.rcs(), 0, 0
	if own := all[of]; len(all) == 1 || own.Service == nil {
		return own.MinimumAvailable(), own.Desired() + own.Surge()
	}
	for _, r := range all {
		if asked += r.Asks(); !r.Service.Standby {
			serving += r.Asks()
		}
		if r.DeletedAt != nil {
			continue
		}
		least = max(least, r.Service.Min)
		if most == 0 || r.Service.Max > 0 && r.Service.Max < most {
			most = r.Service.Max
		}
	}
	own := all[of]
	if rec := h.rollout(); rec.Index == 0 || !rec.Value.Has(of) {
		least, most = min(least, serving), max(most, asked+own.Surge())
	}
	return least, most
}

func (h *history) least(of string) int { least, _ := h.limits(of); return least }

func (h *history) most(of string) int { _, most := h.limits(of); return most }

// counting returns the number of pods of all revisions that are available by their last report. nodes are the nodes as
// an owner saw them.
func (h *history) counting(nodes map[string]*node.View) (n int) {
	for _, p := range h.placements() {
		on := func(name, digest string) bool {
			r := recordAt[pod.Reality](h.store, realityKey(store.At{Node: name, Identity: p.Identity})).Value
			return r.Counts() && (digest == "" || r.Digest == digest) && !h.machineLost(nodes, name)
		}
		counts := on(p.Node, p.Digest) || slices.ContainsFunc(p.Ghosts, func(g pod.Ghost) bool {
			return g.Revision == 0 && on(g.Node, "")
		})
		if counts && p.RunState == pod.Running && !p.Standby {
			n++
		}
	}
	return n
}

// inUse counts the copies of all revisions that count against surge and bound. A copy on a dead node that was replaced
// counts only against the bound of a service.
func (h *history) inUse(nodes map[string]*node.View) (n int) {
	bounded := len(h.rcs()) > 1
	takes := func(name string) bool {
		return nodes[name] != nil && nodes[name].Alive || bounded && !h.machineLost(nodes, name)
	}
	for _, p := range h.placements() {
		stopped := func(name string, revision int64) bool {
			r := recordAt[pod.Reality](h.store, realityKey(store.At{Node: name, Identity: p.Identity})).Value
			return r.State == pod.StateStopped && r.Revision >= revision
		}
		if takes(p.Node) && (p.RunState == pod.Running || !stopped(p.Node, p.Revision)) {
			n++
		}
		for _, g := range p.Ghosts {
			if !g.LeftBecauseLost && takes(g.Node) && (g.Revision == 0 || !stopped(g.Node, g.Revision)) {
				n++
			}
		}
	}
	return n
}

// machineLost reports whether a machine is lost, by an owner's view or by a placement.
func (h *history) machineLost(nodes map[string]*node.View, name string) bool {
	v := nodes[name]
	if v == nil || v.Alive {
		return false
	}
	for _, p := range h.placements() {
		if p.Node == name && p.RunState == pod.Running && p.LostSince != nil && p.DeadIndex == v.FreeIndex ||
			slices.ContainsFunc(p.Ghosts, func(g pod.Ghost) bool {
				return g.Node == name && g.MachineLost && g.DeadIndex == v.FreeIndex
			}) {
			return true
		}
	}
	return v.MachineLost
}
