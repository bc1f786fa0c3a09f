package janitor_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/farm/janitor"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// graveyard is a cluster of four nodes, n1 to n4, of which n4 is gone: nobody holds its record.
type graveyard struct {
	t      *testing.T
	client *consul.Client
	st     *store.Store
	views  map[string]*node.View
	graves janitor.Graves
	synced bool
	unseen bool // the farm has not seen the whole cluster yet
	now    time.Time
}

func bury(t *testing.T) *graveyard {
	t.Helper()
	client, st := setup(t)
	g := &graveyard{t: t, client: client, st: st, graves: leader(client, st), synced: true, now: time.Now().UTC().Truncate(time.Millisecond)}
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		g.set(st.Keys().Nodes.Key(name), node.Node{Name: name, ConsulNode: "agent-of-" + name})
	}
	g.see("n4")
	return g
}

func (g *graveyard) set(key string, record any) {
	g.t.Helper()
	value, err := json.Marshal(record)
	if err != nil {
		g.t.Fatal(err)
	}
	put(g.t, g.client, key, string(value))
}

// see reads the nodes as a farm sees them, some of them dead.
func (g *graveyard) see(dead ...string) {
	g.t.Helper()
	recs, _, err := g.st.Nodes.List(g.t.Context(), store.Consistent)
	if err != nil {
		g.t.Fatal(err)
	}
	g.views = map[string]*node.View{}
	for _, rec := range recs {
		v := node.NewView(rec.Value, node.Ops{}, !slices.Contains(dead, rec.Value.Name))
		if !v.Alive {
			v.FreeIndex = rec.Index
		}
		g.views[rec.Value.Name] = v
	}
}

func (g *graveyard) ready() error {
	if g.unseen {
		return errors.New("not seen yet")
	}
	return nil
}

// look has a leader that was just elected look now and then, for so long; nodes must be gone for an hour.
func (g *graveyard) look(long time.Duration) {
	g.t.Helper()
	if err := g.tryLook(long); err != nil {
		g.t.Fatal(err)
	}
}

// tryLook is look that ends with the first error.
func (g *graveyard) tryLook(long time.Duration) error {
	f := g.elected()
	for {
		err := f.Look(g.t.Context(), g.now)
		step := min(long, janitor.ForgetEvery(time.Hour))
		if err != nil || step == 0 {
			return err
		}
		g.now, long = g.now.Add(step), long-step
	}
}

// elected is a leader that has not looked yet.
func (g *graveyard) elected() *janitor.Forgetter {
	return janitor.NewForgetter(janitor.ForgetConfig{
		Farm: "f", Graves: g.graves, After: time.Hour, Log: quiet(g.t), Metrics: janitor.NewMetrics(prometheus.NewRegistry()),
		Nodes: func() (map[string]*node.View, string, bool) { return g.views, "", g.synced }, Ready: g.ready,
	})
}

// there reports whether keys that contain a text exist.
func (g *graveyard) there(text string) bool {
	g.t.Helper()
	keys, err := g.client.Keys(g.t.Context(), g.st.Keys().Prefix())
	if err != nil {
		g.t.Fatal(err)
	}
	return slices.ContainsFunc(keys, func(key string) bool { return strings.Contains(key, text) })
}

func (g *graveyard) wants(n4 bool, when string) {
	g.t.Helper()
	if got := g.there(g.st.Keys().Nodes.Key("n4")); got != n4 {
		g.t.Errorf("%s: the record is there: %t", when, got)
	}
}

// Looks that follow each other quickly add up before anything is written.
func TestTheTimeOfAGoneNodeIsWrittenNowAndThen(t *testing.T) {
	t.Parallel()
	g := bury(t)
	f := janitor.NewForgetter(janitor.ForgetConfig{
		Farm: "f", Graves: g.graves, After: time.Minute, Log: quiet(g.t), Metrics: janitor.NewMetrics(prometheus.NewRegistry()),
		Nodes: func() (map[string]*node.View, string, bool) { return g.views, "", g.synced }, Ready: g.ready,
	})
	writes, last := 0, uint64(0)
	look := func() {
		t.Helper()
		if err := f.Look(t.Context(), g.now); err != nil {
			t.Fatal(err)
		}
		rec, err := leader(g.client, g.st).ReadGone(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if rec.Index != last {
			writes, last = writes+1, rec.Index
		}
	}
	look()
	for range 8 { // looks come every six seconds
		g.now = g.now.Add(6 * time.Second)
		look()
	}
	if writes != 5 { // the death, and then at every second look
		t.Errorf("%d writes in nine looks", writes)
	}
	g.wants(true, "before its time")
	for range 2 {
		g.now = g.now.Add(6 * time.Second)
		look()
	}
	g.wants(false, "after a minute")
}

// A node that has been gone for long enough goes with all that is left of it, but what operators said of it.
func TestANodeIsForgotten(t *testing.T) {
	t.Parallel()
	g := bury(t)
	k := g.st.Keys()
	g.set(k.NodeOps.Key("n4"), node.Ops{Name: "n4", Unschedulable: true})
	g.set(k.Reservations.Key("n4"), node.Reservation{})
	g.set(k.Realities.Key("n4", "web/main.0"), pod.Reality{Identity: pod.Identity{RCID: "web", Role: "main"}, Node: "n4", State: pod.StateStopped})
	put(t, g.client, k.Intents.Below("n4"), "")
	g.look(0)
	g.look(59 * time.Minute)
	g.wants(true, "before its time")
	g.look(time.Minute)
	g.wants(false, "after an hour")
	for _, key := range []string{k.Reservations.Key("n4"), k.Realities.Below("n4"), k.Intents.Below("n4")} {
		if g.there(key) {
			t.Errorf("%s is left", key)
		}
	}
	if !g.there(k.NodeOps.Key("n4")) || !g.there(k.Nodes.Key("n3")) {
		t.Error("too much is gone")
	}
	audit, _, err := g.st.ListAudit(t.Context(), store.AuditFilter{Node: "n4"})
	if err != nil || len(audit) != 1 || audit[0].What != "forget-node" || audit[0].Who != "f" {
		t.Errorf("%+v, %v", audit, err)
	}
	g.see()
	g.look(0)
	if g.there(k.Gone.Key()) {
		t.Error("it is still noted")
	}
}

func TestWhatIsLeftKeepsANode(t *testing.T) {
	t.Parallel()
	g := bury(t)
	k := g.st.Keys()
	id := pod.Identity{RCID: "web", Role: "main"}
	g.synced = false
	g.look(2 * time.Hour)
	g.synced = true
	for name, keep := range map[string]struct {
		key    string
		record any
	}{
		"placement": {k.Pods.Key(id.String()), pod.Placement{Identity: id, Node: "n4", RunState: pod.Running}},
		"ghost":     {k.Pods.Key(id.String()), pod.Placement{Identity: id, Node: "n1", RunState: pod.Running, Ghosts: []pod.Ghost{{Node: "n4"}}}},
		"claim":     {k.Reservations.Key("n4"), node.Reservation{Claims: map[string]node.Claim{id.String(): {Pod: id}}}},
		"intent":    {k.Intents.Key("n4", id.String()), pod.Intent{Identity: id, State: pod.Running}},
		"report":    {k.Realities.Key("n4", id.String()), pod.Reality{Identity: id, Node: "n4", State: pod.StateReady}},
		"garbage":   {k.Pods.Key("x/main.0"), "garbage"},
	} {
		g.set(keep.key, keep.record)
		g.look(0)
		g.wants(true, name)
		if _, err := g.client.Commit(t.Context(), []consul.Op{consul.Delete(keep.key)}); err != nil {
			t.Fatal(err)
		}
	}
	g.synced = false
	g.look(0)
	g.wants(true, "not heard of all")
	g.synced = true
	g.see("n3", "n4")
	g.look(0)
	g.wants(true, "half are gone")
	g.see("n4")
	g.look(0)
	g.wants(false, "nothing is left")
}

// The agent that lives keeps its node, and not others: they go one at a time.
func TestAgentsAndPace(t *testing.T) {
	t.Parallel()
	g := bury(t)
	agent, err := g.client.AgentNode(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	k := g.st.Keys()
	g.set(k.Nodes.Key("n4"), node.Node{Name: "n4", ConsulNode: agent})
	for _, name := range []string{"n5", "n6", "n7", "n8"} {
		g.set(k.Nodes.Key(name), node.Node{Name: name, ConsulNode: "agent-of-" + name})
	}
	g.see("n4", "n5", "n6")
	g.look(0)
	for _, want := range []string{"n6", "n7"} { // what is still there
		g.look(time.Hour)
		g.wants(true, "its agent lives")
		if !g.there(k.Nodes.Key(want)) {
			t.Errorf("%s is gone", want)
		}
		g.see("n4", "n6")
	}
	if g.there(k.Nodes.Key("n5")) || g.there(k.Nodes.Key("n6")) {
		t.Error("n5 and n6 should be gone")
	}
}

// meanwhile lets something happen between the look and the removal.
type meanwhile struct {
	janitor.Graves
	what func()
}

func (m meanwhile) RemoveNode(ctx context.Context, r store.NodeRemoval) error {
	m.what()
	return m.Graves.RemoveNode(ctx, r)
}

// A node that comes back in the last moment stays, and so does one where a pod is placed.
func TestWhoComesBackWins(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]func(g *graveyard){
		"the node": func(g *graveyard) {
			g.set(g.st.Keys().Nodes.Key("n4"), node.Node{Name: "n4", ConsulNode: "agent-of-n4", Incarnation: "next"})
		},
		"a pod": func(g *graveyard) {
			g.set(g.st.Keys().Reservations.Key("n4"), node.Reservation{Claims: map[string]node.Claim{"web/main.0": {}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := bury(t)
			g.look(0)
			happened := 0
			g.graves = meanwhile{g.graves, func() { happened++; what(g) }}
			g.look(time.Hour)
			g.wants(true, name)
			if happened != 1 {
				t.Errorf("%d removals were tried", happened)
			}
		})
	}
}

// A leader that has yet to see its nodes notes nothing: since when nodes are gone outlives sessions.
func TestNothingIsNotedBeforeNodesAreSeen(t *testing.T) {
	t.Parallel()
	g := bury(t)
	g.look(0)
	noted, err := g.st.Gone.Get(t.Context(), store.Consistent)
	if err != nil || len(noted.Value.Nodes) != 1 {
		t.Fatalf("%+v, %v", noted, err)
	}
	seen := g.views
	g.views, g.unseen = nil, true
	g.look(30 * time.Minute)
	if after, err := g.st.Gone.Get(t.Context(), store.Consistent); err != nil || after.Index != noted.Index {
		t.Errorf("%+v, %v; want it as it was, %+v", after, err, noted)
	}
	g.views, g.unseen = seen, false
	g.look(30 * time.Minute)
	g.wants(true, "nobody has looked for half of the time")
	g.look(time.Hour)
	g.wants(false, "after an hour")
}

// denied has a token that may not remove nodes.
type denied struct {
	janitor.Graves
	err error
}

func (d denied) RemoveNode(context.Context, store.NodeRemoval) error { return d.err }

// What the token may not do is said, whoever else is to go first.
func TestADeniedRemovalIsTold(t *testing.T) {
	t.Parallel()
	g := bury(t)
	g.look(0)
	refused := &consul.RefusedError{Failures: []consul.Failure{{What: "Permission denied: token lacks permission"}}}
	g.graves = denied{g.graves, refused}
	if err := g.tryLook(time.Hour); !store.Denied(err) {
		t.Errorf("%v", err)
	}
}

// A leader that has lost its fence forgets nobody.
func TestADeposedLeaderForgetsNobody(t *testing.T) {
	t.Parallel()
	g := bury(t)
	g.look(0)
	errFence := errors.New("not the leader")
	g.graves = g.st.Leader("f", func(context.Context, []consul.Op) (map[string]uint64, error) { return nil, errFence })
	if err := g.tryLook(time.Hour); !errors.Is(err, errFence) {
		t.Errorf("%v", err)
	}
	g.wants(true, "without a fence")
}

// However a leader's clock jumps, and whatever the clock of the next one says, a node goes after leaders have seen it gone for an hour.
func TestClocksOfLeadersForgetNobody(t *testing.T) {
	t.Parallel()
	g := bury(t)
	step := janitor.ForgetEvery(time.Hour)
	leader := g.elected()
	looks := func(f *janitor.Forgetter, after ...time.Duration) {
		t.Helper()
		for _, d := range after {
			g.now = g.now.Add(d)
			if err := f.Look(t.Context(), g.now); err != nil {
				t.Fatal(err)
			}
		}
	}
	looks(leader, 0, step, 1000*time.Hour, step, -3000*time.Hour, step) // counts 1, 2, 1, 0 and 1 steps
	g.wants(true, "after jumps of a leader's clock")
	looks(g.elected(), 9000*time.Hour, step, step) // 0, 1 and 1
	looks(g.elected(), -9000*time.Hour, step)      // 0 and 1
	g.wants(true, "after other leaders")
	noted, err := g.st.Gone.Get(t.Context(), store.Consistent)
	if seen := noted.Value.Nodes["n4"].Seen(); err != nil || seen != 8*step {
		t.Fatalf("seen gone for %s, want %s: %v", seen, 8*step, err)
	}
	looks(g.elected(), 0, step, step)
	g.wants(false, "after an hour in steps")
}
