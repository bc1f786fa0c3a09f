package checker

// Controllers with a pod on every node that matches (docs/adr/0024-placing.md) name no number: what would be judged by it is judged by the nodes.

// ruleEachNode is what placements of such controllers are counted under.
const ruleEachNode = "P6 each node"

func (c *controller) eachNode() bool { return c.Mode == "each-node" }

// eachNode judges where their pods come to: to a node that has none, and never from another.
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
			j.violated("P6", "moved from its node", w.Index, "%s from %s to %s; by %s", p.id(), before.Node, p.Node, w.summary())
		}
		for _, other := range w.state.placementsOf(p.RCID) {
			if other.id() != p.id() && other.Node == p.Node {
				j.violated("P6", "two on one node", w.Index, "%s comes to %s, where %s is; by %s", p.id(), p.Node, other.id(), w.summary())
			}
		}
	}
}

// asksFor reports whether a node asks for a pod of the controller, and has for a moment: a farm may not have heard yet that it does.
func (j *judgement) asksFor(w *Write, rc *controller, node string) bool {
	return rc.selects(w.state.labels(node)) && w.state.ops(node).Drain == nil && !j.unselected(w, rc, node) && !j.drained(w, node)
}

// leastOnEach returns how many available pods must be left at least. Nodes that are away, or were a moment ago, may not count for a farm.
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

// othersOn reports whether a node has another running pod of the controller.
func (w *Write) othersOn(rcID, node, id string) bool {
	for _, p := range w.placementsBefore(rcID) {
		if p.id() != id && p.Node == node && p.RunState == running {
			return true
		}
	}
	return false
}
