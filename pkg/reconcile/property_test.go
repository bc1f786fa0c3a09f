package reconcile_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
)

// world is a model of a cluster: the records, and nodes that do what they are told when the model lets them.
type world struct {
	now      time.Time
	rc       rc.RC
	nodes    map[string]*node.View
	pods     map[pod.Identity]pod.Placement
	index    uint64
	indices  map[pod.Identity]uint64
	intents  map[at]pod.Intent
	reality  map[at]pod.Reality
	copies   map[at]pod.Intent // what really runs, or is remembered as stopped
	status   *rc.Status
	requests []reconcile.Request
	saved    records
	hold     bool
	trace    bool
	breaker  bool
}

// records are what a restore brings back.
type records struct {
	pods    map[pod.Identity]pod.Placement
	intents map[at]pod.Intent
	reality map[at]pod.Reality
}

type at struct {
	node string
	id   pod.Identity
}

func newWorld() *world {
	w := &world{
		now: time.Unix(1_700_000_000, 0), nodes: map[string]*node.View{}, pods: map[pod.Identity]pod.Placement{},
		indices: map[pod.Identity]uint64{}, intents: map[at]pod.Intent{}, reality: map[at]pod.Reality{}, copies: map[at]pod.Intent{},
		index: 1,
	}
	for i := range 6 {
		name := fmt.Sprintf("n%d", i)
		w.nodes[name] = &node.View{Node: node.Node{Name: name, Capacity: node.Capacity{Slots: 50}}, Alive: true}
	}
	zero := 0
	w.rc = rc.RC{NodeLoss: rc.NodeLoss{After: new(field.Duration), UnmanagedAfter: new(field.Duration)}, ID: "rc", Name: "rc", ManifestDigest: "m1", ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &zero}}, Strategy: rc.Dynamic, Generation: 1}
	return w
}

func (w *world) snapshot(deep bool) *reconcile.Snapshot {
	s := &reconcile.Snapshot{
		Now: w.now, Owner: "f1", RC: w.rc, Requests: w.read(), Manifest: &manifest.Manifest{Version: 1, ID: "p"}, Nodes: w.nodes, Previous: w.status,
	}
	if w.hold {
		s.Hold = "the records are new"
	}
	if w.breaker {
		s.Breaker = "tripped"
	}
	for id, p := range w.pods {
		sp := reconcile.Pod{Placement: p, Index: w.indices[id], Ghosts: map[string]*pod.Reality{}}
		names := []string{p.Node}
		for _, g := range p.Ghosts {
			names = append(names, g.Node)
		}
		if deep {
			sp.Intents = map[string]*pod.Intent{}
		}
		for _, name := range names {
			if r, ok := w.reality[at{name, id}]; ok && name == p.Node {
				sp.Reality = &r
			} else if ok {
				sp.Ghosts[name] = &r
			}
			if in, ok := w.intents[at{name, id}]; ok && deep {
				sp.Intents[name] = &in
			}
		}
		s.Pods = append(s.Pods, sp)
	}
	for where, c := range w.copies {
		in, told := w.intents[where]
		if c.State != pod.Running || !w.nodes[where.node].Alive || told && in.Revision >= c.Revision {
			continue
		}
		s.Orphans = append(s.Orphans, reconcile.Orphan{Node: where.node, Orphan: pod.Orphan{
			Identity: where.id, PodID: "p", Digest: c.Digest, Revision: c.Revision,
		}})
	}
	return s
}

// read returns the requests as they look now: whether the node is alive is asked again at every look.
func (w *world) read() []reconcile.Request {
	requests := slices.Clone(w.requests)
	for i := range requests {
		requests[i].Alive = w.nodes[requests[i].Node].Alive
	}
	return requests
}

func (w *world) available() int {
	n := 0
	for id := range w.pods {
		if w.counts(id) {
			n++
		}
	}
	return n
}

// counts reports whether a pod counts as available.
func (w *world) counts(id pod.Identity) bool { return w.countsAs(id, w.pods[id]) }

// countsAs is counts for a pod whose placement is, or would be, the given one.
func (w *world) countsAs(id pod.Identity, p pod.Placement) bool {
	r := w.reality[at{p.Node, id}]
	ok := r.Available && r.Digest == p.Digest && !w.gone(p.Node)
	for _, g := range p.Ghosts {
		ok = ok || g.Revision == 0 && w.reality[at{g.Node, id}].Available && !w.gone(g.Node)
	}
	return ok && p.RunState == pod.Running
}

// forced reports whether an operator said that a pod stops wherever it is placed.
func (w *world) forced(p pod.Placement) bool {
	v := w.nodes[p.Node]
	return v != nil && v.Alive && v.Ops.Drain != nil && v.Ops.Drain.Force &&
		(p.AdoptedAtGeneration != w.rc.Generation || v.Ops.Drain.Since.After(p.ChangedAt))
}

// isForced reports whether a change does what an operator forces.
func (w *world) isForced(ch *reconcile.Change) bool {
	was := w.pods[ch.Identity]
	return (ch.Action == reconcile.Stop || ch.Action == reconcile.Return) && w.forced(was) || ch.Action == reconcile.Expel && w.forcesGhost(was)
}

// forcesGhost is forced for a former copy of the pod.
func (w *world) forcesGhost(p pod.Placement) bool {
	return slices.ContainsFunc(p.Ghosts, func(g pod.Ghost) bool { return w.nodes[g.Node].Ops.Drain != nil && w.nodes[g.Node].Ops.Drain.Force })
}

// takes reports whether a change takes away a pod that counts as available: by a stop, or by another manifest for the copy
// that does. What an operator declares gone is not taken by us.
func (w *world) takes(ch *reconcile.Change) bool {
	was, placed := w.pods[ch.Identity]
	if !placed || !w.counts(ch.Identity) {
		return false
	}
	for _, r := range w.requests {
		if slices.Contains(ch.Answers, r.ID) {
			was = without(was, r.Node)
		}
	}
	after := pod.Placement{}
	if ch.Placement != nil {
		after = *ch.Placement
	}
	return w.countsAs(ch.Identity, was) && !w.countsAs(ch.Identity, after)
}

// without returns the placement as if there were no copy on a node.
func without(p pod.Placement, nodeName string) pod.Placement {
	if p.Node == nodeName {
		p.Node = ""
	}
	p.Ghosts = slices.DeleteFunc(slices.Clone(p.Ghosts), func(g pod.Ghost) bool { return g.Node == nodeName })
	return p
}

// gone reports whether a machine is lost, as Consul says or as a placement remembers until its preparer is back.
func (w *world) gone(name string) bool {
	remembered := func(p pod.Placement) bool {
		return p.Node == name && p.RunState == pod.Running && p.LostSince != nil ||
			slices.ContainsFunc(p.Ghosts, func(g pod.Ghost) bool { return g.Node == name && g.Gone })
	}
	v := w.nodes[name]
	return v != nil && !v.Alive && (v.Gone || slices.ContainsFunc(slices.Collect(maps.Values(w.pods)), remembered))
}

// running counts the copies that really run.
func (w *world) running() int {
	n := 0
	for _, c := range w.copies {
		if c.State == pod.Running {
			n++
		}
	}
	return n
}

// pass makes one pass, checks the plan and applies it.
func (w *world) pass(t *rapid.T, deep bool) int {
	s := w.snapshot(deep)
	before := w.available()
	plan := reconcile.Compute(s)
	w.status = &plan.Status
	w.checkPlan(t, &plan, before)
	w.answered(plan.Answered)
	for _, id := range plan.Adds {
		if name := w.nodeFor(id); name != "" {
			plan.Changes = append(plan.Changes, reconcile.PlaceOn(s, id, name))
		}
	}
	for i := range plan.Changes {
		if w.trace {
			t.Logf("%s", &plan.Changes[i])
		}
		w.apply(t, &plan.Changes[i])
	}
	if plan.Finish && len(w.pods) != 0 {
		t.Fatalf("finished with %d placements", len(w.pods))
	}
	return len(plan.Changes)
}

func (w *world) answered(ids []string) {
	w.requests = slices.DeleteFunc(w.requests, func(r reconcile.Request) bool { return slices.Contains(ids, r.ID) })
}

func (w *world) checkPlan(t *rapid.T, plan *reconcile.Plan, available int) {
	seen := map[pod.Identity]bool{}
	stops := 0
	for i := range plan.Changes {
		// Forced ones outrank the minimum; whatever else goes must leave it without them.
		if ch := &plan.Changes[i]; w.isForced(ch) && w.takes(ch) {
			available--
		}
	}
	for i := range plan.Changes {
		ch := &plan.Changes[i]
		if seen[ch.Identity] {
			t.Fatalf("%s is changed twice in one plan", ch.Identity)
		}
		seen[ch.Identity] = true
		writesStop := false
		for _, in := range ch.Intents {
			if in.Intent != nil && in.Intent.State == pod.Stopped {
				writesStop = true
			}
		}
		if writesStop && !ch.NeedsBreaker {
			t.Fatalf("%s stops without the breaker's condition", ch)
		}
		if writesStop && w.hold {
			t.Fatalf("%s stops while the nodes have not said what they run", ch)
		}
		if writesStop && w.breaker {
			t.Fatalf("%s stops although the breaker has tripped", ch)
		}
		was, placed := w.pods[ch.Identity]
		r := w.reality[at{was.Node, ch.Identity}]
		forced := w.isForced(ch)
		if !forced && w.takes(ch) {
			stops++
			if w.rc.DeletedAt == nil && w.rc.MinimumAvailable() > 0 && !ch.NeedsBell {
				t.Fatalf("%s relies on others being available without the bell's condition", ch)
			}
		}
		if ch.Action == reconcile.Expel && !w.forcesGhost(was) && (!r.Available || r.Digest != was.Digest) {
			t.Fatalf("%s: the winning copy is not available", ch)
		}
		if ch.Action == reconcile.Adopt && placed && ch.Placement.Node != was.Node && w.copies[at{ch.Placement.Node, ch.Identity}].Revision <= was.Revision {
			t.Fatalf("%s: the copy with the lower revision won (R2)", ch)
		}
		if ch.Action == reconcile.Stop && strings.HasPrefix(ch.Reason, "the drain of") {
			for _, g := range was.Ghosts {
				r := w.reality[at{g.Node, ch.Identity}]
				if drain := w.nodes[g.Node].Ops.Drain; g.Revision == 0 && r.Available && (drain == nil || !drain.Force) {
					t.Fatalf("%s stops a copy on %s, of which nobody spoke (P4)", ch, g.Node)
				}
			}
		}
		if placed && !forced && ch.Action == reconcile.Stop && was.AdoptedAtGeneration == w.rc.Generation {
			t.Fatalf("%s stops what was adopted at this generation", ch)
		}
		if ch.Placement != nil && placed && ch.Placement.Revision < was.Revision {
			t.Fatalf("%s lowers the revision", ch)
		}
	}
	if w.rc.DeletedAt == nil && stops > 0 && available-stops < w.rc.MinimumAvailable() {
		t.Fatalf("%d of %d available pods are taken away, the minimum is %d (P6)", stops, available, w.rc.MinimumAvailable())
	}
	if len(plan.Adds) > 0 {
		if w.hold {
			t.Fatal("pods are added while holding (R1)")
		}
		copies := 0
		for _, id := range plan.Adds {
			if p, exists := w.pods[id]; seen[id] || exists && p.RunState != pod.Running {
				t.Fatalf("%s is added although it exists or is changed", id)
			}
			copies++
		}
		for id, p := range w.pods {
			if w.nodes[p.Node].Alive {
				copies++
			}
			for _, g := range p.Ghosts {
				if !g.Lost && w.nodes[g.Node].Alive && w.copies[at{g.Node, id}].State == pod.Running {
					copies++
				}
			}
		}
		if limit := w.rc.Desired() + w.rc.Surge(); copies > limit {
			t.Fatalf("%d copies exceed desired + surge = %d (P6)", copies, limit)
		}
	}
}

func (w *world) apply(t *rapid.T, ch *reconcile.Change) {
	if ch.Index != w.indices[ch.Identity] {
		t.Fatalf("%s is computed from index %d, the record has %d", ch, ch.Index, w.indices[ch.Identity])
	}
	w.index++
	w.answered(ch.Answers)
	if ch.Placement == nil {
		p := w.pods[ch.Identity]
		if c := w.copies[at{p.Node, ch.Identity}]; c.State == pod.Running && w.nodes[p.Node].Alive {
			t.Fatalf("%s is forgotten while it runs (P5)", ch.Identity) // on a dead node an operator may declare it gone
		}
		delete(w.pods, ch.Identity)
		delete(w.indices, ch.Identity)
	} else {
		w.pods[ch.Identity] = *ch.Placement
		w.indices[ch.Identity] = w.index
	}
	for _, in := range ch.Intents {
		if in.Intent == nil {
			delete(w.intents, at{in.Node, ch.Identity})
			continue
		}
		w.intents[at{in.Node, ch.Identity}] = *in.Intent
	}
}

// nodeFor is a scheduler: a living, open node without a copy of the identity.
func (w *world) nodeFor(id pod.Identity) string {
	names := slices.Sorted(maps.Keys(w.nodes))
	for i := range names {
		name := names[(i+id.Index)%len(names)]
		v := w.nodes[name]
		if _, taken := w.copies[at{name, id}]; v.Alive && v.Open() && !taken {
			return name
		}
	}
	return ""
}

func (w *world) anyNode(t *rapid.T) *node.View {
	name := fmt.Sprintf("n%d", rapid.IntRange(0, 5).Draw(t, "node"))
	v := *w.nodes[name]
	w.nodes[name] = &v
	return &v
}

// obey lets one node do what it is told about one identity.
func (w *world) obey(where at) {
	if !w.nodes[where.node].Alive {
		return
	}
	in, told := w.intents[where]
	if told && in.Revision > w.copies[where].Revision {
		w.copies[where] = in
		w.report(where)
	}
	have := w.copies[where]
	if told && w.reality[where].Revision != have.Revision {
		w.report(where) // it was lost, or is an older one; a node says what it has also when it refuses what it is told (R3)
	}
	if !told && have.State == pod.Stopped {
		delete(w.reality, where) // the tombstone stays
	}
}

// report writes what a node has of one identity.
func (w *world) report(where at) {
	c := w.copies[where]
	r := pod.Reality{Identity: where.id, Node: where.node, Digest: c.Digest, Revision: c.Revision, State: pod.StateStopped}
	if c.State == pod.Running {
		r.State, r.Available = pod.StateReady, true
	}
	w.reality[where] = r
}

func (w *world) obeyAll() {
	for where := range maps.Clone(w.intents) {
		w.obey(where)
	}
	for where := range maps.Clone(w.copies) {
		w.obey(where)
	}
}

// settle runs until nothing changes, and fails if that takes too long.
func (w *world) settle(t *rapid.T) {
	for i := range 200 {
		w.trace = i > 190 // what goes on when it does not settle
		w.now = w.now.Add(time.Second)
		w.obeyAll()
		if w.pass(t, true) == 0 {
			return
		}
	}
	t.Fatal("it does not settle")
}

func (w *world) step(t *rapid.T) {
	w.now = w.now.Add(time.Duration(rapid.IntRange(1, 2000).Draw(t, "ms")) * time.Millisecond)
	switch rapid.SampledFrom([]string{
		"scale", "manifest", "pass", "pass", "pass", "obey", "obey", "sick", "lose intent", "wipe", "old placement", "min", "second copy", "lose reality",
		"node dies", "node dies", "node returns", "node returns", "drain", "force", "undrain", "forget", "forget", "save", "restore",
	}).Draw(t, "step") {
	case "scale":
		n := rapid.IntRange(0, 8).Draw(t, "replicas")
		w.rc.ReplicaGroups = []rc.ReplicaGroup{{Role: "main", Count: &n}}
		w.rc.Generation++
	case "manifest":
		w.rc.ManifestDigest = rapid.SampledFrom([]string{"m1", "m2", "m3"}).Draw(t, "digest")
		w.rc.Generation++
	case "min":
		n := rapid.IntRange(0, 8).Draw(t, "min")
		w.rc.MinAvailable = &n
		w.rc.Generation++
	case "pass":
		w.hold, w.breaker = rapid.IntRange(0, 9).Draw(t, "hold") == 0, rapid.IntRange(0, 9).Draw(t, "breaker") == 0
		w.pass(t, rapid.Bool().Draw(t, "deep"))
		w.hold, w.breaker = false, false
	case "obey":
		if where, ok := draw(t, w.intents); ok {
			w.obey(where)
		}
	case "sick":
		if where, ok := draw(t, w.reality); ok {
			r := w.reality[where]
			r.Available = r.State == pod.StateReady && !r.Available
			w.reality[where] = r
		}
	case "lose intent":
		if where, ok := draw(t, w.intents); ok {
			delete(w.intents, where)
		}
	case "wipe":
		clear(w.pods)
		clear(w.indices)
		clear(w.intents)
		clear(w.reality)
		w.rereport()
	case "save":
		w.saved = w.records()
	case "restore":
		w.restore()
	case "node dies":
		v := w.anyNode(t)
		v.Alive, v.Gone = false, rapid.Bool().Draw(t, "gone")
	case "node returns":
		v := w.anyNode(t)
		v.Alive, v.Gone = true, false
	case "drain":
		w.anyNode(t).Ops.Drain = &node.Drain{Since: w.now}
	case "force":
		deadline := w.now
		w.anyNode(t).Ops.Drain = &node.Drain{Since: w.now.Truncate(time.Second), Deadline: &deadline, Force: true}
	case "undrain":
		w.anyNode(t).Ops.Drain = nil
	case "forget":
		if where, ok := draw(t, w.forgettable()); ok {
			dead := !w.nodes[where.node].Alive
			w.requests = append(w.requests, reconcile.Request{ID: fmt.Sprintf("r%d", w.now.UnixNano()), Forget: true, Node: where.node, Pod: where.id})
			if dead {
				delete(w.copies, where) // the operator is right: it is gone
				delete(w.reality, where)
			}
		}
	case "lose reality":
		if where, ok := draw(t, w.reality); ok {
			delete(w.reality, where)
		}
	case "second copy":
		// As after a restore: the identity also runs elsewhere, at another revision.
		if where, ok := draw(t, w.copies); ok && w.copies[where].State == pod.Running {
			other := at{fmt.Sprintf("n%d", rapid.IntRange(0, 5).Draw(t, "elsewhere")), where.id}
			if _, taken := w.copies[other]; !taken {
				c := w.copies[where]
				c.Revision += rapid.SampledFrom([]int64{-500, 500}).Draw(t, "revision")
				w.copies[other] = c
				w.rereport()
			}
		}
	case "old placement":
		for _, id := range slices.SortedFunc(maps.Keys(w.pods), pod.Identity.Compare) {
			p := w.pods[id]
			if p.Revision > 1000 && rapid.Bool().Draw(t, "older") {
				p.Revision -= 1000
				w.pods[id] = p
			}
		}
	}
}

func (w *world) records() records {
	return records{pods: maps.Clone(w.pods), intents: maps.Clone(w.intents), reality: maps.Clone(w.reality)}
}

// restore brings older placements and intents back. What nodes know of stopped replicas, too, they report again.
func (w *world) restore() {
	if w.saved.pods == nil {
		return
	}
	old := w.records()
	w.pods, w.intents, w.reality = w.saved.pods, w.saved.intents, w.saved.reality
	w.saved = old // which could be brought back as well
	clear(w.indices)
	for id := range w.pods {
		w.index++
		w.indices[id] = w.index
	}
	for where := range w.reality {
		if _, there := w.copies[where]; !there && w.nodes[where.node].Alive {
			delete(w.reality, where)
		}
	}
	for where := range w.intents {
		w.obey(where)
	}
	w.rereport()
}

// rereport lets the nodes write their realities again, as they do when they vanished.
func (w *world) rereport() {
	for where, c := range w.copies {
		if c.State == pod.Running {
			w.report(where)
		}
	}
}

// forgettable returns where an operator may declare copies gone: on dead nodes, or if there are none wherever they run.
func (w *world) forgettable() map[at]pod.Intent {
	dead := map[at]pod.Intent{}
	for _, there := range []map[at]pod.Intent{w.intents, w.copies} {
		for where, in := range there {
			if !w.nodes[where.node].Alive {
				dead[where] = in
			}
		}
	}
	if len(dead) > 0 {
		return dead
	}
	return w.copies
}

func draw[V any](t *rapid.T, m map[at]V) (at, bool) {
	keys := slices.SortedFunc(maps.Keys(m), func(a, b at) int {
		if c := a.id.Compare(b.id); c != 0 {
			return c
		}
		return slices.Compare([]string{a.node}, []string{b.node})
	})
	if len(keys) == 0 {
		return at{}, false
	}
	return rapid.SampledFrom(keys).Draw(t, "which"), true
}

// TestAnyHistoryEndsWithWhatIsDesired plays random histories of changes, failures and lost records, with the plans checked
// on the way, and then lets the world settle.
func TestAnyHistoryEndsWithWhatIsDesired(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			w.step(t)
		}
		w.heal()
		w.rereport()
		w.rereportSick()
		w.settle(t)
		w.rc.Generation++ // what was adopted is released by a change
		w.settle(t)
		desired := w.rc.Desired()
		switch least := w.rc.MinimumAvailable(); {
		case least > desired:
			return // the minimum forbids to remove anything: P6 outranks the count
		case least == desired && w.outdated():
			if !w.status.Is(rc.Blocked) {
				t.Fatalf("the minimum forbids the upgrade, and nobody says so: %+v", w.status)
			}
			return
		}
		if len(w.pods) != desired || w.running() != desired || w.available() != desired {
			for id, p := range w.pods {
				t.Logf("%s: %s on %s rev %d ghosts %+v", id, p.RunState, p.Node, p.Revision, p.Ghosts)
			}
			for k, v := range w.intents {
				t.Logf("intent %s %s: %s %d", k.node, k.id, v.State, v.Revision)
			}
			for k, v := range w.reality {
				t.Logf("reality %s %s: %s %d", k.node, k.id, v.State, v.Revision)
			}
			for k, v := range w.copies {
				t.Logf("copy %s %s: %s %d", k.node, k.id, v.State, v.Revision)
			}
			t.Fatalf("desired %d, placed %d, running %d, available %d\npods %+v\nreality %+v\ncopies %+v\nstatus %+v", desired, len(w.pods), w.running(), w.available(), w.pods, w.reality, w.copies, w.status)
		}
		if len(w.requests) != 0 {
			t.Fatalf("requests are left: %+v", w.requests)
		}
		if !w.status.Is(rc.Converged) {
			t.Fatalf("settled but not converged: %+v", w.status)
		}
		for id, p := range w.pods {
			if p.Digest != w.rc.ManifestDigest {
				t.Fatalf("%s settled on manifest %s, desired %s", id, p.Digest, w.rc.ManifestDigest)
			}
		}
		if n := w.pass(t, true); n != 0 {
			t.Fatalf("a settled world is changed again, %d times", n)
		}
		now := w.now
		w.rc.DeletedAt = &now
		w.rc.Generation++
		w.settle(t)
		if len(w.pods) != 0 || w.running() != 0 {
			t.Fatalf("deleted, but %d placements and %d copies are left", len(w.pods), w.running())
		}
	})
}

// heal brings every node back.
func (w *world) heal() {
	for name, old := range w.nodes {
		v := *old
		v.Alive, v.Gone, v.Ops.Drain = true, false, nil
		w.nodes[name] = &v
	}
}

// outdated reports whether a pod has another manifest than the controller.
func (w *world) outdated() bool {
	for _, p := range w.pods {
		if p.Digest != w.rc.ManifestDigest {
			return true
		}
	}
	return false
}

// rereportSick makes every running copy healthy again.
func (w *world) rereportSick() {
	for where, r := range w.reality {
		if r.State == pod.StateReady {
			r.Available = true
			w.reality[where] = r
		}
	}
}
