package reconcile_test

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// checkWritten proves that the readers of the records that a plan writes accept them. Tests have short digests, so it
// replaces them with full ones.
func checkWritten(t rapid.TB, changes []reconcile.Change) {
	t.Helper()
	real := func(digest string) string {
		if digest == "" || len(digest) == 64 {
			return digest
		}
		return manifest.Digest([]byte(digest))
	}
	for i := range changes {
		ch := &changes[i]
		if ch.Placement != nil {
			p := *ch.Placement
			p.Digest, p.MayRun = real(p.Digest), nil
			for _, digest := range ch.Placement.MayRun {
				p.MayRun = append(p.MayRun, real(digest))
			}
			p.Avoid = slices.Clone(p.Avoid)
			for i := range p.Avoid {
				p.Avoid[i].Digest = real(p.Avoid[i].Digest)
			}
			if err := p.Check(); err != nil {
				t.Fatalf("%s writes a placement that its readers refuse: %v\n%+v", ch, err, p)
			}
		}
		for _, c := range ch.Intents {
			if c.Intent == nil {
				continue
			}
			in := *c.Intent
			in.Digest = real(in.Digest)
			if err := in.Check(); err != nil {
				t.Fatalf("%s writes an intent that %s refuses: %v\n%+v", ch, c.Node, err, in)
			}
		}
		for _, r := range ch.Reserve {
			if r.Claim == nil {
				continue
			}
			res := node.Reservation{Claims: map[string]node.Claim{ch.Identity.String(): *r.Claim}}
			if err := res.Check(); err != nil {
				t.Fatalf("%s writes a reservation of %s that its readers refuse: %v", ch, r.Node, err)
			}
		}
	}
}

// checked returns a record as its readers get it; ok is false if they cannot read it.
func checked[T any](data []byte) (record T, ok bool) {
	if err := json.Unmarshal(data, &record); err != nil {
		return record, false
	}
	if c, is := any(&record).(interface{ Check() error }); is && c.Check() != nil {
		return record, false
	}
	return record, true
}

// scene is a cluster in which one record is replaced by a hostile one.
type scene struct {
	rc         rc.RC
	status     *rc.Status
	nodes      map[string]*node.View
	taken      map[string]node.Reservation
	placements []pod.Placement
	realities  []pod.Reality
	intents    []pod.Intent
	orphans    []reconcile.Orphan
}

var sceneDigest = manifest.Digest([]byte("m"))

func sceneID(index int) pod.Identity { return pod.Identity{RCID: "web", Role: "main", Index: index} }

func newScene() *scene {
	n, least := 3, 1
	c := &scene{
		rc: rc.RC{
			ID: "web", Name: "web", Generation: 1, Strategy: rc.Dynamic, ManifestDigest: sceneDigest,
			MinAvailable:  &least,
			ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &n}},
		},
		status: &rc.Status{RCID: "web"},
		nodes:  map[string]*node.View{}, taken: map[string]node.Reservation{},
	}
	for i, name := range []string{"n1", "n2", "n3"} {
		c.nodes[name] = node.NewView(node.Node{Name: name, Capacity: node.Capacity{Slots: 10}, Epoch: "e"},
			node.Ops{Name: name}, true)
		c.taken[name] = node.Reservation{}
		p := pod.Placement{
			Identity: sceneID(i), Node: name, PodID: "p", Digest: sceneDigest, RunState: pod.Running, Revision: 7,
			ChangedAt: time.Unix(1_700_000_000, 0),
		}
		c.placements = append(c.placements, p)
		c.intents = append(c.intents, p.Intent())
		c.realities = append(c.realities, pod.Reality{
			Identity: p.Identity, Node: name, Digest: p.Digest, Revision: 7, State: pod.StateReady, Available: true,
		})
	}
	return c
}

// reports returns what is reported about the scene's pods, by identity and node.
func (c *scene) reports() map[store.At]pod.Reality {
	reports := map[store.At]pod.Reality{}
	for _, r := range c.realities {
		reports[store.At{Node: r.Node, Identity: r.Identity}] = r
	}
	return reports
}

// read gives the scene to all readers that decide or explain, and checks what they would write.
func (c *scene) read(t rapid.TB) {
	m := &manifest.Manifest{Version: 1, ID: "p", Launchables: []manifest.Launchable{{Name: "main"}}}
	now := time.Unix(1_700_000_100, 0).UTC()
	s := &reconcile.Snapshot{
		Now: now, Owner: "f1", RC: c.rc, Manifest: m, Manifests: map[string]*manifest.Manifest{sceneDigest: m},
		Nodes: c.nodes, Previous: c.status,
		Orphans: c.orphans, Epoch: "e",
	}
	reports := c.reports()
	for i, p := range c.placements {
		if p.RCID != c.rc.ID {
			continue
		}
		sp := reconcile.Pod{
			Placement: p, Index: uint64(i + 1), Ghosts: map[string]*pod.Reality{}, Intents: map[string]*pod.Intent{},
			Claims: map[string]*node.Claim{},
		}
		if r, ok := reports[store.At{Node: p.Node, Identity: p.Identity}]; ok && r.Revision <= pod.MaxReported {
			sp.Reality = &r
		}
		for _, g := range p.Ghosts {
			if r, ok := reports[store.At{Node: g.Node, Identity: p.Identity}]; ok && r.Revision <= pod.MaxReported {
				sp.Ghosts[g.Node] = &r
			}
		}
		for _, in := range c.intents {
			if in.Identity == p.Identity {
				sp.Intents[p.Node] = &in
			}
		}
		if h, has := c.taken[p.Node].Claims[p.Identity.String()]; has {
			sp.Claims[p.Node] = &h
		}
		s.Pods = append(s.Pods, sp)
	}
	plan := reconcile.Compute(s)
	for _, id := range plan.Adds {
		for name, v := range c.nodes {
			if scheduler.Fits(v, c.taken[name], id, node.NewClaim(id, nil, 1, 1)) == "" {
				plan.Changes = append(plan.Changes, plan.Placer().On(id, name))
				break
			}
		}
	}
	checkWritten(t, plan.Changes)
	checkWritten(t, plan.LossRecords)
	alert.Track(alert.Input{Before: c.status, After: &plan.Status, Now: now})
	alert.Due(&plan.Status, now)

	var recs []store.Rec[node.Node]
	var ops []node.Ops
	for _, v := range c.nodes {
		recs, ops = append(recs, store.Rec[node.Node]{Value: v.Node, Session: "s"}), append(ops, v.Ops)
	}
	inspect.JoinNodes(recs, ops, c.taken)
	inspect.JoinPods(c.placements, c.realities, inspect.LossesOf(recs, c.placements, nil), map[string]string{
		"web": "web",
	})
	inspect.NewRCView(&c.rc, c.status, nil)
	inspect.Explain(&inspect.Situation{
		Now: now, RC: c.rc, Status: c.status, Manifest: m,
		Pods: inspect.Pods{Placements: c.placements, Realities: reports}, Nodes: c.nodes, Taken: c.taken, Epoch: "e",
	})
	intents := preparer.IntentSet{Known: true, Intents: map[pod.Identity]pod.Intent{}}
	for _, in := range c.intents {
		intents.Intents[in.Identity] = in
	}
	preparer.Decide(intents, map[pod.Identity]preparer.Local{sceneID(0): {Revision: 7}})
}

// kinds are the stored records. Each function puts a record that is accepted in place of the scene's own; false: the
// record was refused.
var kinds = map[string]struct {
	seeds []string
	put   func(c *scene, data []byte) bool
}{
	"node": {[]string{
		`{"name":"n1","capacity":{"slots":10},"orphan_pages":{"count":1,"orphans":-1}}`,
		`{"name":"n1","capacity":{"slots":10,"cpu":9223372036854775807,"memory":-9223372036854775808},"ports_in_use":[70000,-1]}`,
		`{"name":"n1","capacity":{"slots":10000,"cpu":16000000},"port_range":{"min":1,"max":65535},"regressed":"zz","labels":{"a":"b"},"ttl":"2562047h"}`,
		`{"name":"n1","name":"n2","capacity":{"slots":1},"orphans":[{"rc_id":"web","role":"","index":-1}],"orphans_left_out":-1,"port_range":{"min":9,"max":-9}}`,
	}, func(c *scene, data []byte) bool {
		n, ok := checked[node.Node](data)
		if ok {
			c.nodes[n.Name] = node.NewView(n, node.Ops{Name: n.Name}, true)
			fit, _ := node.FitOrphans(n.Orphans)
			c.addOrphans(n.Name, fit)
		}
		return ok
	}},
	"ops": {[]string{
		`{"name":"n1","drain":{"since":"0001-01-01T00:00:00Z","deadline":"9999-12-31T23:59:59-23:59","force":true},"labels":{"":""}}`, `{"name":"n2","unschedulable":true}`,
	}, func(c *scene, data []byte) bool {
		o, ok := checked[node.Ops](data)
		if v := c.nodes[o.Name]; ok && v != nil {
			v.SetOps(o)
		}
		return ok
	}},
	"orphans": {[]string{
		`{"node":"n1","page":0,"edition":"e","orphans":[{"rc_id":"web","role":"main","index":-1,"digest":""},{"rc_id":"web","role":"main","index":99999,"pod_id":"p","digest":"` + strings.Repeat("d", 64) + `","revision":9223372036854775807,"ports":{"http":65535},"cpu":16000000,"memory":18014398509481984}]}`,
		`{"node":"n1","page":-1,"orphans":[1,"x",null,{"index":1e99}]}`,
	}, func(c *scene, data []byte) bool {
		p, ok := checked[node.OrphanPage](data)
		if ok {
			c.addOrphans("n2", p.Orphans)
		}
		return ok
	}},
	"reservation": {[]string{
		`{"holders":{"web/main.0":{"pod":{"rc_id":"web","role":"main","index":0},"ports":[1,65535],"cpu":9223372036854775807,"memory":-1}}}`,
		`{"closed":true,"holders":{"x":{"pod":{"rc_id":"other","role":"main","index":0},"ports":[70000,1,1]},"":{}}}`,
	}, func(c *scene, data []byte) bool {
		r, ok := checked[node.Reservation](data)
		if ok {
			c.taken["n1"] = r
		}
		return ok
	}},
	"placement": {[]string{
		`{"rc_id":"web","role":"main","index":-1,"node":"","digest":"","run_state":"paused","revision":-9223372036854775808}`,
		`{"rc_id":"web","role":"main","index":99999,"node":"n9","pod_id":"p","digest":"` + strings.Repeat("d", 64) + `","run_state":"running","revision":4611686018427387904,"ghosts":[{"node":"n1","revision":4611686018427387904,"since":"0001-01-01T00:00:00Z"},{"node":"n1"}],"lost_since":"9998-01-01T00:00:00Z","changed_at":"9998-01-01T00:00:00Z","dead_index":18446744073709551615,"adopted_at_generation":9223372036854775807}`,
	}, func(c *scene, data []byte) bool {
		p, ok := checked[pod.Placement](data)
		if ok && p.Identity == sceneID(0) {
			c.placements[0] = p
		} else if ok {
			c.placements = append(c.placements, p)
		}
		return ok
	}},
	"intent": {[]string{
		`{"rc_id":"web","role":"main","index":0,"pod_id":"p","digest":"` + strings.Repeat("d", 64) + `","state":"running","revision":4611686018427387904,"ports":{"http":0},"replicas":-1}`,
		`{"rc_id":"../../etc","role":"","index":9223372036854775807,"state":"stopped","revision":0}`,
	}, func(c *scene, data []byte) bool {
		in, ok := checked[pod.Intent](data)
		if ok {
			c.intents = append(c.intents, in)
		}
		return ok
	}},
	"reality": {[]string{
		`{"rc_id":"web","role":"main","index":0,"node":"n1","digest":"x","state":"","revision":-1,"restarts":-1}`,
		`{"rc_id":"web","role":"main","index":0,"node":"n1","state":"new-word","revision":9223372036854775807,"restarts":2147483647,"last_exit":{"code":-1,"at":"9998-12-31T23:59:59-23:59"},"since":"9998-12-31T23:59:59+23:59","available":true,"hopeless":true}`,
		`{"rc_id":"web","role":"main","index":1,"node":"n2","state":"stopped","revision":9007199254740992}`,
	}, func(c *scene, data []byte) bool {
		r, ok := checked[pod.Reality](data)
		if ok {
			c.realities = append(c.realities, r)
		}
		return ok
	}},
	"heard": {[]string{`{"at":"9998-01-01T00:00:00Z","every_seconds":1e300}`, `{"every_seconds":-1,"untold":{"count":-1,"nodes":[{}]}}`}, func(_ *scene, data []byte) bool {
		h, ok := checked[store.Heard](data)
		return ok && (h.Silent(time.Now()) || true)
	}},
	"controller": {[]string{
		`{"id":"web","name":"web","manifest":"` + strings.Repeat("d", 64) + `","replica_groups":[{"role":"main","count":4000000}],"min_available":-1,"max_surge":9223372036854775807}`,
		`{"id":"web","name":"web","manifest":"","replica_groups":[{"role":"main","count":-1},{"role":"main","count":2}],"max_per_node":-1,"generation":-9223372036854775808}`,
	}, func(c *scene, data []byte) bool {
		r, ok := checked[rc.RC](data)
		if ok {
			r.ID = c.rc.ID
			c.rc = r
		}
		return ok
	}},
	"status": {[]string{`{"rc_id":"web","desired":-1,"available":9223372036854775807,"conditions":[{"type":"Converged"},{"type":"Converged"}],"incidents":[{}]}`}, func(c *scene, data []byte) bool {
		st, ok := checked[rc.Status](data)
		if ok {
			c.status = &st
		}
		return ok
	}},
	"rollout": {[]string{`{"service":"web","state":"moving"}`, `{"service":"web","state":"waiting","before":[{"role":"main"}],"target":{"max_surge":9223372036854775807}}`}, func(_ *scene, data []byte) bool {
		r, ok := checked[rollout.Record](data)
		if ok {
			rollout.Decide(r, rollout.Observed{Now: time.Unix(1_700_000_000, 0)})
			inspect.NewRolloutView(&r)
		}
		return ok
	}},
}

func (c *scene) addOrphans(name string, orphans []pod.Orphan) {
	for _, o := range orphans {
		if o.RCID == c.rc.ID && o.Revision <= pod.MaxReported { // see highestRevision in pkg/farm
			c.orphans = append(c.orphans, reconcile.Orphan{Node: name, Orphan: o})
		}
	}
}

// fuzz gives any value of a key of one kind to all its readers: none panics, and none writes a record that its own
// readers would refuse.
func fuzz(f *testing.F, kind string) {
	f.Helper()
	of := kinds[kind]
	for _, seed := range append(of.seeds, `{`, `null`, `[]`, `{}`, strings.Repeat(`[`, 99)) {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if c := newScene(); of.put(c, data) {
			c.read(t)
		}
	})
}

func FuzzNode(f *testing.F)        { fuzz(f, "node") }
func FuzzOps(f *testing.F)         { fuzz(f, "ops") }
func FuzzOrphans(f *testing.F)     { fuzz(f, "orphans") }
func FuzzReservation(f *testing.F) { fuzz(f, "reservation") }
func FuzzPlacement(f *testing.F)   { fuzz(f, "placement") }
func FuzzIntent(f *testing.F)      { fuzz(f, "intent") }
func FuzzReality(f *testing.F)     { fuzz(f, "reality") }
func FuzzHeard(f *testing.F)       { fuzz(f, "heard") }
func FuzzController(f *testing.F)  { fuzz(f, "controller") }
func FuzzStatus(f *testing.F)      { fuzz(f, "status") }
func FuzzRollout(f *testing.F)     { fuzz(f, "rollout") }

// Whatever nodes list and report, also at the limits of what is accepted and beyond, a plan writes only records that
// their readers accept.
func TestPlansAreReadable(t *testing.T) {
	t.Parallel()
	number := rapid.SampledFrom([]int64{
		math.MinInt64, -1, 0, 1, 7, 8, pod.MaxIndex, pod.MaxIndex + 1, pod.MaxReported, pod.MaxRevision, math.MaxInt64,
	})
	word := rapid.SampledFrom([]string{
		"", "web", "main", "p", "..", strings.Repeat("x", 64), sceneDigest, manifest.Digest(nil), "ready", "stopped",
	})
	moment := rapid.SampledFrom([]time.Time{
		{}, time.Unix(1_700_000_000, 0).UTC(), time.Unix(1<<40, 0).UTC(), time.Date(9998, 1, 1, 0, 0, 0, 0, time.UTC),
	})
	index := rapid.SampledFrom([]int{-1, 0, 1, 2, 3, pod.MaxIndex, pod.MaxIndex + 1, math.MaxInt})
	taken := 0
	rapid.Check(t, func(t *rapid.T) {
		c := newScene()
		for range rapid.IntRange(0, 4).Draw(t, "orphans") {
			o := pod.Orphan{
				Identity: pod.Identity{
					RCID: "web", Role: rapid.SampledFrom([]string{"main", "", "other", "a.b"}).Draw(t, "role"),
					Index: index.Draw(t, "index"),
				},
				PodID: word.Draw(t, "pod"), Digest: word.Draw(t, "digest"), Revision: number.Draw(t, "revision"),
				CPU: number.Draw(t, "cpu"), Memory: number.Draw(t, "memory"),
				Ports: map[string]int{word.Draw(t, "port"): index.Draw(t, "number")},
			}
			if rapid.Bool().Draw(t, "good") {
				o.PodID, o.Digest, o.CPU, o.Memory, o.Ports, o.Role = "p", sceneDigest, 0, 1, nil, "main"
			}
			fit, _ := node.FitOrphans([]pod.Orphan{o})
			c.addOrphans(rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(t, "node"), fit)
			taken += len(fit)
		}
		for i := range c.realities {
			r := pod.Reality{
				Identity: sceneID(i), Node: c.realities[i].Node, Digest: word.Draw(t, "reported"),
				Revision: number.Draw(t, "applied"), State: pod.State(word.Draw(t, "state")),
				Available: rapid.Bool().Draw(t, "available"), Since: moment.Draw(t, "since"),
				Restarts: index.Draw(t, "restarts"),
			}
			if r.Check() == nil {
				c.realities[i] = r
			}
		}
		c.read(t)
	})
	if taken == 0 {
		t.Error("no orphan was ever accepted")
	}
}

// A report that is too large fits after it is cut. A report within the limits is unchanged.
func TestReportsFit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.Just(strings.Repeat("\u00e4", pod.MaxMessage)))
		r := pod.Reality{
			Identity: sceneID(0), Node: "n1", Digest: text.Draw(t, "digest"),
			Revision: rapid.Int64().Draw(t, "revision"), State: pod.StateReady,
			Restarts: rapid.Int().Draw(t, "restarts"),
			Message:  text.Draw(t, "message"), LogTail: text.Draw(t, "tail"), LastExit: &pod.Exit{
				Launchable: text.Draw(t, "launchable"), Code: rapid.Int().Draw(t, "code"),
				Signal: text.Draw(t, "signal"), OutOfMemory: rapid.Bool().Draw(t, "starved"),
				MemoryLimit: rapid.Int64().Draw(t, "limit"),
			},
		}
		was, cut := r.Check(), r.Fit()
		if err := r.Check(); err != nil || (was == nil) != (len(cut) == 0) {
			t.Fatalf("cut %v: %v; before: %v", cut, err, was)
		}
		n := node.Node{
			Name: "n1", Version: text.Draw(t, "version"), WentBack: text.Draw(t, "regressed"),
			Labels: map[string]string{text.Draw(t, "key"): text.Draw(t, "value")},
		}
		n.Capacity = node.Capacity{
			Slots: rapid.Int().Draw(t, "slots"), CPU: rapid.Int64().Draw(t, "cpu"),
			Memory: rapid.Int64().Draw(t, "memory"),
		}
		n.PortsInUse, n.PortRange = rapid.SliceOf(rapid.IntRange(-2, 70000)).Draw(t, "ports"), node.PortRange{
			Min: rapid.Int().Draw(t, "min"), Max: rapid.Int().Draw(t, "max"),
		}
		was, cut = n.Check(), n.Fit()
		if err := n.Check(); err != nil || (was == nil) != (len(cut) == 0) {
			t.Fatalf("cut %v: %v; before: %v", cut, err, was)
		}
	})
}
