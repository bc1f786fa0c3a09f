package farm_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// If a node comes back after its owner has read that it is dead, and before the owner writes, the pod there is not
// forgotten, because it runs.
func TestANodeThatReturnsIsNotForgotten(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	client, _ := c.connect()
	id := pod.Identity{RCID: "web", Role: "main", Index: 0}
	locked := func(want bool) error {
		_, got, err := c.store.NodeLock(context.Background(), "n1")
		if err == nil && got != want {
			err = fmt.Errorf("held: %t", got)
		}
		return err
	}
	var once sync.Once
	tried := make(chan struct{})
	c.faultyFarm("f1", &faulty{commit: func(b *store.Batch) error {
		for i := range b.Pods {
			if b.Pods[i].Placement == nil {
				once.Do(func() {
					c.node("n1", nil, nil)
					consultest.Eventually(t, soon, func() error { return locked(true) })
					close(tried)
				})
			}
		}
		return nil
	}}, nil)
	stop := c.node("n1", nil, nil)
	c.apply("web", testManifest("web", 8080), replicas(1))
	c.converged("web", 1)
	before, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
	if err != nil {
		t.Fatal(err)
	}
	stop()
	consultest.Eventually(t, soon, func() error { return locked(false) })
	c.ask("web", store.ForgetPod, "n1", id)
	<-tried
	consultest.Eventually(t, soon, func() error {
		asked, err := client.List(t.Context(), c.store.Keys().Requests.Below("web"), consul.Consistent)
		if err == nil && len(asked) > 0 {
			err = fmt.Errorf("requests %+v", asked)
		}
		if err == nil && len(c.running("web")) != 1 {
			err = errors.New("the node that is back does not run its pod yet")
		}
		return err
	})
	c.converged("web", 1)
	after, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
	if err != nil || len(after) != 1 || after[0].Value.Revision != before[0].Value.Revision {
		t.Errorf("P5: it was forgotten and placed again: %+v, %v", after, err)
	}
}

// A request to forget is about the death of the node that the operator saw. If the node has been back since, even for a
// short time, its pod runs and the request is void. The audit records and the status report this.
func TestAForgetIsAboutTheDeathThatTheOperatorSaw(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]func(c *cluster, stop func()){
		"was back":   func(_ *cluster, stop func()) { stop() },
		"is back":    func(*cluster, func()) {},
		"vanished":   func(c *cluster, stop func()) { stop(); c.remove(c.store.Keys().Nodes.Key("n1")) },
		"unreadable": func(c *cluster, stop func()) { stop(); c.put(c.store.Keys().Nodes.Key("n1"), []byte("{")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			stop := c.node("n1", nil, nil)
			stopFarm := c.farm("f1")
			c.apply("web", testManifest("web", 0), func(*rc.RC) {})
			c.converged("web", 1)
			before, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
			if err != nil {
				t.Fatal(err)
			}
			stopFarm()
			stop()
			c.lockedIs("n1", false)
			id := c.ask("web", store.ForgetPod, "n1", before[0].Value.Identity)
			stop = c.node("n1", nil, nil)
			c.lockedIs("n1", true)
			after(c, stop)
			c.farm("f2")
			c.condition("web", rc.RequestVoid, true, "request "+id+" to forget main.0 on n1 is void: ")
			if done, err := c.answered("web", id); !done || err != nil {
				t.Errorf("answered: %t, %v", done, err)
			}
			recs, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
			if err != nil || len(recs) != 1 || recs[0].Value.Revision != before[0].Value.Revision ||
				recs[0].Value.Node != "n1" {
				t.Errorf("P5: placements %s, %v", mustJSON(t, recs), err)
			}
			c.audited("web", "request "+id)
		})
	}
}

// If a node has no record, for example because it was lost, an operator can declare its pods gone. If the record
// appears again, the request is void.
func TestAForgetAboutANodeWithoutARecord(t *testing.T) {
	t.Parallel()
	for _, appears := range []bool{false, true} {
		t.Run(fmt.Sprint("appears ", appears), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			stop := c.node("n1", nil, nil)
			stopFarm := c.farm("f1")
			c.apply("web", testManifest("web", 0), func(*rc.RC) {})
			c.converged("web", 1)
			stopFarm()
			stop()
			c.lockedIs("n1", false)
			c.remove(c.store.Keys().Nodes.Key("n1"))
			id := c.ask("web", store.ForgetPod, "n1", pod.Identity{RCID: "web", Role: "main"})
			if appears {
				c.visit("n1")
			}
			c.farm("f2")
			consultest.Eventually(t, soon, func() error {
				done, err := c.answered("web", id)
				if err == nil && !done {
					err = errors.New("the request is not answered")
				}
				return err
			})
			recs, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
			if there := len(recs) == 1; err != nil || there != appears {
				t.Errorf("placements %s, %v", mustJSON(t, recs), err)
			}
		})
	}
}

// A request to forget a pod is not written if its node is back.
func TestAskingToForgetDependsOnTheNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.visit("n1")
	index, locked, err := c.store.NodeLock(t.Context(), "n1")
	if err != nil || locked || index == 0 {
		t.Fatal(index, locked, err)
	}
	c.visit("n1")
	for _, seen := range []uint64{index, 0} {
		r := store.Request{
			ID: store.NewID(), RCID: "web", Kind: store.ForgetPod, Node: "n1",
			Pod: pod.Identity{RCID: "web", Role: "main"}, NodeIndex: seen,
		}
		if err := c.store.Operator.Ask(t.Context(), r,
			store.NewAudit("operator", "forget", "web", nil)); !errors.Is(err, store.ErrConflict) {
			t.Errorf("asked about the record at %d: %v", seen, err)
		}
	}
}

// audited fails the test unless an audit record of a controller contains a text.
func (c *cluster) audited(id, text string) {
	c.t.Helper()
	audits, _, err := c.store.ListAudit(c.t.Context(), store.AuditFilter{RCID: id})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, a := range audits {
		for _, line := range a.Changes {
			if strings.Contains(line, text) {
				return
			}
		}
	}
	c.t.Errorf("no audit record has %q: %s", text, mustJSON(c.t, audits))
}

// visit makes a node hold its record, and release it again.
func (c *cluster) visit(name string) {
	c.t.Helper()
	stop := c.node(name, nil, nil)
	c.lockedIs(name, true)
	stop()
	c.lockedIs(name, false)
}

// remove removes a key.
func (c *cluster) remove(key string) {
	c.t.Helper()
	if _, err := c.client.Commit(c.t.Context(), []consul.Op{consul.Delete(key)}); err != nil {
		c.t.Fatal(err)
	}
}

// A machine with hundreds of pods is declared gone in several transactions. Each is conditional on the machine still
// being dead.
func TestAMachineWithHundredsOfPodsIsDeclaredGone(t *testing.T) {
	t.Parallel()
	const pods, controllers = 300, 40
	c := newCluster(t)
	c.visit("n1")
	index, _, err := c.store.NodeLock(t.Context(), "n1")
	if err != nil {
		t.Fatal(err)
	}
	asked := func(index uint64) (audits int, err error) {
		requests := make([]store.Request, pods)
		for i := range requests {
			id := pod.Identity{RCID: fmt.Sprintf("rc%d", i%controllers), Role: "main", Index: i}
			requests[i] = store.Request{
				ID: store.NewID(), RCID: id.RCID, Kind: store.ForgetPod, Node: "n1", Pod: id,
				NodeIndex: index, By: "operator",
			}
		}
		_, err = c.store.Operator.AskForget(t.Context(), "n1", requests, func(_ []store.Request) store.Audit {
			audits++
			return store.NewAudit("operator", "forget-node", "", nil).OnNodes("n1")
		})
		return audits, err
	}
	count := func() (requests int) {
		for i := range controllers {
			keys, err := c.client.Keys(t.Context(), c.store.Keys().Requests.Below(fmt.Sprintf("rc%d", i)))
			if err != nil {
				t.Fatal(err)
			}
			requests += len(keys)
		}
		return requests
	}
	if _, err := asked(index - 1); !errors.Is(err, store.ErrConflict) || count() != 0 {
		t.Errorf("about another death: %v, %d requests", err, count())
	}
	audits, err := asked(index)
	if err != nil || count() != pods {
		t.Errorf("%v, %d requests", err, count())
	}
	if found, _, err := c.store.ListAudit(t.Context(), store.AuditFilter{Node: "n1"}); err != nil ||
		len(found) != audits || audits < 2 {
		t.Errorf("%d audit records of %d, %v", len(found), audits, err)
	}
}
