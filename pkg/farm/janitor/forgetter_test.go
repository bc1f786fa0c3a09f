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

// cluster has four nodes, n1 to n4. n4 is gone: no preparer holds its lock.
type cluster struct {
	t       *testing.T
	client  *consul.Client
	st      *store.Store
	views   map[string]*node.View
	records janitor.ForgetStore
	synced  bool
	unread  bool // the farm has not read all nodes yet
	now     time.Time
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	client, st := setup(t)
	c := &cluster{
		t: t, client: client, st: st, records: leader(client, st),
		synced: true, now: time.Now().UTC().Truncate(time.Millisecond),
	}
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		c.set(st.Keys().Nodes.Key(name), node.Node{Name: name, ConsulNode: "agent-of-" + name})
	}
	c.see("n4")
	return c
}

func (c *cluster) set(key string, record any) {
	c.t.Helper()
	value, err := json.Marshal(record)
	if err != nil {
		c.t.Fatal(err)
	}
	put(c.t, c.client, key, string(value))
}

// see reads the nodes as a farm does. Some of them are dead.
func (c *cluster) see(dead ...string) {
	c.t.Helper()
	recs, _, err := c.st.Nodes.List(c.t.Context(), store.Consistent)
	if err != nil {
		c.t.Fatal(err)
	}
	c.views = map[string]*node.View{}
	for _, rec := range recs {
		v := node.NewView(rec.Value, node.Ops{}, !slices.Contains(dead, rec.Value.Name))
		if !v.Alive {
			v.FreeIndex = rec.Index
		}
		c.views[rec.Value.Name] = v
	}
}

func (c *cluster) ready() error {
	if c.unread {
		return errors.New("not read yet")
	}
	return nil
}

// look lets a new leader look at intervals for the given time. Nodes must be gone for an hour.
func (c *cluster) look(long time.Duration) {
	c.t.Helper()
	if err := c.tryLook(long); err != nil {
		c.t.Fatal(err)
	}
}

// tryLook is look, but it ends with the first error and returns it.
func (c *cluster) tryLook(long time.Duration) error {
	f := c.elected()
	for {
		err := f.Look(c.t.Context(), c.now)
		step := min(long, janitor.ForgetEvery(time.Hour))
		if err != nil || step == 0 {
			return err
		}
		c.now, long = c.now.Add(step), long-step
	}
}

// elected returns the forgetter of a new leader.
func (c *cluster) elected() *janitor.Forgetter {
	return janitor.NewForgetter(janitor.ForgetConfig{
		Farm: "f", Store: c.records, After: time.Hour, Ready: c.ready,
		Log: quiet(c.t), Metrics: janitor.NewMetrics(prometheus.NewRegistry()),
		Nodes: func() (map[string]*node.View, string, bool) { return c.views, "", c.synced },
	})
}

// there reports whether a key with the given text exists.
func (c *cluster) there(text string) bool {
	c.t.Helper()
	keys, err := c.client.Keys(c.t.Context(), c.st.Keys().Prefix())
	if err != nil {
		c.t.Fatal(err)
	}
	return slices.ContainsFunc(keys, func(key string) bool { return strings.Contains(key, text) })
}

func (c *cluster) wants(n4 bool, when string) {
	c.t.Helper()
	if got := c.there(c.st.Keys().Nodes.Key("n4")); got != n4 {
		c.t.Errorf("%s: the record of n4 exists: %t", when, got)
	}
}

// The time of several looks in short succession is added up before it is written.
func TestTheTimeOfAGoneNodeIsWrittenEveryTenSeconds(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	f := janitor.NewForgetter(janitor.ForgetConfig{
		Farm: "f", Store: c.records, After: time.Minute, Ready: c.ready,
		Log: quiet(c.t), Metrics: janitor.NewMetrics(prometheus.NewRegistry()),
		Nodes: func() (map[string]*node.View, string, bool) { return c.views, "", c.synced },
	})
	writes, last := 0, uint64(0)
	look := func() {
		t.Helper()
		if err := f.Look(t.Context(), c.now); err != nil {
			t.Fatal(err)
		}
		rec, err := leader(c.client, c.st).ReadGone(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if rec.Index != last {
			writes, last = writes+1, rec.Index
		}
	}
	look()
	for range 8 { // the leader looks every six seconds
		c.now = c.now.Add(6 * time.Second)
		look()
	}
	if writes != 5 { // in the first look, and then in every second look
		t.Errorf("%d writes in nine looks", writes)
	}
	c.wants(true, "before its time")
	for range 2 {
		c.now = c.now.Add(6 * time.Second)
		look()
	}
	c.wants(false, "after a minute")
}

// A node that has been gone for long enough is removed with all its records, except the operators' record.
func TestANodeGoneForLongIsForgotten(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	k := c.st.Keys()
	c.set(k.NodeOps.Key("n4"), node.Ops{Name: "n4", Unschedulable: true})
	c.set(k.Reservations.Key("n4"), node.Reservation{})
	c.set(k.Realities.Key("n4", "web/main.0"), pod.Reality{
		Identity: pod.Identity{RCID: "web", Role: "main"}, Node: "n4", State: pod.StateStopped,
	})
	put(t, c.client, k.Intents.Below("n4"), "")
	c.look(0)
	c.look(59 * time.Minute)
	c.wants(true, "before its time")
	c.look(time.Minute)
	c.wants(false, "after an hour")
	for _, key := range []string{k.Reservations.Key("n4"), k.Realities.Below("n4"), k.Intents.Below("n4")} {
		if c.there(key) {
			t.Errorf("%s is left", key)
		}
	}
	if !c.there(k.NodeOps.Key("n4")) || !c.there(k.Nodes.Key("n3")) {
		t.Error("the operators' record of n4 or the record of n3 was removed")
	}
	audit, _, err := c.st.ListAudit(t.Context(), store.AuditFilter{Node: "n4"})
	if err != nil || len(audit) != 1 || audit[0].What != "forget-node" || audit[0].Who != "f" {
		t.Errorf("%+v, %v", audit, err)
	}
	c.see()
	c.look(0)
	if c.there(k.Gone.Key()) {
		t.Error("n4 is still noted as gone")
	}
}

func TestANodeWithRecordsOfPodsIsKept(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	k := c.st.Keys()
	id := pod.Identity{RCID: "web", Role: "main"}
	c.synced = false
	c.look(2 * time.Hour)
	c.synced = true
	for name, keep := range map[string]struct {
		key    string
		record any
	}{
		"placement": {k.Pods.Key(id.String()), pod.Placement{Identity: id, Node: "n4", RunState: pod.Running}},
		"ghost": {k.Pods.Key(id.String()), pod.Placement{
			Identity: id, Node: "n1", RunState: pod.Running, Ghosts: []pod.Ghost{{Node: "n4"}},
		}},
		"claim": {k.Reservations.Key("n4"), node.Reservation{
			Claims: map[string]node.Claim{id.String(): {Pod: id}},
		}},
		"intent":  {k.Intents.Key("n4", id.String()), pod.Intent{Identity: id, State: pod.Running}},
		"report":  {k.Realities.Key("n4", id.String()), pod.Reality{Identity: id, Node: "n4", State: pod.StateReady}},
		"garbage": {k.Pods.Key("x/main.0"), "garbage"},
	} {
		c.set(keep.key, keep.record)
		c.look(0)
		c.wants(true, name)
		if _, err := c.client.Commit(t.Context(), []consul.Op{consul.Delete(keep.key)}); err != nil {
			t.Fatal(err)
		}
	}
	c.synced = false
	c.look(0)
	c.wants(true, "not all nodes have spoken")
	c.synced = true
	c.see("n3", "n4")
	c.look(0)
	c.wants(true, "half of the nodes are gone")
	c.see("n4")
	c.look(0)
	c.wants(false, "nothing keeps it")
}

// A node whose agent lives is kept. Other nodes are removed, one at a time.
func TestALivingAgentKeepsItsNodeOnly(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	agent, err := c.client.AgentNode(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	k := c.st.Keys()
	c.set(k.Nodes.Key("n4"), node.Node{Name: "n4", ConsulNode: agent})
	for _, name := range []string{"n5", "n6", "n7", "n8"} {
		c.set(k.Nodes.Key(name), node.Node{Name: name, ConsulNode: "agent-of-" + name})
	}
	c.see("n4", "n5", "n6")
	c.look(0)
	for _, want := range []string{"n6", "n7"} { // still there
		c.look(time.Hour)
		c.wants(true, "its agent lives")
		if !c.there(k.Nodes.Key(want)) {
			t.Errorf("%s is gone", want)
		}
		c.see("n4", "n6")
	}
	if c.there(k.Nodes.Key("n5")) || c.there(k.Nodes.Key("n6")) {
		t.Error("n5 and n6 should be gone")
	}
}

// meanwhile calls what between the look and the removal.
type meanwhile struct {
	janitor.ForgetStore
	what func()
}

func (m meanwhile) RemoveNode(ctx context.Context, r store.NodeRemoval) error {
	m.what()
	return m.ForgetStore.RemoveNode(ctx, r)
}

// A node that comes back in the last moment is kept. A node on which a pod is placed in the last moment is kept, too.
func TestANodeThatComesBackIsKept(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]func(c *cluster){
		"the node": func(c *cluster) {
			c.set(c.st.Keys().Nodes.Key("n4"), node.Node{Name: "n4", ConsulNode: "agent-of-n4", Incarnation: "next"})
		},
		"a pod": func(c *cluster) {
			c.set(c.st.Keys().Reservations.Key("n4"), node.Reservation{Claims: map[string]node.Claim{"web/main.0": {}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.look(0)
			happened := 0
			c.records = meanwhile{c.records, func() { happened++; what(c) }}
			c.look(time.Hour)
			c.wants(true, name)
			if happened != 1 {
				t.Errorf("%d removals were tried, want one", happened)
			}
		})
	}
}

// A leader that has not read all nodes writes nothing, so that the record of gone nodes outlives its session.
func TestNothingIsNotedBeforeNodesAreRead(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.look(0)
	noted, err := c.st.Gone.Get(t.Context(), store.Consistent)
	if err != nil || len(noted.Value.Nodes) != 1 {
		t.Fatalf("%+v, %v", noted, err)
	}
	seen := c.views
	c.views, c.unread = nil, true
	c.look(30 * time.Minute)
	if after, err := c.st.Gone.Get(t.Context(), store.Consistent); err != nil || after.Index != noted.Index {
		t.Errorf("%+v, %v; want it unchanged, %+v", after, err, noted)
	}
	c.views, c.unread = seen, false
	c.look(30 * time.Minute)
	c.wants(true, "no leader could look for half of the time")
	c.look(time.Hour)
	c.wants(false, "after an hour")
}

// denied is a store whose token may not remove nodes.
type denied struct {
	janitor.ForgetStore
	err error
}

func (d denied) RemoveNode(context.Context, store.NodeRemoval) error { return d.err }

// Look returns an error if the token may not remove nodes.
func TestADeniedRemovalIsAnError(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.look(0)
	refused := &consul.RefusedError{Failures: []consul.Failure{{What: "Permission denied: token lacks permission"}}}
	c.records = denied{c.records, refused}
	if err := c.tryLook(time.Hour); !store.Denied(err) {
		t.Errorf("%v", err)
	}
}

// A leader that has lost its fence removes nothing.
func TestADeposedLeaderForgetsNoNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.look(0)
	errFence := errors.New("not the leader")
	c.records = c.st.Leader("f", func(context.Context, []consul.Op) (map[string]uint64, error) { return nil, errFence })
	if err := c.tryLook(time.Hour); !errors.Is(err, errFence) {
		t.Errorf("%v", err)
	}
	c.wants(true, "without a fence")
}

// A node is forgotten after leaders have seen it gone for an hour, although a leader's clock jumps and the next
// leader's clock differs.
func TestALeadersClockForgetsNoNodeTooSoon(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	step := janitor.ForgetEvery(time.Hour)
	leader := c.elected()
	looks := func(f *janitor.Forgetter, after ...time.Duration) {
		t.Helper()
		for _, d := range after {
			c.now = c.now.Add(d)
			if err := f.Look(t.Context(), c.now); err != nil {
				t.Fatal(err)
			}
		}
	}
	looks(leader, 0, step, 1000*time.Hour, step, -3000*time.Hour, step) // counts 1, 2, 1, 0 and 1 steps
	c.wants(true, "after a leader's clock jumped")
	looks(c.elected(), 9000*time.Hour, step, step) // 0, 1 and 1
	looks(c.elected(), -9000*time.Hour, step)      // 0 and 1
	c.wants(true, "after other leaders")
	noted, err := c.st.Gone.Get(t.Context(), store.Consistent)
	if seen := noted.Value.Nodes["n4"].Seen(); err != nil || seen != 8*step {
		t.Fatalf("seen gone for %s, want %s: %v", seen, 8*step, err)
	}
	looks(c.elected(), 0, step, step)
	c.wants(false, "after an hour in steps")
}
