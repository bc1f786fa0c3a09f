package farm_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// agentOf waits for a node's record and returns the name of its Consul agent.
func (c *cluster) agentOf(name string) string {
	c.t.Helper()
	var agent string
	consultest.Eventually(c.t, soon, func() error {
		rec, err := c.store.Nodes.Get(c.t.Context(), store.Consistent, name)
		agent = rec.Value.ConsulNode
		return err
	})
	return agent
}

// lockedIs waits until a node's record is held, or free.
func (c *cluster) lockedIs(name string, want bool) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		_, locked, err := c.store.NodeLock(c.t.Context(), name)
		if err == nil && locked != want {
			err = fmt.Errorf("node %s is held: %t", name, locked)
		}
		return err
	})
}

// runsAgain waits until a controller with one pod has converged and its node, which has just come back, runs the pod.
func (c *cluster) runsAgain(id string) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		st, err := c.store.Statuses.Get(c.t.Context(), store.Default, id)
		if got := c.running(id); err == nil && (!st.Value.Is(rc.Converged) || st.Value.Lost+st.Value.Unmanaged > 0 ||
			len(got) != 1) {
			err = fmt.Errorf("%v run, status %s", got, mustJSON(c.t, st.Value))
		}
		return err
	})
}

// neverLost fails the test if any pass ever wrote that a controller's pod was on a lost machine.
func (c *cluster) neverLost(id string) {
	c.t.Helper()
	audits, corrupt, err := c.store.ListAudit(c.t.Context(), store.AuditFilter{RCID: id})
	if err != nil || len(corrupt) > 0 {
		c.t.Fatal(err, corrupt)
	}
	for _, a := range audits {
		for _, line := range a.Changes {
			if strings.Contains(line, "its node is gone") || strings.Contains(line, "is lost") {
				c.t.Errorf("a living machine was taken for lost: %s", line)
			}
		}
	}
}

// unmanaged waits until the farm has seen that a node has lost its preparer. It fails the test if the farm takes the
// machine for lost.
func (c *cluster) unmanaged(id string) {
	c.t.Helper()
	c.statusOf(id, func(st *rc.Status) bool {
		if st.Lost > 0 {
			c.t.Fatalf("the machine is taken for lost: %s", mustJSON(c.t, st))
		}
		return st.Unmanaged == 1
	})
}

// answers are the answers that a farm gets to its questions about failed agents. They can be kept back; then a question
// waits.
type answers struct {
	mu     sync.Mutex
	failed map[string]bool
	gate   chan struct{} // nil: not kept back
	asked  int           // questions since answers are kept back
}

func (a *answers) set(agents ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = map[string]bool{}
	for _, name := range agents {
		a.failed[name] = true
	}
}

// keepBack makes questions wait until the returned function is called.
func (a *answers) keepBack() (release func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	gate := make(chan struct{})
	a.gate, a.asked = gate, 0
	return sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.gate == gate {
			a.gate = nil
		}
		close(gate)
	})
}

// answer returns what was true when the question was asked, even if it returns late.
func (a *answers) answer() map[string]bool {
	a.mu.Lock()
	failed, gate := a.failed, a.gate
	a.asked++
	a.mu.Unlock()
	if gate != nil {
		<-gate
	}
	return failed
}

func (a *answers) wasAsked(times int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.asked < times {
		return fmt.Errorf("asked %d times", a.asked)
	}
	return nil
}

// lookedAt changes a controller in a way that matters to none of its pods, and waits until its owner has looked at it
// after that.
func (c *cluster) lookedAt(id string) {
	c.t.Helper()
	c.apply(id, testManifest("web", 0), func(*rc.RC) {})
	rec, err := c.store.RCs.Get(c.t.Context(), store.Consistent, id)
	if err != nil {
		c.t.Fatal(err)
	}
	c.statusOf(id, func(st *rc.Status) bool { return st.ObservedGeneration == rec.Value.Generation })
}

// A machine that restarted between two questions about failed agents is not lost because of that. If its preparer
// restarts days later, the farm must ask Consul again.
func TestARestartedMachineIsNotLostByAnOldAnswer(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	agents := &answers{}
	stop := c.node("n1", nil, nil)
	agent := c.agentOf("n1")
	c.faultyFarm("f1", &faulty{answers: agents}, nil)
	c.apply("web", testManifest("web", 0), func(*rc.RC) {})
	c.converged("web", 1)

	agents.set(agent)
	stop()
	c.statusOf("web", func(st *rc.Status) bool { return st.Lost == 1 })
	stop = c.node("n1", nil, nil)
	c.runsAgain("web")

	agents.set()
	release := agents.keepBack()
	defer release()
	stop()
	c.lockedIs("n1", false)
	c.unmanaged("web") // while the question is not answered yet
	consultest.Eventually(t, soon, func() error { return agents.wasAsked(1) })
	release()
	consultest.Eventually(t, soon, func() error { return agents.wasAsked(2) })
	c.lookedAt("web")
	c.unmanaged("web")
}

// An answer is about the death before the question. A machine that came back while the answer was on its way, and whose
// preparer alone has stopped since, is not lost.
func TestAnAnswerIsAboutOneDeath(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	agents := &answers{}
	stop := c.node("n1", nil, nil)
	agent := c.agentOf("n1")
	c.faultyFarm("f1", &faulty{answers: agents}, nil)
	c.apply("web", testManifest("web", 0), func(*rc.RC) {})
	c.converged("web", 1)

	agents.set(agent)
	release := agents.keepBack()
	defer release()
	stop()
	consultest.Eventually(t, soon, func() error { return agents.wasAsked(1) })
	c.unmanaged("web") // so that the next check does not see an older status
	stop = c.node("n1", nil, nil)
	c.lockedIs("n1", true)
	c.runsAgain("web")
	stop()
	c.unmanaged("web") // the farm has seen the second death
	agents.set()
	releaseSecond := agents.keepBack()
	defer releaseSecond()
	release()
	consultest.Eventually(t, soon, func() error { return agents.wasAsked(1) }) // the farm has got the first answer
	c.lookedAt("web")
	c.neverLost("web")
}

// If a machine is back, the farm's writes about its loss do not land: neither lost_since nor the replacement.
func TestALossIsNotWrittenAboutANodeThatReturned(t *testing.T) {
	t.Parallel()
	for name, loss := range map[string]rc.NodeLoss{"mark": {}, "replacement": {After: new(field.Duration)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			agents := &answers{}
			stop := c.node("n1", nil, nil)
			agent := c.agentOf("n1")
			var once sync.Once
			returned := make(chan struct{})
			c.faultyFarm("f1", &faulty{answers: agents, commit: func(b *store.Batch) error {
				for i := range b.Pods {
					if p := b.Pods[i].Placement; p != nil && (p.LostSince != nil || p.Node == "n2") {
						once.Do(func() {
							c.node("n1", nil, nil)
							c.lockedIs("n1", true)
							close(returned)
						})
					}
				}
				return nil
			}}, nil)
			c.apply("web", testManifest("web", 0), func(r *rc.RC) { r.NodeLoss = loss })
			c.converged("web", 1)
			c.node("n2", nil, nil)
			c.lockedIs("n2", true)
			agents.set(agent)
			stop()
			<-returned
			c.runsAgain("web")
			c.neverLost("web")
			recs, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
			if err != nil || len(recs) != 1 || recs[0].Value.Node != "n1" {
				t.Errorf("placements %s, %v", mustJSON(t, recs), err)
			}
		})
	}
}
