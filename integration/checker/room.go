package checker

import (
	"maps"
	"slices"
)

// committed judges P3 twice: by the placements, and by the reservation of the same transaction.
func (j *judgement) committed(w *Write) {
	for i := range w.Changes {
		c := &w.Changes[i]
		p := c.places()
		if p == nil || w.left(p) {
			continue
		}
		j.looked("P3 placed")
		if w.before(prefix+"rcs/"+p.RCID) == nil {
			j.violated("P2", "placed for no controller", w.Index, "%s on %s", p.id(), p.Node)
		}
		j.roomPlaced(w, p, c.news() != nil)
		j.roomReserved(w, p, c.news() != nil)
		j.portsAsked(w, p)
		if c.news() != nil {
			j.selected(w, p)
		}
	}
}

// copies returns the ports of each identity that is on a node, or moved off it without a confirmed stop. If the ports
// of a former copy are unknown, the ports of the placement count.
func (s *state) copies(node string) map[string]map[string]int {
	out := map[string]map[string]int{}
	for _, p := range s.placementsOf("") {
		if p.Node == node || p.isGhostOn(node) {
			out[p.id()] = p.portsOn(node)
		}
	}
	return out
}

func (p *placement) portsOn(node string) map[string]int {
	if p.Node != node {
		for _, g := range p.Ghosts {
			if g.Node == node && g.Ports != nil {
				return g.Ports
			}
		}
	}
	return p.Ports
}

// roomPlaced judges ports and slots by all copies, also those that moved off and may still run, and CPU and memory by
// the placed pods.
func (j *judgement) roomPlaced(w *Write, p *placement, isNew bool) {
	there := w.state.copies(p.Node)
	for id, ports := range there {
		if id == p.id() {
			continue
		}
		for _, port := range p.Ports {
			if slices.Contains(slices.Collect(maps.Values(ports)), port) {
				j.violated("P3", "port placed twice", w.Index, "%s and %s both have port %d on %s", p.id(), id, port,
					p.Node)
			}
		}
	}
	n, _ := w.state.node(p.Node)
	if !isNew || n == nil {
		return
	}
	if len(there) > n.Capacity.Slots {
		j.violated("P3", "more pods placed than slots", w.Index, "%s on %s: %d pods there, %d slots", p.id(),
			p.Node, len(there), n.Capacity.Slots)
	}
	if all := w.state.taken(p.Node); all.exceeds(n) {
		j.violated("P3", "more placed than CPU or memory", w.Index, "%s on %s: pods there take %+v of %+v", p.id(),
			p.Node, all, n.Capacity)
	}
}

// taken returns the CPU and memory of the pods on a node. Former copies and second versions in upgrades count nothing,
// because their manifests are not known.
func (s *state) taken(node string) (sum resources) {
	for _, p := range s.placementsOf("") {
		if p.Node == node {
			sum = sum.plus(s.get(prefix + "manifests/" + p.Digest).manifest().takes())
		}
	}
	return sum
}

func (j *judgement) roomReserved(w *Write, p *placement, isNew bool) {
	res := w.after(prefix + "reservations/" + p.Node).reservation()
	if res == nil {
		j.violated("P3", "placed without a reservation", w.Index, "%s on %s", p.id(), p.Node)
		return
	}
	claim, claimed := res.Claims[p.id()]
	if !claimed {
		j.violated("P3", "placed without a share", w.Index, "%s on %s", p.id(), p.Node)
	}
	for name, port := range p.Ports {
		if claimed && !slices.Contains(claim.Ports, port) {
			j.violated("P3", "port without a share", w.Index, "%s on %s: %s is %d, it holds %v",
				p.id(), p.Node, name, port, claim.Ports)
		}
		for id, other := range res.Claims {
			if id != p.id() && slices.Contains(other.Ports, port) {
				j.violated("P3", "port reserved twice", w.Index, "%s and %s both hold port %d of %s", p.id(), id, port,
					p.Node)
			}
		}
	}
	if asked := w.after(prefix + "manifests/" + p.Digest).manifest().takes(); claimed &&
		(claim.CPU < asked.CPU || claim.Memory < asked.Memory) {
		j.violated("P3", "CPU or memory without a share", w.Index, "%s on %s takes %+v and holds %+v",
			p.id(), p.Node, asked, claim.resources)
	}
	node, _ := w.state.node(p.Node)
	switch {
	case node == nil:
		j.violated("P3", "placed on an unknown node", w.Index, "%s on %s", p.id(), p.Node)
		return
	case !isNew:
		return
	case len(res.Claims) > node.Capacity.Slots:
		j.violated("P3", "more pods than slots", w.Index, "%s on %s: %d holders, %d slots", p.id(), p.Node,
			len(res.Claims), node.Capacity.Slots)
	}
	var sum resources
	for _, h := range res.Claims {
		sum = sum.plus(h.resources)
	}
	j.looked("P3 resources")
	if sum.exceeds(node) {
		j.violated("P3", "more reserved than CPU or memory", w.Index, "%s on %s: holders have %+v of %+v",
			p.id(), p.Node, sum, node.Capacity)
	}
}

// portsAsked judges that each port is as the manifest asks, or in the node's range, and that no two are the same.
func (j *judgement) portsAsked(w *Write, p *placement) {
	m, node := w.after(prefix+"manifests/"+p.Digest).manifest(), (*nodeRecord)(nil)
	if node, _ = w.state.node(p.Node); m == nil || node == nil {
		return
	}
	j.looked("P3 ports asked")
	used := map[int]bool{}
	for _, asked := range m.Manifest.Ports {
		port := p.Ports[asked.Name]
		inRange := port >= max(1, node.PortRange.Min) && port <= node.PortRange.Max
		if asked.Dynamic && !inRange || !asked.Dynamic && port != asked.Port || used[port] {
			j.violated("P3", "not the ports that the manifest asks for", w.Index,
				"%s on %s (range %v): asked for %v, given %v", p.id(), p.Node,
				node.PortRange, m.Manifest.Ports, p.Ports)
		}
		used[port] = true
	}
}
