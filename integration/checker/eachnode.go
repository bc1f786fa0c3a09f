package checker

// Controllers with a pod on each node (docs/design/placing.md) have no number of replicas, so the checker counts nodes.

const ruleEachNode = "P6 each node"

func (c *controller) eachNode() bool { return c.Mode == "each-node" }

// A pod comes only to a node without one, and not from another node.
func (j *judgement) eachNode(w *Write) {
	for i := range w.Changes {
		p := w.Changes[i].news()
		if p == nil {
			continue
		}
		if rc := w.before(prefix + "rcs/" + p.RCID).controller(); rc == nil || !rc.eachNode() {
			continue
		}
		j.looked(ruleEachNode)
		if before := w.Changes[i].Before.placement(); before != nil {
			j.violated("P6", "moved from its node", w.Index, "%s from %s to %s; by %s",
				p.id(), before.Node, p.Node, w.summary())
		}
		for _, other := range w.state.placementsOf(p.RCID) {
			if other.id() != p.id() && other.Node == p.Node {
				j.violated("P6", "two on one node", w.Index, "%s comes to %s, where %s is; by %s",
					p.id(), p.Node, other.id(), w.summary())
			}
		}
	}
}

// asksFor reports whether a node should have a pod of the controller, and should have had it a moment ago. A farm may
// not have read the latest change yet.
func (j *judgement) asksFor(w *Write, rc *controller, node string) bool {
	return rc.selects(w.state.labels(node)) && w.state.ops(node).Drain == nil &&
		!j.unselected(w, rc, node) && !j.drained(w, node)
}

// leastOnEach leaves out nodes that are away, or were away a moment ago, because a farm may leave them out too.
func (j *judgement) leastOnEach(w *Write, rc *controller) int {
	n := 0
	for _, p := range w.placementsBefore(rc.ID) {
		away := !w.state.alive(p.Node) || j.recently(w, j.away.dead[p.Node]) || j.recently(w, j.away.gone[p.Node])
		if p.RunState == running && !away && j.asksFor(w, rc, p.Node) {
			n++
		}
	}
	if rc.MinAvailable != nil {
		return min(*rc.MinAvailable, n)
	}
	return max(0, n-1)
}

func (w *Write) othersOn(rcID, node, id string) bool {
	for _, p := range w.placementsBefore(rcID) {
		if p.id() != id && p.Node == node && p.RunState == running {
			return true
		}
	}
	return false
}
