package reconcile_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// serviceWorld is a service of several revisions with one owner. The owner reads, decides about one revision, and its
// changes land one by one. Meanwhile nodes and operators act. A change lands under the conditions of
// docs/design/units.md, and under no others.
type serviceWorld struct {
	now     time.Time
	index   uint64
	nodes   map[string]*node.View
	rcs     map[string]rc.RC
	records map[string]uint64 // indices of the controllers' records
	pods    map[pod.Identity]pod.Placement
	indices map[pod.Identity]uint64
	intents map[at]pod.Intent
	reality map[at]pod.Reality
	reports map[at]uint64 // indices of the realities
	drops   uint64
	status  map[string]*rc.Status
	pass    *servicePass // the present pass; nil: none
	deaths  uint64
	rollout string // in charge of all revisions; empty: none is
}

// servicePass is what the owner has decided about one revision, and its input.
type servicePass struct {
	id       string
	snapshot *reconcile.Snapshot
	todo     []reconcile.Change
	records  map[string]uint64
	drops    uint64
	reports  map[at]uint64
}

func newServiceWorld(revisions int) *serviceWorld {
	w := &serviceWorld{
		now: time.Unix(1_700_000_000, 0), index: 1, nodes: map[string]*node.View{}, rcs: map[string]rc.RC{},
		records: map[string]uint64{},
		pods:    map[pod.Identity]pod.Placement{}, indices: map[pod.Identity]uint64{}, intents: map[at]pod.Intent{},
		reality: map[at]pod.Reality{},
		reports: map[at]uint64{}, status: map[string]*rc.Status{},
	}
	for i := range 4 {
		name := fmt.Sprintf("n%d", i)
		w.nodes[name] = &node.View{Node: node.Node{Name: name, Capacity: node.Capacity{Slots: 50}}, Alive: true}
	}
	deadline := field.Duration(time.Second)
	for rev := range revisions {
		id := fmt.Sprintf("r%d", rev+1)
		r := rc.RC{
			ID: id, Name: id, ManifestDigest: "m" + id,
			ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: count(0)}}, Strategy: rc.Dynamic, Generation: 1,
			NodeLoss:         rc.NodeLoss{After: new(field.Duration), UnmanagedAfter: new(field.Duration)},
			ProgressDeadline: &deadline,
			Service:          &rc.Service{Name: "web", Revision: int64(rev + 1), Min: 2, Max: 6},
		}
		w.rcs[id], w.records[id] = r, w.next()
	}
	return w
}

func (w *serviceWorld) next() uint64 { w.index++; return w.index }

func (w *serviceWorld) ids() []string { return slices.Sorted(maps.Keys(w.rcs)) }

// change writes a controller's record.
func (w *serviceWorld) change(id string, f func(*rc.RC)) {
	r := w.rcs[id]
	s := *r.Service
	r.Service = &s
	f(&r)
	r.Generation++
	w.rcs[id], w.records[id] = r, w.next()
}

func (w *serviceWorld) podsOf(id string) []reconcile.Pod {
	var pods []reconcile.Pod
	for _, identity := range slices.SortedFunc(maps.Keys(w.pods), pod.Identity.Compare) {
		p := w.pods[identity]
		if identity.RCID != id {
			continue
		}
		sp := reconcile.Pod{Placement: p, Index: w.indices[identity], Ghosts: map[string]*pod.Reality{}}
		if r, ok := w.reality[at{p.Node, identity}]; ok {
			sp.Reality = &r
		}
		for _, g := range p.Ghosts {
			if r, ok := w.reality[at{g.Node, identity}]; ok {
				sp.Ghosts[g.Node] = &r
			}
		}
		pods = append(pods, sp)
	}
	return pods
}

// read makes the owner look and decide about a revision. Earlier changes that have not landed are dropped.
func (w *serviceWorld) read(id string) *reconcile.Plan {
	r := w.rcs[id]
	s := &reconcile.Snapshot{
		Now: w.now, Owner: "f", RC: r, Epoch: "world", Nodes: map[string]*node.View{}, Pods: w.podsOf(id),
		Previous: w.status[id],
		Manifest: w.manifest(), Manifests: map[string]*manifest.Manifest{}, Rollout: w.rollout, RolloutIdle: true,
	}
	for name, v := range w.nodes {
		one := *v
		s.Nodes[name] = &one
	}
	for _, digest := range []string{"m9", "m8"} {
		s.Manifests[digest] = w.manifest()
	}
	for _, other := range w.ids() {
		if other == id {
			continue
		}
		o := w.rcs[other]
		n := o.Asks()
		s.Companions = append(s.Companions, reconcile.Companion{
			RCID: other, Pods: w.podsOf(other), Status: w.status[other], Asks: &n, Service: o.Service,
		})
	}
	p := &servicePass{
		id: id, snapshot: s, records: maps.Clone(w.records), drops: w.drops, reports: maps.Clone(w.reports),
	}
	plan := reconcile.Compute(s)
	w.status[id] = &plan.Status
	p.todo = plan.Changes
	for _, identity := range plan.Adds {
		if name := w.nodeFor(s, identity); name != "" {
			p.todo = append(p.todo, plan.Placer().On(identity, name))
		}
	}
	w.pass = p
	return &plan
}

func (w *serviceWorld) manifest() *manifest.Manifest {
	return &manifest.Manifest{Version: 1, ID: "p", MinReady: new(field.Duration)}
}

func (w *serviceWorld) nodeFor(s *reconcile.Snapshot, id pod.Identity) string {
	names := slices.Sorted(maps.Keys(s.Nodes))
	for i := range names {
		name := names[(i+id.Index)%len(names)]
		v := s.Nodes[name]
		if _, has := w.reality[at{name, id}]; v.Alive && v.Ops.Drain == nil && !has {
			return name
		}
	}
	return ""
}

// lands makes one change of the pass land if its conditions hold, and checks the result.
func (w *serviceWorld) lands(t rapid.TB, ch *reconcile.Change) bool {
	p, id := w.pass, w.pass.id
	if !maps.Equal(w.records, p.records) || w.indices[ch.Identity] != ch.Index ||
		ch.NeedsMinimum && w.drops != p.drops {
		return false
	}
	for _, name := range ch.NeedsReports {
		if w.reports[at{name, ch.Identity}] != p.reports[at{name, ch.Identity}] {
			return false
		}
	}
	for _, dead := range ch.NeedsDead {
		if v := w.nodes[dead.Name]; v.Alive || v.FreeIndex != dead.Index {
			return false
		}
	}
	gone := p.snapshot.Nodes
	counting, inUse := w.counting(gone), w.inUse(gone)
	if ch.Placement == nil {
		delete(w.pods, ch.Identity)
		delete(w.indices, ch.Identity)
	} else {
		w.pods[ch.Identity], w.indices[ch.Identity] = *ch.Placement, w.next()
	}
	for _, in := range ch.Intents {
		if in.Intent == nil {
			delete(w.intents, at{in.Node, ch.Identity})
		} else {
			w.intents[at{in.Node, ch.Identity}] = *in.Intent
		}
	}
	if after := w.counting(gone); after < counting && after < w.least(id) {
		t.Fatalf("%s of %s: %d of %d are available, the minimum is %d (P6)", ch, id, after, counting, w.least(id))
	}
	if after := w.inUse(gone); (ch.Action == reconcile.Place || ch.Action == reconcile.Move) && after > inUse &&
		after > w.most(id) {
		t.Fatalf("%s of %s: %d copies are in use, after %d, the bound is %d (P6)", ch, id, after, inUse, w.most(id))
	}
	return true
}

// asked returns how many pods all revisions ask for while no rollout is in charge, and how many of these are not
// standby.
func (w *serviceWorld) asked() (all, serving int) {
	for _, r := range w.rcs {
		if all += r.Asks(); !r.Service.Standby {
			serving += r.Asks()
		}
	}
	return all, serving
}

func (w *serviceWorld) least(id string) int {
	if w.rollout != "" {
		return w.rcs[id].Service.Min
	}
	_, serving := w.asked()
	return min(w.rcs[id].Service.Min, serving)
}

func (w *serviceWorld) most(id string) int {
	r := w.rcs[id]
	if w.rollout != "" {
		return r.Service.Max
	}
	all, _ := w.asked()
	return max(r.Service.Max, all+r.Surge())
}

// counting counts the available pods of all revisions, with the nodes that an owner has read.
func (w *serviceWorld) counting(nodes map[string]*node.View) int {
	n := 0
	for id, p := range w.pods {
		on := func(name, digest string) bool {
			r := w.reality[at{name, id}]
			return r.Available && !r.Standby && (digest == "" || r.Digest == digest) && !w.machineLost(nodes, name)
		}
		counts := on(p.Node, p.Digest)
		for _, g := range p.Ghosts {
			counts = counts || g.Revision == 0 && on(g.Node, "")
		}
		if counts && p.RunState == pod.Running && !p.Standby {
			n++
		}
	}
	return n
}

// inUse counts the copies of all revisions.
func (w *serviceWorld) inUse(nodes map[string]*node.View) int {
	n := 0
	for id, p := range w.pods {
		stopped := func(name string, revision int64) bool {
			r, ok := w.reality[at{name, id}]
			return ok && r.State == pod.StateStopped && r.Revision >= revision
		}
		if !w.machineLost(nodes, p.Node) && (p.RunState == pod.Running || !stopped(p.Node, p.Revision)) {
			n++
		}
		for _, g := range p.Ghosts {
			if !g.LeftBecauseLost && !w.machineLost(nodes, g.Node) &&
				(g.Revision == 0 || !stopped(g.Node, g.Revision)) {
				n++
			}
		}
	}
	return n
}

// machineLost reports whether a machine is lost, by what an owner read or by a placement.
func (w *serviceWorld) machineLost(nodes map[string]*node.View, name string) bool {
	v := nodes[name]
	if v.Alive {
		return false
	}
	for _, p := range w.pods {
		if p.Node == name && p.RunState == pod.Running && p.LostSince != nil && p.DeadIndex == v.FreeIndex ||
			slices.ContainsFunc(p.Ghosts, func(g pod.Ghost) bool {
				return g.Node == name && g.MachineLost && g.DeadIndex == v.FreeIndex
			}) {
			return true
		}
	}
	return v.MachineLost
}

// obey makes a node carry out its intent for an identity, and report it.
func (w *serviceWorld) obey(where at, healthy bool) {
	if !w.nodes[where.node].Alive {
		return
	}
	in, hasIntent := w.intents[where]
	was, known := w.reality[where]
	if !hasIntent {
		if known && was.State == pod.StateStopped {
			delete(w.reality, where)
			w.reports[where] = w.next()
		}
		return
	}
	r := pod.Reality{
		Identity: where.id, Node: where.node, Digest: in.Digest, Revision: max(in.Revision, was.Revision),
		State: pod.StateStopped, Standby: in.Standby,
	}
	if in.State == pod.Running {
		r.State, r.Available = pod.StateReady, healthy
	}
	// A pod that leaves the name, or stops, because of its intent is no drop.
	asked := in.State != pod.Running || in.Standby
	if was.Available && !was.Standby && !r.Available && !asked {
		w.drops = w.next()
	}
	if was.Available && was.Digest != in.Digest {
		r.Available = false // it starts anew
	}
	if !known || was != r {
		w.reality[where], w.reports[where] = r, w.next()
	}
}

func (w *serviceWorld) step(t *rapid.T) {
	w.now = w.now.Add(time.Duration(rapid.IntRange(1, 2000).Draw(t, "ms")) * time.Millisecond)
	id := rapid.SampledFrom(w.ids()).Draw(t, "revision")
	switch rapid.SampledFrom([]string{
		"read", "read", "read", "land", "land", "land", "land", "obey", "obey", "obey", "obey all", "sick", "scale",
		"scale", "standby", "in place", "bounds", "rollout",
		"node dies", "node returns", "drain", "undrain",
	}).Draw(t, "step") {
	case "read":
		w.read(id)
	case "land":
		w.land(t)
	case "obey":
		if where, ok := draw(t, w.intents); ok {
			w.obey(where, true)
		}
	case "obey all":
		w.obeyAll()
	case "sick":
		if where, ok := draw(t, w.intents); ok {
			w.obey(where, false)
		}
	case "scale":
		n := rapid.IntRange(0, 5).Draw(t, "replicas")
		w.change(id, func(r *rc.RC) { r.ReplicaGroups = []rc.ReplicaGroup{{Role: "main", Count: &n}} })
	case "standby":
		w.change(id, func(r *rc.RC) { r.Service.Standby = !r.Service.Standby })
	case "in place":
		limit := rapid.IntRange(0, 5).Draw(t, "limit")
		from, to := "m8", "m9"
		if rapid.Bool().Draw(t, "back") {
			from, to = to, from
		}
		w.change(id, func(r *rc.RC) { r.ManifestDigest, r.InPlace = to, &rc.InPlace{From: from, Limit: limit} })
	case "bounds":
		least, more := rapid.IntRange(0, 6).Draw(t, "least"), rapid.IntRange(0, 5).Draw(t, "more")
		for _, id := range w.ids() {
			w.change(id, func(r *rc.RC) { r.Service.Min, r.Service.Max = least, 1+least+more })
		}
	case "rollout":
		w.rollout = rapid.SampledFrom([]string{"", "web/r"}).Draw(t, "rollout")
		for _, id := range w.ids() { // a batch depends on the rollout's record in the same way as on these records
			w.change(id, func(*rc.RC) {})
		}
	case "node dies":
		v := w.anyNode(t)
		w.deaths++
		v.Alive, v.MachineLost, v.FreeIndex = false, rapid.Bool().Draw(t, "gone"), w.deaths
	case "node returns":
		v := w.anyNode(t)
		v.Alive, v.MachineLost, v.FreeIndex = true, false, 0
	case "drain":
		w.anyNode(t).Ops.Drain = &node.Drain{Since: w.now}
	case "undrain":
		w.anyNode(t).Ops.Drain = nil
	}
}

// land makes the next few changes of a pass land, in any order. The others are lost.
func (w *serviceWorld) land(t *rapid.T) {
	p := w.pass
	if p == nil {
		return
	}
	for range rapid.IntRange(1, 3).Draw(t, "changes") {
		if len(p.todo) == 0 {
			return
		}
		i := rapid.IntRange(0, len(p.todo)-1).Draw(t, "which")
		ch := p.todo[i]
		p.todo = slices.Delete(p.todo, i, i+1)
		w.lands(t, &ch)
	}
}

func (w *serviceWorld) anyNode(t *rapid.T) *node.View {
	return w.nodes[fmt.Sprintf("n%d", rapid.IntRange(0, 3).Draw(t, "node"))]
}

func (w *serviceWorld) obeyAll() {
	for where := range maps.Clone(w.intents) {
		w.obey(where, true)
	}
	for where := range maps.Clone(w.reality) {
		w.obey(where, true)
	}
}

// The owner of several revisions may read at any time, and its changes may land in any order. It never takes the
// service below its minimum or above its bound. When all nodes but one lost machine work, each revision gets what it
// asks for.
func TestAnyHistoryOfAService(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newServiceWorld(rapid.IntRange(2, 3).Draw(t, "revisions"))
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			w.step(t)
		}
		lost := ""
		if rapid.Bool().Draw(t, "one node never comes back") {
			lost = w.anyNode(t).Name
		}
		for name, v := range w.nodes {
			v.Alive, v.MachineLost, v.FreeIndex, v.Ops.Drain = true, false, 0, nil
			if name == lost {
				w.deaths++
				v.Alive, v.MachineLost, v.FreeIndex = false, true, w.deaths
			}
		}
		w.rollout = ""
		for _, id := range w.ids() {
			w.change(id, func(r *rc.RC) { r.InPlace, r.Service.Standby = nil, false })
		}
		for range 150 {
			w.now = w.now.Add(time.Second)
			for _, id := range w.ids() {
				w.read(id)
				for _, ch := range w.pass.todo {
					w.lands(t, &ch)
				}
			}
			w.obeyAll()
		}
		for _, id := range w.ids() {
			r := w.rcs[id]
			if st := w.status[id]; st.Available != r.Desired() || st.Placed != r.Desired() {
				t.Fatalf("%s has not settled at %d: %+v\n%+v", id, r.Desired(), st, w.pods)
			}
		}
	})
}
