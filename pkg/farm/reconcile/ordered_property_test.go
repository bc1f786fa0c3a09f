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

// orderedWorld is a world with one ordered group. Its machines stop their pods by themselves when they have been lost
// for long enough.
type orderedWorld struct {
	*world
	m      *manifest.Manifest
	diedAt map[string]time.Time // when a node fell silent: no record has an earlier time
	since  time.Time            // when the epoch began
	second bool                 // the test started a second copy, as after a restore
	// what nodes have accepted and do not run: it stopped by itself, or its intent is of another epoch
	held   map[at]pod.Intent
	unread map[at]bool // intents of pods without a placement that cannot be read
	back   bool        // the epoch began because an older store was restored
}

// After a node falls silent, its pods run for the sum of these times: how long the node may believe that it is in
// touch, orderedSlack, orderedStops (until their supervisor stops them), and their stop grace.
const (
	orderedSlack = 2 * time.Second
	orderedStops = 20 * time.Second
)

func newOrderedWorld(t *rapid.T) *orderedWorld {
	w := &orderedWorld{
		world: newWorld(),
		m: &manifest.Manifest{
			Version: 1, ID: "p", MinReady: new(field.Duration), Launchables: []manifest.Launchable{{Name: "a"}},
		},
		diedAt: map[string]time.Time{}, held: map[at]pod.Intent{}, unread: map[at]bool{},
	}
	if rapid.Bool().Draw(t, "stop_after") {
		after := field.Duration(orderedStops)
		w.m.Disconnect = &manifest.Disconnect{StopAfter: &after}
	}
	n := rapid.IntRange(1, 5).Draw(t, "replicas")
	w.rc.ReplicaGroups = []rc.ReplicaGroup{{Role: "main", Count: &n, Ordered: true}}
	w.rc.MinAvailable = count(rapid.IntRange(0, n).Draw(t, "minimum"))
	w.since = w.now // an intent without an epoch is of an older farm, and starts in any epoch
	for _, v := range w.nodes {
		v.EnforcesStopAfter, v.TTL, v.Epoch = true, field.Duration(2*time.Second), w.epoch()
	}
	w.anyNode(t).TTL = 0 // not reported: it may be the longest
	for range rapid.IntRange(0, 3).Draw(t, "older nodes") {
		w.anyNode(t).EnforcesStopAfter = false
	}
	return w
}

func (w *orderedWorld) look(resync bool) *reconcile.Snapshot {
	w.list()
	s := w.snapshot(resync)
	s.Manifest, s.Slack, s.Orphans = w.m, orderedSlack, nil
	s.Epoch, s.EpochSince, s.WentBack = w.epoch(), w.since, w.back
	for name, v := range w.nodes {
		for i := range v.Orphans {
			if v.Alive {
				s.Orphans = append(s.Orphans, reconcile.Orphan{Node: name, Orphan: v.Orphans[i]})
			}
		}
	}
	s.Manifests = map[string]*manifest.Manifest{"m1": w.m, "m2": w.m, "m3": w.m}
	return s
}

// epoch returns the epoch, named by its begin.
func (w *orderedWorld) epoch() string {
	return w.since.Format(time.RFC3339Nano)
}

// stops reports whether a node stops its pods by itself.
func (w *orderedWorld) stops(name string) bool {
	return w.m.Disconnect != nil && w.nodes[name].EnforcesStopAfter
}

// fallSilent stops the pods of nodes that have been silent for as long as their manifest allows, at the last moment. On
// nodes without a supervisor that enforces this, pods run on.
func (w *orderedWorld) fallSilent() {
	for where, c := range w.copies {
		died, dead := w.diedAt[where.node]
		after := w.nodes[where.node].BelievesFor() + orderedSlack + orderedStops + manifest.StopMargin +
			manifest.DefaultStopGrace
		if w.stops(where.node) && dead && c.State == pod.Running && w.now.Sub(died) >= after {
			w.holdBack(where)
		}
	}
}

// holdBack ends a copy that starts again only when its node has read its intent.
func (w *orderedWorld) holdBack(where at) {
	w.held[where] = w.copies[where]
	delete(w.copies, where)
}

// obey lets one node carry out its intent, like world.obey. This node may hold pods back.
func (w *orderedWorld) obey(where at) {
	in, hasIntent := w.intents[where]
	held, holds := w.held[where]
	outdated := in.Epoch != "" && in.Epoch != w.epoch()
	switch {
	case !w.nodes[where.node].Alive || w.unreadable(where):
	case holds && hasIntent && in.State == pod.Stopped && in.Revision >= held.Revision:
		delete(w.held, where)
		w.copies[where] = in
		w.report(where)
	case holds && hasIntent && in.Revision >= held.Revision && !outdated:
		delete(w.held, where)
		w.copies[where] = in
		w.report(where)
	case hasIntent && in.State == pod.Running && outdated && w.copies[where].State != pod.Running &&
		in.Revision > max(w.copies[where].Revision, held.Revision):
		w.held[where] = in
		w.reportHeld(where)
	case holds:
		w.reportHeld(where)
	default:
		w.world.obey(where)
	}
}

func (w *orderedWorld) reportHeld(where at) {
	c := w.held[where]
	w.reality[where] = pod.Reality{
		Identity: where.id, Node: where.node, Digest: c.Digest, Revision: c.Revision, State: pod.StatePending,
	}
}

// unreadable reports whether an intent cannot be read, until it is written again.
func (w *orderedWorld) unreadable(where at) bool {
	_, placed := w.pods[where.id]
	return w.unread[where] && !placed
}

func (w *orderedWorld) obeyAll() {
	for where := range maps.Clone(w.intents) {
		w.obey(where)
	}
	for where := range maps.Clone(w.copies) {
		w.obey(where)
	}
	for where := range maps.Clone(w.held) {
		w.obey(where)
	}
}

// decide does what a farm does: it reads the intents of pods that have no placement.
func (w *orderedWorld) decide(s *reconcile.Snapshot) reconcile.Plan {
	for asked := []pod.Identity(nil); ; {
		plan := reconcile.Compute(s)
		ids := slices.DeleteFunc(plan.NeedIntents(), func(id pod.Identity) bool { return slices.Contains(asked, id) })
		if len(ids) == 0 {
			return plan
		}
		asked = append(asked, ids...)
		for _, id := range ids {
			for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
				switch in, hasIntent := w.intents[at{name, id}]; {
				case hasIntent && w.unreadable(at{name, id}):
					s.UnreadIntent = "garbage"
				case hasIntent:
					s.AddIntent(name, &in)
				}
			}
		}
	}
}

// pass makes one pass like world.pass, and checks the rules of ordered groups.
func (w *orderedWorld) pass(t rapid.TB, resync bool) int {
	w.fallSilent()
	s := w.look(resync)
	plan := w.decide(s)
	w.status = &plan.Status
	w.answered(plan.Answered)
	w.checkOrder(t, &plan)
	w.checkMinimum(t, &plan)
	for _, id := range plan.Adds {
		if name := w.nodeFor(&plan, id); name != "" {
			plan.Changes = append(plan.Changes, plan.Placer().On(id, name))
		}
	}
	for i := range plan.Changes {
		if w.lands != nil && !w.lands() {
			continue
		}
		w.checkAlone(t, &plan.Changes[i])
		w.take(t, &plan.Changes[i])
	}
	return len(plan.Changes)
}

// checkMinimum fails if a plan takes more pods than the minimum allows (P6). One of two copies of an index may stop in
// any case.
func (w *orderedWorld) checkMinimum(t rapid.TB, plan *reconcile.Plan) {
	left, takes := w.available(), false
	for i := range plan.Changes {
		if ch := &plan.Changes[i]; w.takes(ch) {
			left--
			takes = takes || !w.isForced(ch) && !w.runsTwice(ch.Identity)
		}
	}
	if takes && w.rc.DeletedAt == nil && left < w.rc.MinimumAvailable() {
		t.Fatalf("%d would be available, the minimum is %d (P6): %v", left, w.rc.MinimumAvailable(), plan.Changes)
	}
}

// runsTwice reports whether a node lists a copy of a pod that is placed on another node.
func (w *orderedWorld) runsTwice(id pod.Identity) bool {
	for name, v := range w.nodes {
		if name != w.pods[id].Node &&
			slices.ContainsFunc(v.Orphans, func(o pod.Orphan) bool { return o.Identity == id }) {
			return true
		}
	}
	return false
}

// take applies a change like world.apply. But a pod on a lost machine may be forgotten when it has stopped by itself.
func (w *orderedWorld) take(t rapid.TB, ch *reconcile.Change) {
	if p := w.pods[ch.Identity]; ch.Placement == nil && w.copies[at{p.Node, ch.Identity}].State == pod.Running &&
		len(ch.Answers) == 0 {
		t.Fatalf("%s is forgotten while it runs (P5)", ch)
	}
	for _, in := range ch.Intents {
		delete(w.unread, at{in.Node, ch.Identity})
	}
	w.apply(t, ch)
}

// checkAlone fails if a node gets an intent to run a pod while another copy lives that the farm can know of.
func (w *orderedWorld) checkAlone(t rapid.TB, ch *reconcile.Change) {
	was := w.pods[ch.Identity]
	for _, in := range ch.Intents {
		if in.Intent == nil || in.Intent.State != pod.Running {
			continue
		}
		before := w.intents[at{in.Node, ch.Identity}]
		// not carried out yet, as after the pod was killed there
		mustRun := before.State == pod.Running && (before.Epoch == "" || before.Epoch == w.epoch())
		starts := w.copies[at{in.Node, ch.Identity}].State != pod.Running && !mustRun || ch.Action == reconcile.Adopt
		for where, c := range w.copies {
			v := w.nodes[where.node]
			known := v.Alive && (v.Epoch == w.epoch() || !w.second) || was.Node == where.node ||
				slices.ContainsFunc(was.Ghosts, func(g pod.Ghost) bool {
					return g.Node == where.node
				})
			if where.id == ch.Identity && where.node != in.Node && c.State == pod.Running && starts && known {
				t.Fatalf("%s: a copy lives on %s", ch, where.node)
			}
		}
	}
}

// checkOrder fails if replicas are not added and removed in order.
func (w *orderedWorld) checkOrder(t rapid.TB, plan *reconcile.Plan) {
	if len(plan.Adds) > 1 {
		t.Fatalf("%v start together", plan.Adds)
	}
	n := *w.rc.ReplicaGroups[0].Count
	for _, id := range plan.Adds {
		if _, placed := w.pods[id]; placed || id.Index >= n {
			t.Fatalf("%v is added", id)
		}
		for index := range id.Index {
			if lower := (pod.Identity{RCID: "rc", Role: "main", Index: index}); !w.counts(lower) {
				t.Fatalf("%v is added before %v is available", id, lower)
			}
		}
	}
	for i := range plan.Changes {
		ch := &plan.Changes[i]
		if ch.Action == reconcile.Move || ch.Action == reconcile.Return {
			t.Fatalf("%s", ch)
		}
		if ch.Action != reconcile.Stop || ch.Reason != fmt.Sprintf("%d replicas of role main desired", n) {
			continue
		}
		for id := range w.pods {
			if id.Index > ch.Identity.Index || ch.Identity.Index < n {
				t.Fatalf("%s while %s exists, and %d are desired", ch, id, n)
			}
		}
	}
}

// alone fails if an index has two living copies, unless the test started the second one.
func (w *orderedWorld) alone(t rapid.TB) {
	lives := map[pod.Identity]string{}
	for where, c := range w.copies {
		if c.State != pod.Running || w.second {
			continue
		}
		if other, twice := lives[where.id]; twice {
			t.Fatalf("%s lives on %s and on %s", where.id, other, where.node)
		}
		lives[where.id] = where.node
	}
}

func (w *orderedWorld) step(t *rapid.T) {
	w.now = w.now.Add(time.Duration(rapid.IntRange(1, 4000).Draw(t, "ms")) * time.Millisecond)
	w.list()
	switch rapid.SampledFrom([]string{
		"scale", "manifest", "pass", "pass", "pass", "pass", "obey", "obey", "obey", "die", "die", "return", "speak",
		"drain", "undrain", "forget", "second", "sick", "well", "later", "new epoch", "blink", "reboot", "reboot",
		"save", "restore", "vanish",
	}).Draw(t, "step") {
	case "scale":
		n := rapid.IntRange(0, 5).Draw(t, "replicas")
		w.rc.ReplicaGroups = []rc.ReplicaGroup{{Role: "main", Count: &n, Ordered: true}}
		w.rc.Generation++
	case "manifest":
		w.rc.ManifestDigest = rapid.SampledFrom([]string{"m1", "m2", "m3"}).Draw(t, "digest")
		w.rc.Generation++
	case "pass":
		w.hold, w.breaker = rapid.IntRange(0, 9).Draw(t, "hold") == 0, rapid.IntRange(0, 9).Draw(t, "breaker") == 0
		if rapid.Bool().Draw(t, "partly") {
			w.lands = func() bool { return rapid.Bool().Draw(t, "lands") }
		}
		w.pass(t, rapid.Bool().Draw(t, "resync"))
		w.hold, w.breaker, w.lands = false, false, nil
	case "obey":
		w.obeyAll()
	case "die":
		v := w.anyNode(t)
		if _, dead := w.diedAt[v.Name]; !dead {
			w.deaths++
			v.FreeIndex, w.diedAt[v.Name] = w.deaths, w.now
		}
		v.Alive, v.MachineLost, v.LostSeen = false, v.MachineLost || rapid.Bool().Draw(t, "gone"), w.now
		if !v.MachineLost {
			w.diedAt[v.Name] = w.now.Add(time.Hour) // only its preparer is dead, and its pods run on
		} else if w.diedAt[v.Name].After(w.now) {
			w.diedAt[v.Name] = w.now
		}
	case "return":
		v := w.anyNode(t)
		if !v.Alive {
			v.Alive, v.MachineLost, v.FreeIndex, v.Epoch = true, false, 0, "not yet"
			delete(w.diedAt, v.Name)
		}
	case "speak":
		if v := w.anyNode(t); v.Alive {
			v.Epoch = w.epoch()
		}
	case "blink":
		w.now = w.now.Add(time.Duration(rapid.IntRange(0, 45).Draw(t, "seconds")) * time.Second)
		w.fallSilent()
		if v := w.anyNode(t); !v.Alive { // back for a moment, without a report
			w.die(v)
		}
	case "new epoch":
		w.newEpoch()
	case "reboot":
		w.reboot(w.anyNode(t))
	case "save":
		w.saved = w.records()
	case "restore":
		w.restore(t)
	case "vanish":
		if where, ok := draw(t, w.intents); ok {
			delete(w.pods, where.id)
			delete(w.indices, where.id)
			w.unread[where] = rapid.Bool().Draw(t, "unreadable")
		}
	case "drain":
		w.anyNode(t).Ops.Drain = &node.Drain{Since: w.now}
	case "undrain":
		w.anyNode(t).Ops.Drain = nil
	case "sick":
		w.sick[w.anyNode(t).Name] = true
	case "well":
		delete(w.sick, w.anyNode(t).Name)
	case "later":
		w.now = w.now.Add(time.Minute)
	case "forget":
		if where, ok := draw(t, w.forgettable()); ok && !w.nodes[where.node].Alive {
			w.requests = append(w.requests, reconcile.Request{
				ID: fmt.Sprintf("r%d", w.now.UnixNano()), Forget: true, Node: where.node, Pod: where.id,
				Declared: w.nodes[where.node].FreeIndex,
			})
			delete(w.copies, where)
			delete(w.held, where)
			delete(w.reality, where)
		}
	case "second":
		if where, ok := draw(t, w.copies); ok && w.copies[where].State == pod.Running {
			other := at{fmt.Sprintf("n%d", rapid.IntRange(0, 5).Draw(t, "elsewhere")), where.id}
			if _, taken := w.copies[other]; !taken {
				c := w.copies[where]
				c.Revision += rapid.SampledFrom([]int64{-500, 500}).Draw(t, "revision")
				w.copies[other], w.second = c, true
				w.rereport()
			}
		}
	}
	w.fallSilent()
	w.alone(t)
}

// list makes the living nodes report what they run, or hold back, without an intent.
func (w *orderedWorld) list() {
	for name, old := range w.nodes {
		if !old.Alive || old.Epoch != w.epoch() {
			continue // it reports nothing, or has not reported yet
		}
		v := *old
		v.Orphans, w.nodes[name] = nil, &v
		note := func(where at, c pod.Intent, runs bool) {
			in, hasIntent := w.intents[where]
			if where.node == name && c.State == pod.Running && !w.unreadable(where) &&
				(!hasIntent || in.Revision < c.Revision) {
				v.Orphans = append(v.Orphans, pod.Orphan{
					Identity: where.id, PodID: "p", Digest: c.Digest, Revision: c.Revision, Runs: runs,
				})
			}
		}
		for where, c := range w.copies {
			note(where, c, true)
		}
		for where, c := range w.held {
			note(where, c, false)
		}
	}
}

// reboot starts a machine again. Pods that stop by themselves wait for their intents; others start from the disk. Its
// preparer has not spoken yet, and Consul has the earlier reports.
func (w *orderedWorld) reboot(v *node.View) {
	if v.Alive {
		v.Epoch = "not yet"
	}
	for where := range maps.Clone(w.copies) {
		if where.node == v.Name && w.m.Disconnect != nil && w.copies[where].State == pod.Running {
			w.holdBack(where)
		}
	}
}

// restore brings older records back, in which one more pod may be missing. Living nodes report what they run. For pods
// that they hold back, the older reports stay.
func (w *orderedWorld) restore(t *rapid.T) {
	if w.saved.pods == nil {
		return
	}
	old := w.records()
	w.pods, w.intents, w.reality = w.saved.pods, w.saved.intents, w.saved.reality
	w.saved = old
	if where, ok := draw(t, w.intents); ok && rapid.Bool().Draw(t, "one is lost") {
		delete(w.pods, where.id)
		for other := range w.intents {
			if other.id == where.id {
				delete(w.intents, other)
			}
		}
	}
	clear(w.indices)
	clear(w.unread)
	for id := range w.pods {
		w.index++
		w.indices[id] = w.index
	}
	w.begin(true)
}

// begin begins an epoch.
func (w *orderedWorld) begin(back bool) {
	w.now = w.now.Add(time.Nanosecond) // otherwise the epoch would have the same name
	w.since, w.back = w.now, back
	for name, old := range w.nodes {
		if v := *old; v.Alive && v.Epoch != "not yet" {
			v.Epoch, w.nodes[name] = w.epoch(), &v
		}
	}
	for where, c := range w.copies {
		if w.nodes[where.node].Alive && (c.State == pod.Running || back) {
			w.report(where)
		}
	}
	w.list()
}

// die makes a machine lost.
func (w *orderedWorld) die(v *node.View) {
	w.deaths++
	v.Alive, v.MachineLost, v.LostSeen, v.FreeIndex, w.diedAt[v.Name] = false, true, w.now, w.deaths, w.now
}

// newEpoch loses all records but the controller's. Then living nodes report what they run.
func (w *orderedWorld) newEpoch() {
	clear(w.pods)
	clear(w.indices)
	clear(w.intents)
	clear(w.reality)
	clear(w.unread)
	w.begin(false)
}

// isAsDesired reports whether all desired pods run. A pod may be missing if the status has the reason: a lost node
// cannot stop its pods by itself, or it is not known what the node ran.
func (w *orderedWorld) isAsDesired(gone *node.View) bool {
	unknown := func(p pod.Placement) bool { return p.Node == gone.Name && p.Switching }
	if gone != nil && w.status.Is(rc.AwaitsStop) &&
		(!w.stops(gone.Name) || slices.ContainsFunc(slices.Collect(maps.Values(w.pods)), unknown)) {
		return true
	}
	elsewhere := w.running()
	for where, c := range w.copies {
		_, placed := w.pods[where.id]
		_, hasIntent := w.intents[where]
		unwanted := !placed && hasIntent && where.id.Index >= w.rc.Desired() // only a sweep looks for it
		if c.State == pod.Running && (unwanted || gone != nil && where.node == gone.Name) {
			elsewhere-- // it is not needed, or its stop is awaited
		}
	}
	return w.status.Is(rc.Converged) && elsewhere == w.rc.Desired()
}

// TestAnOrderedIndexLivesOnce plays random histories of an ordered group: it is scaled, upgraded, drained, lost, cut
// off and forgotten. No index ever has two living copies, and replicas start and stop in order. In the end all desired
// pods run if all nodes are back. They also run if one node is still away, but its supervisors stop pods by themselves.
func TestAnOrderedIndexLivesOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newOrderedWorld(t)
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			w.step(t)
		}
		w.heal()
		w.rc.MinAvailable = count(0) // otherwise a pod that must stop first may have to stay
		clear(w.diedAt)
		clear(w.unread)
		for _, v := range w.nodes {
			v.Epoch = w.epoch()
		}
		w.list()
		var gone *node.View
		if !w.second && rapid.Bool().Draw(t, "one node never comes back") {
			gone = w.anyNode(t)
			w.die(gone)
		}
		for range 300 {
			w.now = w.now.Add(time.Second)
			w.rereportSick()
			w.obeyAll()
			w.pass(t, true)
			w.alone(t)
			if w.rc.Generation++; w.isAsDesired(gone) {
				return
			}
		}
		t.Fatalf("desired %d, running %d\npods %+v\ncopies %+v\nstatus %+v", w.rc.Desired(), w.running(),
			slices.Collect(maps.Values(w.pods)), w.copies, w.status)
	})
}
