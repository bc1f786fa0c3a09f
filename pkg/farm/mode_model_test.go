package farm_test

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
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// modeModel changes a controller between a count and each-node mode, as an owner does: passes decide, then the rollout.
// Nodes obey, some at once and some later.
type modeModel struct {
	t     *rapid.T
	s     reconcile.Snapshot
	rec   *rollout.Record
	sick  bool // the new manifest never becomes available
	full  map[string]bool
	slow  map[int64]int // by revision: how many looks its pods have taken to start
	trace []string
	end   rollout.State
}

const modelRC = "01M8HAJ39N3J9X060XSRHQH9FM-1"

func newModeModel(t *rapid.T, nodes int) *modeModel {
	m := &modeModel{t: t, full: map[string]bool{}, slow: map[int64]int{}}
	m.s = reconcile.Snapshot{Now: time.Unix(1_700_000_000, 0), Owner: "f1", Epoch: "e", Nodes: map[string]*node.View{}}
	m.s.Manifests = map[string]*manifest.Manifest{}
	for _, digest := range []string{"m1", "m2"} {
		m.s.Manifests[digest] = &manifest.Manifest{Version: 1, ID: "p", MinReady: new(field.Duration)}
	}
	for range nodes {
		m.join()
	}
	m.s.RC = rc.RC{
		ID: modelRC, Name: "web-r1", ManifestDigest: "m1", Generation: 7, Strategy: rc.Dynamic,
		Service: &rc.Service{Name: "web", Revision: 1},
	}
	return m
}

func (m *modeModel) join() {
	name := fmt.Sprintf("n%d", len(m.s.Nodes))
	m.s.Nodes[name] = &node.View{
		Node:  node.Node{Name: name, Epoch: "e", Capacity: node.Capacity{Slots: 99}},
		Alive: true,
	}
}

// place runs a pod that is available.
func (m *modeModel) place(role string, index int, on string) {
	id := pod.Identity{RCID: modelRC, Role: role, Index: index}
	m.s.Pods = append(m.s.Pods, reconcile.Pod{
		Placement: pod.Placement{
			Identity: id, Node: on, PodID: "p", Digest: "m1", RunState: pod.Running, Revision: 1,
			ChangedAt: m.s.Now,
		},
		Reality: &pod.Reality{
			Identity: id, Node: on, Digest: "m1", Revision: 1, State: pod.StateReady,
			Available: true,
		},
	})
}

// begin starts the change, or replaces the one under way.
func (m *modeModel) begin(next rc.RC, step int) {
	st := m.pass()
	next.Generation++
	s := rollout.Start{
		ID: "R", Service: "web", By: "ann", Now: m.s.Now, Epoch: "e", New: next,
		Old: []rollout.Seen{{RC: m.s.RC, Status: st}}, InEffect: 1,
		Knobs: rollout.Knobs{Strategy: rollout.InPlaceStrategy, Step: &rollout.Amount{N: step}},
	}
	var started rollout.Started
	var err error
	if m.rec != nil {
		started, err = rollout.Retarget(*m.rec, s)
	} else {
		started, err = rollout.Begin(s)
	}
	m.started(started, err)
}

// scale changes how many pods the change ends with.
func (m *modeModel) scale(n int) {
	started, err := rollout.Rescale(*m.rec, []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &n}}, rollout.Observed{
		Now: m.s.Now, Epoch: "e", Revisions: map[string]rollout.Seen{modelRC: {RC: m.s.RC, Status: m.pass()}},
	}, "ann")
	m.started(started, err)
}

// forth returns the record to which the change leads.
func (m *modeModel) forth(next rc.RC) rc.RC {
	next.Generation = m.s.RC.Generation
	if next.Mode == "" {
		next.ReplicaGroups = m.s.RC.ReplicaGroups
	}
	return next
}

func (m *modeModel) started(started rollout.Started, err error) {
	if err != nil {
		m.t.Fatal(err)
	}
	m.trace = append(m.trace, started.Audit...)
	m.rec, m.s.Rollout = &started.Record, "R"
	for _, r := range started.RCs {
		m.trace = append(m.trace, fmt.Sprintf("record %s %+v", r.Mode, r.InPlace))
		if err := r.Check(); err != nil {
			m.t.Fatal(err)
		}
		m.s.RC = r
	}
}

// pass decides about pods, and carries the plan out.
func (m *modeModel) pass() *rc.Status {
	m.s.Manifest = m.s.Manifests[m.s.RC.ManifestDigest]
	given := m.s.RC
	plan := reconcile.Compute(&m.s)
	wanted, each := plan.WantedNodes()
	placer := plan.Placer()
	var left []pod.Identity
	for _, id := range plan.Adds {
		if !each {
			wanted = m.emptiest()
		}
		i := slices.IndexFunc(wanted, func(name string) bool { return !m.full[name] })
		if i < 0 {
			left = append(left, id)
			continue
		}
		plan.Changes = append(plan.Changes, placer.On(id, wanted[i]))
		if each {
			wanted = slices.Delete(slices.Clone(wanted), i, i+1)
		}
	}
	plan.SetUnplaced(left, "resources", time.Second)
	had := len(m.s.Pods)
	for i := range plan.Changes {
		m.apply(&plan.Changes[i])
	}
	if n := len(m.s.Pods); !each && n > max(had, given.Desired()+given.Surge()) {
		m.t.Fatalf("%d pods of %d, %d more than that\n%s", n, given.Desired(), given.Surge(),
			strings.Join(m.trace, "\n"))
	}
	m.s.Previous = &plan.Status
	return &plan.Status
}

func (m *modeModel) emptiest() []string {
	on := map[string]int{}
	for i := range m.s.Pods {
		on[m.s.Pods[i].Node]++
	}
	var names []string
	for name := range m.s.Nodes {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return (on[a]-on[b])*100 + strings.Compare(a, b) })
	return names
}

func (m *modeModel) apply(ch *reconcile.Change) {
	m.trace = append(m.trace, ch.String())
	i := slices.IndexFunc(m.s.Pods, func(p reconcile.Pod) bool { return p.Identity == ch.Identity })
	switch {
	case ch.Placement == nil:
		m.s.Pods = slices.Delete(slices.Clone(m.s.Pods), i, i+1)
	case i < 0:
		m.s.Pods = append(m.s.Pods, reconcile.Pod{Placement: *ch.Placement})
	default:
		m.s.Pods[i].Placement = *ch.Placement
	}
}

// nodes carries out some of the intents.
func (m *modeModel) nodes() {
	for i := range m.s.Pods {
		p := &m.s.Pods[i]
		r := pod.Reality{
			Identity: p.Identity, Node: p.Node, Digest: p.Digest, Revision: p.Revision,
			State: pod.StateReady, Available: true,
		}
		switch {
		case p.Reality != nil && p.Reality.Digest == p.Digest && p.Reality.Revision == p.Revision &&
			p.Reality.Available:
			continue
		// nothing restarts
		case p.RunState == pod.Running && p.Reality != nil && p.Reality.Digest == p.Digest && p.Reality.Available:
		case p.RunState == pod.Stopped:
			r.State, r.Available = pod.StateStopped, false
		case m.sick && p.Digest == "m2", m.slow[p.Placement.Revision] < 5 &&
			rapid.IntRange(0, 2).Draw(m.t, "slow") == 0:
			m.slow[p.Placement.Revision]++
			r.State, r.Available = pod.StateUnhealthy, false
		}
		p.Reality = &r
	}
}

// look is one look of the owner, after nodes have done something.
func (m *modeModel) look() {
	m.s.Now = m.s.Now.Add(10 * time.Second)
	m.nodes()
	st := m.pass()
	if m.rec == nil {
		return
	}
	d := rollout.Decide(*m.rec, rollout.Observed{
		Now: m.s.Now, Epoch: "e", Revisions: map[string]rollout.Seen{modelRC: {RC: m.s.RC, Status: st}},
	})
	m.trace = append(m.trace, d.Audit...)
	for _, r := range d.RCs {
		m.trace = append(m.trace, fmt.Sprintf("record %s %+v", r.Mode, r.InPlace))
		if err := r.Check(); err != nil {
			m.t.Fatal(err)
		}
		m.s.RC = r
	}
	if m.rec = &d.Record; d.Ended {
		m.rec, m.s.Rollout, m.end = nil, "", d.Record.State
	} else if err := d.Record.Check(); err != nil {
		m.t.Fatal(err)
	}
}

// serving counts the pods that are available, and the other pods that should run the present manifest.
func (m *modeModel) serving() (serve, not int) {
	for i := range m.s.Pods {
		p := &m.s.Pods[i]
		switch {
		case p.RunState != pod.Running:
		case p.Reality != nil && p.Reality.Available && p.Reality.Digest == p.Digest:
			serve++
		case p.Digest == m.s.RC.ManifestDigest:
			not++
		}
	}
	return serve, not
}

// With any nodes, a change between a count and each-node mode ends and keeps the minimum. It never has more unavailable
// pods than a stage brings. A version that does not become available is rolled back.
func TestChangesOfModeGoInStages(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		nodes, counts := rapid.IntRange(1, 7).Draw(t, "nodes"), rapid.IntRange(1, 9).Draw(t, "counts")
		step := rapid.IntRange(1, 3).Draw(t, "step")
		m := newModeModel(t, nodes)
		toEach := rapid.Bool().Draw(t, "to each node")
		role := "main"
		if toEach { // other changes do not go in stages on the way back
			role = rapid.SampledFrom([]string{"main", "main", "side"}).Draw(t, "role")
		}
		groups := []rc.ReplicaGroup{{Role: role, Count: &counts}}
		had, has := counts, nodes
		next := m.s.RC
		if toEach {
			m.s.RC.ReplicaGroups, next.Mode = groups, rc.EachNode
			for i := range counts {
				m.place(role, i, fmt.Sprintf("n%d", rapid.IntRange(0, nodes-1).Draw(t, "on")))
			}
		} else {
			m.s.RC.Mode, next.ReplicaGroups = rc.EachNode, groups
			for i := range nodes {
				m.place("main", i, fmt.Sprintf("n%d", i))
			}
			had, has = nodes, counts
		}
		if rapid.Bool().Draw(t, "new version") {
			next.ManifestDigest = "m2"
			m.sick = rapid.IntRange(0, 3).Draw(t, "sick") == 0
		}
		for i := range nodes {
			m.full[fmt.Sprintf("n%d", i)] = toEach && rapid.IntRange(0, 15).Draw(t, "full") == 0
		}
		before := m.s.RC
		m.begin(next, step)
		verb := rapid.SampledFrom([]rollout.Verb{"", "", rollout.RollbackVerb, rollout.AbortVerb}).Draw(t, "verb")
		asks, back, aborted := rapid.IntRange(0, 30).Draw(t, "asks"), false, false
		turn := rapid.SampledFrom([]string{"", "scale", "back", "again", "pause"}).Draw(t, "turn")
		turns, returned := rapid.IntRange(0, 30).Draw(t, "turns"), false
		least, joins := min(had, has)-1, rapid.IntRange(0, 40).Draw(t, "joins")
		for look := 0; m.rec != nil || look < 20; look++ {
			if look > 300 && slices.Contains(slices.Collect(maps.Values(m.full)), true) {
				return // the minimum includes nodes without capacity, so it may keep the pods unchanged
			}
			if look > 3000 {
				t.Fatalf("the change does not end: %+v\n%+v\n%+v\n%s", m.rec, m.s.RC.InPlace, m.s.Previous,
					strings.Join(m.trace, "\n"))
			}
			if look == joins && toEach {
				m.join()
			}
			asked := look == asks && verb != "" && m.rec != nil && m.rec.State == rollout.Progressing
			if asked {
				m.rec.Request = &rollout.Request{Verb: verb, By: "ann", At: m.s.Now}
				back = verb == rollout.RollbackVerb
			}
			if m.look(); asked && verb == rollout.AbortVerb {
				aborted = true
				m.begin(m.forth(next), step)
			}
			if m.rec != nil && look == turns {
				switch {
				case turn == "scale" && !toEach && m.rec.State == rollout.Progressing:
					has = rapid.IntRange(1, 9).Draw(t, "scaled")
					least = min(least, has-1)
					m.scale(has)
				// other changes do not come in stages
				case turn == "back" && m.rec.State == rollout.Progressing && verb == "" && !m.sick &&
					role == rc.DefaultRole:
					returned = true
					back := before
					back.Generation = m.s.RC.Generation
					m.begin(back, step)
				case turn == "again" && m.rec.State == rollout.Progressing && !back:
					m.begin(m.forth(next), step)
				case turn == "pause" && m.rec.Request == nil && m.rec.State == rollout.Progressing:
					m.rec.Request = &rollout.Request{Verb: rollout.PauseVerb, By: "ann", At: m.s.Now}
				}
			}
			if m.rec != nil && m.rec.State == rollout.Paused && m.rec.Request == nil {
				m.rec.Request = &rollout.Request{Verb: rollout.ResumeVerb, By: "ann", At: m.s.Now}
			}
			serve, not := m.serving()
			progressing := m.rec != nil && m.rec.State == rollout.Progressing
			if serve < least || progressing && not > step {
				t.Fatalf("%d serve, at least %d must; %d do not, at most %d may\n%s", serve, least, not, step,
					strings.Join(m.trace, "\n"))
			}
		}
		for range 60 {
			m.look()
		}
		want := rollout.Done
		if m.sick || back {
			want = rollout.Failed
		}
		serve, not := m.serving()
		if m.s.RC.EachNode() {
			has, had = len(m.s.Nodes), len(m.s.Nodes)
		}
		if slices.Contains(slices.Collect(maps.Values(m.full)), true) {
			return
		}
		pods := has
		switch {
		case returned:
			pods = had
		case aborted: // the former mode is not known any more
			before.Mode = next.Mode
		case want == rollout.Failed:
			pods = had
		}
		if m.end != want || m.s.RC.InPlace != nil || serve != pods || not != 0 || want == rollout.Failed &&
			(m.s.RC.Mode != before.Mode || m.s.RC.ManifestDigest != "m1") {
			t.Fatalf("%s: %d serve of %d, %d do not: %+v\n%s", m.end, serve, pods, not, m.s.RC,
				strings.Join(m.trace, "\n"))
		}
		if !m.s.Previous.Is(rc.Converged) || m.s.Previous.Desired != pods {
			t.Fatalf("the status is %+v", m.s.Previous)
		}
	})
}
