package reconcile_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// world is a model of a cluster: the records, and nodes that carry out intents when the model lets them.
type world struct {
	ended    map[at]string // digests that have ended, if pods run once; nil: they do not
	now      time.Time
	rc       rc.RC
	nodes    map[string]*node.View
	pods     map[pod.Identity]pod.Placement
	index    uint64
	indices  map[pod.Identity]uint64
	intents  map[at]pod.Intent
	reality  map[at]pod.Reality
	copies   map[at]pod.Intent // what really runs, or what a node remembers as stopped
	status   *rc.Status
	requests []reconcile.Request
	saved    records
	hold     bool
	trace    bool
	breaker  bool
	lands    func() bool     // whether the next change lands; nil: all do
	deaths   uint64          // of preparers so far: the index of a node's record while it is dead
	sick     map[string]bool // nodes on which nothing becomes available
	hopeless bool            // sick nodes report that waiting does not help
	served   map[at]bool     // copies that have been available since they began
	// digests with which pods have left their first node, because they never became available there
	moved map[pod.Identity]string
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
		indices: map[pod.Identity]uint64{}, intents: map[at]pod.Intent{}, reality: map[at]pod.Reality{},
		copies: map[at]pod.Intent{}, index: 1, sick: map[string]bool{}, served: map[at]bool{},
		moved: map[pod.Identity]string{},
	}
	for i := range 6 {
		name := fmt.Sprintf("n%d", i)
		w.nodes[name] = &node.View{Node: node.Node{Name: name, Capacity: node.Capacity{Slots: 50}}, Alive: true}
	}
	zero, deadline := 0, field.Duration(3*time.Second)
	w.rc = rc.RC{
		ID: "rc", Name: "rc", ManifestDigest: "m1", Strategy: rc.Dynamic, Generation: 1, ProgressDeadline: &deadline,
		ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &zero}},
		NodeLoss:      rc.NodeLoss{After: new(field.Duration), UnmanagedAfter: new(field.Duration)},
	}
	return w
}

func (w *world) snapshot(resync bool) *reconcile.Snapshot {
	s := &reconcile.Snapshot{
		Now: w.now, Owner: "f1", RC: w.rc, Requests: w.read(), Nodes: w.nodes, Previous: w.status,
		Manifest: &manifest.Manifest{Version: 1, ID: "p", MinReady: new(field.Duration)},
	}
	if w.ended != nil {
		s.Manifest = once(manifest.RestartNever)
	}
	s.Manifests = map[string]*manifest.Manifest{"m1": s.Manifest, "m2": s.Manifest, "m3": s.Manifest}
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
		if resync {
			sp.Intents = map[string]*pod.Intent{}
		}
		for _, name := range names {
			if r, ok := w.reality[at{name, id}]; ok && name == p.Node {
				sp.Reality = &r
			} else if ok {
				sp.Ghosts[name] = &r
			}
			if in, ok := w.intents[at{name, id}]; ok && resync {
				sp.Intents[name] = &in
			}
		}
		s.Pods = append(s.Pods, sp)
	}
	for where, c := range w.copies {
		in, hasIntent := w.intents[where]
		if c.State != pod.Running || !w.nodes[where.node].Alive || hasIntent && in.Revision >= c.Revision {
			continue
		}
		s.Orphans = append(s.Orphans, reconcile.Orphan{Node: where.node, Orphan: pod.Orphan{
			Identity: where.id, PodID: "p", Digest: c.Digest, Revision: c.Revision,
		}})
	}
	return s
}

// read returns the requests as they are now: each look reads again whether the node is alive.
func (w *world) read() []reconcile.Request {
	requests := slices.Clone(w.requests)
	for i := range requests {
		requests[i].Alive, requests[i].NodeIndex = w.nodes[requests[i].Node].Alive, w.nodes[requests[i].Node].FreeIndex
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

// counts reports whether a pod is available.
func (w *world) counts(id pod.Identity) bool { return w.countsAs(id, w.pods[id]) }

// countsAs reports whether a pod would be available with the given placement.
func (w *world) countsAs(id pod.Identity, p pod.Placement) bool {
	r := w.reality[at{p.Node, id}]
	ok := r.Available && r.Digest == p.Digest && !w.machineLost(p.Node)
	for _, g := range p.Ghosts {
		ok = ok || g.Revision == 0 && w.reality[at{g.Node, id}].Available && !w.machineLost(g.Node)
	}
	return ok && p.RunState == pod.Running
}

// forced reports whether a drain stops a pod by force.
func (w *world) forced(p pod.Placement) bool {
	v := w.nodes[p.Node]
	return v != nil && v.Alive && v.Ops.Drain != nil && v.Ops.Drain.Force &&
		(p.AdoptedAtGeneration != w.rc.Generation || v.Ops.Drain.Since.After(p.ChangedAt))
}

// isForced reports whether a change is the work of a forced drain.
func (w *world) isForced(ch *reconcile.Change) bool {
	was := w.pods[ch.Identity]
	return (ch.Action == reconcile.Stop || ch.Action == reconcile.Return) && w.forced(was) ||
		ch.Action == reconcile.StopDuplicate && w.forcesGhost(was)
}

// forcesGhost reports whether a drain stops a former copy of the pod by force.
func (w *world) forcesGhost(p pod.Placement) bool {
	return slices.ContainsFunc(p.Ghosts, func(g pod.Ghost) bool {
		return w.nodes[g.Node].Ops.Drain != nil && w.nodes[g.Node].Ops.Drain.Force
	})
}

// takes reports whether a change makes an available pod unavailable: by a stop, or by another manifest for the
// available copy. A copy that an operator declares gone is not taken by the plan.
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

// machineLost reports whether a machine is lost: Consul reports it, or a placement has it until the preparer is back.
func (w *world) machineLost(name string) bool {
	v := w.nodes[name]
	remembered := func(p pod.Placement) bool {
		return p.Node == name && p.RunState == pod.Running && p.LostSince != nil && p.DeadIndex == v.FreeIndex ||
			slices.ContainsFunc(p.Ghosts, func(g pod.Ghost) bool {
				return g.Node == name && g.MachineLost && g.DeadIndex == v.FreeIndex
			})
	}
	return v != nil && !v.Alive &&
		(v.MachineLost || slices.ContainsFunc(slices.Collect(maps.Values(w.pods)), remembered))
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
func (w *world) pass(t rapid.TB, resync bool) int {
	s := w.snapshot(resync)
	before := w.available()
	plan := compute(t, s)
	w.status = &plan.Status
	w.checkPlan(t, &plan, before)
	w.answered(plan.Answered)
	for _, id := range plan.Adds {
		if name := w.nodeFor(&plan, id); name != "" {
			plan.Changes = append(plan.Changes, plan.Placer().On(id, name))
			w.checkDeaths(t, &plan.Changes[len(plan.Changes)-1])
		}
	}
	checkWritten(t, plan.Changes)
	checkWritten(t, plan.LossRecords)
	for i := range plan.Changes {
		if w.lands != nil && !w.lands() {
			continue // its batch was refused, or the farm died before it
		}
		if w.trace {
			t.Logf("%s", &plan.Changes[i])
		}
		w.apply(t, &plan.Changes[i])
	}
	w.checkMoves(t, &plan)
	if w.lands == nil {
		checkForgotten(t, s, &plan, w.snapshot(resync))
	}
	if plan.Finish && len(w.pods) != 0 {
		t.Fatalf("finished with %d placements", len(w.pods))
	}
	return len(plan.Changes)
}

// checkMoves proves that no move stays stuck if something may be done about it.
func (w *world) checkMoves(t rapid.TB, plan *reconcile.Plan) {
	for id, p := range w.pods {
		if len(p.Avoid) > rc.MaxTries+1 {
			t.Fatalf("%s avoids %d nodes", id, len(p.Avoid))
		}
		r := w.reality[at{p.Node, id}]
		if slices.ContainsFunc(plan.Changes, func(ch reconcile.Change) bool { return ch.Identity == id }) {
			continue // something else comes first
		}
		late := w.now.Sub(p.ChangedAt) >= w.rc.Deadline() && p.AdoptedAtGeneration == 0 && p.RunState == pod.Running
		if w.hold || w.breaker || w.rc.DeletedAt != nil || !late ||
			r.Available && r.Digest == p.Digest && !w.machineLost(p.Node) {
			continue
		}
		if r.State == pod.StateEnded || r.AllEnded {
			continue // it stays where it has ended, and a former copy may be needed until others are available
		}
		for _, g := range p.Ghosts {
			if g.Revision == 0 && w.reality[at{g.Node, id}].Available && !w.machineLost(g.Node) {
				t.Fatalf("%s is stuck on %s, and its copy on %s is not the pod again", id, p.Node, g.Node)
			}
		}
	}
}

// checkReliance makes sure of two things. A change that stops an unavailable pod lands only while this keeps the
// minimum, even if the pod has become available. A change that stops one copy because another one is available depends
// on that other one.
func (w *world) checkReliance(t rapid.TB, plan *reconcile.Plan, ch *reconcile.Change, stops bool) {
	was, placed := w.pods[ch.Identity]
	if !placed || !stops || ch.Placement == nil || ch.Action == reconcile.Repair || w.forcesGhost(was) {
		return
	}
	if ch.Action == reconcile.Remove {
		return // its node has stopped it, or is dead and stays so; its other copies were asked to stop, or have stopped
	}
	if w.countsAs(ch.Identity, *ch.Placement) {
		if len(ch.NeedsReports) != 1 || !w.reality[at{ch.NeedsReports[0], ch.Identity}].Available {
			t.Fatalf("%s needs the reports of %v", ch, ch.NeedsReports)
		}
		return
	}
	if w.rc.MinimumAvailable() == 0 || w.takes(ch) {
		return
	}
	if ch.Action == reconcile.Remove {
		return // its node has stopped it, or was declared gone, and the other copies were asked to stop already
	}
	if left := len(plan.Available) - takes(plan); ch.NeedsMinimum && left < w.rc.MinimumAvailable() {
		t.Fatalf("%s depends on a minimum of %d, of which %d are left", ch, w.rc.MinimumAvailable(), left)
	}
	for _, in := range ch.Intents {
		if in.Intent != nil && in.Intent.State == pod.Stopped && !ch.NeedsMinimum &&
			!slices.Contains(ch.NeedsReports, in.Node) {
			t.Fatalf("%s would stop a copy that has become available on %s", ch, in.Node)
		}
	}
}

func takes(plan *reconcile.Plan) int {
	n := 0
	for i := range plan.Changes {
		if plan.Changes[i].TakesAvailable {
			n++
		}
	}
	return n
}

func (w *world) answered(ids []string) {
	w.requests = slices.DeleteFunc(w.requests, func(r reconcile.Request) bool { return slices.Contains(ids, r.ID) })
}

func (w *world) checkPlan(t rapid.TB, plan *reconcile.Plan, available int) {
	seen := map[pod.Identity]bool{}
	stops := 0
	for i := range plan.Changes {
		// Forced stops outrank the minimum. The other stops must keep it without these pods.
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
		w.checkDeaths(t, ch)
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
			t.Fatalf("%s stops while nodes have not spoken", ch)
		}
		if writesStop && w.breaker {
			t.Fatalf("%s stops although the breaker has tripped", ch)
		}
		was, placed := w.pods[ch.Identity]
		r := w.reality[at{was.Node, ch.Identity}]
		forced := w.isForced(ch)
		if !forced && w.takes(ch) {
			stops++
			if w.rc.DeletedAt == nil && w.rc.MinimumAvailable() > 0 && (!ch.NeedsMinimum || !ch.TakesAvailable) {
				t.Fatalf("%s needs other pods to be available, and has no condition for that", ch)
			}
		} else if ch.TakesAvailable {
			t.Fatalf("%s has Takes set, and takes no available pod", ch)
		}
		w.checkReliance(t, plan, ch, writesStop && !forced && w.rc.DeletedAt == nil)
		if ch.Action == reconcile.StopDuplicate && !w.forcesGhost(was) && (!r.Available || r.Digest != was.Digest) &&
			!r.Ended(was.Digest) {
			t.Fatalf("%s: the winning copy is not available", ch)
		}
		if ch.Action == reconcile.Adopt && placed && ch.Placement.Node != was.Node &&
			w.copies[at{ch.Placement.Node, ch.Identity}].Revision <= was.Revision {
			t.Fatalf("%s: the copy with the lower revision won (R2)", ch)
		}
		if ch.Action == reconcile.Stop && strings.HasPrefix(ch.Reason, "the drain of") {
			for _, g := range was.Ghosts {
				r := w.reality[at{g.Node, ch.Identity}]
				if drain := w.nodes[g.Node].Ops.Drain; g.Revision == 0 && r.Available &&
					(drain == nil || !drain.Force) {
					t.Fatalf("%s stops a copy on %s, whose stop no one asked for (P4)", ch, g.Node)
				}
			}
		}
		if placed && !forced && ch.Action == reconcile.Stop && was.AdoptedAtGeneration == w.rc.Generation {
			t.Fatalf("%s stops a pod that is kept as adopted", ch)
		}
		if ch.Placement != nil && placed && ch.Placement.Revision < was.Revision {
			t.Fatalf("%s lowers the revision", ch)
		}
	}
	if w.rc.DeletedAt == nil && stops > 0 && available-stops < w.rc.MinimumAvailable() {
		t.Fatalf("%d of %d available pods are taken away, the minimum is %d (P6)", stops, available,
			w.rc.MinimumAvailable())
	}
	if len(plan.Adds) > 0 {
		if w.hold {
			t.Fatal("pods are added while holding (R1)")
		}
		copies := 0
		for _, id := range plan.Adds {
			p, exists := w.pods[id]
			if seen[id] || exists && p.RunState != pod.Running && !w.vacant(id) {
				t.Fatalf("%s is added although it exists or is changed", id)
			}
			copies++
		}
		for id, p := range w.pods {
			if w.nodes[p.Node].Alive && !w.vacant(id) {
				copies++
			}
			for _, g := range p.Ghosts {
				if !g.LeftBecauseLost && w.nodes[g.Node].Alive && w.copies[at{g.Node, id}].State == pod.Running {
					copies++
				}
			}
		}
		if limit := w.rc.Desired() + w.rc.Surge(); copies > limit {
			t.Fatalf("%d copies exceed desired + surge = %d (P6)", copies, limit)
		}
	}
}

// checkDeaths fails if a change that follows from a machine's loss may land after the machine came back.
func (w *world) checkDeaths(t rapid.TB, ch *reconcile.Change) {
	needs := func(name string) {
		death := reconcile.DeadNode{Name: name, Index: w.nodes[name].FreeIndex}
		if !slices.Contains(ch.NeedsDead, death) {
			t.Fatalf("%s may land when %s is back; it needs %v", ch, name, ch.NeedsDead)
		}
	}
	was, placed := w.pods[ch.Identity]
	// The node of a pod that has confirmed its stop may be dead or alive.
	again := ch.Action == reconcile.Move && was.RunState == pod.Stopped
	if placed && !again && (w.machineLost(was.Node) || ch.Action == reconcile.Move && !w.nodes[was.Node].Alive) {
		needs(was.Node)
	}
	for _, in := range ch.Intents {
		if in.Intent != nil && in.Intent.State == pod.Stopped && w.machineLost(in.Node) {
			needs(in.Node)
		}
	}
	if next := ch.Placement; next != nil {
		if placed && next.Node == was.Node && (next.LostSince != nil || next.UnmanagedSince != nil) &&
			next.DeadIndex != was.DeadIndex {
			needs(next.Node)
		}
		for _, g := range next.Ghosts {
			i := slices.IndexFunc(was.Ghosts, func(o pod.Ghost) bool { return o.Node == g.Node })
			if g.MachineLost && (i < 0 || !was.Ghosts[i].MachineLost || was.Ghosts[i].DeadIndex != g.DeadIndex) {
				needs(g.Node)
			}
		}
	}
}

func (w *world) apply(t rapid.TB, ch *reconcile.Change) {
	if ch.Index != w.indices[ch.Identity] {
		t.Fatalf("%s is computed from index %d, the record has %d", ch, ch.Index, w.indices[ch.Identity])
	}
	w.index++
	for _, r := range w.requests {
		if v := w.nodes[r.Node]; slices.Contains(ch.Answers, r.ID) && (v.Alive || v.FreeIndex != r.Declared) {
			t.Fatalf("%s: %s was declared dead at %d, and has been back (P5)", ch, r.Node, r.Declared)
		}
	}
	w.answered(ch.Answers)
	w.checkSecondNode(t, ch)
	if ch.Placement == nil {
		p := w.pods[ch.Identity]
		if c := w.copies[at{p.Node, ch.Identity}]; c.State == pod.Running && w.nodes[p.Node].Alive {
			// on a dead node an operator may declare it gone
			t.Fatalf("%s is forgotten while it runs (P5)", ch.Identity)
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

// vacant reports whether a pod has stopped to be placed again.
func (w *world) vacant(id pod.Identity) bool {
	p := w.pods[id]
	return p.RunState == pod.Stopped && p.Tried() != nil && w.reality[at{p.Node, id}].State == pod.StateStopped
}

// checkSecondNode proves that a pod leaves a node where it never became available once for each manifest, and that
// nothing of it is left there when it is placed again.
func (w *world) checkSecondNode(t rapid.TB, ch *reconcile.Change) {
	was := w.pods[ch.Identity]
	switch next := ch.Placement; {
	case next == nil:
		delete(w.moved, ch.Identity)
	case was.RunState == pod.Stopped && next.RunState == pod.Running && ch.Action == reconcile.Move:
		if c := w.copies[at{was.Node, ch.Identity}]; c.State == pod.Running {
			t.Fatalf("%s: it still runs on %s (P5)", ch, was.Node)
		}
	case ch.Action == reconcile.Stop && next.Tried() != nil && was.Tried() == nil:
		if w.moved[ch.Identity] == next.Digest || w.reality[at{was.Node, ch.Identity}].Available ||
			w.served[at{was.Node, ch.Identity}] || w.rc.Strategy == rc.Static {
			t.Fatalf("%s gets a second node, and has had one for %q", ch, w.moved[ch.Identity])
		}
		w.moved[ch.Identity] = next.Digest
	}
}

// nodeFor is a scheduler. It takes the first node that the rule allows, beginning with one that depends on the
// identity.
func (w *world) nodeFor(plan *reconcile.Plan, id pod.Identity) string {
	s := plan.Facts()
	rule := s.DefaultLot().Rule
	var avoid []string
	perNode := map[string]int{}
	for i := range s.Pods {
		p := w.pods[s.Pods[i].Identity]
		if perNode[p.Node]++; p.Identity == id {
			avoid = s.AvoidedBy(&s.Pods[i])
		}
	}
	names := slices.Sorted(maps.Keys(w.nodes))
	for i := range names {
		name := names[(i+id.Index)%len(names)]
		at := scheduler.Candidate{
			View: w.nodes[name], Pods: perNode[name], Avoid: slices.Contains(avoid, name) || w.has(name, id),
		}
		if rule.Check(at, id) == "" {
			return name
		}
	}
	return ""
}

// has reports whether a node has a copy, or remembers a stop that is ahead of the clock.
func (w *world) has(name string, id pod.Identity) bool {
	c, has := w.copies[at{name, id}]
	return has && (c.State == pod.Running || c.Revision >= w.now.UnixMilli())
}

func (w *world) anyNode(t *rapid.T) *node.View {
	name := fmt.Sprintf("n%d", rapid.IntRange(0, 5).Draw(t, "node"))
	v := *w.nodes[name]
	w.nodes[name] = &v
	return &v
}

// obey lets one node carry out its intent for one identity.
func (w *world) obey(where at) {
	if !w.nodes[where.node].Alive {
		return
	}
	in, hasIntent := w.intents[where]
	if hasIntent && in.Revision > w.copies[where].Revision {
		w.copies[where] = in
		w.report(where)
	}
	have := w.copies[where]
	if hasIntent && w.reality[where].Revision != have.Revision {
		// it was lost, or is an older one; a node reports what it has also when it refuses an intent (R3)
		w.report(where)
	}
	if !hasIntent && have.State == pod.Stopped {
		delete(w.reality, where) // the tombstone stays
	}
}

// report writes what a node has of one identity. A pod that starts on a sick node does not become available. A pod that
// was available there before still is.
func (w *world) report(where at) {
	c, was := w.copies[where], w.reality[where]
	r := pod.Reality{
		Identity: where.id, Node: where.node, Digest: c.Digest, Revision: c.Revision, State: pod.StateStopped,
	}
	switch {
	case c.State != pod.Running:
		delete(w.served, where)
	case c.Digest != "" && w.ended[where] == c.Digest:
		r.State = pod.StateEnded
	case w.sick[where.node] && !(was.Available && was.Digest == c.Digest):
		r.State, r.Message, r.Hopeless, r.NeverAvailable = pod.StateUnhealthy, "no answer", w.hopeless, !w.served[where]
	default:
		r.State, r.Available = pod.StateReady, true
		w.served[where] = true
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

// settle makes passes until nothing changes, and fails if that takes too long.
func (w *world) settle(t rapid.TB) {
	for i := range 200 {
		w.trace = i > 190 // show what happens if the passes do not end
		w.now = w.now.Add(time.Second)
		w.obeyAll()
		if w.pass(t, true) == 0 {
			return
		}
	}
	t.Fatal("the plans do not come to an end")
}

func (w *world) step(t *rapid.T) {
	w.now = w.now.Add(time.Duration(rapid.IntRange(1, 2000).Draw(t, "ms")) * time.Millisecond)
	w.stepOf(t, rapid.SampledFrom([]string{
		"scale", "manifest", "pass", "pass", "pass", "obey", "obey", "sick", "lose intent", "wipe", "old placement",
		"min", "surge", "second copy", "lose reality",
		"node dies", "node dies", "node returns", "node returns", "sick node", "well node", "drain", "force", "undrain",
		"strategy", "forget", "forget", "save", "restore",
	}).Draw(t, "step"))
}

// stepOf makes a step of a kind.
func (w *world) stepOf(t *rapid.T, kind string) {
	switch kind {
	case "scale":
		w.rc.ReplicaGroups = nil
		for _, role := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"main", "side", "third"}), 1, 3,
			rapid.ID).Draw(t, "roles") {
			n := rapid.IntRange(0, 5).Draw(t, "replicas")
			w.rc.ReplicaGroups = append(w.rc.ReplicaGroups, rc.ReplicaGroup{Role: role, Count: &n})
		}
		w.rc.Generation++
	case "strategy":
		w.rc.Strategy = rapid.SampledFrom([]rc.Strategy{rc.Dynamic, rc.Static}).Draw(t, "strategy")
		w.rc.Generation++
	case "manifest":
		digest := rapid.SampledFrom([]string{"m1", "m2", "m3"})
		w.rc.ManifestDigest, w.rc.GroupManifests = digest.Draw(t, "digest"), nil
		if rapid.Bool().Draw(t, "groups") {
			w.rc.GroupManifests = map[string]string{"side": digest.Draw(t, "digest of side")}
		}
		w.rc.Generation++
	case "min":
		n := rapid.IntRange(0, 8).Draw(t, "min")
		w.rc.MinAvailable = &n
		w.rc.Generation++
	case "surge":
		n := rapid.IntRange(0, 3).Draw(t, "surge")
		w.rc.MaxSurge = &n
		w.rc.Generation++
	case "pass":
		w.hold, w.breaker = rapid.IntRange(0, 9).Draw(t, "hold") == 0, rapid.IntRange(0, 9).Draw(t, "breaker") == 0
		if rapid.Bool().Draw(t, "partly") {
			w.lands = func() bool { return rapid.Bool().Draw(t, "lands") }
		}
		w.pass(t, rapid.Bool().Draw(t, "resync"))
		w.hold, w.breaker, w.lands = false, false, nil
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
		clear(w.moved)
		w.rereport()
	case "save":
		w.saved = w.records()
	case "restore":
		w.restore()
	case "node dies":
		v := w.anyNode(t)
		if v.Alive || rapid.Bool().Draw(t, "was back, unseen") {
			w.deaths++
			v.FreeIndex = w.deaths
		}
		v.Alive, v.MachineLost = false, rapid.Bool().Draw(t, "gone")
	case "node returns":
		v := w.anyNode(t)
		v.Alive, v.MachineLost, v.FreeIndex = true, false, 0
	case "sick node":
		w.sick[w.anyNode(t).Name], w.hopeless = true, rapid.Bool().Draw(t, "hopeless")
	case "well node":
		delete(w.sick, w.anyNode(t).Name)
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
			w.requests = append(w.requests, reconcile.Request{
				ID: fmt.Sprintf("r%d", w.now.UnixNano()), Forget: true, Node: where.node, Pod: where.id,
				Declared: w.nodes[where.node].FreeIndex,
			})
			if dead {
				delete(w.copies, where) // the operator is right: the copy is gone
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

// restore brings older placements and intents back. Nodes then report again what they know about stopped replicas.
func (w *world) restore() {
	if w.saved.pods == nil {
		return
	}
	old := w.records()
	w.pods, w.intents, w.reality = w.saved.pods, w.saved.intents, w.saved.reality
	w.saved = old // may be restored next
	clear(w.indices)
	clear(w.moved)
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

// rereport makes the nodes write their reports again, as nodes do if reports have vanished.
func (w *world) rereport() {
	for where, c := range w.copies {
		if c.State == pod.Running {
			w.report(where)
		}
	}
}

// forgettable returns where an operator may declare copies gone: on dead nodes; if there are none, wherever they run.
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

// TestAnyHistoryEndsWithWhatIsDesired plays random histories of changes, failures and lost records. It checks the plans
// on the way. In the end the world must be as desired.
func TestAnyHistoryEndsWithWhatIsDesired(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			w.step(t)
		}
		w.heal()
		if rapid.IntRange(0, 3).Draw(t, "one node never comes back") == 0 {
			w.without(t, w.anyNode(t))
			return
		}
		w.rereport()
		w.rereportSick()
		w.settle(t)
		w.rc.Generation++ // after a change, pods are not kept as adopted
		w.settle(t)
		desired := w.rc.Desired()
		switch least := w.rc.MinimumAvailable(); {
		case least > desired:
			return // the minimum forbids all stops, because P6 outranks the count
		case least == desired && w.outdated():
			if !w.status.Is(rc.Blocked) {
				t.Fatalf("the minimum forbids the upgrade, and the status does not say so: %+v", w.status)
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
			t.Fatalf("desired %d, placed %d, running %d, available %d\npods %+v\nreality %+v\ncopies %+v\nstatus %+v",
				desired, len(w.pods), w.running(), w.available(), w.pods, w.reality, w.copies, w.status)
		}
		if len(w.requests) != 0 {
			t.Fatalf("requests are left: %+v", w.requests)
		}
		if !w.status.Is(rc.Converged) {
			t.Fatalf("settled but not converged: %+v", w.status)
		}
		for id, p := range w.pods {
			if p.Digest != w.rc.ManifestOf(p.Role) {
				t.Fatalf("%s settled on manifest %s, desired %s", id, p.Digest, w.rc.ManifestOf(p.Role))
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

// without makes passes in a world in which one machine never comes back. All desired pods must run elsewhere, except
// pods that must not be moved.
func (w *world) without(t *rapid.T, v *node.View) {
	w.deaths++
	v.Alive, v.MachineLost, v.FreeIndex = false, true, w.deaths
	for where := range w.copies {
		if where.node == v.Name {
			delete(w.copies, where)
		}
	}
	w.rereport()
	w.rereportSick()
	w.settle(t)
	w.rc.Generation++
	w.settle(t)
	if least := w.rc.MinimumAvailable(); w.rc.Strategy == rc.Static || least >= w.rc.Desired() {
		return
	}
	if n := w.available(); n != w.rc.Desired() {
		t.Fatalf("without %s: desired %d, available %d; status %+v", v.Name, w.rc.Desired(), n, w.status)
	}
	for id, p := range w.pods {
		if p.Node == v.Name && p.RunState == pod.Running {
			t.Fatalf("%s is still placed on %s, which is lost", id, v.Name)
		}
	}
}

// heal brings all nodes back.
func (w *world) heal() {
	clear(w.sick)
	for name, old := range w.nodes {
		v := *old
		v.Alive, v.MachineLost, v.FreeIndex, v.Ops.Drain = true, false, 0, nil
		w.nodes[name] = &v
	}
}

// outdated reports whether a pod has another manifest than the controller.
func (w *world) outdated() bool {
	for _, p := range w.pods {
		if p.Digest != w.rc.ManifestOf(p.Role) {
			return true
		}
	}
	return false
}

// rereportSick makes all running copies healthy again.
func (w *world) rereportSick() {
	for where, r := range w.reality {
		if r.State == pod.StateReady || r.State == pod.StateUnhealthy {
			r.State, r.Available, r.Message, r.Hopeless, r.NeverAvailable = pod.StateReady, true, "", false, false
			w.served[where] = true
			w.reality[where] = r
		}
	}
}
