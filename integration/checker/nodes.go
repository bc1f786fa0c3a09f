package checker

import (
	"maps"
	"slices"
	"strings"
)

type nodes struct {
	run map[string]map[string]Event // node -> identity
	top map[string]int64            // highest revision applied, by node and identity
	// held has the pods that their machines stopped, by node and identity: they may start again at the same revision.
	held map[string]Event
	// forgot has pods of machines that died, by node and identity: these machines have forgotten what they had stopped.
	forgot map[string]forgotten
}

type forgotten struct {
	revision int64
	at       int64 // when the machine died
	// early: the machine died within heardLate after a restore or its preparer's return, so it may not have reported
	// again the stops that the restore took back.
	early bool
}

func newNodes() *nodes {
	return &nodes{
		run: map[string]map[string]Event{}, top: map[string]int64{},
		held: map[string]Event{}, forgot: map[string]forgotten{},
	}
}

func (n *nodes) runs(node, id string) (Event, bool) {
	e, ok := n.run[node][id]
	return e, ok
}

// last includes a pod that the machine itself has stopped.
func (n *nodes) last(node, id string) (Event, bool) {
	if e, runs := n.runs(node, id); runs {
		return e, true
	}
	e, held := n.held[node+"|"+id]
	return e, held
}

// lose forgets a node whose machine died: nothing runs there, and it may obey old intents again.
func (n *nodes) lose(j *judgement, e Event) {
	node, told := e.Node, max(j.lastRestore(), j.away.dead[e.Node])
	delete(n.run, node)
	for key, revision := range n.top {
		if strings.HasPrefix(key, node+"|") {
			n.forgot[key] = forgotten{revision, e.At, j.lastRestore() > 0 && e.At-told <= int64(heardLate)}
		}
	}
	maps.DeleteFunc(n.top, func(key string, _ int64) bool { return strings.HasPrefix(key, node+"|") })
	maps.DeleteFunc(n.held, func(key string, _ Event) bool { return strings.HasPrefix(key, node+"|") })
}

// apply judges P3 by the pods that really run, and P4 on the node.
func (n *nodes) apply(j *judgement, e Event) {
	switch e.Kind {
	case EventLost:
		n.lose(j, e)
		return
	case EventSelf:
		n.stopsItself(j, e)
		return
	}
	j.keeps(e)
	key := e.Node + "|" + e.ID
	j.looked("P4 node")
	held, again := n.held[key]
	delete(n.held, key)
	if e.Revision <= n.top[key] && !(again && e.State == running && e.Revision == held.Revision) {
		j.violated("P4", "node obeyed an old revision", 0, "%s on %s: %s at %d after %d", e.ID,
			e.Node, e.State, e.Revision, n.top[key])
	}
	n.top[key] = max(n.top[key], e.Revision)
	if n.run[e.Node] == nil {
		n.run[e.Node] = map[string]Event{}
	}
	if e.State == stopped {
		delete(n.run[e.Node], e.ID)
		return
	}
	n.run[e.Node][e.ID] = e
	j.livesAlone(e)
	for id, other := range n.run[e.Node] {
		if id == e.ID || j.revived(e) || j.revived(other) {
			continue
		}
		for _, port := range e.Ports {
			j.looked("P3 node")
			if slices.Contains(slices.Collect(maps.Values(other.Ports)), port) {
				j.violated("P3", "port used twice on a node", j.lastIndex(),
					"%s and %s both run with port %d on %s", e.ID, id, port, e.Node)
			}
		}
	}
}

// revived reports whether a pod may run at a lower revision than its node had before its machine died: a restore orders
// it to run again, and the node has forgotten the stop before it could report it. Another pod may have its place by
// now, and is adopted beside it. If the node has reported the stop, it must not run the pod again.
func (j *judgement) revived(e Event) bool {
	f := j.nodes.forgot[e.Node+"|"+e.ID]
	return e.Revision < f.revision && (f.early || j.lastRestore() >= f.at)
}

func (j *judgement) lastRestore() int64 {
	if len(j.rewound) == 0 {
		return 0
	}
	return j.rewound[len(j.rewound)-1].to
}

// lastIndex returns the newest index in the replay, roughly the time of an event.
func (j *judgement) lastIndex() uint64 {
	var newest uint64
	for _, g := range []string{"pods", "intent", "reality", "bells"} {
		for _, k := range j.state.groups[g] {
			newest = max(newest, k.Index)
		}
	}
	return newest
}

// nodeStops judges P4 on the nodes: before each act of a node, an intent of that revision was written. It judges the
// pods that run at the end, too.
func (j *judgement) nodeStops(events []Event) {
	for _, e := range ofKind(events, EventNode) {
		j.looked("P4 obeyed")
		in, ok := j.ordered[orderKey(e.Node, e.ID, e.Revision)]
		if !ok || in.state != e.State || in.at > e.At {
			j.violated("P4", "node acted without an intent", 0,
				"%s on %s: %s at revision %d, %d ms after; the intent: %+v", e.ID, e.Node,
				e.State, e.Revision, (e.At-in.at)/1e6, in)
		}
	}
	for _, e := range ofKind(events, EventEnd) {
		p := j.state.get(prefix + "pods/" + e.ID).placement()
		j.looked("final node")
		if j.state.get(prefix+"rcs/"+rcOf(e.ID)).controller() == nil &&
			(j.result.Restores > 0 || j.wiped.missed(e.Node, e.ID)) {
			j.orphan(e)
			continue
		}
		if p == nil || p.Node != e.Node || p.RunState != running || p.Digest != e.Digest {
			j.violated("final", "runs without a placement", 0, "%s on %s at revision %d; placed %+v", e.ID, e.Node,
				e.Revision, p)
		}
	}
	j.placedRuns(ofKind(events, EventEnd))
}

// once judges the pods that run to their end (pre_deploy): each starts at most once. A second intent to run, for
// example after an adoption, is no second start, unless a stop came in between.
func (j *judgement) once(events []Event) {
	ran, stops := map[string]Event{}, map[string]Event{}
	for _, e := range ofKind(events, EventNode) {
		switch before, again := ran[e.ID]; {
		case !e.Once:
		case e.State != running:
			if again && e.Node == before.Node {
				stops[e.ID] = e
			}
		default:
			j.looked("pre_deploy once")
			stop, told := stops[e.ID]
			if again && (before.Node != e.Node || told) && !j.tookBack(before, e) && !(told && j.tookBack(stop, e)) {
				j.violated("pre_deploy", "ran twice", 0, "%s on %s at revision %d, after %s at revision %d", e.ID,
					e.Node, e.Revision, before.Node, before.Revision)
			}
			ran[e.ID] = e
			delete(stops, e.ID)
		}
	}
}

// tookBack reports whether a restore came between the intents of two acts of a node, and took back the first.
func (j *judgement) tookBack(did, next Event) bool {
	index := func(e Event) uint64 { return j.ordered[orderKey(e.Node, e.ID, e.Revision)].index }
	return slices.ContainsFunc(j.takenBack, func(t written) bool {
		return t.after < index(did) && index(did) < t.before && t.before < index(next)
	})
}

// orphan judges a pod that runs at the end without a controller, because of a restore, or of a deletion after a wipe
// before a farm knew the pod. Nothing may stop it, and its node must report it.
func (j *judgement) orphan(e Event) {
	j.looked("P4 orphan")
	if !j.state.lists(e.Node, e.ID) {
		j.violated("P4", "orphan not reported", 0, "%s runs on %s, its controller does not exist", e.ID, e.Node)
	}
}

func rcOf(id string) string {
	rcID, _, _ := strings.Cut(id, "/")
	return rcID
}

func (j *judgement) placedRuns(end []Event) {
	at := map[string]bool{}
	for _, e := range end {
		at[e.Node+"|"+e.ID] = true
	}
	for _, p := range j.state.placementsOf("") {
		j.looked("final placement")
		if p.RunState == running && !at[p.Node+"|"+p.id()] {
			j.violated("final", "placed and does not run", 0, "%s on %s", p.id(), p.Node)
		}
	}
}

// finally judges that every controller of the healed cluster has converged, and every claim has a pod.
func (j *judgement) finally() {
	for _, k := range j.state.groups["rcs"] {
		rc := k.controller()
		if rc == nil {
			continue
		}
		j.looked("final controller")
		st := j.state.get(prefix + "status/" + rc.ID).status()
		if st == nil || st.ObservedGeneration != rc.Generation || !st.is("Converged") {
			j.violated("final", "not converged", 0, "%s (generation %d): %+v", rc.Name, rc.Generation, st)
		}
	}
	want := map[string]map[string][]int{}
	add := func(node, id string, ports map[string]int) {
		if want[node] == nil {
			want[node] = map[string][]int{}
		}
		want[node][id] = slices.Sorted(maps.Values(ports))
	}
	for _, p := range j.state.placementsOf("") {
		add(p.Node, p.id(), p.Ports)
		for _, g := range p.Ghosts {
			add(g.Node, p.id(), p.portsOn(g.Node))
		}
	}
	for key, k := range j.state.groups["reservations"] {
		node := nodeBelow(key, "reservations/")
		res := k.reservation()
		if res == nil {
			continue
		}
		for id, h := range res.Claims {
			j.looked("final share")
			if ports, ok := want[node][id]; !ok || !slices.Equal(ports, h.Ports) {
				j.violated("P3", "share of nobody at the end", k.Index, "%s holds ports %v on %s, placed with %v", id,
					h.Ports, node, ports)
			}
			delete(want[node], id)
		}
	}
	for node, left := range want {
		for id := range left {
			j.violated("P3", "no share at the end", 0, "%s is placed on %s", id, node)
		}
	}
}
