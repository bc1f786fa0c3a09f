package farm_test

import (
	"errors"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// force makes the drain of a node a forced drain. Its deadline comes after the given time.
func (c *cluster) force(name string, in time.Duration) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		rec, err := c.store.NodeOps.Get(c.t.Context(), store.Consistent, name)
		if err != nil {
			return err
		}
		deadline := time.Now().Add(in)
		rec.Value.Drain = &node.Drain{Since: rec.Value.Drain.Since, Deadline: &deadline, Force: true}
		return c.store.Operator.ChangeNode(c.t.Context(),
			store.NodeChange{Ops: rec.Value, Index: rec.Index, Audit: store.NewAudit("test", "drain", "", nil)})
	})
}

// empty waits until a node has no work left, as rcctl node drain --wait does.
func (c *cluster) empty(name string) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		left, bad, err := c.store.Intents.List(c.t.Context(), store.Default, name)
		if err = errors.Join(append(bad, err)...); err == nil && len(left) > 0 {
			err = errors.New("intents are left")
		}
		return err
	})
}

// The status shows what a drain waits for. At its deadline a forced drain stops the pods that their controller would
// keep.
func TestAForcedDrainStopsWhatIsLeft(t *testing.T) {
	t.Parallel()
	for reason, change := range map[string]func(*rc.RC){
		"static":        func(r *rc.RC) { r.Strategy = rc.Static },
		"rollout":       func(r *rc.RC) { r.Service = &rc.Service{Name: "web", Revision: 1} },
		"a minimum of ": func(r *rc.RC) { one, zero := 1, 0; r.MinAvailable, r.MaxSurge = &one, &zero },
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.node("n1", nil, nil)
			c.rolls("web")
			c.farm("f1")
			c.apply("web", testManifest("web", 0), change)
			c.converged("web", 1)
			c.node("n2", nil, nil)
			c.drain("n1", true)
			c.condition("web", rc.Blocked, true, reason)
			c.force("n1", time.Second)
			c.empty("n1")
			c.converged("web", 1)
			c.condition("web", rc.Blocked, false, "")
			for id, on := range c.running("web") {
				if len(on) != 1 || on[0] != "n2" {
					t.Errorf("%s runs on %v", id, on)
				}
			}
		})
	}
}

// If a pod of a lost machine was replaced, its new copy can be drained, although the former copy was not forgotten.
func TestADrainAfterALossIsNotDelayed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	rec := func(name string) string {
		var n store.Rec[node.Node]
		consultest.Eventually(t, soon,
			func() (err error) { n, err = c.store.Nodes.Get(t.Context(), store.Consistent, name); return err })
		return n.Value.ConsulNode
	}
	stop := c.node("n1", nil, nil)
	agent := rec("n1")
	faults := &faulty{}
	failed := map[string]bool{agent: true}
	faults.agents.Store(&failed)
	c.faultyFarm("f1", faults, nil)
	c.apply("web", testManifest("web", 0),
		func(r *rc.RC) { zero := 0; r.NodeLoss.After, r.MinAvailable = new(field.Duration), &zero })
	c.converged("web", 1)
	stop()
	c.condition("web", rc.NodeLost, true, "n1")
	c.node("n2", nil, nil)
	placedOn := func(name string) {
		t.Helper()
		consultest.Eventually(t, soon, func() error {
			found, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
			if err == nil && (len(found) != 1 || found[0].Value.Node != name || len(found[0].Value.Ghosts) != 1 ||
				found[0].Value.Ghosts[0].Node != "n1") {
				err = errors.New(string(mustJSON(t, found)))
			}
			return err
		})
	}
	placedOn("n2")
	c.node("n3", nil, nil)
	c.drain("n2", true)
	c.empty("n2")
	placedOn("n3")
	c.ask("web", store.ForgetPod, "n1", pod.Identity{RCID: "web", Role: "main"})
	c.converged("web", 1)
}

// While a controller is disabled, none of its pods is placed or removed, whatever happens to its nodes.
func TestADisabledControllerStaysAsItIs(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.farm("f1")
	c.apply("web", testManifest("web", 0), replicas(2))
	c.converged("web", 2)
	c.node("n2", nil, nil)
	c.apply("web", testManifest("web", 0), func(r *rc.RC) { replicas(1)(r); r.Disabled = true })
	c.drain("n1", true)
	c.force("n1", 0)
	c.condition("web", rc.Blocked, true, "disabled")
	if got := c.running("web"); len(got) != 2 {
		t.Errorf("%v run, want the two", got)
	}
	c.apply("web", testManifest("web", 0), func(r *rc.RC) { r.Disabled = false })
	c.empty("n1")
	c.converged("web", 1)
}
